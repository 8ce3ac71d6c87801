"""FileValue: a value of a configuration file with its line and column, for errors.

parse_json() and parse_toml() return a whole file as a FileValue. A ValueReader (value_reader.py)
checks the types of the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from concertino.excerpts import shorten_repr

__all__ = ["FileMember", "FileValue", "InvalidText", "describe_value"]

# The longest part of a value that an error quotes, in characters.
SHOWN = 60

Scalar: TypeAlias = str | int | float | bool | None


class FileValue(Struct, frozen=True):
    """A value of a file, with the position of its first character.

    content: a string, a number, a boolean or None; or a tuple with the items of a list; or a
        mapping with the members of an object by name.
    line, column: the position in the file, counted from 1.
    """

    content: Scalar | tuple[FileValue, ...] | Mapping[str, FileMember]
    line: int
    column: int


class FileMember(Struct, frozen=True):
    """A member of an object: its value, and the position of its name.

    line, column: the position of the name in the file, counted from 1.
    """

    value: FileValue
    line: int
    column: int


class InvalidText(Exception):
    """Raised for a text that is not valid JSON or TOML.

    problem: the text of the exception, which says what was expected.
    line, column: the position of the error, counted from 1.
    """

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
    """Describe a value for an error, such as "a list" or "true".

    Strings are not quoted, because they may be secrets: they become "a text".
    """
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
