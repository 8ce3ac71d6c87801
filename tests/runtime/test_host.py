"""runtime/host.py and runtime/context.py, over memory connections and hand-made backends."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import encode

from concertino import Disconnected, Limits, RpcError, Server, serve
from concertino.backend import BackendWrapper, Host
from concertino.backend.interface import Call, Context, Notifier, ServerFeatures
from concertino.client import RawClient
from concertino.transports import connect, memory_pair
from concertino.types.results import Implementation

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


class Backend:
    """Answers every tools/call with what the given function does."""

    def __init__(
        self, handle: Callable[[Call, Context], Coroutine[Any, Any, Any]] | None = None
    ) -> None:
        self._handle = handle
        self.started = self.closed = 0
        self.outlet: Notifier

    async def start(self, outlet: Notifier) -> None:
        self.outlet = outlet
        self.started += 1

    def features(self) -> ServerFeatures:
        return ServerFeatures(Implementation("hand made", "1"), tools=True, logging=True)

    async def handle(self, call: Call, context: Context) -> Any:
        return await self._handle(call, context) if self._handle else Raw(b'{"content":[]}')

    async def close(self) -> None:
        self.closed += 1


async def open_client(host: Host, notified: Any = None) -> RawClient:
    ours, theirs = memory_pair()
    host.attach(theirs)
    caller = connect(ours, notified)
    await caller.request("initialize", INITIALIZE)
    caller.notify("notifications/initialized")
    return caller


CALL = {"name": "x", "arguments": {}}


@on_a_loop
async def test_serve_ends_when_the_other_side_closes() -> None:
    backend = Backend()
    ours, theirs = memory_pair()
    serving = asyncio.create_task(serve(backend, theirs))
    caller = connect(ours)
    await caller.request("initialize", INITIALIZE)
    await caller.aclose()
    await serving
    assert (backend.started, backend.closed) == (1, 1)
    assert (
        asyncio.all_tasks() == {asyncio.current_task()} or len(asyncio.all_tasks()) == 2
    )  # the time limit's own


@on_a_loop
async def test_serve_raises_what_start_raises() -> None:
    class Failing(Backend):
        async def start(self, outlet: Notifier) -> None:
            raise OSError("locked")

    backend = Failing()
    _, theirs = memory_pair()
    with pytest.raises(OSError, match="locked"):
        await serve(backend, theirs)
    assert backend.closed == 1


@pytest.mark.requirement("FR-15", "ME-11")
@on_a_loop
async def test_one_backend_serves_many_connections_apart() -> None:
    clients: list[str] = []

    async def handle(call: Call, context: Context) -> Any:
        clients.append(context.client.name)
        return Raw(b'{"content":[]}')

    backend = Backend(handle)
    async with Host(backend) as host:
        callers = []
        for number in range(20):
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller = connect(ours)
            await caller.request(
                "initialize", {**INITIALIZE, "clientInfo": {"name": f"c{number}", "version": "1"}}
            )
            callers.append(caller)
        await asyncio.gather(*(caller.request("tools/call", CALL) for caller in callers))
        assert sorted(clients) == sorted(f"c{n}" for n in range(20))
        await callers[0].aclose()
        assert await callers[1].request("ping") == {}
    assert (backend.started, backend.closed) == (1, 1)
    assert not host.connections


@pytest.mark.requirement("ME-18", "ME-19")
@on_a_loop
async def test_meta_that_is_not_the_protocol_s_reaches_the_backend_as_it_came() -> None:
    came: list[dict[str, bytes]] = []

    async def handle(call: Call, context: Context) -> Any:
        came.append({name: bytes(raw) for name, raw in call.meta.items()})
        return Raw(b'{"content":[]}')

    # W3C Trace Context, the example of its section 3.2.2; then what is none, which is not ours to
    # judge.
    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "congo=t61rcWkgMzE",
        "baggage": "userId=alice",
    }
    foreign = {
        "com.example/a.b": {"deep": [1, None, "\u00e9"]},
        "plain": None,
        "traceparent": "not a trace",
        "x": "",
    }
    modern = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": "t",
    }
    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        for meta in (trace, foreign, {}):
            for era in (modern, {}):
                await caller.request("tools/call", {**CALL, "_meta": {**era, **meta}})
    expected = [
        {name: encode(value) for name, value in meta.items()} for meta in (trace, foreign, {})
    ]
    assert came == [meta for meta in expected for _ in range(2)]


@pytest.mark.requirement("JR-16")
@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), KeyError("x"), SystemExit(1), GeneratorExit(), asyncio.CancelledError()],
)
@pytest.mark.parametrize("later", [False, True])
@on_a_loop
async def test_what_a_backend_raises_is_an_internal_error_without_its_text(
    error: BaseException, later: bool
) -> None:
    async def handle(call: Call, context: Context) -> Any:
        if later:
            await asyncio.sleep(0)
        raise error

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        with pytest.raises(RpcError) as refused:
            await caller.request("tools/call", CALL)
        assert refused.value.code == -32603
        assert "secret" not in str(refused.value)
        assert await caller.request("ping") == {}


@on_a_loop
async def test_an_rpc_error_is_given_as_it_is() -> None:
    async def handle(call: Call, context: Context) -> Any:
        raise RpcError(-32050, "in my words", {"why": [1, 2]})

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        with pytest.raises(RpcError) as refused:
            await caller.request("tools/call", CALL)
        assert (refused.value.code, refused.value.message, refused.value.data) == (
            -32050,
            "in my words",
            {"why": [1, 2]},
        )


@on_a_loop
async def test_what_a_handle_that_is_no_coroutine_function_raises_is_answered() -> None:
    class Guard(BackendWrapper):
        def handle(
            self, call: Call, context: Context
        ) -> Any:  # raises before there is anything to await
            raise RpcError(-32001, "not today")

    async with Host(Guard(Backend())) as host:
        caller = await open_client(host)
        with pytest.raises(RpcError, match="not today"):
            await caller.request("tools/call", CALL)
        await caller.aclose()


@on_a_loop
async def test_a_request_that_is_lost_for_want_of_memory_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by tests/simulation: the connection went on, and who had sent the request waited for
    ever.
    """
    release = asyncio.Event()

    async def handle(call: Call, context: Context) -> Any:
        await release.wait()
        return Raw(b'{"content":[]}')

    def no_memory(*_: Any) -> None:
        raise MemoryError

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        before = asyncio.create_task(caller.request("tools/call", CALL))
        await asyncio.sleep(0)
        while not next(iter(host.connections)).session.peer.running:
            await asyncio.sleep(0)
        monkeypatch.setattr("concertino.protocol.session.SessionRequest", no_memory)
        lost = asyncio.create_task(caller.request("tools/call", CALL))
        while not next(iter(host.connections)).is_draining:
            await asyncio.sleep(0)
        release.set()
        assert await before == {"content": []}
        with pytest.raises(Disconnected):
            await lost
        await caller.aclose()


