"""Long messages over NATS, which are sent in pieces of PIECE_BYTES.

Hubs and plugins call each other over NATS. NatsLink (the caller) sends long requests in pieces, and
NatsWorker (the callee) sends long responses in pieces.

NATS has no backpressure: a sender that is faster than a receiver is disconnected or loses messages.
So the receiver answers each piece with a receipt, and the sender waits when MAX_WINDOW pieces have
no receipt yet. Pieces of several messages alternate, so a long message does not hold up short ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from concertino.errors import ProtocolError
from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.orchestra.nats_messages import MAX_WINDOW, PIECE_BYTES

__all__ = [
    "IncomingPieces",
    "LongMessages",
    "OutgoingPieces",
    "PartialRequest",
    "PartialResponse",
]


class OutgoingPieces:
    """Sends a message in pieces of 64 KiB, and waits while two pieces have no receipt yet.

    payload: the whole message.
    send: sends one piece. Its arguments are the number of the piece, from 0, and the bytes.

    Attribute:
    size: the size of the whole message in bytes.
    """

    def __init__(self, payload: bytes, send: Callable[[int, bytes], None]) -> None:
        self.size = len(payload)
        self._payload = payload
        self._send = send
        # The number of pieces, rounded up.
        self._count = -(-len(payload) // PIECE_BYTES)
        # The number of the next piece to send.
        self._next = 0
        # How many receipts have come so far.
        self._received = 0

    @property
    def is_complete(self) -> bool:
        """Whether the receiver has all pieces."""
        return self._received >= self._count

    def first(self) -> bytes:
        """Return the first piece of a request, and count it as sent.

        The caller must send the piece, together with the headers of the request.
        """
        self._next = 1
        return self._payload[:PIECE_BYTES]

    def on_receipt(self) -> None:
        """Count a piece as received, and send the next pieces."""
        self._received += 1
        self.send_window()

    def send_window(self) -> None:
        """Send pieces until two have no receipt, or all are sent.

        NatsWorker calls this method once for each long response. on_receipt() sends the rest.
        """
        while self._next < min(self._count, self._received + MAX_WINDOW):
            number = self._next
            self._next += 1
            start = number * PIECE_BYTES
            self._send(number, self._payload[start : start + PIECE_BYTES])


class IncomingPieces:
    """A message that arrives in pieces.

    size: the size of the whole message in bytes, as its sender has announced it.
    Raises ProtocolError if the size is 0, or larger than MAX_FRAME_BYTES.
    """

    def __init__(self, size: int) -> None:
        if not 0 < size <= MAX_FRAME_BYTES:
            raise ProtocolError(f"a message of {size} bytes; at most {MAX_FRAME_BYTES} are allowed")
        self.size = size
        self._pieces: list[bytes] = []
        self._received = 0

    def add(self, number: int, piece: bytes) -> bytes | None:
        """Add a piece. Returns the whole message if this was its last piece; None otherwise.

        number: the number of the piece, from 0.
        Raises ProtocolError if an earlier piece is missing, or if this piece has the wrong length.
        """
        expected_bytes = min(PIECE_BYTES, self.size - self._received)
        if number != len(self._pieces) or len(piece) != expected_bytes:
            raise ProtocolError(f"piece {number} of a message is missing or has the wrong length")
        self._pieces.append(piece)
        self._received += len(piece)
        return b"".join(self._pieces) if self._received == self.size else None


# The long messages of a worker (nats_worker.py)


class PartialRequest:
    """A request that arrives in pieces.

    caller: the name of the caller.
    pieces: the pieces that have arrived.
    timer: the timer that drops the request if the next piece does not arrive in time.
    deadline: when the request's time limit ends, by the loop's clock.
    """

    def __init__(
        self, caller: str, pieces: IncomingPieces, timer: asyncio.TimerHandle, deadline: float
    ) -> None:
        self.caller = caller
        self.pieces = pieces
        self.timer = timer
        self.deadline = deadline


class PartialResponse:
    """A response that is being sent in pieces.

    pieces: the pieces of the response.
    is_last: whether no other response to the request follows. A stream has several responses.
    timer: the timer that drops the response if no receipt arrives in time.
    waiting: the later responses to the same request, in order, as (payload, is_last). They are sent
        when this response is complete.
    """

    def __init__(self, pieces: OutgoingPieces, is_last: bool, timer: asyncio.TimerHandle) -> None:
        self.pieces = pieces
        self.is_last = is_last
        self.timer = timer
        self.waiting: list[tuple[bytes, bool]] = []


M = TypeVar("M", PartialRequest, PartialResponse)


class LongMessages(Generic[M]):
    """The requests that a worker has received in part, or the responses that it has sent in part.

    The key of a message is the reply subject of the request: the NATS subject to which the worker
    publishes its responses.

    Attribute:
    held_bytes: the total size of the whole messages, in bytes.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._messages: dict[Hashable, M] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def __contains__(self, reply: Hashable) -> bool:
        return reply in self._messages

    def add(self, reply: str, message: M) -> None:
        """Add a message whose first piece has arrived, or is about to be sent.

        reply: the key of the message.
        """
        self._messages[reply] = message
        self.held_bytes += message.pieces.size

    def get(self, reply: str) -> M | None:
        """Return the message with this key; None if it is complete, or was dropped."""
        return self._messages.get(reply)

    def remove(self, reply: Hashable) -> None:
        """Forget the message with this key, because it is complete, late or cancelled."""
        message = self._messages.pop(reply, None)
        if message is not None:
            message.timer.cancel()
            self.held_bytes -= message.pieces.size

    def clear(self) -> None:
        """Forget all messages."""
        for reply in list(self._messages):
            self.remove(reply)
