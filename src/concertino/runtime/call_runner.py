"""CallRunner: begins the calls of one connection, and answers them when they end.

A ServerConnection makes its CallRunner at the first call, so that this module and its imports are
not loaded before the response to `initialize`. A call takes this path:

    start -> backend.handle -> _on_call_done -> Session.respond

Each call gets exactly one response, whether its handler returns, raises, cancels itself or times
out. A call that the client cancels gets none. The functions of call_answers.py send all responses
that are not a plain result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context as ContextVariables
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw, Struct
from msgspec.json import Decoder

from concertino.backend.call_hooks import CallStarter, Work, call_starter_of
from concertino.backend.callback_calls import (
    ENDED,
    BeginByCallback,
    CancelCall,
    callback_beginner_of,
)
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, RpcError
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime import call_answers
from concertino.runtime.connection_end import ConnectionEnd
from concertino.runtime.context import CallContext
from concertino.runtime.result_sizes import LARGE_BYTES, least_size
from concertino.runtime.result_turns import result_turns_of
from concertino.runtime.tasks import busy_loops, eager_task_runner, loop_watch_of

if TYPE_CHECKING:
    from concertino.runtime.call_connection import AnsweringConnection

__all__ = ["CallRunner"]

log = logging.getLogger("concertino.host")

# Stands for the result of a call that has raised an exception, and is ignored.
NO_RESULT = Raw(b"{}")

# These requests run no code of the server's author, so they cannot block the event loop. They are
# often the first ones, and start faster without the thread that watches the loop.
UNWATCHED_METHODS = frozenset(
    ("tools/list", "resources/list", "resources/templates/list", "prompts/list")
)

_decode_text = Decoder(str).decode


class CallRunner:
    """Begins the calls of one connection, and answers them when they end.

    connection: the connection on which the calls arrive.
    connection_end: gets the tasks of cancelled calls, so that the connection's end waits for them.
    variables: each call runs in a copy of these context variables.

    Attribute:
    start: start(request) begins the call of a request. It returns when the call has ended and was
        answered, or when its handler first waits for something.
    """

    def __init__(
        self,
        connection: AnsweringConnection,
        connection_end: ConnectionEnd,
        variables: ContextVariables,
    ) -> None:
        self._connection = connection
        self._session = connection.session
        self._connection_end = connection_end
        self._unread = connection.session.peer.unread
        self._run_eagerly = eager_task_runner(connection.loop, self._on_call_done, variables)
        starter = call_starter_of(connection.backend)
        begin = callback_beginner_of(connection.backend)
        self.start: Callable[[SessionRequest], None] = (
            self._make_start_with_hooks(starter) if starter is not None else self._make_start()
        )
        if starter is None and begin is not None:
            self.start = self._make_start_by_callback(begin, self.start)

    def close(self) -> None:
        """Break the reference cycles of this object, so that its memory is freed at once.

        Called when the connection is closed.
        """
        self._run_eagerly = _run_nothing
        del self.start

    # The beginning of a call

    def _make_start(self) -> Callable[[SessionRequest], None]:
        """Return the function that starts calls of a backend that has only `handle`."""
        connection, backend = self._connection, self._connection.backend
        watch = loop_watch_of(connection.loop)

        def start(request: SessionRequest) -> None:
            if watch.is_asleep and request.method not in UNWATCHED_METHODS:
                watch.wake()
            try:
                work = backend.handle(request.call, CallContext(connection, request))
            except BaseException as exc:
                # `handle` may be a plain function that raises before there is anything to await.
                return self._on_call_done(request, NO_RESULT, exc)
            task = self._run_eagerly(work, request)
            if task is not None:
                self._on_first_wait(request, task)
            return None

        return start

    def _make_start_with_hooks(self, starter: CallStarter) -> Callable[[SessionRequest], None]:
        """Return the function that starts calls of a backend with call hooks, such as a Guard.

        Call hooks are functions that the backend gives to the runtime, to be called when a call
        ends: they change the result, for example (protocol/call_hooks.py).
        starter: the backend's functions that begin calls: each checks whether the call may run, and
            returns the coroutine that handles it.
        """
        from concertino.runtime.guarded_calls import RedactingContext

        connection = self._connection
        begin_any, begin_tool = starter.begin, starter.tools
        watch = loop_watch_of(connection.loop)
        context_type = RedactingContext if starter.redacts else CallContext

        def start(request: SessionRequest) -> None:
            if watch.is_asleep and request.method not in UNWATCHED_METHODS:
                watch.wake()
            call = request.call
            begin = begin_any
            if call.method == "tools/call":
                try:
                    begin = begin_tool[_decode_text(call.params["name"])]
                except (KeyError, *DECODE_ERRORS):
                    # The first call of this tool, or no valid name: begin_any() handles both.
                    pass
            try:
                work = begin(call, context_type(connection, request), request)
            except BaseException as exc:
                return self._on_call_done(request, NO_RESULT, exc)
            task = self._run_eagerly(work, request)
            if task is not None:
                self._on_first_wait(request, task)
            return None

        return start

    def _make_start_by_callback(
        self, begin: BeginByCallback, start_task: Callable[[SessionRequest], None]
    ) -> Callable[[SessionRequest], None]:
        """Return the function that starts calls of a backend that answers them from a callback.

        begin: forwards a call and returns a function that cancels the call; when the response
            arrives, the backend calls end_call(). Returns None if it does not take the call.
        start_task: starts the calls that `begin` does not take.
        """
        connection = self._connection
        add_running = self._session.peer.add_running

        def start(request: SessionRequest) -> None:
            cancel = begin(request.call, CallContext(connection, request), self, request)
            if cancel is None:
                return start_task(request)
            # ENDED says that the call was answered already.
            if cancel is not ENDED:
                add_running(request)
                request.on_cancel = partial(self._cancel_callback, request, cancel)
            return None

        return start

    def _cancel_callback(self, request: SessionRequest, cancel: CancelCall, reason: str) -> None:
        """Cancel a call that is answered from a callback. This is request.on_cancel."""
        log.debug("request %r was cancelled: %s", request.id, reason or "no reason given")
        cancel()
        self._on_call_done(request, NO_RESULT, asyncio.CancelledError())

    def end_call(
        self, slot: SessionRequest, result: Struct | Raw | None, error: Exception | None
    ) -> None:
        """Answer a call of a backend that calls this method instead of returning a result.

        slot: the request of the call, which the backend's begin function has got as `slot`.
        result: the result of the call; None if there is an `error`.
        error: the exception to answer the call with; None if there is a result.
        """
        self._on_call_done(slot, NO_RESULT if result is None else result, error)

    def run(self, work: Work, request: SessionRequest) -> None:
        """Run a coroutine for a call, and answer the call with the coroutine's result.

        work: the coroutine. Its first step runs at once; if it must wait, it becomes a task.
        """
        # The start functions above contain the same lines, to save this function call.
        task = self._run_eagerly(work, request)
        if task is not None:
            self._on_first_wait(request, task)

    def _on_first_wait(self, request: SessionRequest, task: asyncio.Task[None]) -> None:
        """Make a call cancellable and start its time limit. Called when its handler first waits."""
        # A call is put into the table of running calls only now, because most calls never wait.
        if request.table is None:
            self._session.peer.add_running(request)
        cancel = request.on_cancel = partial(self._cancel, task, request)
        hooks = request.hooks
        if hooks is not None and hooks.timeout_s is not None:
            from concertino.runtime.guarded_calls import TimedCall

            answer = partial(call_answers.answer_call, self._connection)
            request.timer = TimedCall(request, hooks, hooks.timeout_s, task, answer, cancel)

    def _cancel(
        self,
        task: asyncio.Task[None],
        request: SessionRequest,
        reason: str,
    ) -> None:
        """Cancel the task of a call, and the waits of its threads. This is request.on_cancel."""
        log.debug("request %r was cancelled: %s", request.id, reason or "no reason given")
        task.cancel()
        self._connection_end.add_cancelled(task)
        if request.dialogue is not None:
            for thread_wait in list(request.dialogue.waits.threads):
                thread_wait.cancel()

    # The end of a call

    def _on_call_done(
        self,
        request: SessionRequest,
        result: Struct | Raw,
        error: BaseException | None,
    ) -> None:
        """Answer a call whose handler has returned `result` or raised `error`."""
        if request.on_cancel is not None:
            # The handler has waited, so many other calls may end in this loop iteration, too. Large
            # results are then sent in turns, because together they would block the loop. To save
            # time, the size of the result is checked only in three cases: a large result was
            # expected; much output is unread; or large results wait already (busy_loops).
            # When a postponed result is sent, this method runs again, and on_cancel is None.
            call_answers.release_task(request)
            if (
                error is None
                and (
                    request.expected_bytes >= LARGE_BYTES
                    or self._unread.budget.held >= LARGE_BYTES
                    or busy_loops
                )
                and self._postpone_or_drop(request, result)
            ):
                return None

        # Sending a response schedules a flush. A call in a batch or a cancelled call may send none,
        # but the flush is needed even then: it starts waiting calls, and closes a draining
        # connection.
        if request.batch is not None or self._connection_end.is_draining:
            self._connection.schedule_flush()

        # hooks: the functions of a guard (protocol/call_hooks.py). If the guard limits how many
        # calls run at the same time, it counts its free places in hooks.permits: the next call may
        # take this one. accepts_text() says of a result with one text whether the hooks would leave
        # it as it is.
        accepts_text = None
        hooks = request.hooks
        if hooks is not None:
            if (permits := hooks.permits) is not None:
                permits.free += 1
            accepts_text = hooks.accepts_text

        if error is not None or request.dialogue is not None:
            return call_answers.end_call(self._connection, request, result, error)
        try:
            if self._session.respond(request, result, accepts_text):
                return None
        except BaseException as exc:
            return call_answers.answer_unsent(self._connection, request, result, exc)
        # Nothing was sent, because the hooks must see the result before.
        return call_answers.finish_call(self._connection, request, result)

    def _postpone_or_drop(self, request: SessionRequest, result: Struct | Raw) -> bool:
        """Arrange that a large result is sent in a later loop iteration, or drop the result.

        Returns True if it has done one of these. Returns False if the caller must send the result
        now: it is small, or not much was sent in this iteration. A result for which there is no
        memory is dropped before it is encoded, and the call fails.
        """
        turns = result_turns_of(self._connection.loop)
        expected_bytes, least_bytes = request.expected_bytes, least_size(result)
        # Guards may replace a result that is too large.
        if request.hooks is None and self._session.refuse_large(request, result, least_bytes):
            self._connection.schedule_flush()
            return True
        if expected_bytes >= LARGE_BYTES:
            if turns.may_send(expected_bytes):
                return False
            turns.send_later(expected_bytes, partial(self._on_call_done, request, result, None))
            return True

        # A small result was expected, so no memory is reserved for a large one.
        if least_bytes < LARGE_BYTES:
            return False
        unread = self._unread
        if not unread.may_postpone(least_bytes):
            # drop() counts the dropped result, and returns the text of the error.
            error = RpcError(INTERNAL_ERROR, unread.drop(least_bytes))
            self._on_call_done(request, NO_RESULT, error)
            return True
        unread.postpone(request, least_bytes)

        def send() -> None:
            unread.end_postponed(least_bytes)
            self._on_call_done(request, result, None)

        turns.send_later(least_bytes, send)
        return True


def _run_nothing(work: object, request: object) -> None:
    """Raise RuntimeError. Replaces `_run_eagerly` when the connection is closed."""
    raise RuntimeError("the connection is closed; this is a fault of concertino")
