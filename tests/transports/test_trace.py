"""transports/trace.py: a trace adds nothing to the interface of the connection, and hides nothing.

What a trace shows is tested in test_memory.py.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from concertino.jsonrpc.messages import Id
from concertino.transports.connection import (
    Connection,
    SupportsDirectSend,
    SupportsOversizeReports,
    SupportsPolling,
    SupportsSubscriptions,
)
from concertino.transports.trace import trace_connection

OPTIONAL: tuple[Any, ...] = (
    SupportsDirectSend,
    SupportsOversizeReports,
    SupportsPolling,
    SupportsSubscriptions,
)


class Plain:
    """The required members of a Connection that these tests use."""

    def __init__(self) -> None:
        self.held_open: list[Id] = []

    def write(self, frame: bytes, request_id: Id | None) -> int:
        return 0


class Pipe(Plain):
    def send(self, frame: bytes, request_id: Id | None) -> int:
        return 0

    def send_and_poll(self, frame: bytes, request_id: Id | None) -> bytes | int:
        return b"{}"

    def defer_line(self, line: bytes) -> None:
        pass

    is_discarding = True
    oversize_head = b"[1,"


class Http(Plain):
    def hold_open(self, request_id: Id) -> None:
        self.held_open.append(request_id)


@pytest.mark.parametrize("inner", [Plain(), Pipe(), Http()])
def test_a_traced_connection_implements_the_protocols_of_the_inner_one(inner: Any) -> None:
    traced = trace_connection(cast("Connection", inner), lambda direction, text: None)
    for protocol in OPTIONAL:
        assert isinstance(traced, protocol) is isinstance(inner, protocol)


def test_optional_members_are_those_of_the_inner_connection() -> None:
    seen: list[str] = []
    traced: Any = trace_connection(
        cast("Connection", Pipe()), lambda direction, text: seen.append(direction + text)
    )
    assert traced.is_discarding
    assert traced.oversize_head == b"[1,"
    assert traced.send(b"1", None) == 0
    assert traced.send_and_poll(b"2", None) == b"{}"
    assert seen == ["->1", "->2", "<-{}"]

    inner = Http()
    traced = trace_connection(cast("Connection", inner), lambda direction, text: None)
    traced.hold_open(7)
    assert inner.held_open == [7]
