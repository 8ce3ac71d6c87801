"""The end of a connection: draining, cutting off what is left, closing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from concertino.errors import INTERNAL_ERROR
from concertino.protocol.session import Session
from concertino.runtime.tasks import do_nothing, hide_from_all_tasks

if TYPE_CHECKING:
    from concertino.protocol.request_profile import SessionRequest
    from concertino.transports.connection import Connection

__all__ = ["CLEANUP_S", "ConnectionEnd"]

log = logging.getLogger("concertino.host")

# How long the `finally` blocks of handlers that were cut off may take.
CLEANUP_S = 0.5


class ConnectionEnd:
    """The end of one connection, from the moment that it takes no more input.

    drain_s: how long accepted calls may take after that.
    closed: gets a result when everything is over.
    on_closed: called just before that.
    is_draining: no more input is taken.
    is_closing: nothing is sent any more.
    has_fault: concertino has failed, or memory ran out, so some request may stay unanswered for
    ever. Then the connection ends in order, as far as that goes, and the client waits for nothing.
    """

    def __init__(
        self,
        session: Session,
        connection: Connection,
        drain_s: float,
        closed: asyncio.Future[None],
        on_closed: Callable[[], object],
    ) -> None:
        self.is_draining = False
        self.is_closing = False
        self.has_fault = False
        self._session = session
        self._connection = connection
        self.drain_s = drain_s
        self._closed = closed
        self._on_closed = on_closed
        self._cancelled_tasks: set[asyncio.Task[None]] = set()
        self._drain_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    def report_fault(self, what: str) -> None:
        """Log the current exception as a fault of concertino.

        The connection ends with the next flush.
        """
        log.exception("%s; this is a fault of concertino", what)
        self.has_fault = True

    def start_draining(self) -> None:
        """Take no more input; close when the calls have ended or the drain time is over."""
        if not self.is_draining:
            self.is_draining = True
            self._drain_timer = self._closed.get_loop().call_later(self.drain_s, self._cut_off)

    def close_when_idle(self) -> None:
        """Close if nothing but subscriptions is under way."""
        session = self._session
        peer = session.peer
        if peer.waiting or len(peer.running) > session.open_subscriptions:
            return

        # Only now, so that subscribers hear of what the last calls changed.
        if session.open_subscriptions and not self.is_closing:
            self._end_subscriptions()
            self._connection.flush()

        left_s = 0.0
        if self._drain_timer is not None:
            left_s = max(0.0, self._drain_timer.when() - self._closed.get_loop().time())
        self.close(left_s)

    def close(self, within_s: float) -> None:
        """Close the connection; output may take `within_s` seconds to leave."""
        if self._closing is None:
            self.is_draining = self.is_closing = True
            closing = self._closed.get_loop().create_task(self._close(within_s))
            self._closing = hide_from_all_tasks(closing)

    def add_cancelled(self, task: asyncio.Task[None]) -> None:
        """Note that a call's task was cancelled: closing gives it CLEANUP_S to end."""
        self._cancelled_tasks.add(task)
        task.add_done_callback(self._cancelled_tasks.discard)

    def _cut_off(self) -> None:
        """Answer the calls that are left with an error and close, since the drain time is over."""
        self._end_subscriptions()
        try:
            self._fail_calls()
            self._connection.flush()
        except Exception:
            self.report_fault("what was cut off could not be answered")
        self.close(CLEANUP_S)

    def _fail_calls(self) -> None:
        session = self._session
        peer = session.peer
        # The calls of these have ended, and get an error that says so.
        peer.drop_waiting_responses()

        ended = 0
        for request in [*peer.running.values(), *peer.waiting.values()]:
            try:
                session.fail(request, INTERNAL_ERROR, "the server is shutting down")
            except Exception:
                self.report_fault("a call that was cut off could not be answered")

            # Written or not, nobody else knows of this call any more. One that is still in a table
            # is left to _close(): a second cancel would interrupt the cleanup of its handler.
            if request.table is None:
                ended += 1
                self._cancel(request, "the server is shutting down")
        if ended:
            log.warning("%d calls were cut off", ended)

    def _cancel(self, request: SessionRequest, reason: str) -> None:
        """Cancel a call's task, if it has one. Raises nothing, so that the others are cancelled."""
        if request.on_cancel is not None:
            try:
                request.on_cancel(reason)
            except Exception:
                self.report_fault("a call could not be cancelled")

    def _end_subscriptions(self) -> None:
        try:
            self._session.end_subscriptions()
        except Exception:
            self.report_fault("the end of a subscription could not be sent")

    async def _close(self, within_s: float) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        loop = self._closed.get_loop()
        until = loop.time() + within_s

        try:
            await self._cancel_calls()
        except Exception:
            self.report_fault("what was under way could not be ended")

        try:
            # Output has been leaving since the beginning.
            await self._connection.close(max(0.0, until - loop.time()))
        finally:
            # Called once, and forgotten: it refers to the connection, which refers to this object.
            on_closed, self._on_closed = self._on_closed, do_nothing
            on_closed()
            if not self._closed.done():
                self._closed.set_result(None)

    async def _cancel_calls(self) -> None:
        """Cancel the calls that are left, and wait for all that were cancelled."""
        left = self._session.close()
        for request in left:
            self._cancel(request, "the connection is closing")
        if calls := sum(request.method != "subscriptions/listen" for request in left):
            log.warning("%d calls were cut off", calls)
        if self._cancelled_tasks:
            await asyncio.wait(self._cancelled_tasks, timeout=CLEANUP_S)
