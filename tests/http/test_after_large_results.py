"""The call after a large result on the same connection, over each HTTP transport.

A response between 1 MiB, where a connection reads no more requests, and the 2.5 MB or so that the
system takes in one write once made all later calls on its connection wait for ever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from http_service import WAIT_S, serving

from concertino import Client

SERVER = Path(__file__).with_name("server_for_http.py")


@pytest.mark.parametrize(
    ("scheme", "path", "era"),
    [
        ("http", "/mcp", "modern"),
        ("http", "/mcp", "legacy"),
        ("http", "/sse", "legacy"),
        ("ws", "/mcp", "modern"),
        ("ws", "/mcp", "legacy"),
    ],
)
def test_a_call_after_a_large_result_is_answered(
    scheme: str, path: str, era: Literal["modern", "legacy"]
) -> None:
    async def talk(url: str) -> None:
        async with Client(url, era=era) as client, asyncio.timeout(WAIT_S):
            for size in (1_100_000, 1_500_000, 2_000_000, 5_000_000):
                result = await client.call_tool("large", {"size": size}, into=str)
                assert len(result) == size
                assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3

    with serving(SERVER, "--http-sse", "--websocket") as service:
        asyncio.run(talk("{}://{}:{}{}".format(scheme, *service.address, path)))
