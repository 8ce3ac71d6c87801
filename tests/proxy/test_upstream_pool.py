"""UpstreamPool: every server that was begun is closed, whatever happens while it opens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from client.scripted import on_a_loop

from concertino.client.targets import OpenTarget
from concertino.jsonrpc.limits import Limits
from concertino.proxy import Proxy
from concertino.transports.connection import Receiver


class EndingServer:
    """A target whose server ends as soon as it has started, and whose process takes time to end.

    closing: set when the proxy begins to end the process. may_end: set to let that finish.
    """

    can_reopen = False
    name = "ending"

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        return OpenTarget(EndingConnection(self))


class EndingConnection:
    facts: Mapping[str, object] = {"transport": "test"}

    def __init__(self, server: EndingServer) -> None:
        self._server = server

    def open(self, receiver: Receiver) -> None:
        asyncio.get_running_loop().call_soon(receiver.on_eof)

    def write(self, frame: bytes, request_id: object) -> int:
        return 0

    def flush(self) -> None: ...
    def pause(self, paused: bool) -> None: ...

    async def close(self, within_s: float) -> None:
        self._server.closing.set()
        await self._server.may_end.wait()
        self._server.has_ended = True


@on_a_loop
async def test_a_proxy_that_closes_waits_for_the_end_of_a_server_whose_start_was_cancelled() -> (
    None
):
    server: Any = EndingServer()
    proxy = Proxy(server)
    start = asyncio.create_task(proxy.start(Any))
    await server.closing.wait()
    # Cancelling it once stops the start, and once more the wait for the end of what was started.
    for _ in range(2):
        start.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([start])
    closing = asyncio.create_task(proxy.close())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not closing.done()
    server.may_end.set()
    await closing
    assert server.has_ended
