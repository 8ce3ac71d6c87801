"""ConnectionOutput: writes the frames of a client to a Connection, in the fastest way it supports.

A frame is one JSON-RPC message. The frames that are queued during one iteration of the loop are
flushed together in the next iteration. If only one request is pending, its frame is written at
once. A Connection that supports polling then checks whether the response has already arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import JOINED_BYTES, Id
from concertino.transports.connection import Connection, SupportsDirectSend, SupportsPolling

__all__ = ["ConnectionOutput"]


class ConnectionOutput:
    """Writes frames (JSON-RPC messages) to a Connection, in the fastest way that it supports.

    limits: the limits for the size of a frame, and for the bytes of output that are buffered.

    Attributes:
    send_and_poll: a function send_and_poll(frame, request_id) that writes a frame at once. Returns
        the next line of the server if the line has arrived already, otherwise the number of
        buffered bytes. If the Connection has neither send_and_poll() nor send(), it writes nothing
        and returns None: then call write().
    defer_line: a function that delivers a line, which send_and_poll() has returned, to the
        Receiver's on_frames() in a later loop iteration.
    flush_scheduled: whether the queued frames will be flushed in the next loop iteration.
    longest_usual_params: params of at most this many bytes need no PreparedRequest.join(), and no
        check that the frame is within max_message_bytes.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.high_water_bytes = limits.high_water_bytes
        self.max_message_bytes = limits.max_message_bytes
        self.longest_usual_params = min(JOINED_BYTES, limits.max_message_bytes // 2)
        self.flush_scheduled = False
        self._connection = connection
        self._drained: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

        self.send_and_poll: Callable[[bytes, Id | None], bytes | int | None] = _send_nothing
        self.defer_line: Callable[[bytes], object] = _never_defer
        if isinstance(connection, SupportsPolling):
            self.send_and_poll = connection.send_and_poll
            self.defer_line = connection.defer_line
        elif isinstance(connection, SupportsDirectSend):
            self.send_and_poll = connection.send

    def queue(self, frame: bytes, request_id: Id | None) -> int:
        """Queue a frame (message). All queued frames are sent together, in the next loop iteration.

        request_id: the id of the request that the frame contains; None if it contains none.
        Returns the number of bytes that are buffered, because the server has not read them.
        """
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self._loop.call_soon(self._flush)
        return self._connection.write(frame, request_id)

    def _flush(self) -> None:
        self.flush_scheduled = False
        self._connection.flush()

    def write(self, frame: bytes, request_id: Id | None) -> int:
        """Write a frame and flush at once. Returns the number of buffered bytes.

        request_id: the id of the request that the frame contains; None if it contains none.
        """
        held = self._connection.write(frame, request_id)
        self._connection.flush()
        return held

    async def wait_for_drain(self, within_s: float | None) -> None:
        """Return when report_drain() is called, or after within_s seconds; None for no limit."""
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.wait([self._drained], timeout=within_s)

    def report_drain(self) -> None:
        """Wake all tasks in wait_for_drain(), because the server has read some output."""
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None


def _send_nothing(frame: bytes, request_id: Id | None) -> None:
    """Send nothing. This stands for send_and_poll() of a Connection without direct sends."""


def _never_defer(line: bytes) -> None:
    """Do nothing. This is never called, because without polling there are no lines to defer."""
