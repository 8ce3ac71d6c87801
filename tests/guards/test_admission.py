"""A guard does the same whether a runtime begins its calls, or a wrapper awaits its handle()."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from guards.asking import text_of

from concertino import Context, Guard, RpcError, Server
from concertino.backend import Backend, BackendWrapper, Call, Host
from concertino.backend.call_hooks import call_starter_of, operation_handler_of
from concertino.client import RawClient
from concertino.logs import redact
from concertino.transports import connect, memory_pair
from concertino.types import CallToolResult, TextContent
from concertino.types.results import Annotations

ODD = CallToolResult([TextContent("\ud800" * 10_000)])  # half a surrogate pair cannot be encoded
CANARY = "sk-canary-7f3a91"
INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}}


def by_runtime(backend: Backend) -> Backend:
    return backend


def by_handle(backend: Backend) -> Backend:
    return BackendWrapper(backend)


both_ways = pytest.mark.parametrize("way", [by_runtime, by_handle])


class Strict(BackendWrapper):
    """Refuses, and gives what cannot be written."""

    async def handle(self, call: Call, context: Context) -> Any:
        arguments = bytes(call.params.get("arguments", b""))
        if b"is_refused" in arguments:
            await asyncio.sleep(0)
            raise RpcError(-32000, f"not with {CANARY}")
        return ODD if b"is_odd" in arguments else await super().handle(call, context)


class Desk:
    """A server whose one tool `work` does what it is told, and what became of that."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.release = asyncio.Event()
        self.seen: list[Any] = []
        server = Server("desk")
        server.tool(self.work)
        self.server = Strict(server)

    async def work(self, how: str, context: Context) -> str:
        self.begun.set()
        try:
            return await getattr(self, f"_{how}")(context)
        finally:
            self.ended.set()

    async def _at_once(self, context: Context) -> str:
        return "done"

    async def _waits(self, context: Context) -> str:
        await self.release.wait()
        return "done"

    async def _ignores_its_cancel(self, context: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.seen.append(context.cancelled)
        async with asyncio.timeout(10):  # its task is still there for it
            await self.release.wait()
        await context.progress(1, 1, "too late")
        return "too late"

    async def _tells(self, context: Context) -> str:
        await context.progress(1, 2, f"with {CANARY}")
        await context.log("error", {"key": CANARY}, CANARY)
        return CANARY


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    def run(way: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await test(way)

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return both_ways(run)


@asynccontextmanager
async def make_caller(
    backend: Backend, told: list[Any] | None = None
) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """A function that calls `work`, as a client of 2025-11-25 with a progress token does."""
    async with Host(backend) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        heard: Any = None if told is None else lambda method, params: told.append((method, params))
        caller: RawClient = connect(ours, heard)
        await caller.request("initialize", INITIALIZE)

        async def call(how: str) -> Any:
            params = {"name": "work", "arguments": {"how": how}, "_meta": {"progressToken": "p"}}
            return await caller.request("tools/call", params)

        yield call
        await caller.aclose()


def code_of(result: Any) -> str:
    return json.loads(text_of(result))["code"]


@on_a_loop
async def test_a_call_that_ignores_its_cancel_is_answered_in_time_and_keeps_its_slot(
    way: Any,
) -> None:
    desk = Desk()
    told: list[Any] = []
    async with make_caller(way(Guard(desk.server, timeout_s=0.05, max_in_flight=1)), told) as call:
        assert code_of(await call("ignores_its_cancel")) == "TIMED_OUT"
        assert not desk.ended.is_set()
        assert code_of(await call("at_once")) == "TOO_MANY_IN_FLIGHT"
        desk.release.set()
        await desk.ended.wait()
        while (answer := await call("at_once")).get("isError"):
            await asyncio.sleep(0)
        assert text_of(answer) == "done"
    assert desk.seen == [True]
    assert told == []  # what it said after its answer


@on_a_loop
async def test_a_call_that_obeys_its_cancel_has_no_slot_when_its_caller_goes_on(way: Any) -> None:
    desk = Desk()
    async with make_caller(way(Guard(desk.server, timeout_s=0.05, max_in_flight=1))) as call:
        for _ in range(3):
            assert code_of(await call("waits")) == "TIMED_OUT"
        assert text_of(await call("at_once")) == "done"


@on_a_loop
async def test_what_is_left_over_ends_with_the_guard(way: Any) -> None:
    desk = Desk()
    async with make_caller(way(Guard(desk.server, timeout_s=0.05))) as call:
        assert code_of(await call("ignores_its_cancel")) == "TIMED_OUT"
        assert not desk.ended.is_set()
    await desk.ended.wait()


@on_a_loop
async def test_a_call_that_its_client_cancels_gives_its_slot_back_and_has_no_answer(
    way: Any,
) -> None:
    desk = Desk()
    async with make_caller(way(Guard(desk.server, timeout_s=30, max_in_flight=1))) as call:
        task = asyncio.ensure_future(call("waits"))
        await desk.begun.wait()
        task.cancel()
        await asyncio.wait([task])
        await desk.ended.wait()
        assert text_of(await call("at_once")) == "done"


@on_a_loop
async def test_a_call_that_waits_and_is_done_in_time_is_answered_and_leaves_no_timer(
    way: Any,
) -> None:
    desk = Desk()
    async with make_caller(way(Guard(desk.server, timeout_s=3600, max_in_flight=1))) as call:
        task = asyncio.ensure_future(call("waits"))
        await desk.begun.wait()
        desk.release.set()
        assert text_of(await task) == "done"
        loop: Any = asyncio.get_running_loop()
        timers = [
            each
            for each in loop._scheduled
            if not each.cancelled() and each.when() > loop.time() + 3000
        ]
        assert timers == []
        with pytest.raises(RpcError, match="not with"):
            await call("is_refused")
        assert text_of(await call("at_once")) == "done"


@on_a_loop
async def test_what_a_call_answers_and_tells_has_no_secrets_waiting_or_not(way: Any) -> None:
    desk = Desk()
    told: list[Any] = []
    redact.refresh({"CANARY_TOKEN": CANARY})
    try:
        async with make_caller(way(Guard(desk.server, redact=True, timeout_s=30)), told) as call:
            assert text_of(await call("tells")) == "[REDACTED]"
            with pytest.raises(RpcError, match=r"not with \[REDACTED\] \(-32000\)$"):
                await call("is_refused")
    finally:
        redact.refresh()
    assert [params for _, params in told] == [
        {"progressToken": "p", "progress": 1, "total": 2, "message": "with [REDACTED]"},
        {"level": "error", "data": {"key": "[REDACTED]"}, "logger": "[REDACTED]"},
    ]


class Counting(Guard):
    calls = 0

    def begin_call(self, call: Call, context: Context, slot: Any) -> Any:
        self.calls += 1
        return super().begin_call(call, context, slot)


@on_a_loop
async def test_a_guard_that_begins_calls_itself_begins_each(way: Any) -> None:
    guard = Counting(Desk().server, rate_limit="100/60", max_in_flight=1)
    async with make_caller(way(guard)) as call:
        for _ in range(3):
            assert text_of(await call("at_once")) == "done"
    assert guard.calls == 3


@on_a_loop
async def test_what_is_said_about_a_text_has_no_secrets_and_counts_for_its_size(way: Any) -> None:
    server = Server("said")

    @server.tool
    async def work(how: str) -> CallToolResult:
        return CallToolResult([TextContent("x", annotations=Annotations(last_modified=how))])

    redact.refresh({"CANARY_TOKEN": CANARY})
    try:
        async with make_caller(way(Guard(server, redact=True))) as call:
            [block] = (await call(CANARY))["content"]
            assert block["annotations"]["lastModified"] == "[REDACTED]"
        async with make_caller(way(Guard(server, max_result_bytes=600))) as call:
            assert "zzz" not in json.dumps(await call("z" * 5000))
    finally:
        redact.refresh()


@on_a_loop
async def test_guards_around_guards_each_do_their_part(way: Any) -> None:
    desk = Desk()
    inner = Guard(desk.server, timeout_s=0.05, max_in_flight=2)
    async with make_caller(way(Guard(inner, max_in_flight=1, timeout_s=30, redact=True))) as call:
        assert code_of(await call("ignores_its_cancel")) == "TIMED_OUT"
        assert (
            text_of(await call("at_once")) == "done"
        )  # the outer slot is free, and one of two inner ones
        assert code_of(await call("ignores_its_cancel")) == "TIMED_OUT"
        assert code_of(await call("at_once")) == "TOO_MANY_IN_FLIGHT"
        desk.release.set()


@on_a_loop
async def test_what_fails_to_be_written_is_an_internal_error_and_gives_its_slot_back(
    way: Any,
) -> None:
    desk = Desk()
    logging.getLogger("concertino.host").disabled = True
    try:
        async with make_caller(
            way(Guard(desk.server, max_result_bytes=10_000, max_in_flight=1))
        ) as call:
            with pytest.raises(RpcError, match="Internal error"):
                await call("is_odd")
            assert text_of(await call("at_once")) == "done"
    finally:
        logging.getLogger("concertino.host").disabled = False


def test_a_call_that_is_cancelled_in_the_read_that_brought_it_gives_its_slot_back() -> None:
    async def test() -> None:
        desk = Desk()
        guard = Guard(desk.server, timeout_s=30, max_in_flight=1)
        async with Host(guard) as host:
            ours, theirs = memory_pair()
            link = host.attach(theirs)
            caller = connect(ours)
            await caller.request("initialize", INITIALIZE)
            await host.started
            params = {"name": "work", "arguments": {"how": "waits"}}
            request = {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params}
            cancel = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": 77},
            }
            link.on_frames([json.dumps(each).encode() for each in (request, cancel)])
            while guard._limits.permits.free < guard._limits.permits.capacity:
                await asyncio.sleep(0)
            params = {"name": "work", "arguments": {"how": "at_once"}}
            assert text_of(await caller.request("tools/call", params)) == "done"
            await caller.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), 20))


