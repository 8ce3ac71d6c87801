"""ValueReader: checks the types of values in a configuration file, and raises errors.

An error names the place of the value: the file, line and column. The readers of server files, such
as mcp.json, take each value through a ValueReader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.near_names import nearest_name
from concertino.proxy.file_values import FileMember, FileValue, describe_value

__all__ = ["InvalidServerFile", "Template", "ValueReader", "suggest_name"]

T = TypeVar("T")


class InvalidServerFile(ConcertinoError):
    """Raised for a server file that cannot be used.

    The text names the file, line, column and key, what was expected, and what is there.
    """


class Template(Struct, frozen=True):
    """A text in which `${...}` has not been replaced yet.

    line, column: its position in the file, counted from 1, for errors.
    """

    text: str
    line: int = 1
    column: int = 1


class ValueReader:
    """Returns values of a configuration file as Python values of the expected type.

        timeout_s = reader.positive_number(member.value, "mcpServers.notes.timeout")

    Each of these methods takes a value and its label, which is the path of the value within the
    file. It raises InvalidServerFile for a value of another type; the error names the line and
    column of the value, and the label.

    source: the path of the file in error messages.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def error(
        self,
        place: FileValue | FileMember | Template,
        label: str,
        problem: str,
    ) -> InvalidServerFile:
        """Make an error about a value of the file, for the caller to raise.

        place: the value, which has its line and column.
        label: the path of the value within the file, such as `mcpServers.notes.command`.
        problem: what was expected, and what is there.
        """
        return InvalidServerFile(f"{self.describe_place(place)}: {label}: {problem}")

    def describe_place(self, place: FileValue | FileMember | Template) -> str:
        """Return the position of a value as `file:line:column`."""
        return f"{self.source}:{place.line}:{place.column}"

    def members(self, value: FileValue, label: str) -> Mapping[str, FileMember]:
        """Return the members of an object, by key."""
        if not isinstance(value.content, Mapping):
            raise self._wrong(value, label, "an object")
        return value.content

    def known_members(
        self,
        value: FileValue,
        label: str,
        known: Collection[str],
    ) -> Mapping[str, FileMember]:
        """Return the members of an object, by key. A key that is not in `known` is an error."""
        members = self.members(value, label)
        for name, member in members.items():
            if name not in known:
                raise self.error(
                    member, f"{label}.{name}", f"no such member{suggest_name(name, known)}"
                )
        return members

    def items(self, value: FileValue, label: str) -> tuple[FileValue, ...]:
        """Return the items of a list."""
        if not isinstance(value.content, tuple):
            raise self._wrong(value, label, "a list")
        return value.content

    def text(self, value: FileValue, label: str) -> str:
        """Return a string that must not be empty."""
        text = self.any_text(value, label)
        if not text:
            raise self._wrong(value, label, "a text")
        return text

    def any_text(self, value: FileValue, label: str) -> str:
        """Return a string, which may be empty.

        NUL characters are errors, because no program accepts them in arguments.
        """
        if not isinstance(value.content, str):
            raise self._wrong(value, label, "a text")
        if "\0" in value.content:
            raise self.error(value, label, "expected a text without a NUL character")
        return value.content

    def texts(self, value: FileValue, label: str) -> tuple[str, ...]:
        """Return the strings in a list; none may be empty. A string stands for a list with it."""
        if isinstance(value.content, str):
            return (self.text(value, label),)
        return tuple(
            self.text(item, f"{label}[{index}]")
            for index, item in enumerate(self.items(value, label))
        )

    def mapping(
        self,
        value: FileValue,
        label: str,
        read: Callable[[FileValue, str], T],
    ) -> dict[str, T]:
        """Return an object as a dict.

        read: called with the value and the label of each member; returns the value in the dict.
        """
        return {
            name: read(member.value, f"{label}.{name}")
            for name, member in self.members(value, label).items()
        }

    def template(self, value: FileValue, label: str) -> Template:
        """Return a string that may contain `${...}`, and must not be empty."""
        return Template(self.text(value, label), value.line, value.column)

    def argument(self, value: FileValue, label: str) -> Template:
        """Return an argument of a program: a string, which may be empty, or a number as text."""
        if isinstance(value.content, (int, float)) and not isinstance(value.content, bool):
            return Template(str(value.content), value.line, value.column)
        return Template(self.any_text(value, label), value.line, value.column)

    def flag(self, value: FileValue, label: str) -> bool:
        """Return a value that must be true or false."""
        if not isinstance(value.content, bool):
            raise self._wrong(value, label, "true or false")
        return value.content

    def positive_number(self, value: FileValue, label: str) -> float:
        """Return a number that must be greater than 0."""
        content = value.content
        if isinstance(content, (int, float)) and not isinstance(content, bool) and content > 0:
            return content
        raise self._wrong(value, label, "a positive number")

    def positive_integer(self, value: FileValue, label: str) -> int:
        """Return a whole number that must be greater than 0."""
        content = value.content
        if not isinstance(content, int) or isinstance(content, bool) or content < 1:
            raise self._wrong(value, label, "a positive whole number")
        return content

    def choice(
        self,
        value: FileValue,
        label: str,
        choices: Collection[str],
    ) -> str:
        """Return a string that must be one of `choices`."""
        if not isinstance(value.content, str) or value.content not in choices:
            expected = ", ".join(repr(choice) for choice in choices)
            hint = suggest_name(value.content, choices) if isinstance(value.content, str) else ""
            raise self.error(value, label, f"expected one of {expected}{hint}")
        return value.content

    def _wrong(
        self,
        value: FileValue,
        label: str,
        expected: str,
    ) -> InvalidServerFile:
        return self.error(value, label, f"expected {expected}, got {describe_value(value)}")


def suggest_name(name: str, known: Collection[str]) -> str:
    """Return the end of the error message for an unknown name.

    Returns `; did you mean 'x'?` if a valid name is similar; otherwise `; there are ...` with all
    valid names.
    known: the valid names.
    """
    # Ignore differences of style, such as between timeoutS and timeout_s.
    folded = {_fold(item): item for item in known}
    if (nearest := nearest_name(_fold(name), folded)) is not None:
        return f"; did you mean {folded[nearest]!r}?"
    return f"; there are {', '.join(known)}"


def _fold(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
