"""Optional interfaces of a Backend, which make guarded calls faster.

A backend needs only the method `handle`, and a wrapper only `await inner.handle(call, context)`.
But each wrapper's coroutine adds a tenth to the CPU instructions of a small call. Therefore a
Guard, which wraps every call of a server, offers the runtime a second way (SupportsCallStarter):

1. The runtime calls `begin(call, context, slot)`. begin() decides whether the call may run, and
   returns the coroutine of the inner backend, which is called the "work" of the call. If the guard
   has something to do at the end of the call, begin() stores CallHooks in `slot.hooks`.
2. The runtime runs the work, and then calls the hooks (protocol/call_hooks.py).

Both ways have the same effect: Guard.handle calls begin() and the hooks in a coroutine. The other
Protocols of this module let a guard look up a tool once and check arguments before a call is
counted, and let an HTTP server find out which arguments clients repeat in headers. For each
Protocol there is a function, such as call_starter_of(), that takes any backend, and returns None or
{} if the backend lacks the Protocol. Measurements:
docs/decisions/0011-the-driver-ends-guarded-calls.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, Call, Context

if TYPE_CHECKING:
    from concertino.protocol.call_hooks import CallHooks

__all__ = [
    "ArgumentVerdict",
    "ArgumentsRefused",
    "BeginCall",
    "CallStarter",
    "CheckArguments",
    "Handle",
    "HooksSlot",
    "ParamHeaders",
    "SupportsArgumentChecks",
    "SupportsArgumentRefusals",
    "SupportsCallStarter",
    "SupportsOperationHandlers",
    "SupportsParamHeaders",
    "Work",
    "argument_check_of",
    "argument_verdict",
    "call_starter_of",
    "is_overridden",
    "operation_handler_of",
    "param_headers_of",
    "param_headers_reader",
    "record_refused_arguments",
    "refusing_handler_of",
]

Work = Coroutine[Any, Any, Struct | Raw]
Handle = Callable[[Call, Context], Work]
CheckArguments = Callable[[Call, Context], None]
# The path of an argument -> the name of the HTTP header in which clients repeat the argument,
# without `Mcp-Param-`. For example, {("user", "region"): "Region"} for the header
# `Mcp-Param-Region`.
ParamHeaders: TypeAlias = "Mapping[tuple[str, ...], str]"
BeginCall: TypeAlias = "Callable[[Call, Context, HooksSlot], Work]"


class HooksSlot(Protocol):
    """The object of one call, in which CallStarter.begin() stores the hooks of the call.

    The runtime passes the SessionRequest, which represents one request of a client.
    hooks: the functions that the runtime calls when the call ends; None if there are none.
    """

    hooks: CallHooks | None


class ArgumentsRefused(Exception):
    """Raised by a backend instead of calling a handler, if the arguments of the call are invalid.

    A guard, a wrapper that limits calls, does not count such a call against a rate limit.
    result: the result that becomes the response to the call.
    """

    def __init__(self, result: Struct) -> None:
        super().__init__()
        self.result = result


class ArgumentVerdict:
    """Records whether the arguments of one call were refused.

    Guards, wrappers that limit calls, do not count calls with invalid arguments. A guard that
    cannot check the arguments itself sets the context variable `argument_verdict` to a new
    ArgumentVerdict before each call, and reads `refused` after the call. The code that refuses the
    arguments calls record_refused_arguments().
    """

    # The result does not tell it: another wrapper between the guard and the tool calls `handle`,
    # which returns a refusal as a result like others, and the wrapper may replace that result.

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused = False


# The verdict on the arguments of the current call; None if no guard needs it.
argument_verdict: ContextVar[ArgumentVerdict | None] = ContextVar("argument_verdict", default=None)


class CallStarter(Struct, frozen=True):
    """The functions with which a runtime begins the calls of a backend.

    begin: begin(call, context, slot) begins any call, and returns the coroutine that handles it.
        `slot` is a HooksSlot. Raises RpcError if the call is refused.
    tools: name of a tool -> a function like `begin` for calls of this tool, which is faster because
        it need not look up the tool. The backend may add and remove entries at any time.
    redacts: whether the runtime must pass a `context` that redacts secrets in progress and log
        messages.
    """

    begin: BeginCall
    tools: Mapping[str, BeginCall]
    redacts: bool = False


@runtime_checkable
class SupportsCallStarter(Protocol):
    """A Backend that can begin calls without `handle`."""

    def call_starter(self) -> CallStarter | None:
        """Return the functions with which the runtime begins calls.

        Returns None if the runtime must call `handle`. A class must return None if a subclass has
        overridden its `handle`, because the functions would bypass the subclass.
        """
        ...


@runtime_checkable
class SupportsOperationHandlers(Protocol):
    """A Backend that can look up a tool, prompt or resource once, instead of in each call."""

    def operation_handler(self, method: str, name: str) -> Handle | None:
        """Return a function that handles all calls of one tool, prompt or resource.

        The function does what `handle` would do at the time of the call: after the tool was removed
        or replaced, it refuses the call or calls the new tool. It may raise RpcError or
        ArgumentsRefused at once, before it returns a coroutine.
        method, name: for example "tools/call" and the name of the tool.
        Returns None if only `handle` may be used.
        """
        ...


@runtime_checkable
class SupportsArgumentChecks(Protocol):
    """A Backend that can check the arguments of a call before the call is counted."""

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return a function that checks the arguments of the calls of one tool or prompt.

        check(call, context) raises ArgumentsRefused or RpcError for invalid arguments.
        method, name: for example "tools/call" and the name of the tool.
        Returns None if only `handle` can check the arguments.
        """
        ...


