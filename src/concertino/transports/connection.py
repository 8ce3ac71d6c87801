"""The interfaces Connection, which carries JSON-RPC frames to one peer and back, and Receiver.

    connection.open(receiver)           # from now on, receiver.on_frames(frames) is called
    connection.write(frame, request_id)
    connection.flush()

A frame is one JSON text as bytes, without a newline. The peer is the process at the other end: a
client or a server. There are Connections over stdio, to a child process, over sockets and in
memory; a message trace is a Connection around another one. A Connection belongs to one event loop
and never blocks it.

SupportsDirectSend, SupportsPolling, SupportsOversizeReports and SupportsSubscriptions are optional
interfaces. Code that uses a Connection checks with isinstance() which of them it supports.
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
    "SupportsSubscriptions",
]


class Receiver(Protocol):
    """Handles the events of a Connection. Its methods are called on the event loop.

    They must not raise exceptions.
    """

    def on_frames(self, frames: Sequence[bytes], /) -> None:
        """Handle all complete frames of one read, in the order of arrival."""
        ...

    def on_frame_too_long(self, size: int, /) -> None:
        """Handle a frame that exceeds Limits.max_message_bytes. Its bytes are discarded.

        size: how many bytes of it had arrived when it exceeded the limit.
        """
        ...

    def on_drain(self, held: int, /) -> None:
        """Resume sending, because the peer has read much of the buffered output.

        Called when fewer than Limits.low_water_bytes are buffered. A Connection may call this
        earlier as well, each time that the peer has read a part of the output.
        held: how many bytes are still buffered.
        """
        ...

    def on_eof(self) -> None:
        """Handle the end of input. Output can still be written."""
        ...

    def on_disconnect(self, exc: Exception, /) -> None:
        """Handle the loss of the connection: nothing can be written any more.

        exc: the reason. A ConnectionAbortedError need not be logged: the client has cancelled its
            calls by closing the connection.
        """
        ...


class Connection(Protocol):
    """Carries frames to one peer and back.

        connection.open(receiver)           # from now on, receiver.on_frames(frames) is called
        connection.write(frame, request_id)
        connection.flush()
        await connection.close(within_s=1)

    The peer is the process at the other end.
    """

    @property
    def facts(self) -> Mapping[str, object]:
        """Return facts about the connection and the peer, by name. Unknown facts are missing.

        transport: for example "stdio", "process" or "unix".
        pid, uid: the ids of the peer's process and of its user.
        address: the address of a socket, as text.
        parent: the id of this process's parent, if the connection is stdin and stdout.
        terminal: true if stdin is a terminal.
        principal: the peer's verified Principal (protocol/principal.py).
        may_return: true if the peer may continue on another connection after this one has ended.
        """
        ...

    def open(self, receiver: Receiver, /) -> None:
        """Start to deliver frames to the receiver.

        Must be called once, on the event loop to which the connection belongs from then on.
        """
        ...

    def write(self, frame: bytes, request_id: Id | None, /) -> int:
        """Queue one frame. Returns how many bytes are buffered now.

        The next flush() sends the frame. If much output is buffered, write() may send it at once.
        request_id: the id of the request that the frame belongs to; None if there is none. Over
            HTTP, the id selects the response that carries the frame.
        """
        ...

    def flush(self) -> None:
        """Send the queued frames without blocking.

        Frames that the system does not accept now are sent when the peer has read some output.
        """
        ...

    def pause(self, paused: bool, /) -> None:
        """Pause reading from the peer if `paused` is true; otherwise resume it."""
        ...

    async def close(self, within_s: float, /) -> None:
        """Close the connection. May be called again.

        within_s: how long to wait until the peer has read the buffered output, in seconds.
        """
        ...


@runtime_checkable
class SupportsDirectSend(Protocol):
    """A Connection that can write and flush one frame in a single step."""

    def send(self, frame: bytes, request_id: Id | None, /) -> int:
        """Write one frame and flush. Returns how many bytes are still buffered.

        No frame is delivered to the receiver meanwhile.
        """
        ...


@runtime_checkable
class SupportsPolling(SupportsDirectSend, Protocol):
    """A Connection that can send a request and check at once whether the response has arrived.

    This saves a client one iteration of the event loop if the server answers quickly.
    """

    def send_and_poll(self, frame: bytes, request_id: Id | None, /) -> bytes | int:
        """Write one frame, flush, and read once from the input, without blocking.

        If exactly one complete frame has arrived, returns this frame, which is not delivered to the
        receiver. Otherwise returns how many bytes of output are still buffered. A Connection may
        leave out the read, for example if earlier reads have found nothing.
        """
        ...

    def defer_line(self, line: bytes, /) -> None:
        """Deliver a frame to the receiver in the next loop iteration.

        line: a frame from send_and_poll() that is not the expected response.
        """
        ...


@runtime_checkable
class SupportsOversizeReports(Protocol):
    """A Connection that has more information about frames that exceed Limits.max_message_bytes."""

    @property
    def is_discarding(self) -> bool:
        """Return whether the rest of a frame that was too long is still being discarded."""
        ...

    @property
    def oversize_head(self) -> bytes:
        """Return the first bytes of the last frame that was too long."""
        ...


@runtime_checkable
class SupportsSubscriptions(Protocol):
    """A Connection that must know which requests are subscriptions, as over HTTP."""

    def hold_open(self, request_id: Id, /) -> None:
        """Treat a request as a subscription.

        The request is cancelled when its client disconnects or when the access token of its user
        expires. Its notifications are not kept for a client that reconnects.
        Does nothing if no request with this id is running.
        """
        ...
