"""docs/how-to/reload.md: its commands run, and the reference has every option of `dev`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks, paste, run_shell

from concertino.cli import dev

PAGE = DOCS / "how-to" / "reload.md"
COMMANDS = (DOCS / "reference" / "command-line.md").read_text()


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["calculator.py"]
    assert run_shell(PAGE, tmp_path).splitlines().count("3") == 2


def test_the_configuration_names_the_command() -> None:
    [configuration] = blocks(PAGE.read_text(), "json")
    [server] = json.loads(configuration)["mcpServers"].values()
    assert server["args"][0] == "dev"


def test_the_reference_has_every_option() -> None:
    parser = ArgumentParser()
    dev.add_arguments(parser)
    part = COMMANDS.partition("## dev\n")[2].partition("\n## ")[0]
    for action in parser._actions:
        for option in action.option_strings:
            if option not in ("-h", "--help"):
                assert f"`{option}`" in part, option
