"""README, examples, and what must hold on every page.

The tutorial, the how-to pages and the reference have tests of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import NAME, ROOT, blocks, serve
from msgspec.structs import fields

from concertino import Limits

PAGES = [
    ROOT / "README.md",
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
README = (ROOT / "README.md").read_text()
ENVIRONMENT = (ROOT / "docs" / "reference" / "environment.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "reference" / "command-line.md").read_text()


@pytest.mark.parametrize(
    "command", [["calculator.py"], ["-m", "concertino", "serve", "calculator.py"]], ids=str
)
@pytest.mark.parametrize(
    "source",
    [blocks(README, "python")[0], (ROOT / "examples" / "calculator.py").read_text()],
    ids=["README", "examples/calculator.py"],
)
def test_the_ten_lines_serve_in_both_ways(source: str, command: list[str], tmp_path: Path) -> None:
    (tmp_path / "calculator.py").write_text(source)
    [result] = serve(command, [("add", {"a": 40, "b": 2})], tmp_path)
    assert result["structuredContent"] == {"result": 42}


def test_the_tour_has_a_tool_of_every_kind() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("add", {"a": 1, "b": 2}),
        ("statistics", {"values": [1, 3]}),
        ("divide", {"a": 1, "b": 0}),
        ("bake", {"cake": "apple", "minutes": 1}),
        ("wait", {"seconds": 0}),
        ("swatch", {"red": 1, "green": 2, "blue": 3}),
        ("chat", {"text": "hello"}),
    ]
    results = serve(["examples/tour.py"], calls, ROOT)
    kinds = [(result["content"][0]["type"], result.get("isError", False)) for result in results]
    assert kinds == [("text", False)] * 2 + [("text", True)] + [("text", False)] * 2 + [
        ("image", False),
        ("text", False),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_documentation_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_a_heading_lead_to_one(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        other = page.parent / target if target else page
        if other.exists():  # else the test above says so
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            # As GitHub makes anchors: lower case, no punctuation, hyphens for spaces.
            assert anchor in [
                re.sub(r"[^\w\- ]", "", item.lower()).replace(" ", "-") for item in headings
            ], anchor


def test_every_limit_and_its_default_are_documented() -> None:
    documented = dict(
        re.findall(r"^\| `CONCERTINO_(\w+)` \| ([\d.]+) \|", ENVIRONMENT, re.MULTILINE)
    )
    assert {name.lower(): float(value) for name, value in documented.items()} == {
        item.name: item.default for item in fields(Limits)
    }


def test_every_variable_that_is_read_is_documented() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r'"(CONCERTINO_[A-Z_]+[A-Z])"', sources))
    assert read
    assert not [name for name in read if f"`{name}`" not in ENVIRONMENT]


def test_every_option_of_the_command_line_is_documented() -> None:
    for command in ([], ["serve"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "concertino", *command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        options = set(re.findall(r"--[a-z][a-z-]+", done.stdout)) - {"--help"}
        assert options
        assert not [option for option in options if f"`{option}`" not in COMMAND_LINE]
    check = (ROOT / "docs" / "reference" / "check.md").read_text()
    assert not [option for option in options if not re.search(f"`{option}[` ]", check)]


def test_every_module_is_in_the_architecture_and_every_module_there_exists() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    shown = set(re.findall(r"\b((?:protocol|driver|transports|server)/\w+\.py)", architecture))
    package = ROOT / "src" / "concertino"
    assert not [name for name in shown if not (package / name).exists()]
    for path in sorted((package / "protocol").glob("[a-z]*.py")):
        assert path.name in architecture


def test_every_block_of_python_is_a_file_that_a_test_uses() -> None:
    """Architecture and decisions show pieces of the source; the other pages show what can be
    pasted.
    """
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for page in PAGES:
        if (
            page.is_relative_to(ROOT / "docs")
            and "decisions" not in page.parts
            and page.name != "architecture.md"
        ):
            for source in blocks(page.read_text(), "python"):
                named = NAME.match(source)
                assert named, (page.name, source[:60])
                assert f'"{named[1]}"' in tests, (page.name, named[1])


def test_every_block_says_what_it_is() -> None:
    """python is pasted, sh is run, json, toml and yaml are read, text is neither."""
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
        assert not [
            fence
            for fence in fences[::2]
            if fence not in ("python", "sh", "json", "toml", "yaml", "ini", "text")
        ], page.name
        assert set(fences[1::2]) <= {""}, page.name


def test_every_page_says_at_its_top_what_it_is_for() -> None:
    for folder in ("tutorial", "how-to", "reference"):
        for page in (ROOT / "docs" / folder).glob("*.md"):
            title, _, purpose, *_ = page.read_text().splitlines()
            assert title.startswith("# "), page.name
            assert purpose.startswith("*"), page.name


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [
        path
        for folder in ("tutorial", "how-to", "reference")
        for path in (ROOT / "docs" / folder).glob("*.md")
    ]
    assert not [path.name for path in pages if f"({path.relative_to(ROOT / 'docs')})" not in index]
