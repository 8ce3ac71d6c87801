"""loop_watcher.py in a loop of one's own: `await serve(...)`, Host and the client in memory."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from loops import on_a_loop

from concertino import Client, Disconnected, Server, serve
from concertino.backend import Host
from concertino.runtime import loop_watcher
from concertino.transports import connect, memory_pair

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


def holding_server() -> Server:
    server = Server("holding")

    @server.tool
    async def hold(seconds: float) -> None:
        time.sleep(seconds)

    return server


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loop-watcher"]


def warned_tools(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The tools named by warnings, which say where they stand, in this file."""
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert all("test_loop_watcher.py:" in text for text in texts)
    return [text.partition(" has blocked the event loop")[0] for text in texts]


@on_a_loop
async def test_serve_in_a_loop_of_ones_own_names_the_call(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = memory_pair()
    serving = asyncio.create_task(serve(holding_server(), theirs))
    client = connect(ours)
    await client.request("initialize", INITIALIZE)
    for _ in range(2):
        await client.request("tools/call", {"name": "hold", "arguments": {"seconds": 0.5}})
    await client.aclose()
    await serving
    assert warned_tools(caplog) == ["tool 'hold'"]
    assert watchers() == []


@on_a_loop
async def test_the_last_host_on_a_loop_ends_the_watcher(caplog: pytest.LogCaptureFixture) -> None:
    async with Host(holding_server()):
        async with Client(holding_server()) as client:
            await client.call_tool("hold", {"seconds": 0})
            assert len(watchers()) == 1
        # The other host still needs it.
        assert len(watchers()) == 1
        async with Client(holding_server()) as client:
            await client.call_tool("hold", {"seconds": 0.5})
    assert watchers() == []
    assert warned_tools(caplog) == ["tool 'hold'"]


@on_a_loop
async def test_a_loop_is_watched_again_after_its_last_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        async with Client(holding_server()) as client:
            await client.call_tool("hold", {"seconds": 0.5})
        assert watchers() == []
    assert warned_tools(caplog) == ["tool 'hold'"] * 2


@on_a_loop
async def test_a_watcher_that_is_at_work_ends_at_once() -> None:
    server = Server("waiting")

    @server.tool
    async def wait() -> None:
        await asyncio.sleep(60)

    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("wait"))
        while not watchers():
            await asyncio.sleep(0)
        started = time.monotonic()
    assert watchers() == []
    assert time.monotonic() - started < 10
    with pytest.raises(Disconnected):
        await call


@on_a_loop
async def test_a_call_that_ends_within_the_first_period_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_watcher, "PERIOD_S", 60.0)
    loop, callbacks = asyncio.get_running_loop(), list[object]()
    schedule = loop.call_soon_threadsafe

    def note(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        callbacks.append(callback)
        return schedule(callback, *args)

    async with Client(holding_server()) as client:
        monkeypatch.setattr(loop, "call_soon_threadsafe", note)
        await client.call_tool("hold", {"seconds": 0})
        [watcher] = watchers()
        await client.call_tool("hold", {"seconds": 0.1})
        assert watcher.is_alive()
        assert callbacks == []


@on_a_loop
async def test_a_server_without_calls_has_no_watcher() -> None:
    async with Client(holding_server()) as client:
        await client.list_tools()
        assert watchers() == []