@pytest.mark.parametrize("data", [object(), {1j: 2}, b"\xff" and {"x": object()}])
@on_a_loop
async def test_error_data_that_is_no_json_is_left_out(data: Any) -> None:
    async def handle(call: Call, context: Context) -> Any:
        raise RpcError(-32050, "in my words", data)

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        with pytest.raises(RpcError) as refused:
            await caller.request("tools/call", CALL)
        assert (refused.value.code, refused.value.data) == (-32050, None)


async def refuses(caller: RawClient, params: dict[str, Any]) -> bool:
    """Whether the answer says that the call failed: by an error, or by a result with isError."""
    try:
        result = await caller.request("tools/call", params)
    except RpcError as error:
        return error.code == -32603
    return isinstance(result, dict) and result.get("isError") is True


@pytest.mark.parametrize("result", [Raw(b"5"), Raw(b"{bad"), object()])
@pytest.mark.parametrize("meta", [{}, {"_meta": "modern"}])
@on_a_loop
async def test_a_result_that_is_none_is_refused_on_its_id(
    result: Any, meta: dict[str, Any]
) -> None:
    """A backend's mistake must not end the connection, nor leave the caller waiting."""

    async def handle(call: Call, context: Context) -> Any:
        return result

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        assert await refuses(caller, {**CALL, **(meta and {"_meta": MODERN})})
        assert await caller.request("ping") == {}


