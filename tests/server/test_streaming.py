"""server/streaming.py: tools that are generators. What arrives is looked at from the client's side,
in both eras.

Expected shapes: 2026-07-28 basic/patterns/progress (a notification has the caller's token, and its
progress grows), server/tools "Tool Result"; every line is validated against the schemas by
`served`.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import wire
from loops import on_a_loop
from server.served import META, Served

from concertino import Context, Server, ToolError, image
from concertino.errors import RegistrationError
from concertino.server import streaming
from concertino.types import ImageContent, TextContent

PNG = b"\x89PNG\r\n\x1a\n"
eras = pytest.mark.parametrize("version", ["2025-11-25", wire.MODERN])


@dataclass
class Step:
    name: str
    days: int


class Shelf:
    items = ("a", "b")


async def call_tool(served: Served, name: str, token: str | None = "t", **arguments: Any) -> Any:
    meta: dict[str, Any] = dict(META) if served._version == wire.MODERN else {}
    if token is not None:
        meta["progressToken"] = token
    params: dict[str, Any] = {
        "name": name,
        "arguments": arguments,
        **({"_meta": meta} if meta else {}),
    }
    return await served._caller.request("tools/call", params)


def progress_of(served: Served) -> list[tuple[Any, Any]]:
    """The progress that was told, with its text; every one must have the caller's token."""
    found = [params for method, params in served.heard if method == "notifications/progress"]
    assert all(params["progressToken"] == "t" for params in found)
    return [(params["progress"], params.get("message")) for params in found]


def server() -> Server:
    made = Server("streams")

    @made.tool
    async def words(text: str) -> AsyncIterator[str]:
        """Say a text word by word."""
        for word in text.split():
            yield word + " "

    @made.tool
    def counted(up_to: int) -> Iterator[int]:
        yield from range(1, up_to + 1)

    @made.tool(inline=True)
    def steps() -> Generator[Step, None, None]:
        yield Step("draw", 2)
        yield Step("build", 5)

    @made.tool
    async def pictures() -> AsyncGenerator[str | ImageContent, None]:
        yield "first"
        yield image(PNG)

    @made.tool
    async def anything(kind: str):
        for each in {"texts": ["a", "b"], "mixed": ["a", 1], "none": []}[kind]:
            yield each

    return made


@eras
@on_a_loop
async def test_texts_are_told_as_they_come_and_joined_in_the_end(version: str) -> None:
    async with Served(server(), version) as served:
        result = await call_tool(served, "words", text="one two three")
        assert result["content"] == [{"type": "text", "text": "one two three "}]
        assert "structuredContent" not in result
        assert progress_of(served) == [(1, "one "), (2, "two "), (3, "three ")]


@eras
@on_a_loop
async def test_items_are_a_list_that_its_schema_promises(version: str) -> None:
    async with Served(server(), version) as served:
        tools = {tool["name"]: tool for tool in (await served.ask("tools/list"))["tools"]}
        promised = tools["steps"]["outputSchema"]
        array = promised if version == wire.MODERN else promised["properties"]["result"]
        assert array["type"] == "array"
        result = await call_tool(served, "steps")
        items = [{"name": "draw", "days": 2}, {"name": "build", "days": 5}]
        assert result["structuredContent"] == (
            items if version == wire.MODERN else {"result": items}
        )
        assert progress_of(served) == [
            (1, '{"name":"draw","days":2}'),
            (2, '{"name":"build","days":5}'),
        ]
        assert "outputSchema" not in tools["words"]


@on_a_loop
async def test_a_def_runs_in_a_thread_and_tells_too() -> None:
    async with Served(server()) as served:
        result = await call_tool(served, "counted", up_to=3)
        assert result["structuredContent"] == {"result": [1, 2, 3]}
        assert progress_of(served) == [(1, "1"), (2, "2"), (3, "3")]


@on_a_loop
async def test_nothing_is_told_to_a_caller_that_did_not_ask() -> None:
    async with Served(server()) as served:
        assert (await call_tool(served, "words", token=None, text="a b"))["content"][0][
            "text"
        ] == "a b "
        assert progress_of(served) == []


@on_a_loop
async def test_content_stays_content() -> None:
    async with Served(server()) as served:
        result = await call_tool(served, "pictures")
        assert [block["type"] for block in result["content"]] == ["text", "image"]
        assert progress_of(served) == [(1, "first"), (2, "")]


@pytest.mark.parametrize(("kind", "text"), [("texts", "ab"), ("mixed", '["a",1]'), ("none", "")])
@on_a_loop
async def test_without_an_annotation_texts_are_joined_and_the_rest_is_a_list(
    kind: str, text: str
) -> None:
    async with Served(server()) as served:
        assert (await call_tool(served, "anything", kind=kind))["content"][0]["text"] == text


