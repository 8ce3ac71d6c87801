"""Our client at HTTP servers of others: the official SDKs of five languages, and FastMCP."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from interop import node, programs
from interop.tools import python_with

from concertino import Client, SyncClient

SERVERS = Path(__file__).parent / "servers"
BENCH = Path(__file__).parents[2] / "bench" / "http_servers"
START_S = 60.0
FASTMCP = "fastmcp>=4,<5"
Era = Literal["modern", "legacy"]


def typescript_1(port: int) -> tuple[list[Any], dict[str, str]]:
    package = node.packages() / "node_modules" / "@modelcontextprotocol" / "server-everything"
    return [node.node(), package / "dist" / "index.js", "streamableHttp"], {"PORT": str(port)}


def typescript_2(port: int) -> tuple[list[Any], dict[str, str]]:
    # A module finds the packages in its own folder.
    program = node.packages() / "typescript_2_http.mjs"
    shutil.copyfile(SERVERS / program.name, program)
    return [node.node(), program, port], {}


COMMANDS: dict[str, Any] = {
    "mcp": lambda port: ([sys.executable, BENCH / "mcp_http.py", port], {}),
    "mcp-json": lambda port: ([sys.executable, BENCH / "mcp_http.py", port, "--json"], {}),
    "fastmcp": lambda port: (
        [python_with("fastmcp-http", FASTMCP), BENCH / "fastmcp_http.py", port],
        {},
    ),
    "typescript-1": typescript_1,
    "typescript-2": typescript_2,
    "go": lambda port: ([programs.go_server(), port], {}),
    "go-stateless": lambda port: ([programs.go_server(), port, "stateless"], {}),
    "rmcp": lambda port: ([programs.rust_server(), port], {}),
    "rmcp-stateless": lambda port: ([programs.rust_server(), port, "stateless"], {}),
    "java": lambda port: ([*programs.java_server(), port], {}),
}
# What each server speaks. The Go SDK knows 2026-07-28 without sessions only, the Java SDK not at
# all.
ERAS: dict[str, tuple[Era, ...]] = {
    "mcp": ("modern", "legacy"),
    "mcp-json": ("legacy",),
    "fastmcp": ("modern", "legacy"),
    "typescript-1": ("legacy",),
    "typescript-2": ("modern", "legacy"),
    "go": ("legacy",),
    "go-stateless": ("modern", "legacy"),
    "rmcp": ("modern", "legacy"),
    "rmcp-stateless": ("modern", "legacy"),
    "java": ("legacy",),
}
CASES = [(server, era) for server, eras in ERAS.items() for era in eras]


@contextmanager
def serving(server: str, log: Path) -> Iterator[str]:
    """Start a server, and give its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words, variables = COMMANDS[server](port)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **variables},
        )
    try:
        until = time.monotonic() + START_S
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("server", "era"), CASES)
def test_our_client_lists_calls_and_fails_as_it_should(
    server: str, era: Era, tmp_path: Path
) -> None:
    argument = "message" if server == "typescript-1" else "text"
    prefix = "Echo: " if server == "typescript-1" else ""

    async def talk(url: str) -> None:
        async with Client(url, era=era) as client:
            assert (client.protocol_version == "2026-07-28") is (era == "modern")
            assert "echo" in [tool.name for tool in await client.list_tools()]
            texts = [f"{number} {'ü' * 5000}" for number in range(20)]
            calls = (client.call_tool("echo", {argument: text}) for text in texts)
            results = await asyncio.gather(*calls)
            assert [result.content[0].text for result in results] == [  # type: ignore[union-attr]
                prefix + text for text in texts
            ]
            failed = await asyncio.gather(
                client.call_tool("echo", {"wrong": 1}), return_exceptions=True
            )
            assert isinstance(failed[0], Exception) or failed[0].is_error

        # By itself it finds out what the server speaks.
        async with Client(url) as client:
            assert await client.call_tool("echo", {argument: "x"}, into=str) == f"{prefix}x"

    with serving(server, tmp_path / "log") as url:
        asyncio.run(asyncio.wait_for(talk(url), 60))
        with SyncClient(url, era=era) as client:
            assert client.call_tool("echo", {argument: "y"}, into=str) == f"{prefix}y"
