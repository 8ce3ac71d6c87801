"""Formats Markdown for a terminal: paragraphs are wrapped, and tables become lists.

`concertino docs TOPIC` shows the pages of the documentation with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap

__all__ = ["lay_out"]

FENCE = re.compile(r"\s*(```|~~~)")
# The mark of a list item. Further lines of the item are indented by the length of the match.
ITEM = re.compile(r"(\s*)([-*]|\d+\.)\s+")
# A link or an image. Bare addresses do not match.
LINK = re.compile(r"!?\[([^\]]+)\]\(([^)\s]+)\)")
# The bar between two cells of a table. In a cell, a bar is written as `\|`.
CELLS = re.compile(r"(?<!\\)\|")
INDENT = "    "


def lay_out(text: str, width: int) -> str:
    """Return a page of Markdown as text for a terminal.

    Paragraphs are wrapped, and tables become lists. Code is not changed. A link to another page of
    the documentation becomes its text. Any other link becomes its text and its address.

    text: the page.
    width: the width of the terminal, in columns.
    """
    lines: list[str] = []
    for block in _split_blocks(text):
        if FENCE.match(block[0]) or block[0].startswith("#"):
            lines += block
        elif block[0].lstrip().startswith("|"):
            lines += _format_table(block, width)
        else:
            lines += _format_paragraph(block, width)
    return "\n".join(lines) + "\n"


def _split_blocks(text: str) -> Iterator[list[str]]:
    """Yield the blocks of a text, as lists of lines: code, a table, a list item or a paragraph."""
    block: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if fence:
            block.append(line)
            if mark and mark[1] == fence:
                fence = ""
            continue
        if block and (mark or not _continues(line, block)):
            yield block
            block = []
        block.append(line)
        fence = mark[1] if mark else ""
    if block:
        yield block


def _continues(line: str, block: list[str]) -> bool:
    """Return whether a line belongs to the present block. Otherwise it begins a new block.

    block: the lines of the present block.
    """
    first = block[0]
    if _is_row(line) or _is_row(first):
        return _is_row(line) and _is_row(first)
    # Empty lines, headings and list items begin a block.
    begins_block = not line.strip() or line.startswith("#") or ITEM.match(line) is not None
    # A paragraph does not continue an empty line, a heading or a fenced code block.
    is_closed = not first.strip() or first.startswith("#") or FENCE.match(first) is not None
    return not begins_block and not is_closed


def _is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def _format_paragraph(block: list[str], width: int) -> list[str]:
    """Return the lines of a paragraph or list item, wrapped."""
    item = ITEM.match(block[0])
    # The indentation of the paragraph, or the mark of the list item.
    start = len(block[0]) - len(block[0].lstrip()) if item is None else item.end()
    mark = block[0][:start]
    words = " ".join(line.strip() for line in (block[0][start:], *block[1:]))
    return _wrap(words, width, mark, " " * len(mark)) or [""]


def _format_table(rows: list[str], width: int) -> list[str]:
    """Return the rows of a table as lines: the first cell, and the other cells indented below."""
    lines: list[str] = []
    headings = _split_cells(rows[0])
    # The second row separates the headings.
    for row in rows[2:]:
        name, *others = _split_cells(row)
        lines += _wrap(name, width, "", INDENT)
        for heading, cell in zip(headings[1:], others, strict=False):
            if not cell:
                continue
            # In a table of two columns, the heading of the second one says nothing new.
            label = f"{heading}: " if len(headings) > 2 and heading else ""
            lines += _wrap(label + cell, width, INDENT, INDENT)
    return lines


def _split_cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in CELLS.split(row.strip())[1:-1]]


def _wrap(text: str, width: int, first: str, rest: str) -> list[str]:
    """Return a text as lines, with links replaced.

    first, rest: the beginning of the first line, and of all other lines.
    """
    plain = LINK.sub(_format_link, text)
    return wrap(
        plain,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _format_link(link: re.Match[str]) -> str:
    text, address = link.groups()
    return f"{text} ({address})" if address.startswith(("http:", "https:")) else text
