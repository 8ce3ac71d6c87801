"""nats/stream.py without a server. tests/orchestra/test_cluster_events.py has one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import on_a_loop

from concertino.nats import stream as stream_module
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


class AnsweringConnection(SilentConnection):
    """A connection whose server has a stream, and sends none of its messages.

    last: the number of the newest message; -1 while the server has no JetStream.
    config: the settings of the stream. updates: the settings that it was asked to change to, which
        it refuses.
    """

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last
        self.requests: asyncio.Queue[str] = asyncio.Queue()
        self.config: dict[str, Any] = {}
        self.updates: list[dict[str, Any]] = []

    def publish(self, subject: str, payload: bytes, reply: str, headers: bytes) -> None:
        state = {"first_seq": 1, "last_seq": self.last}
        answer = {"created": "2026-01-01T00:00:00Z", "state": state, "config": self.config}
        if ".UPDATE." in subject:
            self.updates.append(json.loads(payload))
            answer = {"error": {"code": 400, "err_code": 10005, "description": "no suitable peers"}}
        head = b"NATS/1.0 503\r\n\r\n" if self.last < 0 else b""
        message = NatsMessage(reply, 1, "", head, json.dumps(answer).encode())
        asyncio.get_running_loop().call_soon(self.handlers[0], message)
        self.requests.put_nowait(subject)


class NoFollower:
    last = 0

    def __init__(self) -> None:
        self.begun: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def begin(self, id: str, oldest: int, newest: int) -> None:
        self.begun.put_nowait((id, newest))

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


def open_stream(connection: SilentConnection, follower: NoFollower) -> tuple[Stream, Any]:
    cluster = cast("Any", SimpleNamespace(connection=connection, on_connect=[]))
    return Stream(cluster, "S", "s", "hub", max_bytes=1, follower=follower), cluster


@on_a_loop
async def test_a_stream_that_could_not_be_opened_in_time_is_followed_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_module, "OPEN_S", 0.01)
    monkeypatch.setattr(stream_module, "RETRY_S", 0.01)
    monkeypatch.setattr(stream_module, "REQUEST_S", 0.05)
    connection, follower = SilentConnection(), NoFollower()
    stream, cluster = open_stream(connection, follower)
    await stream.open()

    cluster.connection = AnsweringConnection(-1)
    cluster.connection.handlers = connection.handlers
    async with asyncio.timeout(10):
        # The second request shows that the first refusal was handled.
        for _ in range(2):
            await cluster.connection.requests.get()
        cluster.connection.last = 0
        assert (await follower.begun.get())[1] == 0
    await stream.close()


@on_a_loop
async def test_a_stream_whose_opening_is_cancelled_is_not_followed() -> None:
    connection = SilentConnection()
    stream, cluster = open_stream(connection, NoFollower())
    before = asyncio.all_tasks()
    opening = asyncio.ensure_future(stream.open())
    await connection.is_asked.wait()

    opening.cancel()
    await asyncio.wait((opening,))
    assert opening.cancelled()
    assert (asyncio.all_tasks(), cluster.on_connect) == (before, [])


@on_a_loop
async def test_a_stream_that_has_lost_its_last_messages_has_another_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_module, "RETRY_S", 0)
    monkeypatch.setattr(stream_module, "LEADER_S", 0)
    connection, follower = AnsweringConnection(1000), NoFollower()
    follower.last = 1000
    stream, cluster = open_stream(connection, follower)

    async def id_with(last: int) -> str:
        """Return the id of the stream after a reconnect, when its newest message is `last`."""
        connection.last = last
        cluster.on_connect[0](connection)
        while (begun := await follower.begun.get())[1] != last:
            pass
        return begun[0]

    async with asyncio.timeout(10):
        await stream.open()
        before = await id_with(1001)
        after = await id_with(900)
        # The follower has begun again.
        follower.last = 900
        assert await id_with(901) == after != before
    await stream.close()


@on_a_loop
async def test_a_stream_that_too_few_servers_have_is_followed_and_should_get_more() -> None:
    connection, follower = AnsweringConnection(0), NoFollower()
    connection.config = {"name": "S", "max_bytes": 7, "num_replicas": 1}
    stream, _ = open_stream(connection, follower)
    await stream.open()
    assert connection.updates == [{"name": "S", "max_bytes": 7, "num_replicas": 3}]
    assert (await follower.begun.get())[1] == 0
    await stream.close()

    connection.config["num_replicas"] = 5
    stream, _ = open_stream(connection, follower)
    await stream.open()
    assert len(connection.updates) == 1
    await stream.close()
