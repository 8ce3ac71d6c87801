"""What Markdown says of itself where its front matter does not: its first heading, its first paragraph, lists below headings.

Lines inside of code fences are no headings. This reads as much of CommonMark as that takes: ATX headings, fences, bullet lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

__all__ = ["Outline", "lines_outside_fences", "outline"]

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
BULLET = re.compile(r" {0,3}[-*+][ \t]+(.+?)[ \t]*$")
EMPHASIS = re.compile(r"(\*\*|__)(.+?)\1")
NO_PARAGRAPH = ("|", ">", "<", "---", "***")  # tables, quotes, HTML, rules
MAX_TEXT = 1000  # characters of a title, a description, an item
MAX_ITEMS = 64  # in a list
SECTIONS = {
    "when to use": "use_when",
    "use when": "use_when",
    "capabilities": "capabilities",
}  # how headings begin
HEAD_LINES = 100  # a title or a description that comes later is none


class Outline(Struct):
    """title: of the first heading. description: the first paragraph. use_when, capabilities: lists below such headings."""

    title: str = ""
    description: str = ""
    use_when: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def lines_outside_fences(body: str) -> Iterator[tuple[int, str]]:
    """The lines that are not code, with their numbers from 0. A fence that is not closed goes on to the end (CommonMark 4.5)."""
    fence = ""
    for number, line in enumerate(body.split("\n")):
        found = FENCE.match(line) if "```" in line or "~~~" in line else None
        if not fence:
            if found is None:
                yield number, line.rstrip()
            else:
                fence = found[1]
        elif found is not None and found[1].startswith(fence) and not line.strip(" `~\r"):
            fence = ""


def outline(body: str, *, lists: bool = True) -> Outline:
    """What is found of each; empty what is not. lists: False leaves use_when and capabilities out, which takes less time."""
    found = Outline()
    items: dict[str, list[str]] = {"use_when": [], "capabilities": []}
    section = ""
    paragraph: list[str] = []
    for number, line in lines_outside_fences(body):
        heading = HEADING.match(line) if "#" in line else None
        is_head = number < HEAD_LINES and not (found.title and found.description)
        if not is_head and not lists:
            break
        if heading is not None:
            text = _plain(heading[2])
            found.title = found.title or (text if is_head else "")
            section = next(
                (name for begin, name in SECTIONS.items() if text.lower().startswith(begin)), ""
            )
        bullet = BULLET.match(line) if heading is None and (section or is_head) else None
        if bullet is not None and section and len(items[section]) < MAX_ITEMS:
            items[section].append(_plain(bullet[1]))
        if is_head and not found.description:
            if (
                line.strip()
                and heading is None
                and bullet is None
                and not line.lstrip().startswith(NO_PARAGRAPH)
            ):
                paragraph.append(line.strip())
            elif paragraph:
                found.description = _plain(" ".join(paragraph))
    found.description = found.description or _plain(" ".join(paragraph))
    found.use_when, found.capabilities = tuple(items["use_when"]), tuple(items["capabilities"])
    return found


def _plain(text: str) -> str:
    return EMPHASIS.sub(r"\2", text).strip()[:MAX_TEXT]
