"""An optional interface of a Backend that answers calls from a callback, without a task for each.

A backend needs only the coroutine `handle`. But when a Proxy forwards a call to another process, a
task and three coroutines only wait for the response, and take a third of the CPU time. So the
runtime offers the Proxy a second way for such calls:

1. The runtime calls `begin(call, context, runner, slot)`, where `runner` is an EndsCalls, and
   `slot` is the runtime's own object for the call. begin() forwards the call, and returns a
   function that cancels it. It returns None if the runtime must call `handle` instead.
2. When the response arrives, the backend calls `runner.end_call(slot, result, error)`, or lets a
   task make the result with `runner.run(work, slot)`.

Both ways have the same effect. Measurements are in
docs/decisions/0077-forwarded-calls-without-tasks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import Raw, Struct

from concertino.backend.call_hooks import Work
from concertino.backend.interface import Backend, Call, Context

__all__ = [
    "ENDED",
    "BeginByCallback",
    "CancelCall",
    "EndsCalls",
    "SupportsCallbacks",
    "callback_beginner_of",
]

# The type of the function that cancels a call that has begun: its result is not sent any more.
CancelCall = Callable[[], object]


def ENDED() -> None:  # noqa: N802
    """Mark a call that has ended before `begin` returns: `begin` returns this function.

    The runtime never calls the function, but tests whether the return value of `begin` is ENDED.
    Therefore the function is named like a constant.
    """


class EndsCalls(Protocol):
    """The object with which a backend ends the calls that it has begun without a task.

    The runtime passes it to `begin`, the function of SupportsCallbacks. The parameter `slot` of the
    methods is the object that the runtime has passed to `begin` for the call.
    """

    def end_call(self, slot: Any, result: Struct | Raw | None, error: Exception | None, /) -> None:
        """End a call with its result or with an exception. One of these two arguments is None.

        Raises nothing.
        """
        ...

    def run(self, work: Work, slot: Any, /) -> None:
        """Continue a call in a task, and return at once.

        work: the coroutine that the task runs. Its result or exception ends the call.
        """
        ...


# The type of `begin`; see SupportsCallbacks.
BeginByCallback: TypeAlias = Callable[[Call, Context, EndsCalls, Any], "CancelCall | None"]


@runtime_checkable
class SupportsCallbacks(Protocol):
    """A Backend that can answer calls from a callback, and needs no task for each."""

    def callback_beginner(self) -> BeginByCallback | None:
        """Return the function `begin`, which begins a call and returns without waiting for its end.

        begin(call, context, runner, slot) gets an EndsCalls as `runner`, and an object that the
        backend passes back to the methods of `runner` as `slot`. `begin` returns a function that
        cancels the call; ENDED if it has called runner.end_call() already; or None if it has done
        nothing, and the runtime must call `handle`.

        Returns None if only `handle` may be used. A class must return None if a subclass has
        overridden its `handle`, because `begin` would bypass the subclass.
        """
        ...


def callback_beginner_of(backend: Backend) -> BeginByCallback | None:
    """Return a backend's function that begins calls without a task; None if it has none.

    SupportsCallbacks describes the function.
    """
    # Check the class and not the object, as call_starter_of() does.
    if not issubclass(type(backend), SupportsCallbacks):
        return None
    return cast("SupportsCallbacks", backend).callback_beginner()
