"""Values of a configuration file with the places where they stand, for errors that name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from concertino.excerpts import shorten_repr

__all__ = ["FileMember", "FileValue", "InvalidText", "describe_value"]

# How much of a value an error quotes.
SHOWN = 60

Scalar: TypeAlias = str | int | float | bool | None


class FileValue(Struct, frozen=True):
    """A value and the place of its first character. line, column: from 1, in characters."""

    content: Scalar | tuple[FileValue, ...] | Mapping[str, FileMember]
    line: int
    column: int


class FileMember(Struct, frozen=True):
    """A member of an object: its value, and the place of its name. line, column: from 1."""

    value: FileValue
    line: int
    column: int


class InvalidText(Exception):
    """A text that does not have its format. line, column: of the first wrong character, from 1."""

    def __init__(
        self,
        problem: str,
        line: int,
        column: int,
    ) -> None:
        super().__init__(problem)
        self.line = line
        self.column = column


def describe_value(value: FileValue) -> str:
    """Return a short text for a value, for errors. Texts are not quoted: they may be secrets."""
    content = value.content
    if isinstance(content, str):
        return "a text" if content else "an empty text"
    if isinstance(content, tuple):
        return "a list"
    if isinstance(content, Mapping):
        return "an object"
    if content is None:
        return "null"
    if isinstance(content, bool):
        return "true" if content else "false"
    return shorten_repr(content, SHOWN)
