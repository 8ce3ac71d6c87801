"""HttpTimeouts: the time limits of an HTTP server.

HttpOptions contains these limits. Each HttpConnection notes in its ConnectionActivity since when it
has been waiting. The ConnectionTable calls check_time() of each connection at intervals, which
compares this time with the limits.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ConnectionActivity", "HttpTimeouts"]


class HttpTimeouts(Struct, frozen=True):
    """The time limits of an HTTP server, in seconds.

    head_s: the limit for the head of a request to arrive.
    body_s: the limit for the body to arrive. Each 10 kB that have arrived extend it by a second.
    idle_s: the time without a request after which a connection is closed.
    keep_alive_s: the time without output after which a comment is sent on a stream. For a call that
        has sent nothing yet, a stream is begun.
    unread_s: the time after which the connection is closed if the client has read nothing more of a
        response.
    session_s: the time without a request and without an open stream after which a session ends.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    keep_alive_s: float = 15.0
    unread_s: float = 60.0
    session_s: float = 1800.0


class ConnectionActivity:
    """The moments from which the time limits of one HttpConnection are counted.

    Attributes:
    since: from when head_s, body_s, idle_s and keep_alive_s are counted, by the clock of the event
        loop: when the connection last sent something, began to receive a head or a body, or began
        to wait for a handler, whichever was last.
    has_unsent: whether the transport may hold output that the system has not taken.
    """

    def __init__(self, now: float) -> None:
        self.since = now
        self.has_unsent = False
        # How many bytes of output were unread when is_stuck() last found a change, and when.
        self._unread_bytes = 0
        self._unread_since = now

    def is_stuck(self, unread: int, now: float, limit_s: float) -> bool:
        """Return whether the number of unread bytes has not changed for `limit_s` seconds.

        Returns False if there are none. Call this at intervals: the time begins at the first call
        that finds a changed number.

        unread: how many bytes of output wait now.
        now: the time by the clock of the event loop.
        """
        if not unread or unread != self._unread_bytes:
            self._unread_bytes = unread
            self._unread_since = now
            return False
        return now - self._unread_since >= limit_s
