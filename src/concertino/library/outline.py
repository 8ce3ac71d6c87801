"""Headings, the first paragraph and lists of a Markdown text: they replace missing front matter.

Lines inside of code fences are ignored. Only the necessary part of CommonMark is parsed: ATX
headings, fences and bullet lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
BULLET = re.compile(r" {0,3}[-*+][ \t]+(.+?)[ \t]*$")
EMPHASIS = re.compile(r"(\*\*|__)(.+?)\1")

# Beginnings of lines that belong to no paragraph: tables, quotes, HTML and rules.
NO_PARAGRAPH = ("|", ">", "<", "---", "***")

# Characters of a title, a description or a list item.
MAX_TEXT = 1000

# Items of one list.
MAX_ITEMS = 64

# Beginning of a heading, in lower case -> the field that the list below it fills.
SECTIONS = {"when to use": "use_when", "use when": "use_when", "capabilities": "capabilities"}

# A title or a description after this many lines is not one of the whole document.
HEAD_LINES = 100


class Outline(Struct):
    """The parts that were found; empty if missing.

    title: the first heading. description: the first paragraph. use_when, capabilities: items of
    the lists below headings of these names.
    """

    title: str = ""
    description: str = ""
    use_when: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def lines_outside_fences(body: str) -> Iterator[tuple[int, str]]:
    """Yield the lines outside of code fences with their numbers, from 0.

    A fence that is not closed extends to the end (CommonMark 4.5).
    """
    fence = ""
    for number, line in enumerate(body.split("\n")):
        match = FENCE.match(line) if "```" in line or "~~~" in line else None
        if not fence:
            if match is None:
                yield number, line.rstrip()
            else:
                fence = match[1]
        # A closing fence is at least as long as the opening one, with nothing behind it.
        elif match is not None and match[1].startswith(fence) and not line.strip(" `~\r"):
            fence = ""


def parse_outline(body: str, *, lists: bool = True) -> Outline:
    """Return the outline of a Markdown text.

    lists=False leaves use_when and capabilities out; then only the head of the text is read.
    """
    parser = _OutlineParser()
    for number, line in lines_outside_fences(body):
        is_head = number < HEAD_LINES and not parser.is_head_complete
        if not is_head and not lists:
            break
        parser.read_line(line, is_head)
    return parser.finish()


class _OutlineParser:
    """Collects an Outline line by line."""

    def __init__(self) -> None:
        self._title = ""
        self._description = ""
        self._paragraph: list[str] = []
        self._items: dict[str, list[str]] = {"use_when": [], "capabilities": []}
        # The field that bullets are added to; empty outside of a section of SECTIONS.
        self._section = ""

    @property
    def is_head_complete(self) -> bool:
        """Return whether title and description were found."""
        return bool(self._title and self._description)

    def read_line(self, line: str, is_head: bool) -> None:
        """Take in one line. is_head: whether it may be or belong to the title or description."""
        heading = HEADING.match(line) if "#" in line else None
        if heading is not None:
            self._read_heading(_plain(heading[2]), is_head)
            self._read_description("", is_head)
            return

        bullet = BULLET.match(line) if self._section or is_head else None
        if bullet is not None:
            if self._section and len(self._items[self._section]) < MAX_ITEMS:
                self._items[self._section].append(_plain(bullet[1]))
            self._read_description("", is_head)
            return

        self._read_description(line.strip(), is_head)

    def _read_heading(self, text: str, is_head: bool) -> None:
        if is_head and not self._title:
            self._title = text
        lower = text.lower()
        matching = (field for start, field in SECTIONS.items() if lower.startswith(start))
        self._section = next(matching, "")

    def _read_description(self, text: str, is_head: bool) -> None:
        """Add a line to the first paragraph, or end it by a line that belongs to none."""
        if not is_head or self._description:
            return
        if text and not text.startswith(NO_PARAGRAPH):
            self._paragraph.append(text)
        elif self._paragraph:
            self._description = _plain(" ".join(self._paragraph))

    def finish(self) -> Outline:
        """Return the outline, after the last line."""
        return Outline(
            self._title,
            self._description or _plain(" ".join(self._paragraph)),
            tuple(self._items["use_when"]),
            tuple(self._items["capabilities"]),
        )


def _plain(text: str) -> str:
    return EMPHASIS.sub(r"\2", text).strip()[:MAX_TEXT]
