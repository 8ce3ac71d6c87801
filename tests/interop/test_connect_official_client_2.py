"""The official Python client, `mcp` 2.x, over `concertino connect`, to a server that it shares."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from stdio.harness import SRC, TOOLBOX, Process

# An upper bound, reached only by what is broken.
WAIT_S = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="c") as name:
        yield Path(name)


@pytest.mark.parametrize("option", ["--unix", "--tcp"])
def test_the_official_client_calls_a_shared_server(option: str, folder: Path) -> None:
    place = str(folder / "s") if option == "--unix" else "127.0.0.1:0"
    null = os.open(os.devnull, os.O_RDWR)
    serving = ["-m", "concertino", "serve", TOOLBOX, option, place]

    async def talk(address: str) -> list[str]:
        words = ["-m", "concertino", "connect", address]
        parameters = StdioServerParameters(
            command=sys.executable, args=words, env={"PYTHONPATH": SRC}
        )
        # Two at the same time share the server.
        async with Client(stdio_client(parameters)) as one, Client(stdio_client(parameters)) as two:
            results = [await client.call_tool("echo", {"text": "hi"}) for client in (one, two)]
            return [result.content[0].text for result in results]  # type: ignore[union-attr]

    with Process(serving, stdin=null, stdout=null) as server:
        os.close(null)
        server.until_stderr("started successfully")
        [line] = [line for line in server.stderr.decode().splitlines() if "Listening on" in line]
        address = line.rpartition("Listening on ")[2]
        assert asyncio.run(asyncio.wait_for(talk(address), WAIT_S)) == ["hi", "hi"]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
