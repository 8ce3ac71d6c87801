"""nats/protocol.py against the examples of the protocol's documentation, and against bad input."""

from __future__ import annotations

import pytest

from concertino.errors import ProtocolError
from concertino.nats.protocol import (
    NatsEvent,
    NatsMessage,
    NatsParser,
    Ping,
    Pong,
    ServerError,
    ServerInfo,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
    read_headers,
    status_of,
)

# The lines that docs.nats.io shows for the client protocol.
STREAM = (
    b'INFO {"server_id":"Zk0GQ3JBSrg3oyxCRRlE09","version":"1.2.0","proto":1,"max_payload":1048576,'
    b'"headers":true,"ldm":true,"connect_urls":["10.0.0.1:4222"]}\r\n'
    b"PING\r\nPONG\r\n+OK\r\n"
    b"-ERR 'Authorization Violation'\r\n"
    b"MSG FOO.BAR 9 11\r\nHello World\r\n"
    b"MSG FOO.BAR 9 GREETING.34 11\r\nHello World\r\n"
    b"MSG EMPTY 1 0\r\n\r\n"
    b"HMSG FOO.BAR 9 34 45\r\nNATS/1.0\r\nFoodGroup: vegetable\r\n\r\nHello World\r\n"
    b"HMSG inbox.7 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
)


def expected() -> list[NatsEvent]:
    return [
        ServerInfo(
            version="1.2.0",
            max_payload=1048576,
            headers=True,
            lame_duck=True,
        ),
        Ping(),
        Pong(),
        ServerError("Authorization Violation"),
        NatsMessage("FOO.BAR", 9, "", b"", b"Hello World"),
        NatsMessage("FOO.BAR", 9, "GREETING.34", b"", b"Hello World"),
        NatsMessage("EMPTY", 1, "", b"", b""),
        NatsMessage("FOO.BAR", 9, "", b"NATS/1.0\r\nFoodGroup: vegetable\r\n\r\n", b"Hello World"),
        NatsMessage("inbox.7", 2, "", b"NATS/1.0 503\r\n\r\n", b""),
    ]


def test_every_kind_of_message_is_read() -> None:
    assert NatsParser().feed(STREAM) == expected()


def test_messages_are_read_wherever_the_stream_is_cut() -> None:
    for size in (1, 2, 3, 7, 50):
        parser = NatsParser()
        events: list[NatsEvent] = []
        for start in range(0, len(STREAM), size):
            events += parser.feed(STREAM[start : start + size])
        assert events == expected(), size


def test_headers_are_read() -> None:
    events = NatsParser().feed(STREAM)
    plain, with_field, with_status = events[4], events[7], events[8]
    assert isinstance(plain, NatsMessage)
    assert isinstance(with_field, NatsMessage)
    assert isinstance(with_status, NatsMessage)
    assert read_headers(with_field.headers) == {"FoodGroup": "vegetable"}
    assert [status_of(message) for message in (plain, with_field, with_status)] == [0, 0, 503]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"MSG FOO 1\r\n",
        b"MSG FOO x 3\r\nabc\r\n",
        b"MSG FOO 1 -3\r\nabc\r\n",
        b"MSG FOO 1 a b 3\r\nabc\r\n",
        b"MSG FOO 1 3\r\nabcde\r\n",
        b"MSG FOO 1 999999999999\r\n",
        b"HMSG FOO 1 9 3\r\nabc\r\n",
        b"INFO {\r\n",
        b'INFO {"version":"\xff"}\r\n',
        b'INFO {"x":' + b"[" * 2_000 + b"\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_not_the_protocol_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        NatsParser().feed(data)


def test_what_a_client_writes_is_the_documented_form() -> None:
    assert encode_publish("FOO", b"Hello NATS!") == b"PUB FOO  11\r\nHello NATS!\r\n"
    assert encode_publish("FOO", b"Hi", "INBOX.22") == b"PUB FOO INBOX.22 2\r\nHi\r\n"
    headers = b"NATS/1.0\r\nBar: Baz\r\n\r\n"
    assert (
        encode_publish("FOO", b"Hello NATS!", "INBOX.22", headers)
        == b"HPUB FOO INBOX.22 22 33\r\nNATS/1.0\r\nBar: Baz\r\n\r\nHello NATS!\r\n"
    )
    assert encode_subscribe("FOO", 1) == b"SUB FOO  1\r\n"
    assert encode_subscribe("BAR", 44, "G1") == b"SUB BAR G1 44\r\n"
    assert encode_unsubscribe(1) == b"UNSUB 1\r\n"
