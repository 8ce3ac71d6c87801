"""transports/memory.py and transports/trace.py: two ends in one process, and a Connection around
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from loops import on_a_loop

from concertino import Limits, Server
from concertino.backend import Host
from concertino.logs import redact as redact_module
from concertino.transports import connect, memory_pair
from concertino.transports.trace import trace_connection


class Receiver:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_frames(self, batch: Sequence[bytes]) -> None:
        self.told.append(list(batch))

    def on_frame_too_long(self, size: int) -> None:
        self.told.append(("overlong", size))

    def on_drain(self, held: int) -> None:
        self.told.append(("drained", held))

    def on_eof(self) -> None:
        self.told.append("ended")

    def on_disconnect(self, why: Exception) -> None:
        self.told.append(("lost", str(why)))

    @property
    def came(self) -> list[bytes]:
        return [frame for batch in self.told if isinstance(batch, list) for frame in batch]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@on_a_loop
async def test_what_one_end_writes_the_other_gets_a_turn_later() -> None:
    one, other = memory_pair()
    mine, yours = Receiver(), Receiver()
    one.open(mine)
    other.open(yours)
    one.write(b"a", None)
    one.write(b"b", None)
    await turns()
    assert yours.told == []  # not flushed
    one.flush()
    assert yours.told == []  # not at once
    await turns()
    assert yours.told == [[b"a", b"b"]]
    assert mine.told == [("drained", 0)]


@on_a_loop
async def test_frames_are_kept_until_the_other_end_opens() -> None:
    one, other = memory_pair()
    one.open(Receiver())
    one.write(b"early", None)
    one.flush()
    await turns()
    yours = Receiver()
    other.open(yours)
    await turns()
    assert yours.came == [b"early"]


@on_a_loop
async def test_while_paused_nothing_comes_and_the_writer_holds() -> None:
    one, other = memory_pair()
    mine, yours = Receiver(), Receiver()
    one.open(mine)
    other.open(yours)
    other.pause(True)
    one.write(b"12345", None)
    one.flush()
    await turns()
    assert yours.told == []
    assert one.write(b"678", None) == 8
    other.pause(False)
    await turns()
    assert yours.came == [b"12345"]
    assert mine.told[-1] == ("drained", 3)


@on_a_loop
async def test_a_pause_in_the_middle_of_a_large_batch_holds_the_rest() -> None:
    one, other = memory_pair()
    yours = Receiver()
    one.open(Receiver())
    other.open(yours)
    for number in range(1000):
        one.write(b"%d" % number, None)
    one.flush()
    while not yours.told:
        await asyncio.sleep(0)
    other.pause(True)
    await turns()
    assert len(yours.came) == 256
    other.pause(False)
    await turns(10)
    assert yours.came == [b"%d" % number for number in range(1000)]


@on_a_loop
async def test_close_delivers_what_was_written_and_then_the_end_once() -> None:
    one, other = memory_pair()
    yours = Receiver()
    one.open(Receiver())
    other.open(yours)
    one.write(b"last", None)
    await one.close(0)
    await one.close(0)
    await turns()
    assert yours.told == [[b"last"], "ended"]
    one.write(b"more", None)
    one.flush()
    await turns()
    assert yours.told == [[b"last"], "ended"]


@on_a_loop
async def test_a_closed_end_hears_nothing() -> None:
    one, other = memory_pair()
    mine = Receiver()
    one.open(mine)
    other.open(Receiver())
    await one.close(0)
    other.write(b"x", None)
    other.flush()
    await other.close(0)
    await turns()
    assert mine.told == []


@on_a_loop
async def test_writing_to_an_end_that_is_closed_does_not_hold_for_ever() -> None:
    """A server that drains asks for held output: what goes nowhere must not count."""
    one, other = memory_pair()
    one.open(Receiver())
    other.open(Receiver())
    await other.close(0)
    for _ in range(10):
        one.write(b"x" * 1000, None)
        one.flush()
        await turns()
    await one.close(0)


# Traced


@on_a_loop
async def test_a_trace_shows_both_directions_and_forwards_everything() -> None:
    seen: list[tuple[str, str]] = []
    server = Server("traced")

    @server.tool
    async def echo(text: str) -> str:
        return text

    async with Host(server) as host:
        ours, theirs = memory_pair()
        host.attach(trace_connection(theirs, lambda way, text: seen.append((way, text))))
        caller = connect(ours)
        params = {"protocolVersion": "2025-11-25", "capabilities": {}}
        await caller.request("initialize", params)
        result = await caller.request("tools/call", {"name": "echo", "arguments": {"text": "é"}})
        assert result["content"][0]["text"] == "é"
        await caller.aclose()
    assert [way for way, _ in seen] == ["<-", "->", "<-", "->"]
    assert '"text":"é"' in seen[2][1]
    assert '"text":"é"' in seen[3][1]


@on_a_loop
async def test_a_trace_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "tr4ce-c4nary-77")
    redact_module.refresh()
    try:
        seen: list[str] = []
        one, other = memory_pair()
        yours = Receiver()
        traced = trace_connection(one, lambda _, text: seen.append(text))
        traced.open(Receiver())
        other.open(yours)
        frames = [
            b'{"x":"tr4ce-c4nary-77"}',
            b'{"password":"hunter2hunter2"}',
            b"{bad tr4ce-c4nary-77",
            b"\xff tr4ce-c4nary-77",
        ]
        for frame in frames:
            traced.write(frame, None)
        traced.flush()
        await turns()
        assert yours.came == frames  # what goes is what was written
        assert "tr4ce" not in "".join(seen)
        assert "hunter2" not in "".join(seen)
        assert len(seen) == 4
    finally:
        monkeypatch.undo()
        redact_module.refresh()


@on_a_loop
async def test_a_trace_forwards_what_a_receiver_is_told() -> None:
    one, _ = memory_pair()
    mine = Receiver()
    seen: list[str] = []
    traced = trace_connection(one, lambda way, text: seen.append(f"{way} {text}"))
    traced.open(mine)
    traced.on_frame_too_long(12345)
    traced.on_drain(5)
    traced.on_disconnect(OSError("gone"))
    traced.on_eof()
    traced.pause(True)
    assert mine.told == [("overlong", 12345), ("drained", 5), ("lost", "gone"), "ended"]
    assert traced.facts == {"transport": "memory"}
    assert "12345" in seen[0]
    await traced.close(0)


@on_a_loop
async def test_a_pair_carries_a_host_that_pauses_and_drains() -> None:
    """Held output above the high-water mark stops admission on a memory connection too, and lets go
    again.
    """
    server = Server("big")

    @server.tool
    async def big(count: int) -> str:
        return "x" * count

    async with Host(server, Limits(high_water_bytes=10_000, low_water_bytes=1000)) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        caller = connect(ours)
        await caller.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        calls = [
            caller.request("tools/call", {"name": "big", "arguments": {"count": 5000}})
            for _ in range(100)
        ]
        async with asyncio.timeout(10):
            results = await asyncio.gather(*calls)
        assert len(results) == 100
        await caller.aclose()
