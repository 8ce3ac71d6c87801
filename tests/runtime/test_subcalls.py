"""runtime/subcalls.py: tools that call tools of their server, in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from concertino import Client, Context, RpcError, Server, ToolError, compose
from concertino.backend import Backend, BackendWrapper, Call, Host, InputRequired
from concertino.runtime import subcalls
from concertino.transports import connect, memory_pair
from concertino.types import (
    CallToolResult,
    CreateMessageResult,
    Sampling,
    SamplingMessage,
    TextContent,
)


@dataclass
class Analysis:
    words: int


def planner() -> Server:
    server = Server("planner")

    @server.tool
    async def analyze(text: str) -> Analysis:
        if not text:
            raise ToolError("there is no text")
        return Analysis(len(text.split()))

    @server.tool
    async def plan(text: str, context: Context) -> dict[str, Any]:
        analysis = await context.call_tool("analyze", {"text": text}, into=Analysis)
        return {"days": analysis.words * 2}

    @server.tool
    async def tried(name: str, arguments: dict[str, Any], context: Context) -> list[Any]:
        result = await context.call_tool(name, arguments)
        return [result.is_error, result.content[0].text if result.content else None]  # type: ignore[union-attr]

    @server.tool
    async def again(context: Context) -> str:
        return await context.call_tool("again", into=str)

    return server


async def call_tools(
    backend: Backend, *calls: tuple[str, dict[str, Any]], token: str | None = None
) -> list[Any]:
    """The results, or the errors, of tools/call; with the notifications as the last."""
    heard: list[Any] = []
    async with asyncio.timeout(20), Host(backend) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        caller = connect(ours, lambda method, params: heard.append((method, params)))
        await caller.request("initialize", {"protocolVersion": "2025-11-25"})
        results: list[Any] = []
        for name, arguments in calls:
            params: dict[str, Any] = {"name": name, "arguments": arguments}
            if token is not None:
                params["_meta"] = {"progressToken": token, "traceparent": "00-1-2-01"}
            try:
                results.append(await caller.request("tools/call", params))
            except RpcError as error:
                results.append(error)
        await caller.aclose()
    return [*results, heard]


def run(
    backend: Backend, *calls: tuple[str, dict[str, Any]], token: str | None = None
) -> list[Any]:
    return asyncio.run(call_tools(backend, *calls, token=token))


def test_a_tool_gets_another_s_result_as_a_type() -> None:
    result, _ = run(planner(), ("plan", {"text": "a b c"}))
    assert result["structuredContent"] == {"days": 6}


def test_a_failure_of_the_inner_is_one_of_the_outer() -> None:
    result, _ = run(planner(), ("plan", {"text": ""}))
    assert (result["isError"], result["content"][0]["text"]) == (True, "there is no text")


def test_arguments_are_checked_as_a_client_s() -> None:
    wrong, unknown, _ = run(
        planner(),
        ("tried", {"name": "analyze", "arguments": {"text": 5}}),
        ("tried", {"name": "nobody", "arguments": {}}),
    )
    failed, text = wrong["structuredContent"]["result"]
    assert failed is True
    assert "text: expected str, got int" in text
    assert unknown["isError"] is True
    assert "Unknown tool: nobody" in unknown["content"][0]["text"]


def test_guards_see_every_call_with_its_trace() -> None:
    class Watch(BackendWrapper):
        def __init__(self, inner: Backend) -> None:
            super().__init__(inner)
            self.seen: list[tuple[str, Any]] = []

        async def handle(self, call: Call, context: Context) -> msgspec.Struct | Raw:
            name = msgspec.json.decode(call.params["name"])
            self.seen.append((name, context.meta.get("traceparent")))
            assert {name: msgspec.json.decode(raw) for name, raw in call.meta.items()} == dict(
                context.meta
            )
            if len(self.seen) > 3:
                raise RpcError(-31099, "enough")
            return await self.inner.handle(call, context)

    guard = Watch(planner())
    first, second, _ = run(guard, ("plan", {"text": "a"}), ("plan", {"text": "a"}), token="t")
    assert first["structuredContent"] == {"days": 2}
    assert "enough" in second["content"][0]["text"]
    assert guard.seen == [(name, "00-1-2-01") for name in ("plan", "analyze", "plan", "analyze")]


def test_recursion_ends_with_a_sentence() -> None:
    result, _ = run(planner(), ("again", {}))
    assert result["isError"] is True
    text = (
        "call_tool: more than 16 calls inside each other: again > again > again > ... > again > "
        "again > again"
    )
    assert result["content"][0]["text"] == text


def test_calls_that_branch_have_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcalls, "MAX_CALLS", 100)
    server, calls = Server("x"), 0

    @server.tool
    async def branch(context: Context) -> int:
        nonlocal calls
        calls += 1
        return sum([await context.call_tool("branch", into=int) for _ in range(2)])

    result, _ = run(server, ("branch", {}))
    assert result["isError"] is True
    assert calls <= 101


def test_the_inner_s_progress_goes_nowhere_and_its_log_to_the_caller() -> None:
    server = Server("x")

    @server.tool
    async def inner(context: Context) -> str:
        await context.progress(99)
        await context.log("info", "from inside")
        return context.client.protocol_version

    @server.tool
    async def outer(context: Context) -> str:
        await context.progress(1)
        version = await context.call_tool("inner", into=str)
        await context.progress(2)
        return version

    result, heard = run(server, ("outer", {}), token="t")
    assert result["content"][0]["text"] == "2025-11-25"
    assert [params["progress"] for method, params in heard if method.endswith("progress")] == [1, 2]
    assert [params["data"] for method, params in heard if method.endswith("message")] == [
        "from inside"
    ]


def test_a_cancel_reaches_the_inner_and_the_outer() -> None:
    server, ended = Server("x"), list[str]()
    begun = asyncio.Event()

    @server.tool
    async def inner() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("inner")
        return ""

    @server.tool
    async def outer(context: Context) -> str:
        try:
            return await context.call_tool("inner", into=str)
        except asyncio.CancelledError:
            ended.append("outer")
            raise

    async def talk() -> None:
        async with asyncio.timeout(20), Host(server) as host:
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller = connect(ours)
            await caller.request("initialize", {"protocolVersion": "2025-11-25"})
            call = asyncio.create_task(caller.request("tools/call", {"name": "outer"}))
            await begun.wait()
            call.cancel()
            while len(ended) < 2:
                await asyncio.sleep(0)
            await caller.aclose()

    asyncio.run(talk())
    assert ended == ["inner", "outer"]


def test_a_time_out_around_the_outer_ends_both_though_the_caller_still_waits() -> None:
    """The inner's CancelledError must not become a result that the outer goes on with."""

    class Impatient(BackendWrapper):
        async def handle(self, call: Call, context: Context) -> msgspec.Struct | Raw:
            if msgspec.json.decode(call.params["name"]) != "outer":
                return await self.inner.handle(call, context)
            task = asyncio.create_task(self.inner.handle(call, context))
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            return CallToolResult([TextContent("took too long")], is_error=True)

    server, begun, went_on = Server("x"), asyncio.Event(), list[str]()

    @server.tool
    async def inner() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    @server.tool
    async def outer(context: Context) -> str:
        await context.call_tool("inner")
        went_on.append("outer")
        return "done"

    result, _ = run(Impatient(server), ("outer", {}))
    assert result["content"][0]["text"] == "took too long"
    assert went_on == []