@pytest.mark.parametrize("result", [None, 5, "text", [1, 2, 3]])
@on_a_loop
async def test_a_result_that_is_no_object_is_refused_on_its_id_in_both_eras(result: Any) -> None:
    async def handle(call: Call, context: Context) -> Any:
        return result

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        assert await refuses(caller, {**CALL, "_meta": MODERN})
        assert await refuses(caller, CALL)


MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@on_a_loop
async def test_a_slow_start_holds_calls_back_but_not_the_handshake() -> None:
    gate = asyncio.Event()

    class Slow(Backend):
        async def start(self, outlet: Notifier) -> None:
            await gate.wait()
            await super().start(outlet)

    async with Host(Slow(), Limits(opening_s=0.01)) as host:
        caller = await open_client(host)
        call = asyncio.create_task(caller.request("tools/call", CALL))
        assert await caller.request("ping") == {}
        assert not call.done()
        gate.set()
        assert await call == {"content": []}


@on_a_loop
async def test_a_start_that_fails_answers_the_calls_that_wait() -> None:
    gate = asyncio.Event()

    class Failing(Backend):
        async def start(self, outlet: Notifier) -> None:
            await gate.wait()
            raise OSError("locked")

    async with Host(Failing(), Limits(opening_s=0.01)) as host:
        caller = await open_client(host)
        call = asyncio.create_task(caller.request("tools/call", CALL))
        await caller.request("ping")
        gate.set()
        with pytest.raises(RpcError, match=r"^cannot start: "):
            await call


@on_a_loop
async def test_a_start_that_ends_in_a_cancel_answers_the_calls_that_wait_and_those_that_come() -> (
    None
):
    gate = asyncio.Event()

    class Cancelled(Backend):
        async def start(self, outlet: Notifier) -> None:
            await gate.wait()
            raise asyncio.CancelledError

    async with Host(Cancelled(), Limits(opening_s=0.01)) as host:
        caller = await open_client(host)
        call = asyncio.create_task(caller.request("tools/call", CALL))
        await caller.request("ping")
        gate.set()
        with pytest.raises(RpcError, match=r"^cannot start: "):
            await call


@on_a_loop
async def test_leaving_the_host_during_a_slow_start_cancels_it() -> None:
    cancelled = []

    class Slow(Backend):
        async def start(self, outlet: Notifier) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    backend = Slow()
    async with Host(backend, Limits(opening_s=0.01, drain_s=0.01)) as host:
        await open_client(host)
    assert cancelled == [True]
    assert backend.closed == 1


@on_a_loop
async def test_leaving_the_host_lets_calls_finish() -> None:
    gate = asyncio.Event()

    async def handle(call: Call, context: Context) -> Any:
        await gate.wait()
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        call = asyncio.create_task(caller.request("tools/call", CALL))
        await caller.request("ping")
        asyncio.get_running_loop().call_soon(gate.set)
    assert await call == {"content": []}


@on_a_loop
async def test_leaving_the_host_cuts_off_calls_after_the_drain_time() -> None:
    ended = []

    async def handle(call: Call, context: Context) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.cancelled)

    async with Host(Backend(handle), Limits(drain_s=0.05)) as host:
        caller = await open_client(host)
        call = asyncio.create_task(caller.request("tools/call", CALL))
        await caller.request("ping")
    assert ended == [True]
    with pytest.raises(RpcError, match="the server is shutting down"):
        await call


