"""The official Python SDK's client, as its users write it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from measures import Call, main


@asynccontextmanager
async def open_client(program: str) -> AsyncIterator[Call]:
    async with (
        stdio_client(StdioServerParameters(command=program)) as (reading, writing),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()

        async def call(text: str) -> str:
            return (await session.call_tool("echo", {"text": text})).content[0].text

        yield call


main(open_client)