@on_a_loop
async def test_a_tool_that_is_replaced_or_removed_is_called_no_more(way: Any) -> None:
    server = Server("desk")

    async def first(how: str) -> str:
        return "first"

    async def second(how: str) -> str:
        return "second"

    server.add_tool(first, name="work")
    async with make_caller(way(Guard(server, max_in_flight=1))) as call:
        assert text_of(await call("")) == "first"
        server.remove_tool("work")
        with pytest.raises(RpcError, match="Unknown tool: work"):
            await call("")
        server.add_tool(second, name="work")
        assert text_of(await call("")) == "second"
        server.remove_tool("work")
        server.add_tool(first, name="work", rate_limit="1/60")
        assert text_of(await call("")) == "first"
        assert code_of(await call("")) == "RATE_LIMIT_EXCEEDED"


@on_a_loop
async def test_a_tool_with_guards_of_its_own_keeps_them_within_a_guard(way: Any) -> None:
    server = Server("desk")

    @server.tool(rate_limit="1/60")
    async def work(how: str) -> str:
        return "done"

    async with make_caller(way(Guard(server, max_in_flight=1))) as call:
        assert text_of(await call("")) == "done"
        assert code_of(await call("")) == "RATE_LIMIT_EXCEEDED"


@on_a_loop
async def test_a_call_that_cannot_be_begun_gives_its_slot_back(way: Any) -> None:
    class Fails(BackendWrapper):
        fails = True

        def handle(self, call: Call, context: Context) -> Any:
            if self.fails:
                raise RpcError(-32000, "not now")
            return super().handle(call, context)

    inner = Fails(Desk().server)
    async with make_caller(way(Guard(inner, max_in_flight=1))) as call:
        for _ in range(2):
            with pytest.raises(RpcError, match="not now"):
                await call("at_once")
        inner.fails = False
        assert text_of(await call("at_once")) == "done"


