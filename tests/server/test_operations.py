"""server/operations.py: tools that take long. The clock is a fake; what is awaited is an event,
never a time.

The shape of the first answer is that of the Orchestre system's protocol reference, "Async Operation
Handling": status, message, estimatedTime; the handle is what 2026-07-28 calls explicit state.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import wire
from loops import on_a_loop
from server.served import META, Served

from concertino import Context, Server, ToolError
from concertino.errors import RegistrationError
from concertino.server.operations import Operations

eras = pytest.mark.parametrize("version", ["2025-11-25", wire.MODERN])


@dataclass
class Picture:
    scene: str
    pixels: int


class Kitchen:
    """A server with slow tools, and the events that they wait for."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.server = Server("kitchen")
        self.operations = Operations(self.server, clock=lambda: self.now, **settings)
        self.go = asyncio.Event()
        self.ended: list[str] = []
        tool = self.operations.tool

        @tool(message="Analyzing requirements...", estimated_time="30 seconds", answer_after_s=0)
        async def render(scene: str, context: Context) -> Picture:
            """Render a scene.

            Args:
                scene: what is to be seen.
            """
            try:
                await context.progress(1, 4, "first quarter")
                await self.go.wait()
                await context.progress(4, 4, "last quarter")
                return Picture(scene, 42)
            finally:
                self.ended.append(scene)

        @tool(answer_after_s=30)
        async def quick(number: int) -> int:
            return number + 1

        @tool(answer_after_s=0)
        async def fails(how: str) -> None:
            if how == "told":
                raise ToolError("NO_PAINT", "there is no paint", suggestion="Buy some")
            raise KeyError("paint")

    async def start(self, served: Served, scene: str = "a lake", **meta: Any) -> str:
        return body(await call(served, "render", meta, scene=scene))["operationId"]


def body(result: Any) -> Any:
    [block] = result["content"]
    return json.loads(block["text"])


async def call(
    served: Served, name: str, meta: dict[str, Any] | None = None, **arguments: Any
) -> Any:
    meta = {**(META if served._version == wire.MODERN else {}), **(meta or {})}
    params: dict[str, Any] = {
        "name": name,
        "arguments": arguments,
        **({"_meta": meta} if meta else {}),
    }
    return await served._caller.request("tools/call", params)


async def ask(served: Served, handle: str, wait: float = 0, **meta: Any) -> Any:
    return await call(served, "get_operation", meta, operationId=handle, waitSeconds=wait)


@eras
@on_a_loop
async def test_it_answers_at_once_and_is_asked_again_by_its_handle(version: str) -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server, version) as served:
        first = await call(served, "render", scene="a lake")
        handle = body(first).pop("operationId")
        assert body(first) == {
            "status": "in_progress",
            "message": "Analyzing requirements...",
            "estimatedTime": "30 seconds",
            "operationId": handle,
        }
        assert first["structuredContent"] == body(first)
        assert "isError" not in first
        asked = body(await ask(served, handle))
        assert (asked["status"], asked["message"]) == ("in_progress", "first quarter")
        assert (asked["progress"], asked["total"]) == (1, 4)
        kitchen.go.set()
        for _ in range(2):  # asking does not use it up
            result = await ask(served, handle, 30)
            assert result["structuredContent"] == body(result) == {"scene": "a lake", "pixels": 42}


@on_a_loop
async def test_what_is_done_in_time_is_answered_as_ever() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        assert (await call(served, "quick", number=41))["structuredContent"] == {"result": 42}
        assert kitchen.operations._operations == {}
        wrong = await call(served, "quick", number="x")
        assert wrong["isError"] is True
        assert "number" in body(wrong)["error"]


@on_a_loop
async def test_the_tools_show_their_arguments_and_no_more() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        tools = {tool["name"]: tool for tool in (await served.ask("tools/list"))["tools"]}
        assert list(tools) == ["get_operation", "cancel_operation", "render", "quick", "fails"]
        assert tools["render"]["description"] == "Render a scene."
        assert tools["render"]["inputSchema"]["properties"] == {
            "scene": {"type": "string", "description": "what is to be seen."}
        }
        assert "outputSchema" not in tools["render"]
        assert tools["get_operation"]["inputSchema"]["required"] == ["operationId"]


@on_a_loop
async def test_the_handle_works_on_another_connection() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as first, Served(kitchen.server, wire.MODERN) as second:
        handle = await kitchen.start(first)
        kitchen.go.set()
        assert body(await ask(second, handle, 30)) == {"scene": "a lake", "pixels": 42}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("told", {"error": "there is no paint", "code": "NO_PAINT", "suggestion": "Buy some"}),
        ("raised", "KeyError: 'paint'"),
    ],
)
@on_a_loop
async def test_a_failure_is_the_result(how: str, text: Any) -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        handle = body(await call(served, "fails", how=how))["operationId"]
        failed = await ask(served, handle, 30)
        assert failed["isError"] is True
        assert (failed["content"][0]["text"] if how == "raised" else body(failed)) == text


