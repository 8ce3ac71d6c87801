"""Requests of ours that wait for their response, with their deadlines.

A table finds a request by its id and knows which one expires first. Deadlines are kept in a heap
beside the table, because nearly all requests are answered long before their deadline.
Spec: JSON-RPC 2.0 section 5.1 "Error object".
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.errors import ProtocolError, RpcError

__all__ = ["OutgoingRequest", "PendingRequest", "PendingTable", "parse_error"]


class PendingRequest(Protocol):
    """A request of ours that waits for its response."""

    @property
    def id(self) -> int:
        """Return its id on the wire."""
        ...

    @property
    def deadline(self) -> float | None:
        """Return the time by the peer's clock at which expire() gives it up; None for never."""
        ...

    @property
    def done(self) -> Callable[[Raw | Exception], object]:
        """Return the callback for the result or the exception; it is called once."""
        ...


class OutgoingRequest(Struct, eq=False):
    """A PendingRequest that just holds its values."""

    id: int
    done: Callable[[Raw | Exception], object]
    deadline: float | None = None


class PendingTable(dict[int, PendingRequest]):
    """Our requests that wait for a response, by id, with the order in which they expire."""

    __slots__ = ("_deadlines", "next_id")

    def __init__(self, first_id: int) -> None:
        self.next_id = first_id
        # A heap of (deadline, id). Answered requests leave their entry behind.
        self._deadlines: list[tuple[float, int]] = []

    def add(
        self, done: Callable[[Raw | Exception], object], deadline: float | None
    ) -> OutgoingRequest:
        """Add a request under the next id."""
        outgoing = OutgoingRequest(self.next_id, done, deadline)
        self.next_id += 1
        self[outgoing.id] = outgoing
        if deadline is not None:
            heappush(self._deadlines, (deadline, outgoing.id))
        return outgoing

    @property
    def next_deadline(self) -> float | None:
        """Return the earliest deadline; None if no request has one."""
        # Rebuild the heap once most of its entries belong to answered requests.
        if len(self._deadlines) > 2 * len(self) + 64:
            self._deadlines = [
                (pending.deadline, pending.id)
                for pending in self.values()
                if pending.deadline is not None
            ]
            heapify(self._deadlines)

        while self._deadlines and self._deadlines[0][1] not in self:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def pop_first_deadline(self) -> PendingRequest:
        """Return the request that next_deadline belongs to, and forget the deadline."""
        return self[heappop(self._deadlines)[1]]

    def take_all(self) -> list[PendingRequest]:
        """Remove all requests and return them."""
        pending = list(self.values())
        self.clear()
        self._deadlines.clear()
        return pending


class _ErrorBody(Struct):
    """The `error` member of a response; JSON-RPC 2.0 section 5.1 requires code and message."""

    code: int
    message: str
    data: Any = None


_decode_error_body = Decoder(_ErrorBody).decode


def parse_error(error: Raw) -> RpcError | ProtocolError:
    """Return the `error` member of a response as an exception.

    An RpcError with its code, message and data; a ProtocolError if it is malformed.
    """
    try:
        body = _decode_error_body(error)
    except (DecodeError, RecursionError) as exc:
        text = f"expected an error object with a code and a message: {exc}"
        return ProtocolError(text)
    return RpcError(body.code, body.message, body.data)
