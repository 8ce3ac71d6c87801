"""RedactingContext and TimedCall: what the runtime adds to the calls of guarded servers.

A guard is a wrapper around a backend that limits calls or changes their results. To save a
coroutine around each call, it gives the runtime functions to call when a call ends, the "call
hooks" (backend/call_hooks.py). Two duties of a guard last as long as the call, so the runtime
fulfils them: it redacts secrets in progress and log messages, and it ends calls that reach their
time limit. CallRunner imports this module only for backends with call hooks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.caller import Caller
from concertino.backend.wrappers import CallerWrapper
from concertino.logs.redact import redactor
from concertino.protocol.call_hooks import CallHooks
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.context import CallContext

__all__ = ["RedactingCaller", "RedactingContext", "TimedCall"]

# A function answer(request, result, error) that sends the response to a call.
Answer = Callable[[SessionRequest, Any, BaseException | None], None]


class RedactingContext(CallContext, eq=False):
    """A CallContext that replaces secrets in progress and log messages with [REDACTED]."""

    # This is a subclass and not a ContextWrapper, so that no call needs a second context object.

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

    @property
    def caller(self) -> Caller:
        return RedactingCaller(super().caller)


class RedactingCaller(CallerWrapper):
    """A Caller that replaces secrets in notifications with [REDACTED]."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.inner.notify(method, redactor().value(params))


class TimedCall:
    """The time limit of one call: a timer that answers and cancels the call when it fires.

    CallRunner makes it when a handler has to wait. Most handlers return before their first wait.

    request: the request of the call.
    hooks: the functions that the guards have given to the runtime (CallHooks). When the timer
        fires, the call is answered with the result of hooks.time_out(), or with its exception.
    timeout_s: how many seconds the call may take, from now.
    task: the call's task.
    answer: called as answer(request, result, error) to send the response.
    cancel: called as cancel(reason) to cancel the task.
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
        # Whether the timer has fired.
        self._has_expired = False
        self._timer = task.get_loop().call_later(timeout_s, self._expire, timeout_s)

    def on_work_done(self) -> None:
        """Stop the timer; if it has fired already, tell the guards that the late call has ended.

        Called when the task of the call has ended.
        """
        self._timer.cancel()
        # The guards count the call as running until its task has ended, even after its time limit.
        if self._has_expired:
            self._hooks.on_late_end(self._task)

    def _expire(self, timeout_s: float) -> None:
        """Answer the call with the response of the hooks, and cancel its task.

        The timer calls this.
        """
        request = self._request

        # If the client has cancelled the call, it must not get a response.
        if not request.open:
            return

        self._has_expired = True
        # Ignored if time_out() raises.
        result: Struct | Raw = Raw(b"{}")
        error: BaseException | None = None
        try:
            result = self._hooks.time_out(self._task)
        except Exception as exc:
            error = exc

        # The hooks have made the response, so the end of the task must not call them again, except
        # for on_late_end().
        request.hooks = None
        self._answer(request, result, error)

        # Cancel after the response is sent, because a handler may take any time to end. Until the
        # handler ends, request.on_cancel is needed to cancel it again when the connection closes.
        # Sending the response has cleared it.
        request.on_cancel = self._cancel
        self._cancel(f"it took longer than {timeout_s:g} s")
