"""ConnectionTable: the connections of an HTTP server, with their time limits and their end.

Each HttpConnection is added when its client connects, and removed when it is closed. While any is
open, a timer checks the time limits of all of them. HttpServer.stop() ends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import structs

from concertino.http.connection import HttpConnection
from concertino.http.time_limits import HttpTimeouts
from concertino.http.write_turn import WriteTurn

__all__ = ["ConnectionTable"]

log = logging.getLogger("concertino.http")

# How many times the connections are checked within the shortest of their time limits.
CHECKS_PER_LIMIT = 4


class ConnectionTable:
    """The open connections of a server.

    max_connections: how many connections clients may have at the same time.
    timeouts: the time limits of connections, which are checked regularly.
    on_check: called at each check with the time by the clock of the event loop. Returns whether
        checks must go on even if no connection is open.

    Attributes:
    closed: a future that is done when stop() was called and all connections are closed.
    is_stopping: whether stop() was called.
    turn: writes the output of the connections, small outputs of several connections together.
    """

    def __init__(
        self, max_connections: int, timeouts: HttpTimeouts, on_check: Callable[[float], bool]
    ) -> None:
        self._max_connections = max_connections
        self._check_s = min(structs.astuple(timeouts)) / CHECKS_PER_LIMIT
        self._on_check = on_check
        self._loop = asyncio.get_running_loop()
        self._connections: set[HttpConnection] = set()
        self.turn = WriteTurn(self._connections)
        self._timer: asyncio.TimerHandle | None = None
        # Whether the last new client was refused. If so, the next refusal is not logged.
        self._has_refused = False
        self.is_stopping = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def reserved_bytes(self) -> int:
        """The total size of the large bodies of all requests that are not yet answered."""
        return sum(connection.reserved_bytes for connection in self._connections)

    def add(self, connection: HttpConnection) -> bool:
        """Add a client's connection. If there are too many, close an idle one.

        Returns False if there are too many and none is idle. The connection is added all the same,
        and the caller must send the client an error response.
        """
        has_room = len(self._connections) < self._max_connections
        if not has_room:
            # The evicted connection stays in the set until asyncio calls its connection_lost().
            has_room = self._evict_idle()
        if not has_room and not self._has_refused:
            log.warning(
                "a client was refused: %d connections are open, and none of them is idle",
                len(self._connections),
            )
        self._has_refused = not has_room
        self.add_unlimited(connection)
        return has_room

    def add_unlimited(self, connection: HttpConnection) -> None:
        """Add a connection even if there are too many, such as that of another process."""
        self._connections.add(connection)
        if self._timer is None:
            self._schedule_check()
        if self.is_stopping:
            connection.close_when_idle()

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection, because it is closed."""
        self._connections.discard(connection)
        self._set_closed()

    def stop(self, abort_after_s: float) -> None:
        """Close each connection as soon as it is idle. Returns at once; see `closed`.

        abort_after_s: the time after which connections that are still open are aborted, in seconds.
        """
        self.is_stopping = True
        for connection in list(self._connections):
            connection.close_when_idle()
        self._loop.call_later(abort_after_s, self._abort_all)
        self._set_closed()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    def _set_closed(self) -> None:
        if self.is_stopping and not self._connections and not self.closed.done():
            self.closed.set_result(None)

    def _evict_idle(self) -> bool:
        """Close one idle connection. Returns False if none is idle."""
        for connection in self._connections:
            if connection.is_idle and not connection.is_ending:
                connection.close()
                return True
        return False

    def _schedule_check(self) -> None:
        self._timer = self._loop.call_later(self._check_s, self._check_times)

    def _check_times(self) -> None:
        """Check the time limits, and schedule the next check if it is needed."""
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check_time(now)
        self._timer = None
        if self._on_check(now) or self._connections:
            self._schedule_check()
