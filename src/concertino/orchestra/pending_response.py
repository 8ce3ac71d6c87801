"""A request of an RPC connection that waits for its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable
from contextvars import Context, copy_context
from typing import Protocol

__all__ = ["PendingResponse", "RequestSender", "ResponseCallback"]

# Called with the response as bytes, or with the exception that took its place.
ResponseCallback = Callable[[bytes | BaseException], object]


class RequestSender(Protocol):
    """The connection that a request was sent on."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def forget(self, key: Hashable) -> None:
        """Forget a request whose response is no longer needed, and send a cancellation for it."""
        ...


class PendingResponse:
    """The outcome of a request: the bytes of its response, or an exception.

    It is awaited by one task, or handed to one callback. For a task it acts as a future (asyncio
    documentation, "Extending"), with one difference: the task continues inside the read callback
    that received the response, one loop iteration earlier than with asyncio.Future.

    kind: the kind of request, for log messages. deadline: a time of the loop's clock.
    key: identifies the response; None before the request is sent.
    callback: called with a response inside the read callback, or with an exception in the next
    loop iteration.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_context",
        "_outcome",
        "_sender",
        "_task_callback",
        "deadline",
        "key",
        "kind",
        "timeout_s",
    )

    def __init__(
        self,
        sender: RequestSender,
        kind: str,
        timeout_s: float,
        deadline: float,
        key: Hashable = None,
        callback: ResponseCallback | None = None,
    ) -> None:
        self._sender = sender
        self._outcome: bytes | BaseException | None = None
        self._callback = callback
        self.kind = kind
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.key = key
        # Only an awaiting task needs these. A hub forwards many requests with callbacks, and does
        # not pay for them.
        if callback is None:
            self._asyncio_future_blocking = False
            self._task_callback: Callable[[PendingResponse], object] | None = None
            self._context: Context | None = None

    def resolve(self, outcome: bytes | Exception) -> None:
        """Set the outcome, and run the waiting task or callback before returning.

        Call it from callbacks of the loop only, never from a task.
        """
        if self._outcome is not None:
            return
        self._outcome = outcome

        if self._callback is not None:
            try:
                self._callback(outcome)
            # An error here must not affect the other responses of the same read.
            except Exception as exc:
                message = f"the response to {self.kind} could not be passed on"
                self._sender.loop.call_exception_handler({"message": message, "exception": exc})
        elif self._task_callback is not None:
            assert self._context is not None, "set together with the callback"
            self._context.run(self._task_callback, self)

    def fail(self, exc: BaseException) -> None:
        """Set an exception as the outcome; the waiter continues in the next loop iteration."""
        if self._outcome is not None:
            return
        self._outcome = exc

        if self._callback is not None:
            self._sender.loop.call_soon(self._callback, exc)
        elif self._task_callback is not None:
            self._sender.loop.call_soon(self._task_callback, self, context=self._context)

    # The interface of a future, as asyncio.Task uses it

    def __await__(self) -> Generator[PendingResponse, None, bytes]:
        if self._outcome is None:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._sender.loop

    def add_done_callback(
        self, callback: Callable[[PendingResponse], object], *, context: Context | None = None
    ) -> None:
        """Register the waiting task; there is at most one."""
        self._task_callback = callback
        # Not `context or ...`: an empty context is falsy.
        self._context = copy_context() if context is None else context
        if self._outcome is not None:
            self._sender.loop.call_soon(callback, self, context=self._context)

    def cancel(self, msg: object = None) -> bool:
        """Cancel the request on both sides. Returns False if there is an outcome already."""
        if self._outcome is not None:
            return False
        self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        self._sender.forget(self.key)
        return True

    def result(self) -> bytes:
        outcome = self._outcome
        if type(outcome) is bytes:
            return outcome
        assert isinstance(outcome, BaseException)
        try:
            raise outcome
        finally:
            # Otherwise the exception and its traceback keep each other alive.
            del self, outcome