def test_of_several_composed_each_calls_its_own() -> None:
    result, inner, _ = run(
        compose(first=planner(), second=compose(deep=planner())),
        ("first_plan", {"text": "a b"}),
        ("second_deep_plan", {"text": "a b c"}),
    )
    assert result["structuredContent"] == {"days": 4}
    assert inner["structuredContent"] == {"days": 6}


def test_a_backend_s_raw_result_is_read() -> None:
    class Remote(BackendWrapper):
        async def handle(self, call: Call, context: Context) -> msgspec.Struct | Raw:
            if msgspec.json.decode(call.params["name"]) == "analyze":
                return Raw(b'{"content":[],"structuredContent":{"words":21}}')
            return await self.inner.handle(call, context)

    result, _ = run(Remote(planner()), ("plan", {"text": "a"}))
    assert result["structuredContent"] == {"days": 42}


def test_a_result_of_another_type_is_told_apart() -> None:
    server = Server("x")

    @server.tool
    async def words() -> str:
        return "many"

    @server.tool
    async def count(context: Context) -> int:
        return await context.call_tool("words", into=int)

    result, _ = run(server, ("count", {}))
    assert "tools/call words: the result is no int" in result["content"][0]["text"]


def test_a_text_that_is_nested_too_deeply_is_of_another_type() -> None:
    server = Server("x")

    @server.tool
    async def words() -> str:
        return "[" * 2_000

    @server.tool
    async def count(context: Context) -> int:
        return len(await context.call_tool("words", into=list))

    result, _ = run(server, ("count", {}))
    assert "tools/call words: the result is no list" in result["content"][0]["text"]


