"""concertino's Client, as its users write it; the limit is raised for the large text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from measures import Call, main

from concertino import Client, Limits


@asynccontextmanager
async def open_client(program: str) -> AsyncIterator[Call]:
    async with Client([program], limits=Limits(max_message_bytes=64 * 2**20)) as client:

        async def call(text: str) -> str:
            return (await client.call_tool("echo", {"text": text})).content[0].text

        yield call


main(open_client)