@on_a_loop
async def test_who_waits_with_a_token_is_told_of_the_progress() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served, progressToken="start")
        await ask(served, handle)
        waiting = asyncio.create_task(ask(served, handle, 30, progressToken="waits"))
        while not any(
            params["progressToken"] == "waits"
            for method, params in served.heard
            if "progress" in method
        ):
            await asyncio.sleep(0)
        kitchen.go.set()
        await waiting
        told = [params for method, params in served.heard if method == "notifications/progress"]
        assert [
            (each["progress"], each["message"]) for each in told if each["progressToken"] == "waits"
        ] == [
            (1, "first quarter"),
            (4, "last quarter"),
        ]
        # The first call is answered before the work begins; nothing may follow its answer.
        assert not [each for each in told if each["progressToken"] == "start"]


@on_a_loop
async def test_a_call_that_waits_for_the_result_hears_progress_too() -> None:
    server = Server("x")

    @Operations(server).tool(answer_after_s=30)
    def count(context: Context) -> int:
        for number in range(1, 4):
            context.progress(number, 3)
        return 3

    async with Served(server) as served:
        result = await call(served, "count", {"progressToken": 7})
        assert result["structuredContent"] == {"result": 3}
        told = [
            params["progress"]
            for method, params in served.heard
            if method == "notifications/progress"
        ]
        assert told == [1, 2, 3]


@on_a_loop
async def test_it_can_be_cancelled_once() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        await ask(served, handle)  # so that it has begun
        expected = {"status": "cancelled", "operationId": handle}
        assert body(await call(served, "cancel_operation", operationId=handle)) == expected
        assert body(await call(served, "cancel_operation", operationId=handle)) == expected
        result = await ask(served, handle, 30)
        assert (result["isError"], body(result)["code"]) == (True, "OPERATION_CANCELLED")
        assert kitchen.ended == ["a lake"]


@on_a_loop
async def test_what_fails_while_it_is_cancelled_is_cancelled_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, begun = Server("x"), asyncio.Event()

    @Operations(server).tool(answer_after_s=0)
    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cannot clean up")

    async with Served(server) as served:
        handle = body(await call(served, "stubborn"))["operationId"]
        await begun.wait()
        await call(served, "cancel_operation", operationId=handle)
        assert body(await ask(served, handle, 30))["code"] == "OPERATION_CANCELLED"
    assert "operation stubborn failed while it was cancelled" in caplog.text


@on_a_loop
async def test_what_has_ended_is_not_cancelled() -> None:
    kitchen = Kitchen()
    kitchen.go.set()
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        await ask(served, handle, 30)
        assert (
            body(await call(served, "cancel_operation", operationId=handle))["status"]
            == "completed"
        )
        failed = body(await call(served, "fails", how="told"))["operationId"]
        await ask(served, failed, 30)
        assert (
            body(await call(served, "cancel_operation", operationId=failed))["status"] == "failed"
        )
        assert body(await ask(served, handle))["pixels"] == 42


@on_a_loop
async def test_a_caller_that_gives_up_asking_leaves_the_operation_alone() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        waiting = asyncio.create_task(ask(served, handle, 30, progressToken="w"))
        while not served.heard:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        kitchen.go.set()
        assert body(await ask(served, handle, 30))["pixels"] == 42
        assert kitchen.operations._operations[handle].listeners == ()


@on_a_loop
async def test_a_caller_that_gives_up_before_it_knows_the_handle_ends_it() -> None:
    server, ended, begun = Server("x"), asyncio.Event(), asyncio.Event()
    operations = Operations(server)

    @operations.tool(answer_after_s=30)
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Served(server) as served:
        calling = asyncio.create_task(call(served, "endless"))
        await begun.wait()
        calling.cancel()
        await ended.wait()
        await served.pause()
        assert operations._operations == {}


@on_a_loop
async def test_an_operation_has_a_time_limit() -> None:
    kitchen = Kitchen(limit_s=0.01)
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        result = await ask(served, handle, 30)
        assert body(result)["code"] == "OPERATION_TIMED_OUT"
        assert body(result)["error"] == "render was cancelled after 0.01 seconds"


@on_a_loop
async def test_results_are_kept_for_a_time_and_then_forgotten() -> None:
    kitchen = Kitchen(kept_s=600)
    kitchen.go.set()
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        await ask(served, handle, 30)
        kitchen.now = 599.9
        assert body(await ask(served, handle))["pixels"] == 42
        kitchen.now = 600.0
        gone = await ask(served, handle)
        assert (gone["isError"], body(gone)["code"]) == (True, "OPERATION_NOT_FOUND")