def test_a_generator_s_whole_is_what_its_caller_gets() -> None:
    server = Server("x")

    @server.tool
    async def numbers() -> AsyncIterator[int]:
        yield 20
        yield 22

    @server.tool
    async def total(context: Context) -> int:
        return sum(await context.call_tool("numbers", into=list[int]))

    result, _ = run(server, ("total", {}))
    assert result["structuredContent"] == {"result": 42}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_an_inner_tool_may_ask_the_client_and_so_may_one_that_streams(era: Any) -> None:
    """In 2026-07-28 all of them run again with the answer (basic/patterns/mrtr)."""
    server = Server("x")

    @server.tool
    async def asked(what: str, context: Context) -> str:
        said = await context.sample(f"Name a {what}", 10)
        assert isinstance(said.content, TextContent)
        return said.content.text

    @server.tool
    async def both(context: Context) -> str:
        first = await context.call_tool("asked", {"what": "colour"}, into=str)
        return f"{first}, {await context.call_tool('asked', {'what': 'tree'}, into=str)}"

    @server.tool
    async def streamed(context: Context) -> AsyncIterator[str]:
        yield "it is "
        yield await context.call_tool("asked", {"what": "colour"}, into=str)

    @server.tool
    def drained(context: Context) -> Iterator[str]:
        yield "it is "
        yield context.wait(context.call_tool("asked", {"what": "tree"}, into=str))

    async def answer(question: Sampling, server: object) -> CreateMessageResult:
        text = question.messages[0].content.text  # type: ignore[union-attr]
        return CreateMessageResult("assistant", TextContent(text.split()[-1].upper()), "scripted")

    async def talk() -> None:
        async with asyncio.timeout(20), Client(server, era=era, sample=answer) as client:
            assert await client.call_tool("both", into=str) == "COLOUR, TREE"
            assert await client.call_tool("streamed", into=str) == "it is COLOUR"
            assert await client.call_tool("drained", into=str) == "it is TREE"

    asyncio.run(talk())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_an_inner_backend_s_own_questions_are_asked_too(era: Any) -> None:
    class Asking(BackendWrapper):
        async def handle(self, call: Call, context: Context) -> msgspec.Struct | Raw:
            if msgspec.json.decode(call.params["name"]) != "analyze":
                return await self.inner.handle(call, context)
            if not call.answers:
                return InputRequired(
                    {"q": Sampling([SamplingMessage("user", TextContent("How many?"))], 10)},
                    b"kept",
                )
            assert call.state == b"kept"
            said = msgspec.json.decode(call.answers["q"], type=CreateMessageResult)
            assert isinstance(said.content, TextContent)
            return CallToolResult([], Raw(msgspec.json.encode({"words": int(said.content.text)})))

    async def answer(question: Sampling, server: object) -> CreateMessageResult:
        return CreateMessageResult("assistant", TextContent("21"), "scripted")

    async def talk() -> None:
        async with asyncio.timeout(20), Client(Asking(planner()), era=era, sample=answer) as client:
            assert await client.call_tool("plan", {"text": "x"}, into=dict) == {"days": 42}

    asyncio.run(talk())
