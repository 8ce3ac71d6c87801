"""Ends a server's connection: drains it, cancels the calls that are left, closes it.

A ServerConnection has one ConnectionEnd. The end has up to three phases:

1. Draining: the connection reads nothing more, and calls may run for another drain_s seconds.
2. Cutting off, if calls still run after that time: each of them gets an error response.
3. Closing: the remaining tasks are cancelled, output is flushed, and the connection is released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from concertino.errors import INTERNAL_ERROR
from concertino.protocol.session import Session
from concertino.runtime.tasks import do_nothing, hide_from_all_tasks

if TYPE_CHECKING:
    from concertino.protocol.request_profile import SessionRequest
    from concertino.transports.connection import Connection

__all__ = ["CLEANUP_S", "ConnectionEnd"]

log = logging.getLogger("concertino.host")

# How many seconds the `finally` blocks of cancelled handlers may take.
CLEANUP_S = 0.5


class ConnectionEnd:
    """Ends one connection: lets calls finish, cuts off the rest, and closes the connection.

    session, connection: the session whose calls are ended, and the connection that is closed.
    drain_s: how many seconds calls may run after start_draining(). Then the calls that still run
        are cut off: they get an error response, and their tasks are cancelled.
    closed: a future that this object completes when the connection is closed.
    on_closed: called just before `closed` is completed.

    Attributes:
    is_draining: whether the connection reads nothing more.
    is_closing: whether the connection only sends output that is buffered already.
    has_fault: whether a bug in concertino or a lack of memory has caused an exception. A request
        may have lost its response then, so the connection is drained and closed; otherwise the
        client might wait for ever.
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
        # Public, because ServerConnection uses the same time for the frames that it holds back.
        self.drain_s = drain_s
        self._closed = closed
        self._on_closed = on_closed
        # The tasks of cancelled calls that have not ended.
        self._cancelled_tasks: set[asyncio.Task[None]] = set()
        # The timer that cuts off the calls that still run; None before start_draining().
        self._drain_timer: asyncio.TimerHandle | None = None
        # The task that closes the connection; None before close().
        self._closing: asyncio.Task[None] | None = None
        # Whether the client has cancelled its calls by disconnecting; see close().
        self._is_cancellation = False

    def report_fault(self, what: str) -> None:
        """Log the current exception as a bug of concertino, and set has_fault.

        ServerConnection starts to drain the connection at its next flush.
        what: what went wrong, as the beginning of the log message.
        """
        log.exception("%s; this is a fault of concertino", what)
        self.has_fault = True

    def start_draining(self) -> None:
        """Begin to drain the connection: read nothing more, and let calls finish.

        ServerConnection then calls close_when_idle() whenever a call has ended. After drain_s
        seconds, the calls that still run get an error response, and the connection is closed.
        """
        if not self.is_draining:
            self.is_draining = True
            self._drain_timer = self._closed.get_loop().call_later(self.drain_s, self._cut_off)

    def close_when_idle(self) -> None:
        """Close the connection if no call runs or waits.

        Open subscriptions (requests of subscriptions/listen) do not count as calls: this method
        answers them before it closes. The client may read the buffered output until drain_s seconds
        have passed since start_draining().
        """
        session = self._session
        peer = session.peer
        # The table `running` contains the subscriptions, too.
        if peer.waiting or len(peer.running) > session.subscriptions.open_count:
            return

        # Subscriptions end after all calls, so that the client is notified of what these changed.
        if session.subscriptions.open_count and not self.is_closing:
            self._end_subscriptions()
            self._connection.flush()

        left_s = 0.0
        if self._drain_timer is not None:
            left_s = max(0.0, self._drain_timer.when() - self._closed.get_loop().time())
        self.close(left_s)

    def close(self, within_s: float, *, is_cancellation: bool = False) -> None:
        """Start to close the connection. Only the first call has an effect.

        within_s: how long to wait for the client to read the buffered output, in seconds.
        is_cancellation: whether the client has cancelled its calls by disconnecting, as HTTP
            clients do. No warning is logged then.
        """
        if self._closing is None:
            self._is_cancellation = is_cancellation
            self.is_draining = self.is_closing = True
            # A handler that cancels all tasks must not cancel this task.
            closing = self._closed.get_loop().create_task(self._close(within_s))
            self._closing = hide_from_all_tasks(closing)

    def add_cancelled(self, task: asyncio.Task[None]) -> None:
        """Remember the task of a cancelled call, whose handler may still clean up.

        The end of the connection waits up to CLEANUP_S seconds for such tasks.
        """
        self._cancelled_tasks.add(task)
        task.add_done_callback(self._cancelled_tasks.discard)

    def _cut_off(self) -> None:
        """Fail the calls that still run or wait, and close. The drain timer calls this."""
        self._end_subscriptions()
        self.fail_calls()
        self.close(CLEANUP_S)

    def fail_calls(self, *others: SessionRequest) -> None:
        """Send an error response to each call that still runs or waits, and cancel its task.

        Exceptions are logged and not raised.
        others: calls whose first step still runs, so that the Peer does not list them as running.
        """
        try:
            self._fail_calls(others)
            self._connection.flush()
        except Exception:
            self.report_fault("the calls that were cut off could not be answered")

    def _fail_calls(self, others: Iterable[SessionRequest]) -> None:
        """Do what fail_calls() does, but leave the responses in the buffer of the connection."""
        session = self._session
        peer = session.peer
        # The results of calls that have ended, but wait for a slow client, become errors as well.
        peer.settle_waiting_responses()

        ended = 0
        for request in [*peer.running.values(), *peer.waiting.values(), *others]:
            try:
                session.fail(request, INTERNAL_ERROR, "the server is shutting down")
            except Exception:
                self.report_fault("a call that was cut off could not be answered")

            # Each task must be cancelled once: a second time would interrupt the cleanup of its
            # handler. _close() cancels the calls that are still in a table of open requests. This
            # call is in none any more, unless fail() raised before it removed the call.
            if request.table is None:
                ended += 1
                self._cancel(request, "the server is shutting down")
        if ended:
            log.warning("%d calls were cut off", ended)

    def _cancel(self, request: SessionRequest, reason: str) -> None:
        """Cancel the task of a call, if it has one. Exceptions are logged and not raised."""
        if request.on_cancel is not None:
            try:
                request.on_cancel(reason)
            except Exception:
                self.report_fault("a call could not be cancelled")

    def _end_subscriptions(self) -> None:
        """Answer all open subscriptions/listen requests. Exceptions are logged and not raised."""
        try:
            self._session.subscriptions.end_all()
        except Exception:
            self.report_fault("the end of a subscription could not be sent")

    async def _close(self, within_s: float) -> None:
        """Cancel the remaining calls, close the connection, and set the result of `closed`."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        loop = self._closed.get_loop()
        until = loop.time() + within_s

        try:
            await self._cancel_calls()
        except Exception:
            self.report_fault("the remaining calls could not be cancelled")

        try:
            # Buffered output was being sent during _cancel_calls() too, so count that time as well.
            await self._connection.close(max(0.0, until - loop.time()))
        finally:
            # Drop the reference: the callback refers to the ServerConnection, which refers to this
            # object, and a reference cycle would keep both until the next garbage collection.
            on_closed, self._on_closed = self._on_closed, do_nothing
            on_closed()
            if not self._closed.done():
                self._closed.set_result(None)

    async def _cancel_calls(self) -> None:
        """Cancel the remaining calls, and wait up to CLEANUP_S seconds for all cancelled tasks."""
        subscriptions = self._session.subscriptions.open_count
        unanswered = self._session.close()
        for request in unanswered:
            self._cancel(request, "the connection is closing")
        if calls := len(unanswered) - subscriptions:
            level = logging.DEBUG if self._is_cancellation else logging.WARNING
            log.log(level, "%d calls were cut off", calls)
        if self._cancelled_tasks:
            await asyncio.wait(self._cancelled_tasks, timeout=CLEANUP_S)