@on_a_loop
async def test_a_failure_after_some_chunks_is_the_result() -> None:
    made = Server("fails")

    @made.tool
    async def halfway() -> AsyncIterator[str]:
        yield "half"
        raise ToolError("the other half is missing")

    @made.tool
    def wrong() -> Iterator[int]:
        yield "text"  # type: ignore[misc]

    @made.tool
    def unfit() -> Iterator[Any]:
        yield object()

    async with Served(made) as served:
        failed = await call_tool(served, "halfway")
        assert (failed["isError"], failed["content"][0]["text"]) == (
            True,
            "the other half is missing",
        )
        assert progress_of(served) == [(1, "half")]
        assert (await call_tool(served, "wrong"))["isError"] is True
        assert "object has no JSON form" in (await call_tool(served, "unfit"))["content"][0]["text"]


@on_a_loop
async def test_arguments_are_checked_and_a_context_and_a_lifespan_s_value_are_filled_in() -> None:
    made = Server("filled")

    @made.lifespan
    async def shelf() -> AsyncIterator[Shelf]:
        yield Shelf()

    @made.tool
    async def listed(count: int, context: Context, shelf: Shelf) -> AsyncIterator[str]:
        for item in shelf.items[:count]:
            yield f"{context.client.name}{item}"

    class Object:
        def method(self, count: int) -> Iterator[int]:
            yield count

    made.add_tool(Object().method)
    made.add_tool(functools.partial(Object().method, 7), name="seven")
    async with Served(made) as served:
        assert (await call_tool(served, "listed", count=2))["content"][0]["text"] == "cacb"
        assert (await call_tool(served, "listed", count="2"))["isError"] is True
        assert (await call_tool(served, "method", count=2))["structuredContent"] == {"result": [2]}
        assert (await call_tool(served, "seven"))["structuredContent"] == {"result": [7]}


@on_a_loop
async def test_a_cancel_closes_the_generator_where_it_waits() -> None:
    closed = asyncio.Event()
    made = Server("endless")

    @made.tool
    async def endless() -> AsyncIterator[str]:
        try:
            yield "first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with Served(made) as served:
        call = asyncio.create_task(call_tool(served, "endless"))
        while not progress_of(served):
            await asyncio.sleep(0)
        call.cancel()
        await closed.wait()


@on_a_loop
async def test_a_cancel_closes_a_generator_in_a_thread_after_its_next_chunk() -> None:
    closed, cancelled = threading.Event(), threading.Event()
    made = Server("endless")

    @made.tool
    def endless() -> Iterator[int]:
        try:
            yield 0
            assert cancelled.wait(15)
            yield from range(1, 10**9)
        finally:
            closed.set()

    @made.tool
    async def wake() -> None:
        cancelled.set()

    async with Served(made) as served:
        call = asyncio.create_task(call_tool(served, "endless"))
        while not progress_of(served):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await call_tool(served, "wake", token=None)  # comes after the cancel, on the same wire
        assert await asyncio.to_thread(closed.wait, 15)


@pytest.mark.parametrize("asynchronous", [True, False])
@on_a_loop
async def test_what_is_yielded_has_a_bound(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "MAX_CHUNKS", 10)
    made, closed = Server("endless"), threading.Event()

    def endless() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    async def later() -> AsyncIterator[int]:
        try:
            for number in range(10**9):
                yield number
        finally:
            closed.set()

    made.add_tool(later if asynchronous else endless, name="endless")
    async with Served(made) as served:
        result = await call_tool(served, "endless")
        assert result["isError"] is True
        assert "yielded too much: expected at most 10 chunks" in result["content"][0]["text"]
        assert closed.is_set()
        assert len(progress_of(served)) == 10


def test_an_annotation_that_is_no_generator_s_is_refused() -> None:
    def wrong() -> list[int]:  # type: ignore[misc]
        yield 1

    def unsendable() -> Iterator[complex]:
        yield 1j

    with pytest.raises(
        RegistrationError, match=r"wrong\(\): annotate a generator with the type that it yields"
    ):
        Server("x").add_tool(wrong)
    with pytest.raises(RegistrationError, match=r"unsendable\(\): return: .*complex"):
        Server("x").add_tool(unsendable)


@on_a_loop
async def test_a_decorator_s_function_that_only_bears_a_generator_s_name_is_called_as_it_is() -> (
    None
):
    async def lines() -> AsyncIterator[str]:
        yield "a"

    @functools.wraps(lines)
    async def collected() -> list[str]:
        return [line async for line in lines()]

    made = Server("x")
    made.add_tool(collected)
    async with Served(made) as served:
        result = await call_tool(served, "lines")
        assert result["content"][0]["text"] == "expected a generator, got list"
        assert result["isError"] is True


@on_a_loop
async def test_a_text_block_is_told_by_its_text() -> None:
    made = Server("x")

    @made.tool
    def blocks() -> Iterator[TextContent]:
        yield TextContent("one")

    async with Served(made) as served:
        assert (await call_tool(served, "blocks"))["content"] == [{"type": "text", "text": "one"}]
        assert progress_of(served) == [(1, "one")]
