"""parse_outline(): finds the title, the description and two lists in a Markdown text.

file_parsing.py uses these values if the front matter of a document does not have them. Of
CommonMark, only ATX headings (`# Title`), code fences and bullet lists are parsed. Lines inside
code fences are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
BULLET = re.compile(r" {0,3}[-*+][ \t]+(.+?)[ \t]*$")
EMPHASIS = re.compile(r"(\*\*|__)(.+?)\1")

# A line that begins with one of these is not part of a paragraph: tables, quotes, HTML and rules.
NO_PARAGRAPH = ("|", ">", "<", "---", "***")

# The largest number of characters of a title, a description or a list item.
MAX_TEXT = 1000
# The largest number of items of one list.
MAX_ITEMS = 64

# Beginning of a heading, in lower case -> the field of Outline for the list below the heading.
SECTIONS = {"when to use": "use_when", "use when": "use_when", "capabilities": "capabilities"}

# Title and description are searched for in this many lines at the beginning of a text, its head.
HEAD_LINES = 100


class Outline(Struct):
    """The title, the description and two lists of a Markdown text; "" or () for what is missing.

    title: the first heading.
    description: the first paragraph.
    use_when: the items of the list below a heading "When to use" or "Use when".
    capabilities: the items of the list below a heading "Capabilities".
    """

    title: str = ""
    description: str = ""
    use_when: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def lines_outside_fences(body: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) for the lines outside of fenced code blocks. Numbers start at 0.

    A fenced code block without a closing fence extends to the end of the text (CommonMark 4.5).
    """
    fence = ""
    for number, line in enumerate(body.split("\n")):
        # The test with `in` is faster than the pattern, and false for most lines.
        match = FENCE.match(line) if "```" in line or "~~~" in line else None
        if not fence:
            if match is None:
                yield number, line.rstrip()
            else:
                fence = match[1]
        # A closing fence is at least as long as the opening one, and no text follows it.
        elif match is not None and match[1].startswith(fence) and not line.strip(" `~\r"):
            fence = ""


def parse_outline(body: str, *, lists: bool = True) -> Outline:
    """Return the title, the description and two lists of a Markdown text.

    The title is the first heading, and the description is the first paragraph. Both are looked for
    in the first HEAD_LINES lines. The lists are the bullets below the headings "When to use" (or
    "Use when") and "Capabilities".
    lists: False to look for the title and the description only; the rest of the text is not read.
    """
    parser = _OutlineParser()
    for number, line in lines_outside_fences(body):
        is_head = number < HEAD_LINES and not parser.is_head_complete
        if not is_head and not lists:
            break
        parser.read_line(line, is_head)
    return parser.finish()


class _OutlineParser:
    """Builds an Outline line by line."""

    def __init__(self) -> None:
        self._title = ""
        self._description = ""
        self._paragraph: list[str] = []
        self._items: dict[str, list[str]] = {"use_when": [], "capabilities": []}
        # The field of Outline for bullets; empty except below a heading in SECTIONS.
        self._section = ""

    @property
    def is_head_complete(self) -> bool:
        """Return whether title and description were found."""
        return bool(self._title and self._description)

    def read_line(self, line: str, is_head: bool) -> None:
        """Read the next line.

        is_head: whether the line is in the head, in which title and description are searched for.
        """
        # The test with `in` is faster than the pattern, and false for most lines.
        heading = HEADING.match(line) if "#" in line else None
        # Elsewhere a bullet neither belongs to a list nor ends the first paragraph.
        needs_bullet = heading is None and (self._section or is_head)
        bullet = BULLET.match(line) if needs_bullet else None

        if heading is not None:
            self._read_heading(_plain(heading[2]), is_head)
        elif bullet is not None and self._section:
            items = self._items[self._section]
            if len(items) < MAX_ITEMS:
                items.append(_plain(bullet[1]))
        if is_head and not self._description:
            self._read_paragraph("" if heading or bullet else line.strip())

    def _read_heading(self, text: str, is_head: bool) -> None:
        if is_head and not self._title:
            self._title = text
        lower = text.lower()
        matching = (field for start, field in SECTIONS.items() if lower.startswith(start))
        self._section = next(matching, "")

    def _read_paragraph(self, text: str) -> None:
        """Add a line to the first paragraph, or end this paragraph if the line is not part of one.

        text: the line; "" for a heading or a bullet.
        """
        if text and not text.startswith(NO_PARAGRAPH):
            self._paragraph.append(text)
        elif self._paragraph:
            self._description = _plain(" ".join(self._paragraph))

    def finish(self) -> Outline:
        """Return the outline. Call this after the last line."""
        return Outline(
            title=self._title,
            description=self._description or _plain(" ".join(self._paragraph)),
            use_when=tuple(self._items["use_when"]),
            capabilities=tuple(self._items["capabilities"]),
        )


def _plain(text: str) -> str:
    """Return a text without the signs of bold text, cut to MAX_TEXT characters."""
    return EMPHASIS.sub(r"\2", text).strip()[:MAX_TEXT]
