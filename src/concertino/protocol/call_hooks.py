"""The end of a call, as those who limit calls observe it.

A guard that changes results, frees permits or limits time could be a coroutine around the call, but
a coroutine costs a small call a tenth of its instructions. So whoever begins a call may leave hooks
for its end, and whoever runs the call uses them: the runtime for its client's calls, the guard
itself for everybody else. Beginning a call: backend/call_hooks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

__all__ = ["CallHooks", "CallTimer", "Permits"]


class Permits:
    """Permits for concurrent calls. capacity: how many there are; free: how many are left.

    Whoever begins a call lowers `free`; whoever sees its work end raises it.
    """

    __slots__ = ("capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity


class CallHooks(Protocol):
    """What to do when a call ends. One object may serve all calls of an operation.

    Exactly one of these sequences follows a call's beginning:
    - its work ended: `permits.free += 1`, then finish() or fail();
    - its time was over: time_out(), which gives the answer, and on_late_end() once the work ends.
    The data members are there for speed: they spare nearly every call a Python function call each,
    1 % of a small echo (decision 0011).

    permits: the permits of which the call took one, if any.
    timeout_s: how long the call may wait; None for ever.
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
