"""Backpressure: limits what a connection buffers while its client reads too slowly.

Each ServerConnection has one OutputFlow, and calls it whenever it has sent output. While
limits.high_water_bytes or more are buffered, the connection reads no requests, and handlers that
send progress or log messages wait. jsonrpc/unread_results.py limits the memory for responses.
Responses beyond that limit wait, and are replaced by errors when the client has read nothing for
drain_s seconds. The number of messages that were not sent is logged, at most once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from concertino.backend.interface import DONE
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.unread_results import GROWTH_S
from concertino.protocol.session import Session
from concertino.runtime.tasks import do_nothing

if TYPE_CHECKING:
    from concertino.runtime.malformed_input import MalformedInputLog
    from concertino.transports.connection import Connection

__all__ = ["OutputFlow"]

log = logging.getLogger("concertino.host")

# Handlers that send messages may run for this long in one loop iteration. After that,
# backpressure() makes them wait for the next one, so that the loop can do other work.
MAX_SENDING_S = 0.02
# The time from the first dropped message to the log message that says how many were dropped.
LOG_DROPS_AFTER_S = 1.0


class OutputFlow:
    """Limits what one connection buffers while its client reads too slowly (backpressure).

    session: the session, whose output and unread results are limited.
    connection: the connection. Nothing is read from it while too much output is buffered.
    limits: the limits of the connection. high_water_bytes is how much may be buffered; drain_s is
        how long the client may read nothing before its waiting responses are dropped.
    flush: ServerConnection's method that starts waiting calls and sends what was written.
    """

    def __init__(
        self,
        session: Session,
        connection: Connection,
        limits: Limits,
        flush: Callable[[], object],
    ) -> None:
        self._session = session
        self._unread = session.peer.unread
        self._invalid_input = session.peer.invalid_input
        self._notifications = session.notifications
        self._connection = connection
        self._high_water_bytes = limits.high_water_bytes
        self._max_message_bytes = limits.max_message_bytes
        self._drain_s = limits.drain_s
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        # Whether reading from the connection is paused.
        self._is_paused = False
        # When the client last read some output, by the loop's clock.
        self._last_drain = 0.0
        # The timer that runs while responses or calls wait until the client has read more.
        self._unread_timer: asyncio.TimerHandle | None = None
        # Handlers wait for this future while too much output is buffered.
        self._drained: asyncio.Future[None] | None = None
        # When a handler first sent something in this loop iteration; None if none has.
        self._sending_since: float | None = None
        # Whether _log_counts() will be called.
        self._will_log_counts = False
        # None until the first malformed message.
        self._malformed_input: MalformedInputLog | None = None
        self._unread.on_blocked = self._watch_unread

    def update(self, is_draining: bool) -> None:
        """Pause reading from the connection if too much output is buffered; otherwise resume it.

        Also logs malformed input and dropped log messages, now or in a second. Called after each
        flush.
        is_draining: whether the connection is ending; then reading stays paused.
        """
        pause = is_draining or self._session.peer.buffered_bytes >= self._high_water_bytes
        if pause is not self._is_paused:
            self._is_paused = pause
            self._connection.pause(pause)

        if (
            self._invalid_input.has_news or self._notifications.dropped_logs
        ) and not self._will_log_counts:
            # Log the first malformed message at once, because its sender may be a person who tries
            # the server. The others are counted for a second.
            if self._malformed_input is None:
                self._log_new_malformed()
            self._schedule_counts_log()

    def _log_new_malformed(self) -> None:
        """Log malformed input that was not logged yet."""
        if self._invalid_input.has_news:
            if self._malformed_input is None:
                from concertino.runtime.malformed_input import MalformedInputLog

                self._malformed_input = MalformedInputLog(
                    self._invalid_input,
                    self._max_message_bytes,
                    is_typed=self._connection.facts.get("terminal") is True,
                )
            self._malformed_input.report()

    def _schedule_counts_log(self) -> None:
        self._will_log_counts = True
        self._loop.call_later(LOG_DROPS_AFTER_S, self._log_counts)

    def _watch_unread(self) -> None:
        """Start the timer for calls and responses that wait, unless it runs already.

        Called when a call or response must wait until the client has read more.
        """
        if self._unread_timer is None:
            self._last_drain = self._loop.time()
            self._start_unread_timer()

    def _start_unread_timer(self) -> None:
        """Call _on_unread_timer() soon."""
        # After GROWTH_S seconds, UnreadResults may let more calls of a slow tool start. After
        # drain_s seconds, waiting responses are dropped.
        delay_s = min(GROWTH_S, self._drain_s)
        self._unread_timer = self._loop.call_later(delay_s, self._on_unread_timer)

    def close(self) -> None:
        """Log what was dropped or malformed and not logged so far, and stop the timer.

        Called when the connection is closed.
        """
        self._log_counts(at_end=True)
        self._flush = do_nothing
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def _on_unread_timer(self) -> None:
        """Let calls start that wait behind slow calls, and drop responses that wait too long.

        If the client has read nothing for drain_s seconds, errors replace the waiting responses.
        """
        unread = self._unread
        peer = self._session.peer
        now = self._loop.time()
        # `peer.waiting` are calls that have not started, `unread.waiting` are responses.
        if peer.waiting:
            # Imported here, because few clients make calls wait.
            from concertino.runtime.calls_in_threads import kinds_in_threads

            unread.on_slow_calls(now, kinds_in_threads(self._loop))
        if now - self._last_drain >= self._drain_s:
            peer.settle_waiting_responses()
        if unread.dropped and not self._will_log_counts:
            self._schedule_counts_log()
        if unread.waiting:
            self._start_unread_timer()
        else:
            self._unread_timer = None
        self._flush()

    def on_drain(self, held: int) -> None:
        """Resume the handlers that wait, if the client has read enough.

        held: how many bytes are still buffered.
        """
        self._last_drain = self._loop.time()
        if self._drained is not None and held < self._high_water_bytes:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def backpressure(self) -> Awaitable[None]:
        """Return an awaitable for a handler that has just sent progress or a log message.

        There are three cases:

        - Too much output is buffered: the awaitable is done when the client has read enough.
        - Handlers have been sending for MAX_SENDING_S seconds in this loop iteration: the awaitable
          is done in the next iteration, so that their output is sent and cancellations arrive.
        - Otherwise the awaitable is done already.
        """
        if self._session.peer.buffered_bytes < self._high_water_bytes:
            now = self._loop.time()
            if self._sending_since is None:
                self._sending_since = now
                self._loop.call_soon(self._on_loop_iteration)
            return DONE if now - self._sending_since < MAX_SENDING_S else asyncio.sleep(0)

        if self._drained is None:
            self._drained = self._loop.create_future()
        # Several handlers may wait for this future. Cancelling one must not wake other handlers.
        return asyncio.shield(self._drained)

    def _on_loop_iteration(self) -> None:
        """Reset the time that handlers may spend sending. Runs in the next loop iteration."""
        self._sending_since = None

    def _log_counts(self, at_end: bool = False) -> None:
        """Log how many messages were dropped or malformed since the last call.

        at_end: whether the connection is closed; the total of malformed messages is then logged
            too.
        """
        self._will_log_counts = False
        if not at_end:
            self._log_new_malformed()
        elif self._malformed_input is not None:
            self._malformed_input.report_end()
        if self._notifications.dropped_logs:
            log.warning(
                "%d log messages were not sent: too many, or the client does not read",
                self._notifications.dropped_logs,
            )
        if self._unread.dropped:
            log.warning(
                "%d results were dropped: the client does not read and %s",
                self._unread.dropped,
                self._unread.describe_unread(),
            )
        self._notifications.dropped_logs = 0
        self._unread.dropped = 0
