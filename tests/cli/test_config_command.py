"""cli/config.py: `concertino config`; what it prints starts the server from any folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from warm_commands import run_command

import concertino
from concertino import Client, ServerParameters

SRC = str(Path(concertino.__file__).parents[1])
CALCULATOR = """
from concertino import Server
server = Server("calculator")
@server.tool
def add(a: int, b: int) -> int:
    return a + b
if __name__ == "__main__":
    server.run()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    (folder / "tools").mkdir(parents=True)
    (folder / "calculator.py").write_text(CALCULATOR)
    (folder / "tools" / "sums.py").write_text(CALCULATOR)
    return folder


def config(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command("config", *words, cwd=folder, env={**os.environ, "PYTHONPATH": SRC})


def output(folder: Path, *words: str) -> str:
    done = config(folder, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def read_claude_code(text: str) -> tuple[str, dict[str, Any]]:
    words = shlex.split(text.replace("\\\n", ""))
    assert words[:3] == ["claude", "mcp", "add"]
    options, command = words[4 : words.index("--")], words[words.index("--") + 1 :]
    assert options[::2] == ["--env"] * (len(options) // 2)
    env = dict(option.split("=", 1) for option in options[1::2])
    return words[3], {"command": command[0], "args": command[1:], "env": env}


def read_only_member(members: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    [item] = members.items()
    return item


READERS = {
    "claude-code": read_claude_code,
    "claude-desktop": lambda text: read_only_member(json.loads(text)["mcpServers"]),
    "cursor": lambda text: read_only_member(json.loads(text)["mcpServers"]),
    "vscode": lambda text: read_only_member(json.loads(text)["servers"]),
    "codex": lambda text: read_only_member(tomllib.loads(text)["mcp_servers"]),
}


def call(entry: dict[str, Any], folder: Path) -> int:
    """Call the tool of a server as a client does that runs in another folder."""
    env = {"PYTHONPATH": SRC, **entry.get("env", {})}
    target = ServerParameters(entry["command"], entry["args"], env, folder)

    async def add() -> int:
        async with Client(target) as client:
            return await client.call_tool("add", {"a": 40, "b": 2}, into=int)

    return asyncio.run(add())


@pytest.mark.parametrize("client", READERS)
def test_what_it_prints_for_a_client_starts_the_server(
    client: str, folder: Path, tmp_path: Path
) -> None:
    text = output(folder, "calculator.py", "--client", client, "--env", 'NOTE=a "b" \\ é')
    name, entry = READERS[client](text)
    assert (name, entry["env"]) == ("calculator", {"NOTE": 'a "b" \\ é'})
    assert entry.get("type") == ("stdio" if client == "vscode" else None)
    assert Path(entry["command"]).is_absolute()
    assert entry["args"][-2:] == ["serve", str(folder / "calculator.py")]
    assert call(entry, tmp_path) == 42


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["tools/sums.py"], "sums"),
        (["tools/sums.py:server"], "sums"),
        (["tools.sums:server"], "sums"),
        (["--", sys.executable, "calculator.py"], "calculator"),
        (["--name", "My sums!", "tools/sums.py"], "My-sums"),
    ],
    ids=["a path", "an attribute", "a module", "a command", "a name"],
)
def test_each_way_to_name_a_server_works_from_another_folder(
    words: list[str], name: str, folder: Path, tmp_path: Path
) -> None:
    found, entry = READERS["cursor"](output(folder, "--client", "cursor", *words))
    assert found == name
    assert call(entry, tmp_path) == 42


def test_without_a_client_each_has_its_heading_and_equal_texts_come_once(folder: Path) -> None:
    text = output(folder, "calculator.py")
    blocks = dict(re.findall(r"^((?:# .*\n)+)((?:(?!# ).+\n)+)", text, re.MULTILINE))
    assert max(len(line) for title in blocks for line in title.splitlines()) <= 80
    assert [re.sub(r" \([^)]*\)", "", title)[2:-1] for title in blocks] == [
        "Claude Code",
        "Claude Desktop\n# Cursor",
        "VS Code",
        "Codex",
    ]
    for title, block in blocks.items():
        for name, reader in READERS.items():
            if name.replace("-", " ") in title.replace("VS Code", "vscode").lower():
                assert reader(block)[0] == "calculator"


def test_words_of_a_command_that_are_no_paths_stay_as_they_are(folder: Path) -> None:
    (folder / "run").write_text("")
    words = ["--", "sh", "run", "-c", "./calculator.py", "missing.py"]
    _, entry = READERS["cursor"](output(folder, "--client", "cursor", *words))
    assert entry["args"] == ["run", "-c", str(folder / "calculator.py"), "missing.py"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [],
            "expected a target, or a command after --\n  for example: concertino config server.py",
        ),
        (["calculater.py"], "calculater.py: no such file; did you mean calculator.py?"),
        (["calculator"], "calculator: no such file; did you mean calculator.py?"),
        (["--", "pyton", "calculator.py"], "there is no command pyton\n"),
        (["--env", "x", "calculator.py"], "--env x: expected NAME=VALUE"),
        (["calculator.py", "--client", "emacs"], "invalid choice: 'emacs'"),
        (["calculator.py", "--", "python"], "expected a target, or a command after --"),
    ],
    ids=["nothing", "a typo", "no ending", "no program", "a variable", "a client", "both"],
)
def test_a_server_that_is_not_there_is_a_usage_error(
    words: list[str], said: str, folder: Path
) -> None:
    done = config(folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
