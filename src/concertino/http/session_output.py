"""SessionOutput: counts the output of a session that its client has not read.

A SessionConnection sends on several HTTP connections, and tells its SessionOutput about each. The
server starts no more calls for a client that does not read. For this it needs the number of unread
bytes on all of these connections together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from concertino.http.connection import REPORTED_BYTES
from concertino.http.exchange import RequestConnection

__all__ = ["SessionOutput"]

# The interval at which unread output is counted, in seconds. A connection itself reports only when
# all of its output is read, but the progress of a slow client must be known before that.
CHECK_S = 0.25


class SessionOutput:
    """The HTTP connections that carry a session's output, and the amount of unread output.

    on_drain: called with the number of unread bytes when the client has read some output: at once
        if all output of a connection was read, and otherwise within 250 ms.
    """

    def __init__(self, on_drain: Callable[[int], object]) -> None:
        self._on_drain = on_drain
        self._loop = asyncio.get_running_loop()
        # Each connection with output that is not flushed or not read by the client -> the number of
        # unread bytes when they were last counted.
        self._unread: dict[RequestConnection, int] = {}
        # The sum of the numbers in _unread.
        self._total_bytes = 0
        # The sum that watch() has last returned, or that on_drain was last called with.
        self._reported_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def flush(self) -> None:
        """Send the queued output."""
        for connection in list(self._unread):
            connection.flush()
            unread = connection.unread_bytes
            if not unread:
                self._remove(connection)
                continue
            self._set(connection, unread)
            # If the connection also carries requests without a session, their on_drain must stay.
            # The timer then reports what the client has read.
            if connection.on_drain is None:
                connection.on_drain = self._on_connection_drain
        if self._reported_bytes >= REPORTED_BYTES:
            # The system may have taken all of the output. The connections do not report that,
            # because they had no on_drain when they were flushed.
            self._loop.call_soon(self._report)

    def watch(self, connection: RequestConnection | None) -> int:
        """Note that output was queued on a connection, and return how many bytes are unread in all.

        The numbers of the other connections are at most 250 ms old.

        connection: the connection on which output was queued; None if none was queued.
        """
        # Count only this connection. With 64 connections, counting all of them for each response
        # would take more time than everything else. While anything is unread, the timer counts all.
        if connection is not None:
            self._set(connection, connection.unread_bytes)
        unread = self._reported_bytes = self._total_bytes
        if unread and self._timer is None:
            self._timer = self._loop.call_later(CHECK_S, self._check)
        return unread

    def close(self) -> None:
        """Remove the connections, and stop counting."""
        for connection in list(self._unread):
            self._remove(connection)
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, connection: RequestConnection, unread: int) -> None:
        """Set the number of unread bytes of a connection."""
        self._total_bytes += unread - self._unread.get(connection, 0)
        self._unread[connection] = unread

    def _on_connection_drain(self, _unread: int) -> None:
        """Count again and report, because the client has read all output of a connection."""
        for connection in list(self._unread):
            if not connection.unread_bytes:
                self._remove(connection)
        self._report()

    def _remove(self, connection: RequestConnection) -> None:
        """Stop watching a connection whose output the client has read, or which has ended."""
        self._total_bytes -= self._unread.pop(connection)
        # The next request on the connection may have been for another session.
        if connection.on_drain == self._on_connection_drain:
            connection.on_drain = None

    def _check(self) -> None:
        """Count the unread bytes, and call on_drain if the client has read some."""
        self._report()
        self._timer = self._loop.call_later(CHECK_S, self._check) if self._total_bytes else None

    def _report(self) -> None:
        """Count all unread bytes, and call on_drain if they are fewer than last reported."""
        for connection in self._unread:
            self._set(connection, connection.unread_bytes)
        previous, self._reported_bytes = self._reported_bytes, self._total_bytes
        if self._reported_bytes < previous:
            self._on_drain(self._reported_bytes)
