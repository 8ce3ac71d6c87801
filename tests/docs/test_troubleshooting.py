"""docs/how-to/troubleshooting.md quotes what concertino really prints.

tests/interop/test_docs_pages.py looks for what clients print.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from docs.pages import ROOT, quoted_texts

# Together they take long, and they do not depend on the version of Python.
pytestmark = pytest.mark.slow

DOTS = re.compile(r"(?:\.\.\.)+")


@cache
def templates() -> set[str]:
    """Every text in the source, with `...` for what is filled in."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for tree in ast.walk(ast.parse(path.read_text())):
            if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
                found.add(re.sub(r"%(?:\d+)?[srdg]", "...", tree.value))
            elif isinstance(tree, ast.JoinedStr):
                found.add(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "..."
                        for part in tree.values
                    )
                )
    return found


OURS = [
    text
    for section in (
        "What concertino answers",
        "What concertino logs",
        "When a tool cannot be offered",
    )
    for text in quoted_texts(section)
]


def test_each_text_of_ours_stands_in_the_source() -> None:
    """All in one process, since each would have to parse the source."""
    assert [text for text in OURS if not is_in_the_source(text)] == []


def is_in_the_source(text: str) -> bool:
    wanted = DOTS.sub("...", text)
    pieces = [piece for piece in wanted.split("...") if piece.strip(" :")]
    pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
    assert pieces
    return any(pattern.search(template) for template in templates()) or is_filled_in(wanted)


@cache
def patterns() -> list[re.Pattern[str]]:
    """A pattern for each template of some length, with gaps to fill."""
    return [
        re.compile(".+".join(map(re.escape, template.split("..."))))
        for template in templates()
        if len(re.findall("[a-zA-Z]", template)) >= len("Unknown")
    ]


def is_filled_in(text: str) -> bool:
    """Whether a template of some length gives the text when its gaps are filled."""
    return any(pattern.fullmatch(text) for pattern in patterns())


def test_a_text_that_is_not_ours_would_be_found_out() -> None:
    assert "Something went wrong: ..." not in templates()
    assert not is_filled_in("Something went wrong: ...")
    assert len(OURS) > 30
