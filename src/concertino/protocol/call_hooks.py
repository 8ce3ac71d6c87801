"""CallHooks: functions of guards that run at the end of a call, without a coroutine around it.

A guard (package guards) changes results, limits how many calls run at the same time, or limits the
time of a call. A coroutine around each call could do this, but would add a tenth to the
instructions of a small call. Instead, a guard attaches a CallHooks object to the call when it
begins (backend/call_hooks.py), and the runtime calls its methods at the end. For subcalls and calls
through a wrapper the guard calls them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

__all__ = ["CallHooks", "CallTimer", "Permits"]


class Permits:
    """Counts the calls that run at the same time, like a semaphore for which nobody waits.

    capacity: how many calls may run.
    free: how many more calls may begin. The guard decreases it when a call begins; the runtime
        increases it when the call's work has ended.
    """

    __slots__ = ("capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity


class CallHooks(Protocol):
    """The functions to call when a call ends. One object may serve all calls of one tool.

    The runtime does exactly one of these two things for each call:

    - When the call's work ends in time: `permits.free += 1`, then finish() or fail().
    - When its time is over: time_out(), and later on_late_end(), when the work has ended.

    permits: the Permits of which the call has taken one; None if it needed none.
    timeout_s: how many seconds the call may take; None if there is no limit.
    accepts_text: returns whether finish() would return a result of only this text unchanged, so
        that finish() need not be called. None if no result is ever changed.

    These three are data and not methods, because each saves nearly every call a Python function
    call, 1 % of a small echo (decision 0011).
    """

    @property
    def permits(self) -> Permits | None: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def accepts_text(self) -> Callable[[str], bool] | None: ...

    def finish(self, result: Struct | Raw) -> Struct | Raw:
        """Return the result to send for a call that has returned `result`.

        Raises RpcError to send an error response instead.
        """
        ...

    def fail(self, error: BaseException) -> BaseException:
        """Return the exception to answer a call with, if the call has raised `error`."""
        ...

    def time_out(self, work: object) -> Struct | Raw:
        """Return the result to send for a call whose time is over.

        work: the task of the call's work. It will be cancelled, but may take a while to end.
        Raises RpcError to send an error response instead.
        """
        ...

    def on_late_end(self, work: object) -> None:
        """Handle the end of a call's work, after time_out() has answered the call.

        work: the task that was passed to time_out().
        """
        ...


class CallTimer(Protocol):
    """The running time limit of one call; implemented in runtime/call_hooks.py."""

    def on_work_done(self) -> None:
        """Stop the timer, because the call's work has ended.

        If the timer has already fired, call on_late_end() of the hooks.
        """
        ...
