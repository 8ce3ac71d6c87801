"""server/host_warnings.py: what hosts would cut is logged once, at the start or after a list."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

from concertino import Client, Server
from concertino.protocol import host_limits
from concertino.server import tools as tools_module


async def use(server: Server, *, lists: int = 1) -> None:
    async with Client(server) as client:
        for _ in range(lists):
            await client.list_tools()


def make_server(
    tools: int = 1, *, docstring: str = "Do it.", name: str = "do", **settings: str
) -> Server:
    server = Server("notes", **settings)

    def tool() -> None: ...

    tool.__doc__ = docstring
    for number in range(tools):
        server.add_tool(tool, name=f"{name}_{number}")
    return server


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.name for record in caplog.records} <= {"concertino.notes"}
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_an_ordinary_server_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(20, instructions="Do not do it.", name="a" * 49)
    asyncio.run(use(server))
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("server", "start"),
    [
        (make_server(instructions="a" * 2049), "instructions: 2,049 characters"),
        (make_server(name="a" * 53), f"tool '{'a' * 53}_0': 67 characters"),
        (make_server(20, docstring="Do it or not. " * 500), "list of tools: the first "),
    ],
    ids=["instructions", "name", "list"],
)
def test_each_is_logged_once(server: Server, start: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        asyncio.run(use(server, lists=2))
    (text,) = warnings(caplog)
    assert text.startswith(start)


def test_a_long_list_is_known_after_it_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async def only_call() -> None:
        async with Client(make_server(20, docstring="Do it or not. " * 500)) as client:
            await client.call_tool("do_0")

    asyncio.run(only_call())
    assert warnings(caplog) == []


def test_the_server_looks_closer_from_these_limits_on() -> None:
    assert tools_module.LONG_INSTRUCTIONS == host_limits.INSTRUCTIONS_CHARS
    assert host_limits.describe_names("abc", ["a" * (tools_module.LONG_NAMES - 3)]) == ""
    assert host_limits.describe_names("abc", ["a" * (tools_module.LONG_NAMES - 2)]) != ""


def test_an_ordinary_server_does_not_load_the_warnings_at_its_start() -> None:
    code = """
import asyncio, sys
from concertino import Client, Server
server = Server("a")
server.add_tool(lambda: 1, name="b")
async def use():
    async with Client(server) as client:
        await client.call_tool("b")
asyncio.run(use())
assert "concertino.server.host_warnings" not in sys.modules
assert "concertino.token_estimate" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
