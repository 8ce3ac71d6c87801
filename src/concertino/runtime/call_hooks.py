"""Calls that a backend admits itself, and what is then to be done at their end: instead of a coroutine around each of them.

A coroutine more costs a small call 10 %; what a guard does at the end of a call, 1 %. So a class that has its own `handle` may
offer `admit_call(call, context, admitted)` beside it, which gives the work, and says in `admitted` what Terms the call has, if any;
`admits` is the same for each tool by name, where it is known already, without looking for it; and where `hushes` is true, every
context is to be a HushedContext. A driver that calls a backend itself (a Link, for its client) takes these; whoever stands around
the backend awaits `handle`, and the result is the same.
Numbers: docs/decisions/0011-the-driver-ends-guarded-calls.md. Loaded when a backend has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, Call, Context
from concertino.logs.redact import redactor
from concertino.protocol.session import SessionRequest
from concertino.runtime.context import CallContext

__all__ = [
    "BeginCall",
    "CallHooks",
    "CallHooksSlot",
    "Permits",
    "RedactingContext",
    "TimedCall",
    "admission",
    "method_of_same_class",
]


class Permits:
    """Room for calls in flight. most: all of it; free: what is left, as whoever admits a call lowers it, and its end raises it."""

    __slots__ = ("free", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.free = most


class CallHooks(Protocol):
    """What a call was admitted under.

    Told of its end once: done() or failed(), after its slot was given back; or timed_out(), and then left(), which gives it back.
    Data rather than methods where nearly every call comes by: a Python call more is 1 % of a small echo.
    slots: where the call has taken one. timeout_s: for how long it may wait; None for ever.
    passes: whether done() would leave a plain text as it is; then it need not be asked. None: it leaves everything as it is.
    """

    @property
    def slots(self) -> Permits | None: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def passes(self) -> Callable[[str], bool] | None: ...
    def done(self, result: Struct | Raw) -> Struct | Raw:
        """What is answered instead of what the work returned. Raises RpcError for an error answer."""
        ...

    def failed(self, error: BaseException) -> BaseException:
        """What is answered instead of what the work raised."""
        ...

    def timed_out(self, task: asyncio.Task[None]) -> Struct | Raw:
        """What is answered now that its time is over. Its work is cancelled, and may go on in this task. Raises RpcError."""
        ...

    def left(self, task: asyncio.Task[None]) -> None:
        """Its work is over as well."""
        ...


class CallHooksSlot(Protocol):
    """Where admit_call() says what a call is admitted under: an Incoming, for a driver."""

    terms: Any  # Terms, if it has any


BeginCall = Callable[[Call, Context, CallHooksSlot], Any]  # Any: the work, a coroutine
Ended = Callable[[SessionRequest, Any, BaseException | None], None]


def admission(backend: Backend) -> BeginCall | None:
    """A backend's `admit_call`, if it has one of its `handle`."""
    return method_of_same_class(backend, "admit_call")


def method_of_same_class(backend: Backend, name: str) -> Any:
    """A method that goes with a backend's `handle`; None if it has another `handle`, as a subclass or a proxy may."""
    owner = next((each for each in type(backend).__mro__ if "handle" in vars(each)), None)
    if owner is None or name not in vars(owner) or "handle" in getattr(backend, "__dict__", ()):
        return None
    return getattr(backend, name)


class RedactingContext(CallContext, eq=False):
    """Takes secrets out of what the handler tells its caller meanwhile: for a backend that `hushes` what it admits."""

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        return super().progress(done, total, redactor().value(message))

    def log(self, level: Any, data: object, logger: str | None = None) -> Awaitable[None]:
        return super().log(level, redactor().value(data), redactor().value(logger))


class TimedCall:
    """Stands for the Terms of a call that waits and has a time limit: its timer, and the answer when the time is over.

    Nothing of this is made for a call that ends with its first step, as nearly all do.
    ended: answers a call. cancel: its task, with the reason.
    """

    __slots__ = (
        "_cancel",
        "_ended",
        "_incoming",
        "_is_over",
        "_task",
        "_terms",
        "_timer",
        "timeout_s",
    )

    def __init__(
        self,
        incoming: SessionRequest,
        terms: CallHooks,
        task: asyncio.Task[None],
        ended: Ended,
        cancel: Callable[[str], None],
    ) -> None:
        assert terms.timeout_s is not None
        self.timeout_s = terms.timeout_s
        self._incoming = incoming
        self._terms = terms
        self._task = task
        self._ended = ended
        self._cancel = cancel
        self._is_over = False
        self._timer = task.get_loop().call_later(terms.timeout_s, self._expire)

    def ended(self) -> CallHooks | None:
        """The work is over: the Terms that hold for its end; none if its time was over before."""
        if self._is_over:
            self._terms.left(self._task)
            return None
        self._timer.cancel()
        return self._terms

    def _expire(self) -> None:
        incoming = self._incoming
        if (
            not incoming.open
        ):  # its caller has given up: it is cancelled, and nobody waits for an answer
            return
        self._is_over = True
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._terms.timed_out(self._task)
        except Exception as refused:
            error = refused
        incoming.terms = None  # they have said what is answered; and wait for the end of the work
        self._ended(incoming, result, error)
        incoming.terms = self
        incoming.on_cancel = self._cancel
        self._cancel(f"it took longer than {self.timeout_s:g} s")
