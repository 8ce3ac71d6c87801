"""Time limits: answered in time, work cancelled, and what does not let itself be cancelled is left
behind.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from guards.asking import ask_server, text_of
from msgspec import Raw

from concertino import Context, RpcError, Server, ToolError
from concertino.backend import Call, Host
from concertino.errors import RegistrationError
from concertino.guards.guard import Guard
from concertino.guards.operation_policy import MAX_LATE_WORK
from concertino.guards.single_guards import InFlightLimit, TimeLimit
from concertino.transports import connect, memory_pair
from concertino.types import CallToolResult, TextContent

DONE = CallToolResult([TextContent("done")])
CALL = Call("tools/call", {"name": Raw(b'"slow"')})
LIMIT_S = 0.05


class Does:
    """A backend that does something."""

    def __init__(self, work: Callable[[Any], Awaitable[Any]]) -> None:
        self._work = work

    async def handle(self, call: Call, context: Any) -> Any:
        return await self._work(context)

    async def close(self) -> None: ...


class ContextWithoutClient:
    """A Context without a client. cancelled: as the session has it."""

    cancelled = False


def limit_time(work: Callable[[Any], Awaitable[Any]], **more: Any) -> Guard:
    return Guard(Does(work), timeout_s=LIMIT_S, **more)  # type: ignore[arg-type]


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def is_timed_out(result: Any) -> bool:
    return result.is_error and json.loads(result.content[0].text)["code"] == "TIMED_OUT"


def test_slow_work_is_cancelled_and_answered_in_words() -> None:
    ended: list[str] = []

    async def slow(context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(f"cancelled {context.cancelled}")
            raise

    async def test() -> None:
        task = asyncio.current_task()
        assert task is not None
        result = await limit_time(slow).handle(CALL, ContextWithoutClient())  # type: ignore[arg-type]
        assert json.loads(result.content[0].text) == {  # type: ignore[union-attr]
            "error": "slow took longer than 0.05 s and was stopped.",
            "code": "TIMED_OUT",
            "suggestion": "Ask for less at once, or try again later.",
            "limitSeconds": LIMIT_S,
        }
        assert ended == ["cancelled True"]
        assert task.cancelling() == 0  # nothing is left of the cancel
        await asyncio.sleep(0)

    run(test)


def test_work_that_is_done_in_time_is_answered_as_it_is_and_leaves_no_timer() -> None:
    async def quick(context: Any) -> Any:
        await asyncio.sleep(0)
        return DONE

    async def at_once(context: Any) -> Any:
        return DONE

    async def test() -> None:
        for work in (quick, at_once):
            assert await limit_time(work).handle(CALL, ContextWithoutClient()) is DONE  # type: ignore[arg-type]
        left = [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]  # type: ignore[attr-defined]
        assert len(left) == 1  # the test's own

    run(test)


def test_an_exception_and_a_refusal_pass() -> None:
    async def test() -> None:
        for error in (ValueError("x"), RpcError(-32602, "no")):
            for wait in (False, True):

                async def fail(context: Any, error: Exception = error, wait: bool = wait) -> Any:
                    if wait:
                        await asyncio.sleep(0)
                    raise error

                with pytest.raises(type(error)) as raised:
                    await limit_time(fail).handle(CALL, ContextWithoutClient())  # type: ignore[arg-type]
                assert raised.value is error

    run(test)


def test_work_that_goes_on_after_the_cancel_does_not_delay_the_answer() -> None:
    async def test() -> None:
        release, ended = asyncio.Event(), asyncio.Event()

        async def stubborn(context: Any) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            async with asyncio.timeout(10):  # a task of its own is there for it
                await release.wait()
            ended.set()
            return DONE

        guard = limit_time(stubborn, max_in_flight=1)
        assert is_timed_out(await guard.handle(CALL, ContextWithoutClient()))  # type: ignore[arg-type]
        assert not ended.is_set()
        refused = await guard.handle(CALL, ContextWithoutClient())  # type: ignore[arg-type]
        assert json.loads(refused.content[0].text)["code"] == "TOO_MANY_IN_FLIGHT"  # type: ignore[union-attr]  # it keeps its place
        release.set()
        await ended.wait()
        while guard._limits.late_work.tasks:
            await asyncio.sleep(0)
        assert guard._limits.permits is not None
        assert guard._limits.permits.free == guard._limits.permits.capacity

    run(test)


@pytest.mark.parametrize("limits", [{}, {"max_in_flight": MAX_LATE_WORK + 10}])
def test_what_is_left_is_bounded_and_ends_with_the_guard(limits: dict[str, int]) -> None:
    async def test() -> None:
        ended = 0

        async def stubborn(context: Any) -> Any:
            nonlocal ended
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            try:
                await asyncio.Event().wait()
            finally:
                ended += 1

        guard = Guard(Does(stubborn), timeout_s=0.001, **limits)  # type: ignore[arg-type]
        results = await asyncio.gather(
            *(
                asyncio.ensure_future(guard.handle(CALL, ContextWithoutClient()))
                for _ in range(MAX_LATE_WORK)
            )
        )  # type: ignore[arg-type]
        assert all(is_timed_out(each) for each in results)
        refused = await guard.handle(CALL, ContextWithoutClient())  # type: ignore[arg-type]
        refusal = json.loads(refused.content[0].text)  # type: ignore[union-attr]
        assert refusal["code"] == "TOO_MANY_IN_FLIGHT"
        assert f"{MAX_LATE_WORK} calls go on" in refusal["error"]
        tasks = set(guard._limits.late_work.tasks)
        assert len(tasks) == MAX_LATE_WORK
        await guard.close()
        await asyncio.wait(tasks)
        assert ended == MAX_LATE_WORK
        permits = guard._limits.permits
        assert permits is None or permits.free == permits.capacity

    run(test)


def test_work_that_answers_its_cancel_is_too_late_all_the_same() -> None:
    async def late(context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return DONE

    async def test() -> None:
        assert is_timed_out(await limit_time(late).handle(CALL, ContextWithoutClient()))  # type: ignore[arg-type]

    run(test)


def test_a_callers_own_cancel_reaches_the_work_and_is_no_time_out() -> None:
    async def test() -> None:
        begun = asyncio.Event()

        async def slow(context: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        guard = Guard(Does(slow), timeout_s=30)  # type: ignore[arg-type]
        task = asyncio.ensure_future(guard.handle(CALL, ContextWithoutClient()))  # type: ignore[arg-type]
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(test)


def test_a_callers_cancel_counts_even_if_the_time_ends_while_the_work_cleans_up() -> None:
    async def test() -> None:
        begun = asyncio.Event()

        async def slow(context: Any) -> Any:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.Event().wait()

        task = asyncio.ensure_future(limit_time(slow).handle(CALL, ContextWithoutClient()))  # type: ignore[arg-type]
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(test)


def test_a_time_limit_inside_of_a_time_limit_counts() -> None:
    async def slow(context: Any) -> Any:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return DONE

    async def test() -> None:
        assert await Guard(Does(slow), timeout_s=30).handle(CALL, ContextWithoutClient()) is DONE  # type: ignore[arg-type]
        inner = limit_time(lambda context: asyncio.Event().wait())
        assert is_timed_out(await TimeLimit(inner, 30).handle(CALL, ContextWithoutClient()))  # type: ignore[arg-type]
        outer = TimeLimit(TimeLimit(Does(lambda context: asyncio.Event().wait()), 30), LIMIT_S)  # type: ignore[arg-type]
        assert is_timed_out(await outer.handle(CALL, ContextWithoutClient()))  # type: ignore[arg-type]

    run(test)


def test_prompts_and_resources_are_answered_by_an_error() -> None:
    server = Server("s")

    @server.resource("a:b")
    async def read() -> str:
        await asyncio.Event().wait()
        return ""

    @server.prompt
    async def greet() -> str:
        await asyncio.Event().wait()
        return ""

    errors = ask_server(
        TimeLimit(server, LIMIT_S),
        ("resources/read", {"uri": "a:b"}),
        ("prompts/get", {"name": "greet"}),
        ("tools/list", {}),
    )
    assert [error.data["code"] for error in errors[:2]] == ["TIMED_OUT", "TIMED_OUT"]
    assert errors[2] == {"tools": []}


def test_tools_of_every_kind_say_their_own_time_and_a_thread_hears_of_it() -> None:
    server = Server("s")
    heard = threading.Event()

    @server.tool(timeout_s=LIMIT_S)
    async def waits() -> str:
        await asyncio.Event().wait()
        return ""

    @server.tool(timeout_s=LIMIT_S)
    def blocks(context: Context) -> str:
        while not context.cancelled:
            pass
        heard.set()
        return ""

    @server.tool(timeout_s=30)
    async def quick() -> str:
        await asyncio.sleep(0)
        return "done"

    @server.tool(timeout_s=LIMIT_S)
    async def refuses() -> str:
        raise ToolError("no")

    answers = ask_server(
        server,
        *(("tools/call", {"name": name}) for name in ("waits", "blocks", "quick", "refuses")),
    )
    assert [json.loads(text_of(each))["code"] for each in answers[:2]] == ["TIMED_OUT", "TIMED_OUT"]
    assert [text_of(each) for each in answers[2:]] == ["done", "no"]
    assert heard.wait(10)


def test_what_a_tool_leaves_behind_ends_with_its_server() -> None:
    server = Server("s")
    ended: list[str] = []

    @server.tool(timeout_s=LIMIT_S)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return ""

    async def test() -> None:
        async with Host(server) as host:
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller = connect(ours)
            await caller.request(
                "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}
            )
            answer = await caller.request("tools/call", {"name": "stubborn"})
            assert json.loads(text_of(answer))["code"] == "TIMED_OUT"
            assert ended == []
            await caller.aclose()
        await asyncio.sleep(0)
        assert ended == ["cancelled"]

    run(test)


def test_a_tool_tells_progress_and_more_through_its_guard() -> None:
    server = Server("s")

    @server.tool(timeout_s=30, redact=True)
    async def facts(context: Context) -> str:
        await context.progress(1, 2, "half")
        await context.log("info", "here")
        return context.client.name

    [answer] = ask_server(server, ("tools/call", {"name": "facts"}))
    assert not answer.get("isError")


@pytest.mark.parametrize("timeout_s", [0, -1, True, "1", float("nan"), float("inf")])
def test_what_is_no_time_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ValueError, match="timeout_s: expected a positive number of seconds"):
        TimeLimit(Server("s"), timeout_s)
    with pytest.raises(RegistrationError, match="tool: timeout_s"):
        Server("s").add_tool(lambda: 1, name="tool", timeout_s=timeout_s)


def test_what_is_no_number_of_calls_is_refused() -> None:
    for calls in (0, 1.5, True):
        with pytest.raises(ValueError, match="max_in_flight: expected a positive number"):
            InFlightLimit(Server("s"), calls)  # type: ignore[arg-type]


def test_an_unknown_setting_of_a_tool_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        Server("s").add_tool(lambda: 1, name="tool", timeout=1)  # type: ignore[call-arg]
