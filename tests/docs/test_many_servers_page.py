"""docs/how-to/many-servers.md and docs/reference/server-file.md: the commands run, and the tables
have every key.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks, environment, paste, run_shell

from concertino.cli import approve
from concertino.cli.server_files import add_server_file_options
from concertino.proxy.server_members import SERVER_KEYS
from concertino.proxy.server_options import GUARD_KEYS, OPTION_KEYS

PAGE = DOCS / "how-to" / "many-servers.md"
REFERENCE = (DOCS / "reference" / "server-file.md").read_text()
COMMANDS = (DOCS / "reference" / "command-line.md").read_text()


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("USER", "ada")
    paste(PAGE, tmp_path)
    [file] = blocks(PAGE.read_text(), "json")
    # `python` is this one, which has the package; servers do not get our PYTHONPATH.
    program = tmp_path / ".programs" / "python"
    (tmp_path / "mcp.json").write_text(file.replace('"python"', f'"{program}"'))
    said = run_shell(PAGE, tmp_path)
    assert "mcp.json: approved" in said
    assert "calc_add" in said
    assert "notes_read_note" in said
    assert "delete_note" not in said
    assert said.splitlines()[-2:] == ["3", "ada has a token of 13 characters"]
    assert environment()["XDG_STATE_HOME"] == str(tmp_path / "state")


def section(title: str) -> str:
    return REFERENCE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_reference_has_every_key_of_a_server() -> None:
    named = re.findall(r"`([\w-]+)`", section("A server"))
    assert {*SERVER_KEYS, "x-concertino"} <= set(named)


def test_the_reference_has_every_key_of_ours() -> None:
    named = re.findall(r"`([\w-]+)`", section("x-concertino"))
    assert {*OPTION_KEYS, *GUARD_KEYS} <= set(named)


@pytest.mark.parametrize(
    ("add_arguments", "title"),
    [(approve.add_arguments, "approve"), (add_server_file_options, "serve, a server file")],
)
def test_the_reference_has_every_option(
    add_arguments: Callable[[ArgumentParser], None], title: str
) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    part = COMMANDS.partition(f"## {title}\n")[2].partition("\n## ")[0]
    for action in parser._actions:
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                assert f"`{option}`" in part, option
