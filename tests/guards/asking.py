"""A backend asked by a client of 2025-11-25, over a memory pair."""

from __future__ import annotations

import asyncio
from typing import Any

from concertino import RpcError
from concertino.backend import Host
from concertino.client import RawClient
from concertino.transports import connect, memory_pair

__all__ = ["ask_server", "text_of"]


def ask_server(server: Any, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
    """The answers of a server to a client of 2025-11-25, one after the other; an error answer is
    its RpcError.
    """

    async def ask() -> list[Any]:
        answers: list[Any] = []
        async with asyncio.timeout(20), Host(server) as host:
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller: RawClient = connect(ours)
            await caller.request(
                "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}
            )
            for method, params in requests:
                try:
                    answers.append(await caller.request(method, params))
                except RpcError as error:
                    answers.append(error)
            await caller.aclose()
        return answers

    return asyncio.run(ask())


def text_of(result: Any) -> str:
    [block] = result["content"]
    return block["text"]