@pytest.mark.parametrize("failing", ["write", "fail"])
@on_a_loop
async def test_calls_are_cancelled_once_also_if_the_first_cannot_be_told_of_the_shutdown(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by tests/simulation: the handler of the call without an answer ran on for ever."""
    ended = []

    async def handle(call: Call, context: Context) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            # A second cancel would interrupt this.
            await asyncio.sleep(0.01)
            ended.append(context.cancelled)

    async with Host(Backend(handle), Limits(drain_s=0.05)) as host:
        caller = await open_client(host)
        calls = [asyncio.create_task(caller.request("tools/call", CALL)) for _ in range(3)]
        await caller.request("ping")
        peer = next(iter(host.connections)).session.peer
        function = peer.send if failing == "write" else peer.fail
        used = []

        def fail_first(*args: Any) -> Any:
            used.append(args)
            if len(used) == 1:
                raise MemoryError
            return function(*args)

        monkeypatch.setattr(peer, "send" if failing == "write" else "fail", fail_first)
    assert ended == [True] * 3
    with pytest.raises(Disconnected):
        await calls[0]
    for call in calls[1:]:
        with pytest.raises(RpcError, match="the server is shutting down"):
            await call


@on_a_loop
async def test_a_handler_that_swallows_its_cancel_does_not_hold_the_end() -> None:
    over = asyncio.Event()

    async def handle(call: Call, context: Context) -> Any:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass

    async with Host(Backend(handle), Limits(drain_s=0.05)) as host:
        caller = await open_client(host)
        call = asyncio.create_task(caller.request("tools/call", CALL))
        await caller.request("ping")
    with pytest.raises(RpcError, match="the server is shutting down"):
        await call
    over.set()


@on_a_loop
async def test_a_cancelled_call_frees_its_place() -> None:
    begun: list[str] = []

    async def handle(call: Call, context: Context) -> Any:
        begun.append(call.decode_params(dict)["name"])
        await asyncio.Event().wait()

    async with Host(Backend(handle), Limits(max_in_flight=1, drain_s=0.01)) as host:
        caller = await open_client(host)
        first = asyncio.create_task(caller.request("tools/call", {"name": "first"}))
        second = asyncio.create_task(caller.request("tools/call", {"name": "second"}))
        await caller.request("ping")
        assert begun == ["first"]
        first.cancel()
        await asyncio.wait([first])
        await caller.request("ping")
        await caller.request("ping")
        assert begun == ["first", "second"]
        second.cancel()


@on_a_loop
async def test_calls_beyond_the_queue_are_told_that_the_server_is_busy() -> None:
    gate = asyncio.Event()

    async def handle(call: Call, context: Context) -> Any:
        await gate.wait()
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle), Limits(max_in_flight=2, max_waiting=3)) as host:
        caller = await open_client(host)
        calls = [asyncio.create_task(caller.request("tools/call", CALL)) for _ in range(10)]
        await asyncio.sleep(0)
        await caller.request("ping")
        gate.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [end for end in ends if isinstance(end, dict)] == [{"content": []}] * 5
        assert [end.code for end in ends if isinstance(end, RpcError)] == [-31001] * 5


@on_a_loop
async def test_a_call_that_waited_for_anothers_end_does_not_see_its_variables() -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    seen: list[str] = []

    async def handle(call: Call, context: Context) -> Any:
        seen.append(user.get())
        user.set(call.decode_params(dict)["name"])
        await asyncio.sleep(0)
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle), Limits(max_in_flight=1)) as host:
        caller = await open_client(host)
        await asyncio.gather(*(caller.request("tools/call", {"name": str(n)}) for n in range(10)))
        assert seen == ["nobody"] * 10


@on_a_loop
async def test_calls_wait_in_order() -> None:
    order: list[int] = []

    async def handle(call: Call, context: Context) -> Any:
        order.append(int(call.decode_params(dict)["name"]))
        await asyncio.sleep(0)
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle), Limits(max_in_flight=3)) as host:
        caller = await open_client(host)
        await asyncio.gather(*(caller.request("tools/call", {"name": str(n)}) for n in range(100)))
        assert order == list(range(100))


@on_a_loop
async def test_a_call_of_a_batch_that_ends_makes_room_for_those_that_wait() -> None:
    """Found by tests/simulation: nothing is sent before the batch is complete, and so nothing
    started the next call.
    """
    release = asyncio.Event()

    async def handle(call: Call, context: Context) -> Any:
        await release.wait()
        return Raw(b'{"content":[]}')

    class Receiver:
        def __init__(self) -> None:
            self.came: asyncio.Queue[Any] = asyncio.Queue()

        def on_frames(self, batch: Sequence[bytes]) -> None:
            for frame in batch:
                self.came.put_nowait(json.loads(frame))

        def on_frame_too_long(self, size: int) -> None: ...
        def on_drain(self, held: int) -> None: ...
        def on_eof(self) -> None: ...
        def on_disconnect(self, why: Exception) -> None: ...

    async with Host(Backend(handle), Limits(max_in_flight=1)) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        client = Receiver()
        ours.open(client)
        opening = {**INITIALIZE, "protocolVersion": "2025-03-26"}  # the one revision with batches
        batch = [
            {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": CALL} for id in (1, 2, 3)
        ]
        for message in (
            {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": opening},
            batch,
        ):
            ours.write(json.dumps(message).encode(), None)
        ours.flush()
        assert (await client.came.get())["id"] == 0
        release.set()
        assert [answer["id"] for answer in await client.came.get()] == [1, 2, 3]
        await ours.close(0)


@on_a_loop
async def test_a_guard_around_a_backend_sees_every_call() -> None:
    seen: list[str] = []

    class Guard(BackendWrapper):
        async def handle(self, call: Call, context: Context) -> Any:
            seen.append(call.method)
            return await super().handle(call, context)

    inner = Backend()
    async with Host(Guard(inner)) as host:
        caller = await open_client(host)
        await caller.request("tools/call", CALL)
    assert seen == ["tools/call"]
    assert (inner.started, inner.closed) == (1, 1)


@on_a_loop
async def test_changes_are_announced_to_every_connection_from_any_thread() -> None:
    backend = Backend()
    heard: list[tuple[int, str]] = []
    async with Host(backend) as host:
        callers = [
            await open_client(host, lambda method, _, n=n: heard.append((n, method)))
            for n in range(3)
        ]
        await asyncio.gather(*(caller.request("ping") for caller in callers))
        await asyncio.to_thread(backend.outlet.report_change, "tools")
        backend.outlet.report_change("tools")
        await asyncio.gather(*(caller.request("ping") for caller in callers))
        await asyncio.gather(*(caller.request("ping") for caller in callers))
    assert sorted(heard) == sorted([(n, "notifications/tools/list_changed") for n in range(3)] * 2)


# Subscriptions to resources


class Watching(Backend):
    """Remembers what it is to watch. gate: watch() returns when it is set; fails: the first one
    raises instead.
    """

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.told: list[frozenset[str]] = []
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self._fails = fails

    def features(self) -> ServerFeatures:
        return ServerFeatures(Implementation("hand made", "1"), resources=True, subscriptions=True)

    async def watch(self, uris: frozenset[str]) -> None:
        self.told.append(uris)
        self.entered.set()
        if self._fails and len(self.told) == 1:
            raise OSError("no more watches")
        await self.gate.wait()


async def wait_for_watches(backend: Watching, count: int) -> list[frozenset[str]]:
    """What the backend was told, once it was told so often."""
    while len(backend.told) < count:
        backend.entered.clear()
        await backend.entered.wait()
    return backend.told


@on_a_loop
async def test_a_backend_watches_what_any_client_subscribed_to_one_set_after_the_other() -> None:
    backend = Watching()
    heard: list[tuple[str, Any]] = []
    async with Host(backend) as host:
        first = await open_client(host, lambda method, params: heard.append((method, params)))
        second = await open_client(host)
        await first.request("resources/subscribe", {"uri": "a:1"})
        assert await wait_for_watches(backend, 1) == [{"a:1"}]
        await first.request(
            "resources/subscribe", {"uri": "a:2"}
        )  # while the first watch() is under way
        await second.request("resources/subscribe", {"uri": "a:1"})
        await second.request("resources/subscribe", {"uri": "a:3"})
        assert len(backend.told) == 1
        backend.gate.set()
        assert (await wait_for_watches(backend, 2))[1] == {"a:1", "a:2", "a:3"}
        backend.outlet.report_update("a:2")
        await asyncio.to_thread(backend.outlet.report_update, "a:1")
        backend.outlet.report_update("a:3")
        await first.request("ping")
        await first.request("ping")
        assert [params["uri"] for _, params in heard] == ["a:2", "a:1"]
        await second.aclose()
        assert (await wait_for_watches(backend, 3))[2] == {"a:1", "a:2"}
        await first.request("resources/unsubscribe", {"uri": "a:1"})
        assert (await wait_for_watches(backend, 4))[3] == {"a:2"}


@on_a_loop
async def test_a_backend_that_cannot_watch_is_told_of_the_next_set_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Watching(fails=True)
    backend.gate.set()
    async with Host(BackendWrapper(backend)) as host:
        caller = await open_client(host)
        assert (await caller.request("resources/subscribe", {"uri": "a:1"})) == {}
        await wait_for_watches(backend, 1)
        assert (await caller.request("resources/subscribe", {"uri": "a:2"})) == {}
        assert await wait_for_watches(backend, 2) == [{"a:1"}, {"a:1", "a:2"}]
    assert "the backend could not watch 1 resources" in caplog.text


@on_a_loop
async def test_a_backend_is_told_what_to_watch_only_when_it_has_started() -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    class Slow(Watching):
        async def start(self, outlet: Notifier) -> None:
            began.set()
            await gate.wait()
            assert self.told == []
            await super().start(outlet)

    backend = Slow()
    backend.gate.set()
    async with Host(backend, Limits(opening_s=0.01)) as host:
        caller = await open_client(host)
        await began.wait()
        await caller.request("resources/subscribe", {"uri": "a:1"})
        gate.set()
        assert await wait_for_watches(backend, 1) == [{"a:1"}]


@on_a_loop
async def test_leaving_the_host_does_not_wait_for_a_watch_that_hangs() -> None:
    backend = Watching()
    async with Host(backend) as host:
        caller = await open_client(host)
        await caller.request("resources/subscribe", {"uri": "a:1"})
        await wait_for_watches(backend, 1)
    assert backend.closed == 1


# The context


@on_a_loop
async def test_a_handler_sees_the_meta_that_is_not_the_protocols() -> None:
    """Trace context is passed on: 2026-07-28 basic/index, SEP-414."""
    seen: list[Any] = []

    async def handle(call: Call, context: Context) -> Any:
        seen.append(dict(context.meta))
        return Raw(b'{"content":[]}')

    trace = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "example.com/k": {"a": [1]},
    }
    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        await caller.request("tools/call", {**CALL, "_meta": {**trace, "progressToken": 1}})
        await caller.request("tools/call", CALL)
    assert seen == [trace, {}]


@on_a_loop
async def test_a_call_that_does_nothing_but_tell_lets_others_in_and_can_be_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(call: Call, context: Context) -> Any:
        begun.set()
        deadline = asyncio.get_running_loop().time() + 60
        try:
            number = 0
            while asyncio.get_running_loop().time() < deadline:
                await (context.log("info", number) if number % 2 else context.progress(number))
                number += 1
        finally:
            ended.set()
        return Raw(b'{"content":["it could not be cancelled"]}')

    async with Host(Backend(handle)) as host:
        caller = await open_client(host)
        asked = asyncio.ensure_future(
            caller.request("tools/call", {**CALL, "_meta": {"progressToken": 1}})
        )
        await begun.wait()
        assert await caller.request("ping") == {}
        asked.cancel()
        await ended.wait()


@on_a_loop
async def test_progress_refuses_what_is_no_number() -> None:
    raised: list[str] = []

    async def handle(call: Call, context: Context) -> Any:
        for values in ((float("nan"),), (float("inf"),), (1, float("nan")), (1, float("-inf"))):
            try:
                await context.progress(*values)
            except ValueError as error:
                raised.append(str(error))
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle)) as host:
        await (await open_client(host)).request(
            "tools/call", {**CALL, "_meta": {"progressToken": 1}}
        )
    assert len(raised) == 4
    assert "finite" in raised[0]


@on_a_loop
async def test_log_refuses_a_level_that_is_none_and_data_that_is_no_json() -> None:
    raised: list[BaseException] = []

    async def handle(call: Call, context: Context) -> Any:
        for level, data in (("loud", "x"), ("info", object())):
            try:
                await context.log(level, data)  # type: ignore[arg-type]
            except (ValueError, TypeError) as error:
                raised.append(error)
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle)) as host:
        await (await open_client(host)).request("tools/call", CALL)
    assert [type(error) for error in raised] == [ValueError, TypeError]


@on_a_loop
async def test_progress_and_log_from_a_thread_come_in_order_before_the_answer() -> None:
    heard: list[Any] = []

    def work(context: Context) -> None:
        for number in range(1, 101):
            context.progress(number)
            context.log("info", number)

    async def handle(call: Call, context: Context) -> Any:
        await asyncio.to_thread(work, context)
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle)) as host:
        caller = await open_client(
            host, lambda method, params: heard.append(params.get("progress", params.get("data")))
        )
        await caller.request("tools/call", {**CALL, "_meta": {"progressToken": 1}})
        assert heard == [number for number in range(1, 101) for _ in range(2)]


@on_a_loop
async def test_a_context_that_is_used_from_a_thread_after_the_end_is_harmless() -> None:
    kept: list[Context] = []

    async def handle(call: Call, context: Context) -> Any:
        kept.append(context)
        return Raw(b'{"content":[]}')

    async with Host(Backend(handle)) as host:
        await (await open_client(host)).request(
            "tools/call", {**CALL, "_meta": {"progressToken": 1}}
        )
    kept[0].progress(5)
    kept[0].log("error", "late")
    thread = threading.Thread(target=lambda: (kept[0].progress(6), kept[0].log("error", "late")))
    thread.start()
    thread.join()
    await asyncio.sleep(0)
    assert kept[0].cancelled


def test_a_context_that_is_used_after_its_loop_is_closed_is_harmless() -> None:
    kept: list[Context] = []

    async def handle(call: Call, context: Context) -> Any:
        kept.append(context)
        return Raw(b'{"content":[]}')

    async def main() -> None:
        async with Host(Backend(handle)) as host:
            await (await open_client(host)).request(
                "tools/call", {**CALL, "_meta": {"progressToken": 1}}
            )

    asyncio.run(main())
    failures: list[BaseException] = []

    def use() -> None:
        try:
            kept[0].progress(1)
            kept[0].log("info", "x")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert failures == []


@on_a_loop
async def test_the_log_names_a_fault_of_a_backend(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(call: Call, context: Context) -> Any:
        raise ValueError("for the log alone")

    logging.getLogger("concertino").propagate = True
    with caplog.at_level(logging.ERROR, "concertino"):
        async with Host(Backend(handle)) as host:
            caller = await open_client(host)
            with pytest.raises(RpcError):
                await caller.request("tools/call", CALL)
    assert "for the log alone" in caplog.text


@on_a_loop
async def test_a_server_can_be_served_twice_one_after_the_other() -> None:
    server = Server("again")

    @server.tool
    def in_thread() -> str:
        return "served"

    for _ in range(2):
        async with Host(server) as host:
            caller = await open_client(host)
            result = await caller.request("tools/call", {"name": "in_thread", "arguments": {}})
            assert result["content"][0]["text"] == "served"
