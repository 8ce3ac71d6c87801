"""llms.txt lists every page of the documentation, in the form of llmstxt.org."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "llms.txt").read_text(encoding="utf-8")


def test_it_is_generated_from_the_pages() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "llms-txt"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_it_has_the_form_of_llms_txt() -> None:
    """https://llmstxt.org: a heading, a quote, text without headings, then lists of links."""
    title, quote, text, *sections = TEXT.rstrip().split("\n\n")
    assert title == "# concertino"
    assert quote.startswith("> ")
    assert not text.startswith("#")
    assert sections[::2] == ["## Tutorials", "## How-to guides", "## Reference", "## Optional"]
    lines = [line for section in sections[1::2] for line in section.split("\n")]
    form = re.compile(r"- \[[^\]]+\]\([^)]+\)(: .+)?")
    assert [line for line in lines if not form.fullmatch(line)] == []


def test_its_links_are_the_pages() -> None:
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", TEXT, re.MULTILINE)
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.stem != "README"]
    assert sorted(links) == sorted(str(path.relative_to(ROOT)) for path in pages)
