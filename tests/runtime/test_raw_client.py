"""runtime/raw_client.py: the least that can call a server.

The other side here is a Peer-less script over a memory pair.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop

from concertino import Disconnected, ProtocolError, RpcError
from concertino.transports import connect, memory_pair, spawn
from concertino.transports.memory import MemoryConnection

CALCULATOR = Path(__file__).parents[2] / "examples" / "calculator.py"
INFO = {"name": "test", "version": "1"}


class Other:
    """The other side: keeps what came, sends what it is told to."""

    def __init__(self, connection: MemoryConnection) -> None:
        self.connection = connection
        self.came: list[Any] = []
        self.over = False
        self.arrived = asyncio.Event()
        connection.open(self)

    def on_frames(self, batch: Sequence[bytes]) -> None:
        self.came += map(json.loads, batch)
        self.arrived.set()

    def on_frame_too_long(self, size: int) -> None: ...

    def on_drain(self, held: int) -> None: ...

    def on_eof(self) -> None:
        self.over = True
        self.arrived.set()

    def on_disconnect(self, why: Exception) -> None: ...

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.connection.write(
                message if isinstance(message, bytes) else json.dumps(message).encode(), None
            )
        self.connection.flush()

    async def until(self, count: int) -> None:
        while len(self.came) < count:
            self.arrived.clear()
            await self.arrived.wait()


@on_a_loop
async def test_answers_find_their_requests_in_any_order() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    asked = [asyncio.create_task(caller.request("m", {"n": n})) for n in range(3)]
    await other.until(3)
    for message in reversed(other.came):
        other.send({"jsonrpc": "2.0", "id": message["id"], "result": {"n": message["params"]["n"]}})
    assert [await each for each in asked] == [{"n": 0}, {"n": 1}, {"n": 2}]


@on_a_loop
async def test_an_error_answer_is_raised() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    asked = asyncio.create_task(caller.request("m"))
    await other.until(1)
    other.send(
        {
            "jsonrpc": "2.0",
            "id": other.came[0]["id"],
            "error": {"code": -32601, "message": "no", "data": [1]},
        }
    )
    with pytest.raises(RpcError) as refused:
        await asked
    assert (refused.value.code, refused.value.message, refused.value.data) == (-32601, "no", [1])
    assert str(refused.value) == "no (-32601)"


@pytest.mark.requirement("JR-19", "CA-12")
@on_a_loop
async def test_no_answer_in_time_is_a_timeout_and_the_server_is_told() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    with pytest.raises(TimeoutError):
        await caller.request("m", timeout_s=0.01)
    await other.until(2)
    assert other.came[1]["method"] == "notifications/cancelled"
    assert other.came[1]["params"]["requestId"] == other.came[0]["id"]
    other.send(
        {"jsonrpc": "2.0", "id": other.came[0]["id"], "result": {}}
    )  # too late: nobody minds
    again = asyncio.create_task(caller.request("n"))
    await other.until(3)
    other.send({"jsonrpc": "2.0", "id": other.came[2]["id"], "result": {"late": False}})
    assert await again == {"late": False}


@on_a_loop
async def test_a_time_limit_that_is_no_number_is_refused_and_nothing_is_sent() -> None:
    """asyncio keeps its timers in a heap; one at NaN would keep every other timer of the loop from
    its turn.
    """
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    with pytest.raises(ValueError, match="timeout_s: expected seconds, got nan"):
        await asyncio.wait_for(caller.request("ping", timeout_s=float("nan")), 1)
    await caller.aclose()
    assert other.came == []


@pytest.mark.requirement("CA-12")
@on_a_loop
async def test_timeouts_of_different_length_each_come_in_their_time() -> None:
    ours, theirs = memory_pair()
    _, caller = Other(theirs), connect(ours)
    ends: list[str] = []

    async def ask(name: str, timeout_s: float) -> None:
        with pytest.raises(TimeoutError):
            await caller.request(name, timeout_s=timeout_s)
        ends.append(name)

    await asyncio.gather(ask("long", 0.09), ask("short", 0.01), ask("middle", 0.05))
    assert ends == ["short", "middle", "long"]


@on_a_loop
async def test_a_cancelled_request_tells_the_server() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    asked = asyncio.create_task(caller.request("m"))
    await other.until(1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await other.until(2)
    assert other.came[1]["params"]["requestId"] == other.came[0]["id"]


@pytest.mark.requirement("JR-19")
@on_a_loop
async def test_requests_under_way_fail_at_once_when_the_other_side_is_gone() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    asked = [asyncio.create_task(caller.request("m", timeout_s=60)) for _ in range(3)]
    await other.until(3)
    await theirs.close(0)
    for each in asked:
        with pytest.raises(Disconnected):
            await each
    with pytest.raises(Disconnected):
        await caller.request("m")
    caller.notify("m")  # says nothing


@on_a_loop
async def test_requests_under_way_fail_when_the_caller_is_closed() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    asked = asyncio.create_task(caller.request("m"))
    await other.until(1)
    await caller.aclose()
    with pytest.raises(Disconnected):
        await asked
    await caller.aclose()
    while not other.over:
        await asyncio.sleep(0)


@on_a_loop
async def test_garbage_is_never_answered_and_harms_nothing() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    asked = asyncio.create_task(caller.request("m"))
    await other.until(1)
    id = other.came[0]["id"]
    other.send(
        b"a banner",
        b"[1, 2]",
        b"\xff\xfe",
        b"{}",
        b"null",
        {"jsonrpc": "2.0", "id": id + 100, "result": {}},
        {"jsonrpc": "2.0", "id": f"{id}x", "result": {"wrong": "type"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "id": id, "result": {"right": True}},
        {"jsonrpc": "2.0", "id": id, "result": {"twice": True}},
    )
    assert await asked == {"right": True}
    caller.notify("end")
    await other.until(2)
    assert [message["method"] for message in other.came] == ["m", "end"]


@on_a_loop
async def test_requests_of_the_server_are_refused_except_ping() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    other.send(
        {"jsonrpc": "2.0", "id": "p", "method": "ping"},
        {"jsonrpc": "2.0", "id": 1, "method": "roots/list"},
    )
    await other.until(2)
    assert other.came[0] == {"jsonrpc": "2.0", "id": "p", "result": {}}
    assert other.came[1]["error"]["code"] == -32601
    await caller.aclose()


@on_a_loop
async def test_notifications_are_told_and_a_teller_that_fails_harms_nothing() -> None:
    told: list[Any] = []

    def notified(method: str, params: Any) -> None:
        told.append((method, params))
        raise ValueError("the listener's own")

    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours, notified)
    other.send(
        {"jsonrpc": "2.0", "method": "a", "params": {"x": 1}}, {"jsonrpc": "2.0", "method": "b"}
    )
    while len(told) < 2:
        await asyncio.sleep(0)
    assert told == [("a", {"x": 1}), ("b", {})]
    await caller.aclose()


@on_a_loop
async def test_a_malformed_error_object_is_told_from_an_error() -> None:
    ours, theirs = memory_pair()
    other, caller = Other(theirs), connect(ours)
    for body in ("text", {"code": "x"}, 5, []):
        count = len(other.came)
        asked = asyncio.create_task(caller.request("m"))
        await other.until(count + 1)
        other.send({"jsonrpc": "2.0", "id": other.came[-1]["id"], "error": body})
        with pytest.raises(ProtocolError, match="expected an error object"):
            await asked


@on_a_loop
async def test_a_program_that_is_spawned_is_spoken_to_and_ended() -> None:
    """MCP 2024-11-05 as by hand: initialize, one call, the end of stdin."""
    lines: list[bytes] = []
    child = spawn([sys.executable, str(CALCULATOR)], stderr=lines.append)
    async with connect(child) as client:
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": INFO}
        opened = await client.request("initialize", hello, timeout_s=30)
        assert opened["protocolVersion"] == "2024-11-05"
        client.notify("notifications/initialized")
        call = {"name": "add", "arguments": {"a": 1, "b": 2}}
        result = await client.request("tools/call", call, timeout_s=30)
        assert result["content"] == [{"type": "text", "text": "3"}]
        assert child.exit_status is None
    assert child.exit_status == 0
    assert b"[INFO]" in b"".join(lines)
    with pytest.raises(Disconnected):
        await client.request("tools/list")


@on_a_loop
async def test_a_program_that_ends_fails_what_is_under_way() -> None:
    child = spawn([sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)"])
    async with connect(child) as client:
        with pytest.raises(Disconnected):
            await client.request("initialize", timeout_s=30)
        assert child.exit_status == 3
