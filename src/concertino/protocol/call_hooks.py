"""Hooks for the end of a call: they change results, free permits and limit time.

A guard could do this in a coroutine around the call, but a coroutine adds a tenth to the
instructions of a small call. Instead, the code that begins a call may return hooks for its end, and
the code that runs the call uses them. That is the runtime for the calls of its client, and the
guard itself for all other calls. backend/call_hooks.py describes how a call begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

__all__ = ["CallHooks", "CallTimer", "Permits"]


class Permits:
    """Permits for concurrent calls. capacity: how many there are; free: how many are left.

    The code that begins a call lowers `free`; the code that sees the end of its work raises it.
    """

    __slots__ = ("capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity


class CallHooks(Protocol):
    """What to do when a call ends. One object may serve all calls of an operation.

    Exactly one of these sequences follows a call's beginning:
    - its work ended: `permits.free += 1`, then finish() or fail();
    - it timed out: time_out(), which returns the answer, and on_late_end() when the work ends.
    Some members are data instead of methods for speed: each saves nearly every call one Python
    function call, 1 % of a small echo (decision 0011).

    permits: the call took one of these permits; None if it needed none.
    timeout_s: how long the call may take; None if there is no limit.
    accepts_text: whether finish() would return a plain text result unchanged, so that it need not
    be called; None if finish() returns everything unchanged.
    """

    @property
    def permits(self) -> Permits | None: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def accepts_text(self) -> Callable[[str], bool] | None: ...

    def finish(self, result: Struct | Raw) -> Struct | Raw:
        """Return the result to answer with. Raises RpcError for an error response instead."""
        ...

    def fail(self, error: BaseException) -> BaseException:
        """Return the exception to answer with, for a call whose work raised `error`."""
        ...

    def time_out(self, work: object) -> Struct | Raw:
        """Return the answer to a call whose time is over. Raises RpcError for an error response.

        work: the task in which the call's work, now cancelled, may go on for a while.
        """
        ...

    def on_late_end(self, work: object) -> None:
        """Note that the work of a call that was answered by time_out() has ended."""
        ...


class CallTimer(Protocol):
    """The time limit of one call that waits."""

    def on_work_done(self) -> None:
        """Stop the timer; if it has fired already, report the end of the late work."""
        ...
