"""FastMCP's client, as its users write it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from measures import Call, main


@asynccontextmanager
async def open_client(program: str) -> AsyncIterator[Call]:
    async with Client(StdioTransport(program, [], keep_alive=False)) as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text

        yield call


main(open_client)
