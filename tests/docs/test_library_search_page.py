"""docs/reference/library-search.md: its commands print what it shows; its tables are those of the
program.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks, environment, run_shell

from concertino.library.index import WEIGHTS
from concertino.library.query import MAX_QUERY_CHARACTERS, MAX_TERMS
from concertino.library.query_params import PARAMETERS

PAGE = DOCS / "reference" / "library-search.md"


def test_its_commands_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run_shell(PAGE, tmp_path) == "".join(blocks(PAGE.read_text(), "text"))


def test_its_numbers_are_those_of_the_search() -> None:
    text = PAGE.read_text()
    for field, weight in WEIGHTS.items():
        assert f"`{field}`" in text
        assert weight == 1.0 or f"{weight:.1f}"[1:] in text
    assert f"the first {MAX_TERMS} words in the first {MAX_QUERY_CHARACTERS} characters" in text


def test_it_names_every_parameter_and_every_option() -> None:
    text = PAGE.read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(PARAMETERS)
    command = [sys.executable, "-m", "concertino", "search", "--help"]
    said = subprocess.run(
        command,
        env=environment(COLUMNS="80"),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    options = set(re.findall(r"--[a-z][a-z-]+", said)) - {"--help"}
    assert options == set(re.findall(r"--[a-z][a-z-]+", text.split("## concertino search")[1]))
