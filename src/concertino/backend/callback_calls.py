"""An optional interface of a Backend that answers calls from a callback, without a task for each.

A backend needs only the coroutine `handle`. But when a Proxy forwards a call to another process, a
task and three coroutines only wait for the response, and take a third of the CPU time. So the
runtime offers the Proxy a second way for such calls:

1. The runtime calls `begin(call, context, runner, slot)`, where `runner` is an EndsCalls of the
   runtime, and `slot` is its object for the call. If begin() returns a function, the call has
   begun, and the function cancels it.
2. When the call ends, the backend calls `runner.end_call(slot, result, error)`.

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
    """Do nothing. `begin` returns this function, instead of one that cancels, for an ended call.

    The runtime never calls this function, but compares: `cancel is not ENDED`. Therefore the
    function is named like a constant.
    """


class EndsCalls(Protocol):
    """The part of the runtime with which a backend ends the calls that `begin` has begun.

    slot: the object that the runtime has passed to `begin` for this call.
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


# The type of `begin`. It begins a call, and returns the function that cancels the call. If it
# returns None, it has done nothing, and the runtime must call `handle`.
BeginByCallback: TypeAlias = Callable[[Call, Context, EndsCalls, Any], "CancelCall | None"]


@runtime_checkable
class SupportsCallbacks(Protocol):
    """A Backend that can answer calls from a callback."""

    def callback_beginner(self) -> BeginByCallback | None:
        """Return the function `begin`, which begins a call and returns without waiting for its end.

        The arguments of `begin` are the call, its Context, an EndsCalls and the slot of the call.
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
