"""Guards around tools that do more than return: ask the client, call one another, take long,
stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from concertino import Client, Context, Guard, Server
from concertino.guards import RateLimit


@dataclass
class Trip:
    """Who travels."""

    name: str


def server() -> Server:
    made = Server("s")

    @made.tool
    async def book(context: Context) -> str:
        await asyncio.sleep(0)
        answer = await context.elicit("Who travels?", Trip)
        return answer.content.name if answer.content is not None else "nobody"

    @made.tool
    async def twice(context: Context) -> str:
        results = [
            await context.call_tool("add", {"a": number, "b": 1}, into=int) for number in (1, 2)
        ]
        return str(results)

    @made.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @made.tool
    async def tell(context: Context) -> AsyncIterator[str]:
        for word in ("one ", "two"):
            await asyncio.sleep(0)
            yield word

    return made


def all_on(inner: Any) -> Guard:
    return Guard(
        inner,
        rate_limit="100/60",
        max_in_flight=10,
        timeout_s=20,
        max_result_bytes=10_000,
        deny="x*",
        redact=True,
    )


async def call_results(backend: Any, era: Any, *names: str) -> list[Any]:
    async with (
        asyncio.timeout(20),
        Client(backend, era=era, elicit=lambda question, of: {"name": "Ada"}) as client,
    ):
        return [await client.call_tool(name) for name in names]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_with_every_guard_on_tools_ask_call_one_another_and_stream(era: Any) -> None:
    booked, twice, streamed = asyncio.run(
        call_results(all_on(server()), era, "book", "twice", "tell")
    )
    assert [result.content[0].text for result in (booked, twice, streamed)] == [
        "Ada",
        "[2, 3]",
        "one two",
    ]
    assert not any(result.is_error for result in (booked, twice, streamed))


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_tool_called_by_another_counts_like_one_called_by_the_client(era: Any) -> None:
    [result] = asyncio.run(call_results(RateLimit(server(), 1, 60, match="add"), era, "twice"))
    assert result.is_error
    assert json.loads(result.content[0].text)["code"] == "RATE_LIMIT_EXCEEDED"


def test_since_2026_each_round_of_a_question_counts_as_the_call_it_is() -> None:
    legacy, modern = (
        asyncio.run(call_results(RateLimit(server(), 1, 60), era, "book"))
        for era in ("legacy", "modern")
    )
    assert not legacy[0].is_error
    assert json.loads(modern[0].content[0].text)["code"] == "RATE_LIMIT_EXCEEDED"
