"""LongOperation: one call of a long tool, whose work may continue after the call has ended.

Operations (server/operations.py) creates it, starts its task, and stores it until its result has
expired. The handler gets a Context of its own, because the Context of the call counts as cancelled
when the call has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, TypeVar, cast

from msgspec.json import encode

from concertino.backend.interface import Context
from concertino.backend.wrappers import ContextWrapper
from concertino.errors import ToolError
from concertino.runtime.thread_waits import wait_in_thread
from concertino.schema.value_results import InvalidResult
from concertino.server.tool_errors import describe_exception, tool_error_result
from concertino.types.results import CallToolResult, error_result

__all__ = ["LongOperation", "State", "Work"]

log = logging.getLogger("concertino.operations")
T = TypeVar("T")
# A function that calls the handler of an operation and returns the result of the tool.
Work = Callable[[], Awaitable[CallToolResult]]
State = Literal["in_progress", "completed", "failed", "cancelled", "timed_out"]


class _Outcome(NamedTuple):
    """The result of an operation, and its size as JSON in bytes."""

    result: CallToolResult
    size: int


class LongOperation:
    """One long operation: one call of a tool of Operations.

    name: the name of the tool.
    call_context: the Context of the call, which counts as cancelled when the call has ended.
    initial_message: the text of the status until the handler reports progress with another text.
    estimated_time: the expected duration, as a text that people read; None if it is not known.

    Attributes that run() and the handler's thread change:
    state: "in_progress" until the operation ends, then its final state.
    message: the last text that the handler has reported with its progress; initial_message before.
    last_progress: the last (progress, total) that the handler has reported; None before.
    waits: the futures for which the handler's thread waits in context.wait(). end() cancels them.
    outcome: the result of the handler and its size; None until the handler has returned or raised.
    listeners: the contexts of the calls that wait for the end. They get the progress of the
        operation. Each change replaces the whole tuple, because other threads read it.

    Attributes that Operations changes:
    task: the task that runs the handler; does not exist before the operation begins.
    context: the Context for the handler. It stays usable when the call has ended. Operations
        deletes it at the end of the task, to free the memory of the request.
    ended_at: the time at which the task has ended, by the clock of Operations; None before.

    Attribute that does not change:
    id: the handle by which clients ask for the operation, its `operationId`.
    """

    def __init__(
        self,
        name: str,
        call_context: Context,
        initial_message: str,
        estimated_time: str | None,
    ) -> None:
        self.id = "op_" + os.urandom(16).hex()
        self.name = name
        self.state: State = "in_progress"
        self.message = initial_message
        self.estimated_time = estimated_time
        self.last_progress: tuple[float, float | None] | None = None
        self.waits: set[Future[Any]] = set()
        self.context = _OperationContext(call_context, self)
        self.task: asyncio.Task[None]
        self.outcome: _Outcome | None = None
        self.ended_at: float | None = None
        self.listeners: tuple[Context, ...] = ()

    @property
    def size(self) -> int:
        """Return the size of the stored result as JSON, in bytes; 0 if there is none."""
        return 0 if self.outcome is None else self.outcome.size

    @property
    def has_ended(self) -> bool:
        """Return whether the state is final.

        The task of an operation that was cancelled or has timed out may still be cleaning up.
        """
        return self.state != "in_progress"

    async def run(self, work: Work) -> None:
        """Run the handler and store its result in `outcome`. The operation's task runs this.

        An exception of the handler becomes a result with isError.
        work: calls the handler and returns the result of the tool.
        """
        size = 0
        try:
            result = await work()
            # Raises if the result cannot be encoded, and so cannot be sent.
            size = len(encode(result))
        except (ToolError, InvalidResult) as exc:
            result = tool_error_result(exc)
            # The error may contain values that cannot be encoded, so this size is only an estimate.
            size = len(repr(result))
        except BaseException as exc:
            # The operation was cancelled, and exc is the CancelledError of this task.
            if self.has_ended:
                raise
            from concertino.backend.user_errors import exc_info_for_users

            log.error("operation %s failed", self.name, exc_info=exc_info_for_users(exc))
            result = error_result(describe_exception(exc))
        self.outcome = _Outcome(result, size)

    def end(self, state: State) -> None:
        """Set the final state, and cancel the work. Does nothing if the operation has ended.

        state: any state but "in_progress".
        """
        if not self.has_ended:
            self.state = state
            self.task.cancel()
            for wait in tuple(self.waits):
                wait.cancel()

    def status(self) -> dict[str, Any]:
        """Return the status that clients get while the operation runs, as a JSON object."""
        status: dict[str, Any] = {"status": "in_progress", "message": self.message}
        if self.estimated_time is not None:
            status["estimatedTime"] = self.estimated_time
        status["operationId"] = self.id
        if self.last_progress is not None:
            done, total = self.last_progress
            status["progress"] = done
            if total is not None:
                status["total"] = total
        return status

    async def wait_for_end(self, context: Context, timeout_s: float) -> None:
        """Wait for the end of the operation, at most timeout_s seconds; 0 to return at once.

        context: the context of the waiting call, whose client gets the operation's progress.
        """
        if self.last_progress is not None:
            context.progress(*self.last_progress, self.message)
        if self.task.done() or not timeout_s:
            return
        self.listeners = (*self.listeners, context)
        try:
            await asyncio.wait([self.task], timeout=timeout_s)
        finally:
            self.listeners = tuple(item for item in self.listeners if item is not context)


class _OperationContext(ContextWrapper):
    """The Context of an operation's handler. It also works after the call has ended.

    inner: the context of the call that has started the operation.
    """

    def __init__(self, inner: Context, operation: LongOperation) -> None:
        super().__init__(inner)
        self._operation = operation

    @property
    def cancelled(self) -> bool:
        return self._operation.has_ended

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        # Call this first, because it raises for invalid values. It sends nothing if the call has
        # ended.
        sent = self.inner.progress(done, total, message)
        operation = self._operation
        operation.last_progress = done, total
        if message is not None:
            operation.message = message
        for listener in operation.listeners:
            if listener is not self.inner:
                listener.progress(done, total, message)
        return sent

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        # The called tool must get this context: the call's own context counts as cancelled after
        # its end.
        return cast("Any", self.inner).subcall_context(self).call_tool(name, arguments, into=into)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait for an awaitable in a `def` handler, which runs in a thread, and return its result.

        Raises the exception of the awaitable, CancelledError when the operation is cancelled, and
        RuntimeError if it is called on the event loop.
        """
        operation = self._operation
        loop = operation.task.get_loop()
        return wait_in_thread(awaitable, loop, operation.waits, lambda: self.cancelled)

    async def _refuse_to_ask(self, *_: object, **__: object) -> Any:
        """Raise ToolError. Replaces the methods of Context that need the call to be unanswered."""
        raise ToolError(
            "the call of a long operation may be over: it cannot ask the client, nor be made "
            "again; ask in another tool, before"
        )

    ask = elicit = elicit_url = sample = roots = once = _refuse_to_ask
