"""CallHooks: functions of guards that run at the end of a call, without a coroutine around it.

A guard (package guards) changes results, limits how many calls run at the same time, or limits the
time of a call. A coroutine around each call could do this, but would add a tenth to the CPU
instructions of a small call. Instead, the guard attaches a CallHooks object to the call when the
call begins (backend/call_hooks.py), and the runtime calls the object's methods when the call ends.
For subcalls and for calls through a BackendWrapper, the guard calls these methods itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw, Struct

__all__ = ["CallHooks", "CallTimer", "Permits"]


class Permits:
    """Counts the calls that run at the same time, like a semaphore without waiters.

    A guard, which is a wrapper of a backend that limits calls, has one for each limit.
    capacity: how many calls may run.
    free: how many more calls may begin. The guard decreases it when a call begins. The runtime
        increases it when the call ends in time. A call that exceeds its time limit counts until its
        work has ended; then the guard increases it, in CallHooks.on_late_end().
    """

    __slots__ = ("capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity


class CallHooks(Protocol):
    """The functions to call when a call ends. One object may serve all calls of one tool.

    A guard, which is a wrapper of a backend that limits calls or changes results, makes the object
    and passes it to the runtime when a call begins.

    The "work" of a call is the coroutine that handles it, which the guard has returned to the
    runtime. The runtime does exactly one of these two things for each call:

    - When the call's work ends in time: `permits.free += 1` if permits is not None, then finish()
      or fail().
    - When its time is over: time_out(), and later on_late_end(), when the work has ended. The guard
      increases `permits.free` in on_late_end().

    permits: counts the call while it runs; None if the number of calls is not limited.
    timeout_s: how many seconds the call may take; None if there is no limit.
    accepts_text: a function that gets the text of a result that consists of one text only. It
        returns whether finish() would return this result unchanged, so that the runtime need not
        call finish(). None if finish() never changes a result.
    """

    # These three are data and not methods, so that nearly every call of a tool needs one Python
    # function call less for each of them. That is 1 % of the time of a small call (decision 0011).
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
        """Return the exception that becomes the error response of a call that raised `error`."""
        ...

    def time_out(self, work: object) -> Struct | Raw:
        """Return the result to send for a call whose time limit has passed.

        work: the task of the call's work. It will be cancelled, but may take a while to end.
        Raises RpcError to send an error response instead.
        """
        ...

    def on_late_end(self, work: object) -> None:
        """Count the call as ended. Called when its work ends after time_out().

        work: the task that was passed to time_out().
        """
        ...


class CallTimer(Protocol):
    """The timer for the time limit of one call; implemented in runtime/guarded_calls.py."""

    def on_work_done(self) -> None:
        """Stop the timer. Called when the call's work, the coroutine that handles it, has ended.

        If the timer has already fired, call on_late_end() of the hooks.
        """
        ...