@runtime_checkable
class SupportsArgumentRefusals(Protocol):
    """A Backend that knows only after a call whether its arguments were valid.

    An example is a backend that forwards calls to another process, which checks the arguments.
    """

    async def handle_or_refuse(self, call: Call, context: Context) -> Struct | Raw:
        """Handle one call and return its result; raise ArgumentsRefused for invalid arguments.

        The exception contains the result that `handle` would have returned.
        """
        ...


@runtime_checkable
class SupportsParamHeaders(Protocol):
    """A Backend that knows which arguments of its tools clients must repeat in HTTP headers."""

    def param_headers(self, name: str) -> ParamHeaders:
        """Return which arguments of a tool have `x-mcp-header` in their schema.

        An example is {("user", "region"): "Region"}: clients repeat the member `region` of the
        argument `user` in the header `Mcp-Param-Region`. Returns {} for an unknown tool, and for a
        tool without such arguments.
        """
        ...


def call_starter_of(backend: Backend) -> CallStarter | None:
    """Return the functions with which a runtime begins the calls of a backend.

    Returns None if the backend has only `handle`, which the runtime must then call.
    """
    # Check the class and not the object, in this function and in those below. An object that
    # forwards all attributes to another backend would seem to support this Protocol, but calls must
    # go through its own `handle`.
    if not issubclass(type(backend), SupportsCallStarter):
        return None
    return cast("SupportsCallStarter", backend).call_starter()


def operation_handler_of(backend: Backend, method: str, name: str) -> Handle | None:
    """Return a backend's function that handles all calls of one tool, prompt or resource.

    The function has the same effect as the backend's `handle`, but need not look up the tool.
    method, name: for example "tools/call" and the name of the tool.
    Returns None if only `handle` may be used.
    """
    if not issubclass(type(backend), SupportsOperationHandlers):
        return None
    return cast("SupportsOperationHandlers", backend).operation_handler(method, name)


def argument_check_of(backend: Backend, method: str, name: str) -> CheckArguments | None:
    """Return a backend's function that checks the arguments of the calls of one tool or prompt.

    check(call, context) raises ArgumentsRefused or RpcError for invalid arguments.
    method, name: for example "tools/call" and the name of the tool.
    Returns None if only the backend's `handle` can check the arguments.
    """
    if not issubclass(type(backend), SupportsArgumentChecks):
        return None
    return cast("SupportsArgumentChecks", backend).argument_check(method, name)


def param_headers_of(backend: Backend, name: str) -> ParamHeaders:
    """Return which arguments of a tool clients must repeat in HTTP headers.

    An example is {("user", "region"): "Region"}: clients repeat the member `region` of the argument
    `user` in the header `Mcp-Param-Region`. Returns {} if there are none, or the tool is unknown.
    """
    return param_headers_reader(backend)(name)


def param_headers_reader(backend: Backend) -> Callable[[str], ParamHeaders]:
    """Return a function that returns which arguments of a tool clients repeat in HTTP headers.

    The function takes the name of a tool, and returns the result of param_headers_of(). To read
    many tools, it is faster than param_headers_of().
    """
    if not issubclass(type(backend), SupportsParamHeaders):
        return lambda _: {}
    return cast("SupportsParamHeaders", backend).param_headers


def record_refused_arguments() -> None:
    """Record that the arguments of the current call were refused, for a guard around the backend.

    The guard then does not count the call against a rate limit. Does nothing without such a guard.
    """
    verdict = argument_verdict.get()
    if verdict is not None:
        verdict.refused = True


def refusing_handler_of(backend: Backend) -> Handle | None:
    """Return a backend's handle_or_refuse(), which raises ArgumentsRefused for invalid arguments.

    Returns None if the backend has no such method.
    """
    if not issubclass(type(backend), SupportsArgumentRefusals):
        return None
    return cast("SupportsArgumentRefusals", backend).handle_or_refuse


def is_overridden(backend: object, original: Callable[..., object], method: object) -> bool:
    """Return whether a subclass, or an attribute of the object, overrides a backend's method.

    A class checks this before it offers a faster way around the method.
    original: the method as the class defines it, such as ServerBackend.handle.
    method: the method of the object, such as server.handle.
    """
    return method != MethodType(original, backend)
