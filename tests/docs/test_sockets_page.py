"""docs/how-to/sockets.md: its commands listen where it says, and its program calls itself.

What the rest of the page says is shown by tests/cli/test_serve_sockets.py and test_connect.py.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks, environment, paste

from concertino.cli.connect import parse_quickly

PAGE = DOCS / "how-to" / "sockets.md"
COMMANDS = "".join(blocks(PAGE.read_text(), "sh")).splitlines()
SHOP = 'from concertino import Server\nserver = Server("shop")\nserver.run()\n'


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_listens_where_it_says(command: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / ".local" / "run").mkdir(parents=True)
    program, *words = shlex.split(command)
    assert program == "concertino"
    # A free port in place of the page's, and no IPv6 where this machine has none.
    words = [word.replace("~", str(tmp_path)).replace(":8080", ":0") for word in words]
    if not Path("/proc/net/if_inet6").exists() and "[::1]:0" in words:
        at = words.index("[::1]:0")
        del words[at - 1 : at + 1]
    wanted = [word for option, word in pairwise(words) if option in ("--unix", "--tcp")]
    with subprocess.Popen(
        [sys.executable, "-m", "concertino", *words],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            said: list[str] = []
            while sum("[shop] Listening on " in line for line in said) < len(wanted):
                said.append(server.stderr.readline())
                assert said[-1], said
            os.kill(server.pid, signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_the_program_calls_itself_and_leaves_no_file(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["service.py"]
    done = subprocess.run(
        [sys.executable, "service.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{'result': 1.5}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["service.py"]


def test_the_configuration_names_a_command_that_connects() -> None:
    [configuration] = blocks(PAGE.read_text(), "json")
    [server] = json.loads(configuration)["mcpServers"].values()
    assert server["command"] == "concertino"
    name, *words = server["args"]
    assert name == "connect"
    assert parse_quickly(words) == ("unix:/home/ann/shop.sock", 0.0)


def test_the_commands_are_read() -> None:
    assert len(COMMANDS) == 2
