"""The optional part of the Backend interface: beginning and ending calls without a coroutine.

`Backend.handle` is all that a backend needs, and `await inner.handle(call, context)` is all that a
wrapper needs. A wrapper coroutine costs a small call a tenth of its instructions, though, so what
limits every call of a server (guards/guard.py) offers a second way, which a runtime takes for the
calls of its clients:

1. `begin(call, context, slot)` decides whether the call may run and returns its work, an awaitable.
   If the end of the call matters, it puts CallHooks into `slot.hooks`.
2. Whoever began the call runs the work and then uses the hooks (protocol/call_hooks.py).

Both ways give the same results: `Guard.handle` is the same pair of begin and hooks in a coroutine.
Figures: docs/decisions/0011-the-driver-ends-guarded-calls.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MethodType
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, Call, Context
from concertino.protocol.call_hooks import CallHooks, CallTimer, Permits

__all__ = [
    "BeginCall",
    "CallHooks",
    "CallStarter",
    "CallTimer",
    "Handle",
    "HooksSlot",
    "Permits",
    "SupportsCallStarter",
    "SupportsOperationHandlers",
    "Work",
    "call_starter_of",
    "has_method_of",
    "operation_handler_of",
]

Work = Coroutine[Any, Any, Struct | Raw]
Handle = Callable[[Call, Context], Work]


class HooksSlot(Protocol):
    """Where begin() puts the hooks of the call that it begins. hooks: None until then."""

    hooks: CallHooks | None


BeginCall = Callable[[Call, Context, HooksSlot], Work]


class CallStarter(Struct, frozen=True):
    """How a runtime begins the calls of a backend.

    begin: begins any call. Raises RpcError if it refuses the call outright.
    tools: the same for single tools by name, as far as they are known; may change at any time.
    redacts: whether begin() expects contexts that take secrets out of progress and log messages.
    """

    begin: BeginCall
    tools: Mapping[str, BeginCall]
    redacts: bool = False


@runtime_checkable
class SupportsCallStarter(Protocol):
    """A Backend that can begin calls without `handle`."""

    def call_starter(self) -> CallStarter | None:
        """Return how to begin calls; None if only `handle` may be used.

        A class whose subclasses may override `handle` must check that they did not.
        """
        ...


@runtime_checkable
class SupportsOperationHandlers(Protocol):
    """A Backend that can look up what handles an operation once, instead of in each call."""

    def operation_handler(self, method: str, name: str) -> Handle | None:
        """Return a function that handles all calls of this operation as `handle` would.

        It must go on working when the operation is removed or replaced. None if only `handle` may
        be used. method, name: such as `tools/call` and the tool's name.
        """
        ...


def call_starter_of(backend: Backend) -> CallStarter | None:
    """Return a backend's CallStarter; None if it has none."""
    # Its class is asked, since a proxy that forwards all attributes has a `handle` of its own.
    if not issubclass(type(backend), SupportsCallStarter):
        return None
    return cast("SupportsCallStarter", backend).call_starter()


def operation_handler_of(backend: Backend, method: str, name: str) -> Handle | None:
    """Return a backend's handler of one operation; None if it offers none."""
    if not issubclass(type(backend), SupportsOperationHandlers):
        return None
    return cast("SupportsOperationHandlers", backend).operation_handler(method, name)


def has_method_of(backend: object, function: Callable[..., object], method: object) -> bool:
    """Return whether `method`, read from `backend`, is `function`: neither overridden nor patched."""
    return method == MethodType(function, backend)
