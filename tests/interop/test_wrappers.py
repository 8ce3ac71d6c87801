"""Servers behind the programs that people start them with: `npx` and `uv run`. The whole chain is
gone afterwards.

npx comes with Node; uv comes from the package index into an environment below .tools. Neither
downloads anything when a server is started here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from interop import node
from interop.tools import node_program, python_with

from concertino.client.client import Client, Timeouts
from concertino.client.server_parameters import ServerParameters
from concertino.errors import Disconnected
from concertino.transports.process_exit import live_members

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator.py"


def npx() -> ServerParameters:
    found = node_program("npx")
    # The version is in the folder, so that nothing is fetched.
    return ServerParameters(
        found, ["--no-install", "mcp-server-everything", "stdio"], cwd=str(node.packages())
    )


def uv_run() -> ServerParameters:
    uv = python_with("uv", "uv").parent / "uv"
    args = ["run", "--no-project", "--offline", "--python", sys.executable, "python", str(EXAMPLE)]
    return ServerParameters(str(uv), args, env={"PYTHONPATH": os.pathsep.join(sys.path)})


async def pinging(client: Client) -> None:
    while True:
        await client.ping()


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("wrapper", [npx, uv_run], ids=["npx", "uv run"])
def test_the_whole_chain_is_gone(wrapper: Any, end: str) -> None:
    """Closed by the client; or its outermost member is killed, and the server behind it
    would stay.
    """

    async def run() -> None:
        parameters = wrapper()
        descriptors = set(os.listdir("/proc/self/fd"))
        async with asyncio.timeout(120):
            async with Client(parameters, timeouts=Timeouts(connect_s=100, probe_s=30)) as client:
                assert client.pid is not None
                assert await client.list_tools()
                assert len(live_members(client.pid)) >= 2, "there is no chain"
                if end == "killed":
                    os.kill(client.pid, signal.SIGKILL)
                    with pytest.raises(Disconnected, match="was ended by SIGKILL"):
                        await pinging(client)
        assert client.pid is not None
        assert live_members(client.pid) == []
        assert client.exit_status == (-signal.SIGKILL if end == "killed" else 0)
        assert set(os.listdir("/proc/self/fd")) == descriptors

    asyncio.run(run())
