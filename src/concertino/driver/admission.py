"""Calls that a backend admits itself, and what is then to be done at their end: instead of a coroutine around each of them.

A coroutine more costs a small call 10 %; what a guard does at the end of a call, 1 %. So a class that has its own `handle` may
offer `admit_call(call, context)` beside it, which gives the work, and the Terms of the call if it has any. A driver that calls a
backend itself (a Link, for its client) takes these; whoever stands around the backend awaits `handle`, and the result is the same.
Numbers: docs/decisions/0011-the-driver-ends-guarded-calls.md. Loaded when a backend has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Raw, Struct

from concertino.backend import Backend, Call, Context
from concertino.protocol.peer import Incoming

__all__ = ["Admit", "Deadline", "Terms", "admission"]


class Terms(Protocol):
    """What a call was admitted under. Told of its end once: done() or failed(); or timed_out(), and then left().

    timeout_s: for how long it may wait; None for ever.
    """

    @property
    def timeout_s(self) -> float | None: ...
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


Admit = Callable[[Call, Context], tuple[Any, Terms | None]]  # Any: the work, a coroutine
Ended = Callable[[Incoming, Any, BaseException | None], None]


def admission(backend: Backend) -> Admit | None:
    """A backend's `admit_call`; None if it has none, or one that is not of its `handle`: a subclass or a proxy may have another."""
    owner = next((each for each in type(backend).__mro__ if "handle" in vars(each)), None)
    return getattr(backend, "admit_call", None) if owner is not None and "admit_call" in vars(owner) else None


class Deadline:
    """Stands for the Terms of a call that waits and has a time limit: its timer, and the answer when the time is over.

    Nothing of this is made for a call that ends with its first step, as nearly all do.
    ended: answers a call. cancel: its task, with the reason.
    """

    __slots__ = ("_cancel", "_ended", "_incoming", "_is_over", "_task", "_terms", "_timer", "timeout_s")

    def __init__(
        self, incoming: Incoming, terms: Terms, task: asyncio.Task[None], ended: Ended, cancel: Callable[[str], None]
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

    def done(self, result: Struct | Raw) -> Struct | Raw:
        if self._is_over:
            self._terms.left(self._task)
            return result
        self._timer.cancel()
        return self._terms.done(result)

    def failed(self, error: BaseException) -> BaseException:
        if self._is_over:
            self._terms.left(self._task)
            return error
        self._timer.cancel()
        return self._terms.failed(error)

    def _expire(self) -> None:
        incoming = self._incoming
        if not incoming.open:  # its caller has given up: it is cancelled, and nobody waits for an answer
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
        self._cancel(f"it took longer than {self.timeout_s:g} s")
