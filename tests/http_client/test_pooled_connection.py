"""Connections of the pool: responses in any pieces, and servers that do not keep to HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loops import on_a_loop

from concertino.http_client.pooled_connection import MAX_HEAD_BYTES, PooledConnection, ResponseHead


class Transport(asyncio.Transport):
    """What the server would get."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Listener:
    """Notes what a response consists of."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_ended = False
        self.lost = ""

    def on_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        assert not self.is_ended
        self.is_ended = True

    def on_lost(self, reason: str, unanswered: bool) -> None:
        assert not self.is_ended
        self.lost = reason


class Rig:
    """A connection that has sent one request."""

    def __init__(self) -> None:
        self.idle: list[PooledConnection] = []
        self.connection = PooledConnection(self.idle.append, lambda _: None)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.listener = Listener()
        self.connection.send(b"", self.listener)

    def receive(self, data: bytes) -> None:
        """Receive bytes as asyncio does it: they are written into the connection's buffer."""
        buffer = self.connection.get_buffer(-1)
        assert 0 < len(data) <= len(buffer)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
RESPONSES = {
    "a length": OK,
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"1\r\no\r\n1;x=y\r\nk\r\n0\r\nA: b\r\n\r\n",
    "informational responses": b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + OK,
}


@pytest.mark.parametrize("name", RESPONSES)
@on_a_loop
async def test_a_response_may_come_in_any_two_pieces(name: str) -> None:
    response = RESPONSES[name]
    for at in range(1, len(response)):
        rig = Rig()
        rig.receive(response[:at])
        rig.receive(response[at:])
        assert (rig.listener.status, rig.listener.body) == (200, b"ok"), at
        assert rig.listener.is_ended
        assert rig.idle == [rig.connection]


@pytest.mark.parametrize("name", RESPONSES)
@on_a_loop
async def test_a_response_that_ends_early_is_lost(name: str) -> None:
    response = RESPONSES[name]
    for at in range(len(response)):
        rig = Rig()
        if at:
            rig.receive(response[:at])
        rig.connection.connection_lost(None)
        assert "closed the connection" in rig.listener.lost, at


@on_a_loop
async def test_the_end_of_the_connection_ends_a_body_of_http_1_0() -> None:
    rig = Rig()
    rig.receive(b"HTTP/1.0 200 OK\r\n\r\nok")
    assert not rig.listener.is_ended
    rig.connection.connection_lost(None)
    assert rig.listener.is_ended
    assert rig.listener.body == b"ok"


@pytest.mark.parametrize("surplus", [OK, b"\r\n\r\nHTTP/1.1 200", b"garbage", b"H"])
@on_a_loop
async def test_what_comes_unasked_is_not_taken_for_the_next_response(surplus: bytes) -> None:
    rig = Rig()
    rig.receive(OK + surplus)

    assert rig.listener.body == b"ok"
    assert rig.listener.is_ended
    assert rig.idle == []
    assert rig.transport.is_aborted


@on_a_loop
async def test_what_comes_unasked_later_closes_the_connection() -> None:
    rig = Rig()
    rig.receive(OK)
    rig.receive(OK)
    assert rig.transport.is_aborted


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n"


@pytest.mark.parametrize(
    ("start", "piece", "part"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n", "head"),
        (b"HTTP/1.1 200 OK\r\nA: ", b"b", "head"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "head"),
        (CHUNKED + b"0\r\n", b"A: b\r\n", "trailer"),
        (CHUNKED + b"1;a=", b"b", "trailer"),
    ],
)
@on_a_loop
async def test_what_is_no_body_has_a_limit(start: bytes, piece: bytes, part: str) -> None:
    rig = Rig()
    rig.receive(start + piece)
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        if rig.listener.lost:
            break
        rig.receive(piece * (1000 // len(piece)))
    assert f"the {part} of the response has more than 65536 bytes" in rig.listener.lost
