"""Input that comes before a backend has started, and what becomes of it when the start fails (on a
loop, in memory).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from concertino import Limits, RpcError, Server
from concertino.backend import BackendWrapper, Host, Notifier
from concertino.backend.interface import SupportsEarlyOpening
from concertino.runtime import opening, refusal
from concertino.transports import connect, memory_pair

HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


class GatedServer(BackendWrapper):
    """A server that starts, or fails, when the gate is opened."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__(Server("gated"))
        self.gate = asyncio.Event()
        self.began = asyncio.Event()
        self.failure = failure

    async def start(self, outlet: Notifier) -> None:
        self.began.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().start(outlet)


async def turns() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)


async def open_client(host: Host) -> Any:
    ours, theirs = memory_pair()
    host.attach(ours)
    return connect(theirs)


def test_the_opener_waits_for_the_start() -> None:
    async def main() -> None:
        backend = GatedServer()
        async with Host(backend, Limits(opening_s=20)) as host:
            caller = await open_client(host)
            opener = asyncio.create_task(caller.request("initialize", HANDSHAKE))
            await turns()
            assert not opener.done()
            backend.gate.set()
            assert (await opener)["serverInfo"]["name"] == "gated"
            assert await caller.request("tools/list") == {"tools": []}

    asyncio.run(asyncio.wait_for(main(), 10))


def test_the_opener_waits_no_longer_than_opening_s() -> None:
    async def main() -> None:
        async with Host(GatedServer(), Limits(opening_s=0.02, drain_s=0.01)) as host:
            caller = await open_client(host)
            assert (await caller.request("initialize", HANDSHAKE))["serverInfo"]["name"] == "gated"
            assert await caller.request("ping") == {}

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_client_that_comes_after_opening_s_does_not_wait() -> None:
    async def main() -> None:
        async with Host(GatedServer(), Limits(opening_s=0.001, drain_s=0.01)) as host:
            await asyncio.sleep(0.01)
            caller = await open_client(host)
            opener = asyncio.create_task(caller.request("ping"))
            await turns()
            assert opener.done()

    asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("method", ["initialize", "server/discover", "tools/list", "ping"])
def test_a_failing_start_answers_the_opener(method: str) -> None:
    async def main() -> None:
        backend = GatedServer(OSError("no disk"))
        async with Host(backend, Limits(opening_s=20)) as host:
            caller = await open_client(host)
            opener = asyncio.create_task(caller.request(method, HANDSHAKE))
            await turns()
            backend.gate.set()
            with pytest.raises(RpcError, match=r"^cannot start: OSError: no disk \(") as caught:
                await opener
            assert caught.value.code == -32603
            # A client that falls back to the handshake is told again.
            with pytest.raises(RpcError, match=r"^cannot start: OSError: no disk \("):
                await caller.request("initialize", HANDSHAKE)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_connection_whose_start_failed_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "FIRST_S", 0.02)

    async def main() -> None:
        backend = GatedServer(OSError("no disk"))
        backend.gate.set()
        async with Host(backend) as host:
            ours, _ = memory_pair()
            attached = host.attach(ours)
            await asyncio.wait([attached.closed])

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_backend_that_will_not_fail_can_open_early() -> None:
    class Early(GatedServer):
        async def start(self, outlet: Notifier) -> None:
            assert isinstance(outlet, SupportsEarlyOpening)
            self.began.set()
            await asyncio.sleep(0.01)
            outlet.open_early()
            await super().start(outlet)

    async def main() -> None:
        backend = Early()
        async with Host(backend, Limits(opening_s=20, drain_s=0.01)) as host:
            caller = await open_client(host)
            assert await caller.request("ping") == {}
            assert await (await open_client(host)).request("ping") == {}
            assert not backend.gate.is_set()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_more_input_than_an_opener_needs_is_not_held() -> None:
    async def main() -> None:
        async with Host(GatedServer(), Limits(opening_s=20, drain_s=0.01)) as host:
            caller = await open_client(host)
            pings = [asyncio.create_task(caller.request("ping")) for _ in range(opening.MAX_FRAMES)]
            await asyncio.wait_for(asyncio.gather(*pings), 5)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_leaving_the_host_answers_what_was_held() -> None:
    async def main() -> None:
        async with Host(GatedServer(), Limits(opening_s=20, drain_s=0.05)) as host:
            caller = await open_client(host)
            opener = asyncio.create_task(caller.request("ping"))
            await turns()
            assert not opener.done()
        assert await opener == {}

    asyncio.run(asyncio.wait_for(main(), 10))
