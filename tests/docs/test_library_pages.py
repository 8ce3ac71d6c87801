"""docs/how-to/serve-a-folder.md and docs/reference/library.md: their commands, their server, their
tables.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, ask_server, blocks, environment, paste, run_shell

from concertino.library.front_matter import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES
from concertino.library.library import MAX_FILES
from concertino.library.problems import RULES
from concertino.library.uris import key_of, uri_of

HOW_TO = DOCS / "how-to" / "serve-a-folder.md"
REFERENCE = DOCS / "reference" / "library.md"
COMMANDS = DOCS / "reference" / "command-line.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_its_commands_read_fill_and_find(folder: Path) -> None:
    said = run_shell(HOW_TO, folder)
    assert "Lower its time to live a day before." in said
    assert "Give the basket a thorough review." in said
    assert "orchestr8://guides/deploying - Deploy the shop" in said
    assert "`make back` returns to the version before." in said
    assert "take 0" not in said


@pytest.mark.slow
def test_its_server_is_the_folder_and_the_tools(folder: Path) -> None:
    run_shell(HOW_TO, folder)
    assert paste(HOW_TO, folder) == ["knowing.py"]
    requests = [
        ("tools/call", {"name": "sums_add", "arguments": {"a": 40, "b": 2}}),
        ("resources/read", {"uri": "docs://skills/dns"}),
        ("prompts/get", {"name": "docs_review", "arguments": {"what": "it", "depth": "quick"}}),
    ]
    (added, read, prompt), _, _ = ask_server(
        [sys.executable, "-m", "concertino", "serve", "knowing.py"], requests, folder
    )
    assert added["structuredContent"] == {"result": 42}
    assert "Lower its time to live" in read["contents"][0]["text"]
    assert prompt["messages"][0]["content"]["text"].startswith("Give it a quick review.")


def test_what_the_reference_says_of_uris_is_true() -> None:
    table = REFERENCE.read_text().partition("| file | URI |")[2].partition("\n\n")[0]
    shown: dict[str, str] = {}
    for paths, uris in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", table, re.MULTILINE):
        shown |= dict(
            zip(re.findall(r"`([^`]+)`", paths), re.findall(r"`([^`]+)`", uris), strict=True)
        )
    assert len(shown) == 5
    assert {path: uri_of("orchestr8", key_of(path)) for path in shown} == shown


def test_the_figures_of_the_reference_are_those_of_the_program() -> None:
    text = REFERENCE.read_text()
    assert (
        f"nested more than {MAX_DEPTH} deep, more than {MAX_VALUES:,} of them or {MAX_CHARACTERS:,}"
        " characters" in text
    )
    assert f"| files in a folder | {MAX_FILES:,} |" in text


def test_every_option_and_every_rule_of_lint_is_named() -> None:
    part = COMMANDS.read_text().partition("## lint\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| (`.*?) \|", part.partition("| rule |")[2], re.MULTILINE)
    assert {*re.findall(r"`([a-z-]+)`", " ".join(named))} == {*RULES}
    command = [sys.executable, "-m", "concertino", "lint", "--help"]
    said = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=30
    ).stdout
    for option in set(re.findall(r"--[a-z]+", said)) - {"--help"}:
        assert option in COMMANDS.read_text().partition("## serve, a folder\n")[2], option


@pytest.mark.slow
def test_lint_says_what_its_json_is_said_to_hold(folder: Path) -> None:
    run_shell(HOW_TO, folder)
    command = [sys.executable, "-m", "concertino", "lint", "knowledge", "--json"]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {"documents": 2, "prompts": 1, "problems": [], "skipped": []},
    )
    assert blocks(HOW_TO.read_text(), "sh")
