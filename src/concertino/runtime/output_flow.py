"""How a connection holds back when its client does not keep up with what is sent to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from concertino.jsonrpc.limits import Limits
from concertino.protocol.session import Session
from concertino.runtime.call_connection import DONE
from concertino.transports.connection import Connection

__all__ = ["OutputFlow"]

log = logging.getLogger("concertino.host")

# How long a handler that sends notifications may keep the loop before others get a turn.
MAX_TURN_S = 0.02
# How long what was not sent is counted before the log says so.
LOG_DROPS_AFTER_S = 1.0


class OutputFlow:
    """Pauses a connection's input while much output is buffered, and slows its handlers down."""

    def __init__(
        self,
        session: Session,
        connection: Connection,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._session = session
        self._invalid_input = session.peer.invalid_input
        self._notifications = session.notifications
        self._connection = connection
        self._high_water_bytes = limits.high_water_bytes
        self._loop = loop
        self._is_paused = False
        self._drained: asyncio.Future[None] | None = None
        # When a handler first sent something in this loop iteration.
        self._turn_began: float | None = None
        self._will_log_drops = False

    def update(self, is_draining: bool) -> None:
        """Pause or resume the input. is_draining: whether the connection takes no more input."""
        pause = is_draining or self._session.peer.buffered_bytes >= self._high_water_bytes
        if pause is not self._is_paused:
            self._is_paused = pause
            self._connection.pause(pause)

        if (
            self._invalid_input.suppressed or self._notifications.dropped_logs
        ) and not self._will_log_drops:
            self._will_log_drops = True
            self._loop.call_later(LOG_DROPS_AFTER_S, self._log_drops)

    def on_drain(self) -> None:
        """Resume the handlers that wait for a slow reader."""
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def backpressure(self) -> Awaitable[None]:
        """Return what a handler awaits after it has sent something.

        While the client keeps up that is nothing, or one loop iteration for a handler that computes
        and sends without ever waiting: nothing it sends would leave, and no cancel would reach it.
        Otherwise it is the moment when the client has caught up.
        """
        if self._session.peer.buffered_bytes < self._high_water_bytes:
            now = self._loop.time()
            if self._turn_began is None:
                self._turn_began = now
                self._loop.call_soon(self._on_loop_iteration)
            return DONE if now - self._turn_began < MAX_TURN_S else asyncio.sleep(0)

        if self._drained is None:
            self._drained = self._loop.create_future()
        return asyncio.shield(self._drained)

    def _on_loop_iteration(self) -> None:
        self._turn_began = None

    def _log_drops(self) -> None:
        self._will_log_drops = False
        if self._invalid_input.suppressed:
            log.warning(
                "%d malformed messages were not answered: too many at once",
                self._invalid_input.suppressed,
            )
        if self._notifications.dropped_logs:
            log.warning(
                "%d log messages were not sent: too many, or the client does not read",
                self._notifications.dropped_logs,
            )
        self._invalid_input.suppressed = self._notifications.dropped_logs = 0
