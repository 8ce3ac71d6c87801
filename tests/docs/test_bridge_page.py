"""docs/how-to/bridge.md: its commands run, and what it says of exit codes and options is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from docs.pages import DOCS, ROOT, blocks, environment, run_shell

from concertino.cli import bridge

PAGE = DOCS / "how-to" / "bridge.md"
COMMANDS = (DOCS / "reference" / "command-line.md").read_text()


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    [file] = blocks(PAGE.read_text(), "yaml")
    (tmp_path / "plugins.yaml").write_text(file)
    said = run_shell(PAGE, tmp_path)
    assert "orchestra://notes/first" in said
    assert "# Hello" in said
    assert "transport.stdio-client" in said
    [configuration] = blocks(PAGE.read_text(), "json")
    assert json.loads(configuration)["mcpServers"]["orchestra"]["args"][0] == "bridge"


@pytest.mark.slow
def test_the_demo_s_part_shows_a_plugin_killed_and_back() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "demo_orchestra.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    told = [
        "kept first, version 1",
        "orchestra://notes/first is a resource now",
        "kill -9",
        "failed: tools.notes:",
    ]
    places = [done.stdout.index(item) for item in told]
    assert places == sorted(places)
    assert done.stdout.count("# Written through four processes") >= 3
    assert "The hub has ended with exit code 0" in done.stdout


def test_the_reference_has_every_option() -> None:
    parser = ArgumentParser()
    bridge.add_arguments(parser)
    part = COMMANDS.partition("## bridge\n")[2].partition("\n## ")[0]
    for action in parser._actions:
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                assert f"`{option}`" in part, option