@on_a_loop
async def test_what_runs_is_not_forgotten_however_old_it_is() -> None:
    kitchen = Kitchen(kept_s=1)
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        kitchen.now = 1e6
        assert body(await ask(served, handle))["status"] == "in_progress"


@on_a_loop
async def test_only_so_many_results_and_bytes_are_kept() -> None:
    for settings, left in (
        ({"kept": 2}, 2),
        ({"max_kept_bytes": 250}, 1),
    ):  # one of these results has about 130 bytes
        kitchen = Kitchen(**settings)
        kitchen.go.set()
        async with Served(kitchen.server) as served:
            handles = [await kitchen.start(served, f"scene {number}") for number in range(5)]
            for handle in handles:
                await ask(served, handle, 30)
            codes = [body(await ask(served, handle)).get("code") for handle in handles]
            assert codes == ["OPERATION_NOT_FOUND"] * (5 - left) + [None] * left


@on_a_loop
async def test_a_failure_counts_with_all_its_bytes() -> None:
    made = Server("s")
    operations = Operations(made, max_kept_bytes=1000)

    @operations.tool(answer_after_s=0)
    async def fail(characters: int) -> str:
        await asyncio.sleep(0)
        raise ToolError("x" * characters)

    async with Served(made) as served:
        handles = [
            body(await call(served, "fail", characters=600))["operationId"] for _ in range(3)
        ]
        answers = [
            await call(served, "get_operation", operationId=handle, waitSeconds=30)
            for handle in handles
        ]
        answers = [await call(served, "get_operation", operationId=handle) for handle in handles]
    assert ["OPERATION_NOT_FOUND" in answer["content"][0]["text"] for answer in answers] == [
        True,
        True,
        False,
    ]


@on_a_loop
async def test_one_more_than_may_run_is_refused_until_one_has_ended() -> None:
    kitchen = Kitchen(at_most=2)
    async with Served(kitchen.server) as served:
        handles = [await kitchen.start(served, str(number)) for number in range(2)]
        refused = await call(served, "render", scene="a third")
        assert (refused["isError"], body(refused)["code"]) == (True, "TOO_MANY_OPERATIONS")
        await call(served, "cancel_operation", operationId=handles[0])
        await kitchen.start(served, "the third")


@on_a_loop
async def test_a_thousand_operations_leave_what_may_be_kept_and_nothing_else() -> None:
    kitchen = Kitchen(kept=10)
    kitchen.go.set()
    async with Served(kitchen.server) as served:
        for number in range(1000):
            await ask(served, await kitchen.start(served, str(number)), 30)
        assert len(kitchen.operations._operations) == 10
        assert not any(hasattr(each, "context") for each in kitchen.operations._operations.values())


@pytest.mark.parametrize("handle", ["", "op_nobody", "x" * 10_000])
@on_a_loop
async def test_a_handle_that_nobody_gave_is_told(handle: str) -> None:
    async with Served(Kitchen().server) as served:
        for name in ("get_operation", "cancel_operation"):
            result = await call(served, name, operationId=handle)
            assert body(result)["code"] == "OPERATION_NOT_FOUND"
            assert len(body(result)["error"]) < 200


@on_a_loop
async def test_a_thread_sees_that_it_was_cancelled_and_others_are_not_held_up() -> None:
    server, begun, ended = Server("x"), threading.Event(), threading.Event()
    operations = Operations(server, at_most=1)

    @operations.tool(answer_after_s=0)
    def grind(context: Context) -> None:
        begun.set()
        while not context.cancelled:
            pass
        ended.set()

    async with Served(server) as served:
        handle = body(await call(served, "grind"))["operationId"]
        assert await asyncio.to_thread(begun.wait, 15)
        await call(served, "cancel_operation", operationId=handle)
        assert await asyncio.to_thread(ended.wait, 15)


@on_a_loop
async def test_a_generator_s_chunks_are_its_progress() -> None:
    server, go = Server("x"), asyncio.Event()
    operations = Operations(server)

    @operations.tool(answer_after_s=0)
    async def words() -> AsyncIterator[str]:
        yield "one "
        await go.wait()
        yield "two"

    @operations.tool(answer_after_s=30)
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    async with Served(server) as served:
        handle = body(await call(served, "words"))["operationId"]
        asked = body(await ask(served, handle))
        assert (asked["message"], asked["progress"]) == ("one ", 1)
        go.set()
        assert (await ask(served, handle, 30))["content"] == [{"type": "text", "text": "one two"}]
        assert (await call(served, "numbers"))["structuredContent"] == {"result": [1, 2]}


class Shelf:
    items = ("a", "b")


