"""HostCommand.matches(), with command lines as `ps` shows them for real servers."""

from __future__ import annotations

import pytest

from concertino.proxy.host_commands import HostCommand

MEMORY = ("npx", "-y", "@modelcontextprotocol/server-memory")
TIME = ("uvx", "mcp-server-time", "--local-timezone", "UTC")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("python", "a.py"), ["/usr/bin/python", "a.py"]),
        (("/opt/bin/tool",), ["/opt/bin/tool"]),
        # A script with an interpreter.
        (("tool", "--fast"), ["/usr/bin/python3", "/home/me/.local/bin/tool", "--fast"]),
        (TIME, ["uvx", "mcp-server-time", "--local-timezone", "UTC"]),
        (TIME, ["/opt/uv", "tool", "uvx", "mcp-server-time", "--local-timezone", "UTC"]),
        # npm's title, whole and cut to the length of the arguments that it replaces.
        (MEMORY, ["npm exec @modelcontextprotocol/server-memory", ""]),
        (MEMORY, ["npm exec @modelcontextprotocol/serv"]),
    ],
)
def test_a_process_runs_the_command(words: tuple[str, ...], arguments: list[str]) -> None:
    assert HostCommand(words, "a", "f").matches(arguments)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("python", "a.py"), ["python", "b.py"]),
        (("python", "a.py"), ["python", "a.py", "--more"]),
        (("python", "a.py"), ["vim", "a.py"]),
        (("python", "a.py"), ["rsync", "-e", "python", "a.py"]),
        (("tool",), []),
        (MEMORY, ["npm exec @modelcontextprotocol/server-files"]),
        (MEMORY, ["npm exec "]),
        (MEMORY, ["npx", "-y", "other"]),
    ],
)
def test_another_process_does_not(words: tuple[str, ...], arguments: list[str]) -> None:
    assert not HostCommand(words, "a", "f").matches(arguments)
