"""The optional part of the Backend interface: beginning and ending calls without a coroutine.

`Backend.handle` is all that a backend needs, and `await inner.handle(call, context)` is all that a
wrapper needs. However, each wrapper coroutine takes a tenth of a small call's instructions. So a
wrapper that limits every call of a server (guards/guard.py) offers a second way, which a runtime
uses for the calls of its clients:

1. `begin(call, context, slot)` decides whether the call may run and returns its work, an awaitable.
   If the end of the call matters to it, it stores CallHooks in `slot.hooks`.
2. The caller of `begin` runs the work and then calls the hooks (protocol/call_hooks.py).

Both ways give the same results: `Guard.handle` is the same pair of begin and hooks in a coroutine.
Figures: docs/decisions/0011-the-driver-ends-guarded-calls.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, Call, Context

if TYPE_CHECKING:
    from concertino.protocol.call_hooks import CallHooks

__all__ = [
    "ArgumentsRefused",
    "BeginCall",
    "CallStarter",
    "CheckArguments",
    "Handle",
    "HooksSlot",
    "SupportsArgumentChecks",
    "SupportsArgumentRefusals",
    "SupportsCallStarter",
    "SupportsOperationHandlers",
    "Work",
    "argument_check_of",
    "call_starter_of",
    "has_method_of",
    "operation_handler_of",
    "refusing_handler_of",
]

Work = Coroutine[Any, Any, Struct | Raw]
Handle = Callable[[Call, Context], Work]
CheckArguments = Callable[[Call, Context], None]
BeginCall: TypeAlias = "Callable[[Call, Context, HooksSlot], Work]"


class HooksSlot(Protocol):
    """Holds the hooks of the call that begin() begins. hooks: None until then."""

    hooks: CallHooks | None


class ArgumentsRefused(Exception):
    """The arguments of a call do not fit, so its handler was not called. result: answers it.

    Raised before there is any work, so that the call does not count for a rate limit.
    """

    def __init__(self, result: Struct) -> None:
        super().__init__()
        self.result = result


class CallStarter(Struct, frozen=True):
    """How a runtime begins the calls of a backend.

    begin: begins any call. Raises RpcError if it refuses the call outright.
    tools: the same for the tools that are known, by name; it may change at any time.
    redacts: whether begin() expects contexts that remove secrets from progress and log messages.
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

        The function must still work when the operation is removed or replaced. It may raise
        RpcError or ArgumentsRefused at once, before it returns the work. None if only `handle` may
        be used.
        method, name: for example `tools/call` and the name of the tool.
        """
        ...


@runtime_checkable
class SupportsArgumentChecks(Protocol):
    """A Backend that can check the arguments of a call before the call is counted."""

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return a function that checks the arguments of this operation's calls.

        It raises ArgumentsRefused or RpcError for arguments that do not fit. None if only `handle`
        can tell.
        """
        ...


@runtime_checkable
class SupportsArgumentRefusals(Protocol):
    """A Backend for which others check arguments, so that it knows only after the call."""

    async def handle_or_refuse(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call as `handle` does, but raise ArgumentsRefused if its arguments do not fit.

        The exception has what `handle` would have returned.
        """
        ...


def call_starter_of(backend: Backend) -> CallStarter | None:
    """Return a backend's CallStarter; None if it has none."""
    # Check the class: an object that forwards all attributes to another backend would seem to
    # support this, but calls must go through its own `handle`.
    if not issubclass(type(backend), SupportsCallStarter):
        return None
    return cast("SupportsCallStarter", backend).call_starter()


def operation_handler_of(backend: Backend, method: str, name: str) -> Handle | None:
    """Return a backend's handler of one operation; None if it offers none."""
    if not issubclass(type(backend), SupportsOperationHandlers):
        return None
    return cast("SupportsOperationHandlers", backend).operation_handler(method, name)


def argument_check_of(backend: Backend, method: str, name: str) -> CheckArguments | None:
    """Return a backend's check of the arguments of one operation; None if it offers none."""
    if not issubclass(type(backend), SupportsArgumentChecks):
        return None
    return cast("SupportsArgumentChecks", backend).argument_check(method, name)


def refusing_handler_of(backend: Backend) -> Handle | None:
    """Return a backend's handle_or_refuse(); None if it has none."""
    if not issubclass(type(backend), SupportsArgumentRefusals):
        return None
    return cast("SupportsArgumentRefusals", backend).handle_or_refuse


def has_method_of(backend: object, function: Callable[..., object], method: object) -> bool:
    """Return whether `method`, read from `backend`, is `function`.

    It is not if a subclass overrides the method or an attribute of the object replaces it.
    """
    return method == MethodType(function, backend)
