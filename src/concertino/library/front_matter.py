"""Front matter: the block of YAML between two `---` lines at the head of a Markdown file.

Every scalar is read as text, as it is written: `version: 1.10` stays `1.10`, and `title: On` is
not a boolean. Values are built from the YAML parser's events, so that our own limit bounds the
nesting, not the stack: 30,000 brackets crash a process that uses libyaml's recursive composer.
Aliases are refused, since with them a few lines can expand to gigabytes.

Nothing here raises because of a file's content: a defect becomes a LibraryProblem, and the file is
used without its front matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.library.problems import LibraryProblem

__all__ = ["FrontMatter", "Value", "parse_front_matter", "split_front_matter"]

Value = str | list["Value"] | dict[str, "Value"] | None

# Characters of a block; the largest of 413 real ones has 4,300.
MAX_BYTES = 65536

# Levels of nesting; real files have 3.
MAX_DEPTH = 16

# Values in one block.
MAX_VALUES = 4096

FENCE = "---"
# A YAML 1.1 document ends with either of them.
ENDS = (FENCE, "...")
NULLS = frozenset(("", "~", "null", "Null", "NULL"))
EXTRA = "front matter needs PyYAML: pip install 'concertino[library]'"


class FrontMatter(Struct, frozen=True):
    """A parsed file.

    values: fields by key. body: the text after the block. body_line: number of the body's first
    line, from 1.
    """

    values: Mapping[str, Value]
    body: str
    body_line: int
    problems: tuple[LibraryProblem, ...] = ()


def parse_front_matter(text: str) -> FrontMatter:
    """Return the front matter and the body of a Markdown text with line ends of any system.

    Raises ConcertinoError if there is front matter and PyYAML is not installed.
    """
    block, body, body_line, problem = split_front_matter(text)
    if block is None:
        return FrontMatter({}, body, body_line, () if problem is None else (problem,))
    problems: list[LibraryProblem] = []
    values = _parse_block(block, problems)
    return FrontMatter(values, body, body_line, tuple(problems))


def split_front_matter(text: str) -> tuple[str | None, str, int, LibraryProblem | None]:
    """Return the block (None without one), the body, the body's first line, and the problem if any.

    The block starts in the first line and ends with the first line that is `---` or `...`; any
    later `---` belongs to the body.
    """
    first, newline, _ = text.partition("\n")
    if first.rstrip() != FENCE or not newline:
        return None, text, 1, None

    block_start = len(first) + 1
    start, line = block_start, 1
    while start < len(text):
        line += 1
        line_end = text.find("\n", start)
        after = len(text) if line_end < 0 else line_end + 1
        if text[start : start + 3] in ENDS and text[start:after].rstrip() in ENDS:
            return text[block_start:start], text[after:], line + 1, None
        start = after

    message = "begins with --- and does not end with one: taken as text"
    return None, text, 1, LibraryProblem("front-matter", 1, message)


def _parse_block(block: str, problems: list[LibraryProblem]) -> Mapping[str, Value]:
    """Return the fields of a block; empty, with a problem added, if it cannot be used."""

    def refuse(line: int, message: str) -> Mapping[str, Value]:
        problems.append(LibraryProblem("front-matter", line, f"{message}: not used"))
        return {}

    if len(block) > MAX_BYTES:
        return refuse(1, f"has {len(block)} characters, the limit is {MAX_BYTES}")

    try:
        import yaml
    except ModuleNotFoundError:
        raise ConcertinoError(EXTRA) from None
    # The loader of libyaml, if PyYAML was built with it, is ten times as fast.
    loader: Any = getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader

    try:
        value = _EventReader(yaml.parse(block, Loader=loader), problems).read_document()
    except _InvalidBlock as exc:
        return refuse(exc.line, str(exc))
    except yaml.MarkedYAMLError as exc:
        line = 2 + (exc.problem_mark.line if exc.problem_mark else 0)
        return refuse(line, f"is not YAML: {exc.problem or 'cannot be read'}")
    except yaml.YAMLError:
        return refuse(2, "is not YAML: cannot be read")

    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "a text"
        return refuse(2, f"expected `key: value` lines, got {kind}")
    return value


class _InvalidBlock(Exception):
    """A block of valid YAML that exceeds our limits. line: in the file."""

    def __init__(self, event: Any, message: str) -> None:
        super().__init__(message)
        # The block begins in line 2 of its file.
        self.line: int = 2 + event.start_mark.line


class _EventReader:
    """Builds values from a YAML parser's events. Adds duplicate keys to `problems`."""

    def __init__(self, events: Iterator[Any], problems: list[LibraryProblem]) -> None:
        self._events = events
        self._problems = problems
        self._values = 0

    def read_document(self) -> Value:
        """Return the first document; None if there is none. Raises _InvalidBlock and YAMLError."""
        value: Value = None
        for event in self._events:
            kind = type(event).__name__
            if kind.startswith(("Stream", "Document")):
                continue
            value = self._read_value(event, kind, 0)
            # Whatever follows must be YAML too.
            for _ in self._events:
                pass
        return value

    def _read_value(self, event: Any, kind: str, depth: int) -> Value:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _InvalidBlock(event, f"has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise _InvalidBlock(event, f"is nested more than {MAX_DEPTH} deep")

        if kind == "ScalarEvent":
            plain = event.style is None or event.style == ""
            return None if plain and event.value in NULLS else str(event.value)
        if kind == "SequenceStartEvent":
            return [
                self._read_value(item, item_kind, depth + 1)
                for item, item_kind in self._events_until("SequenceEndEvent")
            ]
        if kind == "MappingStartEvent":
            return self._read_mapping(depth)
        raise _InvalidBlock(event, "has an alias (*name), which is not allowed")

    def _read_mapping(self, depth: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key_event, kind in self._events_until("MappingEndEvent"):
            if kind != "ScalarEvent":
                raise _InvalidBlock(key_event, "has a key that is not a text")
            key = str(key_event.value)
            event = next(self._events)
            value = self._read_value(event, type(event).__name__, depth + 1)
            if key in found:
                line = 2 + key_event.start_mark.line
                message = f"has {key!r} twice: the last one counts"
                self._problems.append(LibraryProblem("front-matter", line, message))
            found[key] = value
        return found

    def _events_until(self, end: str) -> Iterator[tuple[Any, str]]:
        """Yield events with the names of their types, up to the event of type `end`."""
        for event in self._events:
            kind = type(event).__name__
            if kind == end:
                return
            yield event, kind
