"""The Connection interface: carries JSON-RPC frames to one peer and back.

A frame is one JSON text as bytes, without the newline. stdio, a child process, a socket and memory
are Connections; a message trace is a Connection that wraps another one. Everything here runs on one
event loop and never blocks it.

Optional abilities are Protocols of their own, SupportsDirectSend, SupportsPolling and
SupportsOversizeReports. The user of a Connection checks for them once, with isinstance, when it
attaches to the Connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from concertino.jsonrpc.messages import Id

__all__ = [
    "Connection",
    "Receiver",
    "SupportsDirectSend",
    "SupportsOversizeReports",
    "SupportsPolling",
]


class Receiver(Protocol):
    """Handles what a Connection delivers.

    Its methods are called on the event loop and raise nothing.
    """

    def on_frames(self, batch: Sequence[bytes], /) -> None:
        """Handle every complete frame of one read, in the order of arrival."""
        ...

    def on_frame_too_long(self, size: int, /) -> None:
        """Handle a frame over the size limit.

        size: the bytes received when it passed the limit; the rest of the frame is discarded.
        """
        ...

    def on_drain(self, held: int, /) -> None:
        """Resume sending: the output buffer fell below the low-water mark.

        held: bytes still in it. A connection may also call this while the buffer is fuller, each
        time that some more output has left.
        """
        ...

    def on_eof(self) -> None:
        """Handle the end of input. Output may still be written."""
        ...

    def on_disconnect(self, exc: Exception, /) -> None:
        """Handle the loss of the connection: nothing can be written any more."""
        ...


class Connection(Protocol):
    """A bidirectional channel for frames to one peer."""

    @property
    def facts(self) -> Mapping[str, object]:
        """Return what is known about the peer, such as transport, pid, uid or address."""
        ...

    def open(self, receiver: Receiver, /) -> None:
        """Start to deliver frames. Called once, on the event loop that will run everything."""
        ...

    def write(self, frame: bytes, request_id: Id | None, /) -> int:
        """Queue one frame.

        request_id: the request it belongs to. Returns the bytes now buffered.
        """
        ...

    def flush(self) -> None:
        """Send the queued frames as far as the peer accepts them, without blocking."""
        ...

    def pause(self, paused: bool, /) -> None:
        """Stop reading from the peer, or resume it."""
        ...

    async def close(self, within_s: float, /) -> None:
        """Flush for at most within_s seconds, then release everything. May be called again."""
        ...


@runtime_checkable
class SupportsDirectSend(Protocol):
    """A Connection that can write and flush one frame in a single step."""

    def send(self, frame: bytes, request_id: Id | None, /) -> int:
        """Write one frame and flush.

        Returns the bytes left in the buffer; delivers no input meanwhile.
        """
        ...


@runtime_checkable
class SupportsPolling(SupportsDirectSend, Protocol):
    """A Connection that can also send a request and return the response line that is already there.

    This saves a client one iteration of the event loop where the server answers at once.
    """

    def send_and_poll(self, frame: bytes, request_id: Id | None, /) -> bytes | int:
        """Write one frame, flush, and poll the input once; delivers nothing meanwhile.

        Returns the next line, which is then not delivered to the Receiver, or the bytes left in the
        output buffer if no single complete line is there.
        """
        ...

    def defer_line(self, line: bytes, /) -> None:
        """Deliver a line from send_and_poll() to the Receiver in the next loop iteration."""
        ...


@runtime_checkable
class SupportsOversizeReports(Protocol):
    """A Connection that can tell more about frames over the size limit."""

    @property
    def is_discarding(self) -> bool:
        """Return True while the rest of a frame over the limit is still being discarded."""
        ...

    @property
    def oversize_head(self) -> bytes:
        """Return the first bytes of the last frame over the limit."""
        ...
