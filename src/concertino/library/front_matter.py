"""The block of YAML between two `---` at the head of a Markdown file: found, and read as texts.

Every scalar is a text, as it is written: `version: 1.10` stays `1.10`, and `title: On` is not a truth value. It is read from
the parser's events, one after the other, so that depth is bounded by us and not by the stack: 30,000 brackets end a process that
lets libyaml's composer recurse. Aliases are refused, since with them a few lines can mean gigabytes.
Nothing here raises for what is written in a file: what does not fit is a Problem, and the file goes without front matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.library.problems import LibraryProblem

__all__ = ["FrontMatter", "Value", "front_matter", "split"]

Value = str | list["Value"] | dict[str, "Value"] | None

MAX_BYTES = 65536  # of the block; the largest of 413 real ones has 4,300
MAX_DEPTH = 16  # lists in lists; real ones have 3
MAX_VALUES = 4096  # in one block
FENCE = "---"
ENDS = (FENCE, "...")  # YAML 1.1: a document ends with either
NULLS = frozenset(("", "~", "null", "Null", "NULL"))
EXTRA = "front matter is read with PyYAML: pip install 'concertino[library]'"


class FrontMatter(Struct, frozen=True):
    """values: what is written there, by key. body: the text behind it. body_line: the number of its first line, from 1."""

    values: Mapping[str, Value]
    body: str
    body_line: int
    problems: tuple[LibraryProblem, ...] = ()


def front_matter(text: str) -> FrontMatter:
    """The front matter of a Markdown text, and the rest. Line ends may be those of any system.

    Raises ConcertinoError if there is front matter and PyYAML is not installed.
    """
    block, body, body_line, problem = split(text)
    if block is None:
        return FrontMatter({}, body, body_line, () if problem is None else (problem,))
    problems: list[LibraryProblem] = []
    values = _parsed(block, problems)
    return FrontMatter(values, body, body_line, tuple(problems))


def split(text: str) -> tuple[str | None, str, int, LibraryProblem | None]:
    """The block (None without one), the body, the body's first line, and what is wrong.

    The block begins in the first line and ends with the first line that is `---` or `...`; every later `---` is the body's.
    """
    first, end, _ = text.partition("\n")
    if first.rstrip() != FENCE or not end:
        return None, text, 1, None
    at, line = len(first) + 1, 1
    while at < len(text):
        line += 1
        newline = text.find("\n", at)
        after = len(text) if newline < 0 else newline + 1
        if text[at : at + 3] in ENDS and text[at:after].rstrip() in ENDS:
            return text[len(first) + 1 : at], text[after:], line + 1, None
        at = after
    return (
        None,
        text,
        1,
        LibraryProblem(
            "front-matter", 1, "begins with --- and does not end with one: taken as text"
        ),
    )


def _parsed(block: str, problems: list[LibraryProblem]) -> Mapping[str, Value]:
    def refuse(line: int, message: str) -> Mapping[str, Value]:
        problems.append(LibraryProblem("front-matter", line, f"{message}: not used"))
        return {}

    if len(block) > MAX_BYTES:
        return refuse(1, f"has {len(block)} characters, the limit is {MAX_BYTES}")
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConcertinoError(EXTRA) from None
    loader: Any = (
        getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader
    )  # without libyaml: ten times as slow
    try:
        value = _Events(yaml.parse(block, Loader=loader), problems).document()
    except _Refused as why:
        return refuse(why.line, str(why))
    except yaml.YAMLError as why:
        mark = getattr(why, "problem_mark", None)
        said = getattr(why, "problem", None) or "cannot be read"
        return refuse(2 + (mark.line if mark else 0), f"is not YAML: {said}")
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        return refuse(
            2,
            f"expected `key: value` lines, got {'a list' if isinstance(value, list) else 'a text'}",
        )
    return value


class _Refused(Exception):
    def __init__(self, event: Any, message: str) -> None:
        super().__init__(message)
        self.line: int = 2 + event.start_mark.line  # the block begins in line 2 of its file


class _Events:
    """Values, made of a parser's events. problems: is told of keys that come twice."""

    def __init__(self, events: Iterator[Any], problems: list[LibraryProblem]) -> None:
        self._events = events
        self._problems = problems
        self._values = 0

    def document(self) -> Value:
        """The one document, None if there is none. Raises _Refused, and YAMLError."""
        value: Value = None
        for event in self._events:
            kind = type(event).__name__
            if kind.startswith(("Stream", "Document")):
                continue
            value = self._value(event, kind, 0)
            for _ in self._events:  # what is left must be YAML too
                pass
        return value

    def _value(self, event: Any, kind: str, depth: int) -> Value:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _Refused(event, f"has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise _Refused(event, f"is nested more than {MAX_DEPTH} deep")
        if kind == "ScalarEvent":
            plain = event.style is None or event.style == ""
            return None if plain and event.value in NULLS else str(event.value)
        if kind == "SequenceStartEvent":
            return [
                self._value(each, name, depth + 1) for each, name in self._until("SequenceEndEvent")
            ]
        if kind == "MappingStartEvent":
            return self._mapping(depth)
        raise _Refused(event, "has an alias (*name), which is not allowed")

    def _mapping(self, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for event, kind in self._until("MappingEndEvent"):
            if kind != "ScalarEvent":
                raise _Refused(event, "has a key that is no text")
            key = str(event.value)
            each = next(self._events)
            value = self._value(each, type(each).__name__, depth + 1)
            if key in found:
                line = 2 + event.start_mark.line
                self._problems.append(
                    LibraryProblem("front-matter", line, f"has {key!r} twice: the last one counts")
                )
            found[key] = value
        return found

    def _until(self, end: str) -> Iterator[tuple[Any, str]]:
        for event in self._events:
            kind = type(event).__name__
            if kind == end:
                return
            yield event, kind
