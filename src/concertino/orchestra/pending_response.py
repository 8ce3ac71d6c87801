"""A request of a link that waits for its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable
from contextvars import Context, copy_context
from typing import Protocol

__all__ = ["Asker", "PendingResponse", "Told"]

Told = Callable[[bytes | BaseException], object]


class Asker(Protocol):
    """The link, as far as its requests are concerned."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def forget(self, key: Hashable) -> None:
        """The response under this key is not wanted any more."""
        ...


class PendingResponse:
    """What came of a request: the bytes of its response, or an exception. Awaited by one task, or told to one function.

    It is a future, as far as a task asks for one (the asyncio documentation, "Extending"), but for this: the task goes on at once,
    inside of the reading of its response, not a turn of the loop later.
    what: was asked. deadline: by the loop's clock. key: under which the response comes; None before it is asked. told: the
    function, if no task is to wait. It gets the response within the reading of it, and an exception in the next turn of the loop.
    """

    __slots__ = (
        "_asker",
        "_asyncio_future_blocking",
        "_callback",
        "_context",
        "_outcome",
        "_told",
        "deadline",
        "key",
        "timeout_s",
        "what",
    )

    def __init__(
        self,
        asker: Asker,
        what: str,
        timeout_s: float,
        deadline: float,
        key: Hashable = None,
        told: Told | None = None,
    ) -> None:
        self._asker = asker
        self._outcome: bytes | BaseException | None = None
        self._told = told
        self.what = what
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.key = key
        if told is None:
            self._asyncio_future_blocking = False
            self._callback: Callable[[PendingResponse], object] | None = None
            self._context: Context | None = None

    def arrived(self, outcome: bytes | Exception) -> None:
        """What came of it. For callbacks of the loop only: whoever waits goes on before this returns."""
        if self._outcome is None:
            self._outcome = outcome
            if self._told is not None:
                try:
                    self._told(outcome)
                except (
                    Exception
                ) as why:  # those whose responses came with this one must have theirs
                    message = f"the response to {self.what} could not be passed on"
                    self._asker.loop.call_exception_handler({"message": message, "exception": why})
            elif self._callback is not None:
                assert self._context is not None, "set with the callback"
                self._context.run(self._callback, self)

    def failed(self, why: BaseException) -> None:
        """Nothing comes any more. Whoever waits goes on in the next turn of the loop."""
        if self._outcome is None:
            self._outcome = why
            if self._told is not None:
                self._asker.loop.call_soon(self._told, why)
            elif self._callback is not None:
                self._asker.loop.call_soon(self._callback, self, context=self._context)

    # A future, as a task sees it

    def __await__(self) -> Generator[PendingResponse, None, bytes]:
        if self._outcome is None:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._asker.loop

    def add_done_callback(
        self, callback: Callable[[PendingResponse], object], *, context: Context | None = None
    ) -> None:
        """By whoever waits; nobody else does."""
        self._callback = callback
        self._context = (
            copy_context() if context is None else context
        )  # an empty one counts as false
        if self._outcome is not None:
            self._asker.loop.call_soon(callback, self, context=self._context)

    def cancel(self, msg: object = None) -> bool:
        """Nobody waits any more: the other side is told."""
        if self._outcome is not None:
            return False
        self.failed(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        self._asker.forget(self.key)
        return True

    def result(self) -> bytes:
        outcome = self._outcome
        if type(outcome) is bytes:
            return outcome
        assert isinstance(outcome, BaseException)
        try:
            raise outcome
        finally:
            del self, outcome  # else what is raised and its traceback hold each other
