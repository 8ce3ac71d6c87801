"""docs/how-to/plugin.md: its plugin is listed, served alone and called over a socket, by the
commands of the page.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docs.pages import DOCS, paste, run_shell

PAGE = DOCS / "how-to" / "plugin.md"


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["greeter.py", "ask.py"]
    said = run_shell(PAGE, tmp_path).splitlines()
    manifest = json.loads(said[0])
    assert (manifest["id"], manifest["provides_tools"]) == ("tools.greeter", ["greet"])
    assert any("Greet somebody." in line for line in said)
    assert said.count("Hello, Ada!") == 2  # served alone, and called over the socket
    assert (tmp_path / "certs" / "orchestrator-to-tools.greeter.key").exists()
    assert said[-1].startswith("tools.greeter-client")
