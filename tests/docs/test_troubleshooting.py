"""docs/how-to/troubleshooting.md quotes what concertino and its clients really print."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mcp
import pytest
from docs.pages import DOCS, ROOT
from interop import node

PAGE = (DOCS / "how-to" / "troubleshooting.md").read_text()
DOTS = re.compile(r"(?:\.\.\.)+")


def quoted_texts(section: str) -> list[str]:
    """The texts in the headings of a section; what varies is `...`."""
    [body] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^### `(.*)`$", body, re.MULTILINE)


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
TEMPLATES = templates()


@pytest.mark.parametrize("text", OURS)
def test_a_text_of_ours_stands_in_the_source(text: str) -> None:
    wanted = DOTS.sub("...", text)
    pieces = [piece for piece in wanted.split("...") if piece.strip(" :")]
    pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
    assert pieces
    assert any(pattern.search(template) for template in TEMPLATES) or is_filled_in(wanted), text


def is_filled_in(text: str) -> bool:
    """Whether a template of some length gives the text when its gaps are filled."""
    return any(
        re.fullmatch(".+".join(map(re.escape, template.split("..."))), text)
        for template in TEMPLATES
        if len(re.findall("[a-zA-Z]", template)) >= len("Unknown")
    )


def test_a_text_that_is_not_ours_would_be_found_out() -> None:
    assert "Something went wrong: ..." not in TEMPLATES
    assert not is_filled_in("Something went wrong: ...")
    assert len(OURS) > 30


@pytest.mark.slow
@pytest.mark.parametrize("text", quoted_texts("What clients say"))
def test_a_text_of_a_client_stands_in_that_client(text: str) -> None:
    if text in ("spawn ... ENOENT", "is not valid JSON"):  # of Node itself: made by it, here
        code = "require('child_process').spawn('/no/such').on('error', e => console.log(e.message))"
        code = (
            code
            if "spawn" in text
            else "try { JSON.parse('starting') } catch (e) { console.log(e.message) }"
        )
        ran = node.run([node.node(), "-e", code], {})
        assert re.search(re.escape(text).replace(r"\.\.\.", ".*"), ran.stdout), ran.stdout
        return
    modules = node.packages() / "node_modules" / "@modelcontextprotocol"
    sources = [
        *(modules / "sdk" / "dist" / "esm" / "shared").glob("*.js"),
        *(modules / "client" / "dist").glob("*.mjs"),
        *Path(mcp.__file__).parent.rglob("*.py"),
    ]
    assert any(text in path.read_text() for path in sources), text
