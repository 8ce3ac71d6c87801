"""The runtime's part of call hooks: contexts without secrets, and time limits.

Loaded for backends that begin calls themselves (backend/call_hooks.py), which guards do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw, Struct

from concertino.logs.redact import redactor
from concertino.protocol.call_hooks import CallHooks
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.context import CallContext

__all__ = ["RedactingContext", "TimedCall"]

Answer = Callable[[SessionRequest, Any, BaseException | None], None]


class RedactingContext(CallContext, eq=False):
    """A call's Context that takes secrets out of progress and log messages.

    A class of its own and not a wrapper: a wrapper would have to be made for every call.
    """

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        return super().progress(done, total, redactor().value(message))

    def log(
        self,
        level: Any,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        return super().log(level, redactor().value(data), redactor().value(logger))


class TimedCall:
    """The time limit of a call that waits: its timer, and its answer when the time is over.

    Made only for calls that outlive their first step, which few do.

    task: the call's task.
    answer: sends the response of a request.
    cancel: cancels the task, given the reason.
    """

    __slots__ = ("_answer", "_cancel", "_has_expired", "_hooks", "_request", "_task", "_timer")

    def __init__(
        self,
        request: SessionRequest,
        hooks: CallHooks,
        timeout_s: float,
        task: asyncio.Task[None],
        answer: Answer,
        cancel: Callable[[str], None],
    ) -> None:
        self._request = request
        self._hooks = hooks
        self._task = task
        self._answer = answer
        self._cancel = cancel
        self._has_expired = False
        self._timer = task.get_loop().call_later(timeout_s, self._expire, timeout_s)

    def on_work_done(self) -> None:
        """Stop the timer; if it has fired already, report the end of the late work."""
        self._timer.cancel()
        if self._has_expired:
            self._hooks.on_late_end(self._task)

    def _expire(self, timeout_s: float) -> None:
        request = self._request

        # The client has cancelled the call: nobody waits for an answer.
        if not request.open:
            return

        self._has_expired = True
        result: Struct | Raw = Raw(b"{}")
        error: BaseException | None = None
        try:
            result = self._hooks.time_out(self._task)
        except Exception as exc:
            error = exc

        # The hooks have made the answer. From here on only on_late_end() may be called.
        request.hooks = None
        self._answer(request, result, error)

        # The answer went out first: the work may take any time to end. The connection must still
        # be able to cancel it when it closes, and must see it end.
        request.on_cancel = self._cancel
        self._cancel(f"it took longer than {timeout_s:g} s")