# Which backends begin calls without `handle`


def test_a_guard_begins_its_calls_itself() -> None:
    guard = Guard(Server("s"), max_in_flight=1)
    starter = call_starter_of(guard)
    assert starter is not None
    assert starter.begin == guard.begin_call


class Audit(Guard):
    async def handle(self, call: Call, context: Context) -> Any:
        return await super().handle(call, context)


class Proxy:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def handle(self, call: Call, context: Context) -> Any:
        return await self._inner.handle(call, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_whoever_has_a_handle_of_its_own_is_called_by_it() -> None:
    guard = Guard(Server("s"), max_in_flight=1)
    others: list[Any] = [
        Server("s"),
        BackendWrapper(guard),
        Audit(Server("s"), max_in_flight=1),
        Proxy(guard),
    ]
    assert [call_starter_of(backend) for backend in others] == [None] * 4


def test_a_server_with_a_handle_of_its_own_is_called_by_it_within_a_guard() -> None:
    class Counts(Server):
        calls = 0

        async def handle(self, call: Call, context: Context) -> Any:
            self.calls += 1
            return await super().handle(call, context)

    def work() -> None:
        pass

    counts, patched = Counts("s"), Server("s")
    patched.handle = lambda call, context: None  # as a test would
    plain = Server("s")
    for server in (plain, counts, patched):
        server.add_tool(work)
    for backend in (counts, patched, BackendWrapper(plain)):
        assert operation_handler_of(backend, "tools/call", "work") is None
    assert operation_handler_of(plain, "tools/call", "work") is not None


def test_whoever_stands_around_a_guard_sees_what_it_answers() -> None:
    results: list[Any] = []

    class Watches(BackendWrapper):
        async def handle(self, call: Call, context: Context) -> Any:
            results.append(await super().handle(call, context))
            return results[-1]

    async def test() -> None:
        desk = Desk()
        async with make_caller(Watches(Guard(desk.server, redact=True, timeout_s=0.05))) as call:
            await call("tells")
            await call("waits")

    redact.refresh({"CANARY_TOKEN": CANARY})
    try:
        asyncio.run(test())
    finally:
        redact.refresh()
    assert results[0].content[0].text == "[REDACTED]"
    assert json.loads(results[1].content[0].text)["code"] == "TIMED_OUT"
