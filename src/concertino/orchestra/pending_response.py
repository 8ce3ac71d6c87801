"""A request of an RPC connection that waits for its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable
from typing import Any, Protocol

from concertino.runtime.pending import PendingOutcome

__all__ = ["PendingResponse", "RequestSender", "ResponseCallback"]

# Called with the response as bytes, or with the exception that took its place.
ResponseCallback = Callable[[bytes | BaseException], object]


class RequestSender(Protocol):
    """The connection that a request was sent on."""

    def forget(self, key: Hashable) -> None:
        """Forget a request whose response is no longer needed, and send a cancellation for it."""
        ...


class PendingResponse(PendingOutcome, eq=False):
    """The outcome of a request: the bytes of its response, or an exception.

    It is awaited by one task, or handed to one function, on_outcome.

    kind: the kind of request, for log messages. deadline: a time of the loop's clock.
    key: identifies the response; None before the request is sent.
    on_outcome: called with a response inside the read callback, or with an exception in the next
    loop iteration.
    """

    # Declared again as a positional field, which saves 50 ns.
    _loop: asyncio.AbstractEventLoop
    sender: RequestSender
    kind: str
    timeout_s: float
    deadline: float
    key: Hashable = None
    on_outcome: ResponseCallback | None = None

    def resolve(self, payload: bytes) -> None:
        """Set the response, and run the waiting task or function before returning.

        Call it from callbacks of the loop only, never from a task.
        """
        if self.outcome is not None:
            return
        self.outcome = payload

        if self.on_outcome is not None:
            try:
                self.on_outcome(payload)
            # An error here must not affect the other responses of the same read.
            except Exception as exc:
                message = f"the response to {self.kind} could not be passed on"
                self._loop.call_exception_handler({"message": message, "exception": exc})
        elif self.callback is not None:
            self.context.run(self.callback, self)

    def fail(self, exc: BaseException) -> None:
        """Set an exception as the outcome; the waiter continues in the next loop iteration."""
        if self.outcome is None:
            self.failed = True
            self.outcome = exc
            self.resume_soon()

    def resume_soon(self) -> None:
        if self.on_outcome is not None:
            self._loop.call_soon(self.on_outcome, self.outcome)
        else:
            super().resume_soon()

    def cancel(self, msg: object = None) -> bool:
        """Cancel the request on both sides. Returns False if there is an outcome already."""
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self.sender.forget(self.key)
        return is_cancelled

    def __await__(self) -> Generator[PendingResponse, None, bytes]:
        if self.outcome is None:
            yield self
        outcome: Any = self.outcome
        if not self.failed:
            return outcome
        try:
            raise outcome
        finally:
            # Otherwise the exception and its traceback keep each other alive.
            del self, outcome
