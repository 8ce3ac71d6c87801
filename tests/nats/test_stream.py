"""nats/stream.py without a server. tests/orchestra/test_cluster_events.py has one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from loops import on_a_loop

from concertino.nats.protocol import NatsMessage
from concertino.nats.stream import Stream

INFO = b'{"created": "2026-01-01T00:00:00Z", "state": {"first_seq": 0, "last_seq": 0}}'


class SilentConnection:
    """A connection whose server says nothing."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(max_payload=2**20)
        self.on_refusal: list[Any] = []
        self.handlers: list[Callable[[NatsMessage], None]] = []
        self.is_asked = asyncio.Event()
        self.reply = ""

    def subscribe(self, subject: str, handler: Callable[[NatsMessage], None]) -> int:
        self.handlers.append(handler)
        return len(self.handlers)

    def unsubscribe(self, sid: int) -> None:
        pass

    def publish(self, subject: str, payload: bytes, reply: str, headers: bytes) -> None:
        self.reply = reply
        self.is_asked.set()


class NoFollower:
    last = 0

    def begin(self, id: str, first: int, last: int) -> None:
        pass

    def handle(self, number: int, payload: bytes) -> None:
        pass


@on_a_loop
async def test_a_stream_that_is_closed_when_a_response_arrives_ends() -> None:
    connection = SilentConnection()
    cluster = cast("Any", SimpleNamespace(connection=connection, on_connect=[]))
    stream = Stream(cluster, "S", "s", "hub", max_bytes=1, follower=NoFollower())
    opening = asyncio.ensure_future(stream.open())
    await connection.is_asked.wait()

    # Both before the task of the stream runs again.
    connection.handlers[0](NatsMessage(connection.reply, 1, "", b"", INFO))
    await stream.close()
    opening.cancel()
