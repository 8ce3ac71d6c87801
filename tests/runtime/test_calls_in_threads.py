"""runtime/calls_in_threads.py: the kinds of calls whose code runs in threads."""

from __future__ import annotations

import asyncio
import threading

from loops import on_a_loop

from concertino import Server, serve
from concertino.runtime.calls_in_threads import kinds_in_threads
from concertino.transports import connect, memory_pair

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


@on_a_loop
async def test_only_calls_whose_code_runs_in_a_thread_are_found() -> None:
    server = Server("server")
    runs, may_end = threading.Event(), threading.Event()
    waits = asyncio.Event()

    @server.tool
    def in_a_thread() -> None:
        runs.set()
        may_end.wait(60)

    @server.tool
    async def on_the_loop() -> None:
        waits.set()
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    ours, theirs = memory_pair()
    serving = asyncio.create_task(serve(server, theirs))
    client = connect(ours)
    await client.request("initialize", INITIALIZE)
    names = ("in_a_thread", "on_the_loop", "in_a_thread")
    calls = [
        asyncio.create_task(client.request("tools/call", {"name": name, "arguments": {}}))
        for name in names
    ]
    await waits.wait()
    await asyncio.to_thread(runs.wait, 60)
    assert kinds_in_threads(loop) == {("tools/call", b'"in_a_thread"')}
    other = asyncio.new_event_loop()
    assert kinds_in_threads(other) == set()
    other.close()

    may_end.set()
    await asyncio.gather(calls[0], calls[2])
    assert kinds_in_threads(loop) == set()
    calls[1].cancel()
    await client.aclose()
    await serving
