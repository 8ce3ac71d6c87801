"""Parts of compositions, and a client for one, for several tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Raw, Struct

from concertino import Server
from concertino.backend import Host
from concertino.backend.interface import Backend, Call, Context, Notifier, ServerFeatures
from concertino.client import RawClient
from concertino.transports import connect, memory_pair
from concertino.types.results import Implementation

__all__ = ["INITIALIZE", "Failing", "GatedPart", "Part", "calculator", "client_of"]

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


@asynccontextmanager
async def client_of(backend: Backend, told: list[str] | None = None) -> AsyncIterator[RawClient]:
    async with Host(backend) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        caller = connect(ours, None if told is None else lambda method, _: told.append(method))
        await caller.request("initialize", INITIALIZE)
        caller.notify("notifications/initialized")
        await host.started
        await caller.request("ping")  # the notification has arrived
        yield caller
        await caller.aclose()


class Part:
    """A backend with fixed answers: method to result, to a function of the params, or to
    an error.
    """

    def __init__(self, answers: Mapping[str, Any], **offer: Any) -> None:
        self._answers = answers
        self._offer = ServerFeatures(Implementation("part", "1"), **offer)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.watched: list[frozenset[str]] = []
        self.began = self.closed = 0
        self.outlet: Notifier

    async def start(self, outlet: Notifier) -> None:
        self.began += 1
        self.outlet = outlet

    def features(self) -> ServerFeatures:
        return self._offer

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        params = call.decode_params(dict)
        self.calls.append((call.method, params))
        answer = self._answers[call.method]
        answer = answer(params) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def watch(self, uris: frozenset[str]) -> None:
        self.watched.append(uris)

    async def close(self) -> None:
        self.closed += 1


def calculator() -> Server:
    server = Server("calculator", version="2", instructions="Add.")

    @server.tool
    async def add(a: int, b: int) -> int:
        "Add."
        return a + b

    return server


class Failing(Part):
    async def start(self, outlet: Notifier) -> None:
        await super().start(outlet)
        raise OSError("no such database")

    async def close(self) -> None:
        await super().close()
        raise OSError("still no such database")


class GatedPart(Part):
    """A part that starts, or fails, when its gate is opened."""

    def __init__(self, failure: Exception | None = None, **features: Any) -> None:
        super().__init__({"tools/list": Raw(b'{"tools":[]}')}, **features)
        self.gate = asyncio.Event()
        self.failure = failure

    async def start(self, outlet: Notifier) -> None:
        await self.gate.wait()
        await super().start(outlet)
        if self.failure is not None:
            raise self.failure