@on_a_loop
async def test_an_operation_calls_tools_and_uses_the_lifespan_after_its_call_was_answered() -> None:
    server, go = Server("x"), asyncio.Event()

    @server.lifespan
    async def shelf() -> AsyncIterator[Shelf]:
        yield Shelf()

    operations = Operations(server)

    @server.tool
    async def fragile(item: str) -> str:
        raise ToolError(f"{item} broke")

    @operations.tool(answer_after_s=0)
    async def moved(shelf: Shelf, context: Context) -> list[str]:
        await go.wait()
        assert not context.cancelled
        results = [await context.call_tool("fragile", {"item": item}) for item in shelf.items]
        return [result.content[0].text for result in results]  # type: ignore[union-attr]

    async with Served(server) as served:
        handle = body(await call(served, "moved"))["operationId"]
        go.set()
        assert (await ask(served, handle, 30))["structuredContent"] == {
            "result": ["a broke", "b broke"]
        }


@on_a_loop
async def test_a_thread_waits_for_tools_after_its_call_was_answered_until_it_is_cancelled() -> None:
    server, go, waited, begun = Server("x"), threading.Event(), threading.Event(), asyncio.Event()
    operations = Operations(server)

    @server.tool
    async def double(number: int) -> int:
        return number * 2

    @server.tool
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    @operations.tool(answer_after_s=0)
    def worked(tool: str, context: Context) -> int:
        assert go.wait(15)
        try:
            return context.wait(
                context.call_tool(tool, {"number": 21} if tool == "double" else {}, into=int)
            )
        finally:
            waited.set()

    async with Served(server) as served:
        handle = body(await call(served, "worked", tool="double"))["operationId"]
        go.set()
        assert (await ask(served, handle, 30))["structuredContent"] == {"result": 42}
        waited.clear()
        other = body(await call(served, "worked", tool="forever"))["operationId"]
        await begun.wait()
        await call(served, "cancel_operation", operationId=other)
        assert await asyncio.to_thread(waited.wait, 15)


@on_a_loop
async def test_what_needs_the_call_is_refused_with_a_sentence() -> None:
    server = Server("x")
    operations = Operations(server)

    @operations.tool(answer_after_s=30)
    async def asks(what: str, context: Context) -> None:
        await getattr(context, what)("something")

    async with Served(server) as served:
        for what in ("ask", "elicit", "sample", "roots", "once"):
            result = await call(served, "asks", what=what)
            assert result["isError"] is True
            assert "the call of a long operation may be over" in result["content"][0]["text"]
        waits = await call(served, "asks", what="wait")
        assert "write `await` instead" in waits["content"][0]["text"]


@on_a_loop
async def test_the_end_of_the_server_ends_what_runs() -> None:
    kitchen = Kitchen()
    async with Served(kitchen.server) as served:
        handle = await kitchen.start(served)
        await ask(served, handle)
    assert kitchen.ended == ["a lake"]
    assert kitchen.operations._operations == {}


@on_a_loop
async def test_a_result_that_cannot_be_sent_is_told() -> None:
    server = Server("x")

    @Operations(server).tool(answer_after_s=0)
    async def unfit() -> object:
        return object()

    async with Served(server) as served:
        handle = body(await call(served, "unfit"))["operationId"]
        result = await ask(served, handle, 30)
        assert (result["isError"], "has no JSON form" in result["content"][0]["text"]) == (
            True,
            True,
        )


def test_what_cannot_be_offered_is_refused() -> None:
    server = Server("x")
    operations = Operations(server)
    with pytest.raises(RegistrationError, match="expected a function"):
        operations.tool("text")  # type: ignore[call-overload]
    with pytest.raises(RegistrationError, match="without schemas written by hand"):
        operations.tool(input_schema={})(lambda arguments: None)
    with pytest.raises(RegistrationError, match="get_operation"):
        Operations(server)
    with pytest.raises(ValueError, match="answer_after_s: expected 0 or more seconds, got -1"):
        operations.tool(answer_after_s=-1)
    with pytest.raises(ValueError, match="kept_s: expected a positive number, got 0"):
        Operations(Server("y"), kept_s=0)


def test_the_function_is_given_back_as_it_was() -> None:
    def slow(number: int) -> int:
        return number + 1

    assert Operations(Server("x")).tool(slow) is slow
    assert slow(1) == 2


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"at_most": "4"}, "operations: at_most: expected a positive whole number, got '4'"),
        ({"kept": 1.5}, "operations: kept: expected a positive whole number, got 1.5"),
        ({"limit_s": None}, "operations: limit_s: expected a positive number, got None"),
        ({"kept_s": True}, "operations: kept_s: expected a positive number, got True"),
        ({"max_kept_bytes": -1}, "operations: max_kept_bytes: expected a positive number, got -1"),
    ],
)
def test_a_setting_that_is_no_number_is_named_with_what_was_expected(
    setting: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Operations(Server("s"), **setting)
