"""host.py: a cancelled serve() leaves nothing behind, a backend that cannot close holds nobody."""

from __future__ import annotations

import asyncio

import pytest

from concertino import Limits, RpcError, Server, serve
from concertino.backend import BackendWrapper, Host
from concertino.transports import connect, memory_pair

HANDSHAKE = {"protocolVersion": "2025-11-25"}


def test_a_cancelled_serve_closes_its_connection_and_cuts_its_calls_off() -> None:
    async def main() -> None:
        server = Server("x")
        begun, ended = asyncio.Event(), asyncio.Event()

        @server.tool
        async def wait() -> None:
            try:
                begun.set()
                await asyncio.Event().wait()
            finally:
                ended.set()

        ours, theirs = memory_pair()
        serving = asyncio.create_task(serve(server, ours, Limits(drain_s=0.05)))
        await asyncio.sleep(0)
        caller = connect(theirs)
        await caller.request("initialize", HANDSHAKE)
        call = asyncio.create_task(caller.request("tools/call", {"name": "wait"}))
        await begun.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert ended.is_set()
        with pytest.raises(Exception, match="the server is shutting down"):
            await call

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_backend_that_never_closes_holds_nobody() -> None:
    class Stuck(BackendWrapper):
        async def close(self) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        async with Host(Stuck(Server("x")), Limits(drain_s=0.05)):
            pass

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_connection_attached_after_a_failed_start_is_told_so() -> None:
    class Failing(BackendWrapper):
        async def start(self, outlet: object) -> None:
            raise OSError("no disk")

    async def main() -> None:
        async with Host(Failing(Server("x"))) as host:
            await asyncio.wait([host.started])
            ours, theirs = memory_pair()
            link = host.attach(ours)
            caller = connect(theirs)
            with pytest.raises(RpcError, match=r"^cannot start: OSError: no disk"):
                await caller.request("initialize", HANDSHAKE)
            await link.closed

    asyncio.run(asyncio.wait_for(main(), 30))
