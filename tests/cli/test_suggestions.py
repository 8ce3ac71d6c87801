"""cli/suggestions.py: what was meant. tests/cli/test_mistakes.py has whole outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from concertino.cli.suggestions import (
    did_you_mean,
    find_closest,
    suggest_for_unknown,
    suggest_program,
)

OPTIONS = [
    "-h",
    "--help",
    "--json",
    "--era",
    "--timeout-s",
    "--connect-timeout-s",
    "--stderr",
    "-v",
]


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("ad", ["add", "divide"], "add"),
        ("ADD", ["add", "divide"], "add"),
        (
            "translate",
            ["search", "translate_text_between_many_languages"],
            "translate_text_between_many_languages",
        ),
        ("config://ap", ["config://app", "config://other"], "config://app"),
        ("x", ["add", "divide"], None),
        ("ad", [], None),
    ],
)
def test_the_closest_name(name: str, known: list[str], found: str | None) -> None:
    assert find_closest(name, known) == found
    assert did_you_mean(name, known) == (f"did you mean {found}?" if found else "")


@pytest.mark.parametrize(
    ("command", "unknown", "words", "hint"),
    [
        ("call", ["--timeout"], ["--timeout", "3"], "did you mean --timeout-s?"),
        ("tools", ["--verbose"], ["--verbose"], "did you mean -v?"),
        ("call", ["--city=Oslo"], ["--city=Oslo"], "arguments have no dashes: city=Oslo"),
        ("call", ["--city"], ["--city", "--json"], "arguments have no dashes: city=VALUE"),
        (
            "check",
            ["--port"],
            ["--port", "80"],
            "a server is checked over stdin and stdout: concertino check -- python server.py",
        ),
        (
            "read",
            ["my-server"],
            ["file:///a", "my-server"],
            "write the command of the server after --: concertino read file:///a -- my-server",
        ),
        (
            "read",
            ["run", "server.py", "--fast"],
            ["file:///a", "uv", "run", "server.py", "--fast"],
            "write the command of the server after --: "
            "concertino read file:///a -- uv run server.py --fast",
        ),
        (
            "lint",
            ["--loud"],
            ["--loud"],
            "`concertino lint --help` shows all arguments and options",
        ),
    ],
)
def test_options_that_do_not_exist(
    command: str, unknown: list[str], words: list[str], hint: str
) -> None:
    assert suggest_for_unknown(command, OPTIONS, unknown, words) == hint


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["server.js", "--fast"], "write -- node server.js --fast"),
        (["./tool"], "make it executable: chmod +x ./tool"),
        (["./other"], "check the path of the command after --"),
        (["tool"], "to start the file in this folder, write -- ./tool"),
        (["unvx", "mcp-server-time"], "did you mean -- uvx mcp-server-time?"),
        (["my-others"], "install my-others, or write its whole path: -- /path/to/my-others"),
        (["zzz"], "install zzz, or write its whole path: -- /path/to/zzz"),
    ],
)
def test_programs_that_cannot_be_started(
    command: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "programs").mkdir()
    for name in ("programs/uvx", "programs/other", "server.js", "tool"):
        (tmp_path / name).touch()
    assert suggest_program(command, f"/no/such/folder:{tmp_path}/programs") == hint
