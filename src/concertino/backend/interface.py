"""Backend, the interface of objects that handle MCP calls, and Context, which handlers use.

A `Server` of Python functions, a folder of Markdown and a bridge to a hub are Backends, and so is a
guard around one of them. A backend gets calls and returns results in the form of revision
2026-07-28; the session translates them for clients of other revisions. Optional parts of the
interface are in backend/call_hooks.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Protocol,
    TypeVar,
    overload,
    runtime_checkable,
)

from msgspec import Raw, Struct

from concertino.backend.caller import Caller
from concertino.protocol.call import Call, ClientFacts, InputRequired, ServerFeatures
from concertino.types.results import CallToolResult, Level

if TYPE_CHECKING:
    from concertino.types.client_requests import (
        Accepted,
        ClientRequest,
        CreateMessageResult,
        Declined,
        Root,
        SamplingMessage,
    )

__all__ = [
    "Backend",
    "BackendWrapper",
    "Call",
    "Caller",
    "ChangeKind",
    "ClientFacts",
    "Context",
    "ContextWrapper",
    "InputRequired",
    "Notifier",
    "ServerFeatures",
    "SupportsEarlyOpening",
    "describe_non_backend",
]

T = TypeVar("T")
ContextT = TypeVar("ContextT")
ChangeKind = Literal["tools", "prompts", "resources", "features"]


class Notifier(Protocol):
    """The interface by which a backend notifies all clients of changes, from any thread."""

    def report_change(self, what: ChangeKind) -> None:
        """Notify the clients that a list, or the set of features, has changed."""
        ...

    def report_update(self, uri: str) -> None:
        """Notify the subscribers of this resource that its content has changed."""
        ...


@runtime_checkable
class SupportsEarlyOpening(Protocol):
    """A Notifier whose clients wait, for a moment, until the backend has started."""

    def open_early(self) -> None:
        """Answer clients' first requests from now on. Call it in start(), on its loop.

        For a backend that takes long to start and will hardly fail any more. Calls still wait.
        """
        ...


class Context(Protocol):
    """The interface between a handler and the client whose call it handles.

    progress() and log() send at once; awaiting what they return only waits for a slow client.
    """

    @property
    def client(self) -> ClientFacts:
        """Return the client that made the call."""
        ...

    @property
    def caller(self) -> Caller:
        """Return what a backend needs that forwards the call to another server."""
        ...

    @property
    def cancelled(self) -> bool:
        """Return whether the client has cancelled the call.

        An `async def` handler gets CancelledError as well.
        """
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return the members of the request's `_meta` that the protocol does not define.

        Examples are trace context (`traceparent`) and keys of a vendor.
        """
        ...

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        """Report progress to the client.

        Nothing is sent if the client did not ask for progress, or if `done` does not increase.
        done, total: in the same unit, whichever it is.
        message: for people; clients before 2025-03-26 do not get it.
        """
        ...

    def log(
        self,
        level: Level,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        """Send the client a log message, if it wants that level. data: any JSON value."""
        ...

    @overload
    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, CallToolResult]: ...
    @overload
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: type[T],
    ) -> Coroutine[Any, Any, T]: ...
    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Any:
        """Call another tool of the same server, in process, with its validation and every guard.

        Returns the tool's result. With `into`, a type: returns the structured content as that type,
        or the text parsed as JSON if there is no structured content; an error result then raises
        ToolError with its text.
        The tool sees this call's client, trace context and cancellation. Its progress is not sent,
        since it counts something else. Calls may be nested 16 deep.
        Raises RpcError for an unknown tool. In a `def` handler write
        `context.wait(context.call_tool(...))`.
        """
        ...

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        """Send the client several requests at once and return its answers, undecoded, by key.

        elicit(), sample() and roots() use this. Since 2026-07-28 a client answers with a new call:
        this method raises Suspended, which ends the current call. With the answers, the handler
        runs again from its start, and this method returns at once. So all code before a question
        runs again. Use once() for values that must not be made twice.
        Only tools, prompts and resources may ask, at most 16 times in a call.
        Raises MissingCapability, InvalidClientResponse, RpcError when the client answers with an
        error, TimedOut after ten minutes, and ValueError for a key that another question has.
        """
        ...

    @overload
    async def elicit(
        self,
        message: str,
        form: type[T],
        *,
        key: str | None = None,
    ) -> Accepted[T] | Declined: ...
    @overload
    async def elicit(
        self,
        message: str,
        form: Mapping[str, Any],
        *,
        key: str | None = None,
    ) -> Accepted[dict[str, Any]] | Declined: ...
    async def elicit(
        self,
        message: str,
        form: Any,
        *,
        key: str | None = None,
    ) -> Accepted[Any] | Declined:
        """Ask the user to fill in a form.

        form: a class whose fields are texts, numbers, bools or choices, or a JSON Schema for them.
        key: the name of the question; `q1`, `q2` and so on by default.
        Returns Accepted(content), or Declined(action) with `decline` or `cancel`. Raises as ask()
        does, and RegistrationError for a class that is not a form.
        """
        ...

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
    ) -> Literal["accept", "decline", "cancel"]:
        """Ask the user to open a web page, for data that a form must not ask for.

        url: an https URL that contains no secret.
        `accept` means that the user opens the page, not that anything was done there. Raises as
        ask() does, and ValueError for other URLs.
        """
        ...

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage | str],
        max_tokens: int,
        *,
        key: str | None = None,
        **options: Any,
    ) -> CreateMessageResult:
        """Ask the client's model to continue a conversation.

        options: the other fields of Sampling (system_prompt, tools, ...).
        Raises as ask() does, and ValueError if the use of a tool in the messages is not followed by
        its result.
        """
        ...

    async def roots(self, *, key: str | None = None) -> list[Root]:
        """Return the client's roots: folders for this server to work in. Raises as ask() does."""
        ...

    @overload
    async def once(
        self,
        key: str,
        make: Callable[[], Awaitable[T]],
        kind: type[T],
    ) -> T: ...
    @overload
    async def once(self, key: str, make: Callable[[], object]) -> Any: ...
    async def once(
        self,
        key: str,
        make: Callable[[], object],
        kind: Any = Any,
    ) -> Any:
        """Return a value that is made only once in a call, even if questions repeat the handler.

        make: returns a JSON value, or an awaitable of one. Since 2026-07-28 the client keeps the
        value between the rounds of the call; it can read but not change it.
        kind: the class of the value.
        If the client starts the call anew, the value is made again.
        """
        ...

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Return what an awaitable returns, in a `def` handler's thread.

        Example: `context.wait(context.elicit(...))`. Raises CancelledError when the client has
        cancelled the call, and RuntimeError on the event loop.
        """
        ...


class Backend(Protocol):
    """The interface of everything that handles calls; one object serves many connections."""

    async def start(self, outlet: Notifier) -> None:
        """Prepare for calls, which wait until this returns.

        Called once, when the first connection opens.
        """
        ...

    def features(self) -> ServerFeatures:
        """Return the features that this backend offers now. Must be cheap.

        Before start() has returned, it may report features that will be missing, but must not omit
        any.
        """
        ...

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Handle one call and return its result.

        The result is a Struct of `concertino.types`, or its JSON in the form of 2026-07-28 as Raw.
        An InputRequired asks the client first: the call comes again with `answers` and `state`.
        Raises RpcError for an error response. Any other exception is logged and answered with
        -32603. Let CancelledError (the client is gone) and Suspended (the call will be repeated)
        propagate.
        """
        ...

    async def watch(self, uris: frozenset[str]) -> None:
        """Watch the resources that clients subscribe to, and report changes of their content.

        uris: all of them, not only new ones.
        Called after start(), whenever the set changes, never concurrently, and only if features()
        has `subscriptions`. Report changes with Notifier.report_update().
        """
        ...

    async def close(self) -> None:
        """Release what start() acquired. Called once, after the last call."""
        ...


def describe_non_backend(value: object) -> str | None:
    """Describe `value` if it is not a Backend; return None if it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}; give an object"
    methods = ("start", "features", "handle", "watch", "close")
    return (
        None
        if all(callable(getattr(value, name, None)) for name in methods)
        else type(value).__name__
    )


class BackendWrapper:
    """A Backend that forwards everything to another one.

    Override the methods that should do something else, in most cases only `handle`.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    async def start(self, outlet: Notifier) -> None:
        await self.inner.start(outlet)

    def features(self) -> ServerFeatures:
        return self.inner.features()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        return await self.inner.handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        await self.inner.watch(uris)

    async def close(self) -> None:
        await self.inner.close()


class ForeignName:
    """A name that a Context of other libraries has, and ours has not: says what to write instead.

    An attribute that does not exist, for hasattr() as well. A descriptor and not `__getattr__`,
    which would make every other attribute slower on Python 3.11.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"Context has no {self._name!r}: {self._hint}")


# Decision 0017. What FastMCP and the official SDK call what a handler needs most.
FOREIGN_NAMES = {
    "info": "write context.log('info', ...)",
    "debug": "write context.log('debug', ...)",
    "warning": "write context.log('warning', ...)",
    "error": "write context.log('error', ...)",
    "report_progress": "write context.progress(done, total, message)",
    "read_resource": "call the function that returns the resource's content",
    "list_roots": "write await context.roots()",
    "request_context": "a parameter of the class that a lifespan function yields gets its value",
    "session": "write context.elicit(...), sample(...), roots() or ask(...) to ask the client",
}


def refuse_foreign_names(cls: type[ContextT]) -> type[ContextT]:
    """Let attributes of a Context that other libraries have say what to write instead."""
    for name, hint in FOREIGN_NAMES.items():
        foreign = ForeignName(hint)
        foreign.__set_name__(cls, name)
        setattr(cls, name, foreign)
    return cls


@refuse_foreign_names
class ContextWrapper:
    """A Context that forwards everything to another one.

    Override the methods that should do something else.
    """

    def __init__(self, inner: Context) -> None:
        self.inner = inner

    @property
    def client(self) -> ClientFacts:
        return self.inner.client

    @property
    def caller(self) -> Caller:
        return self.inner.caller

    @property
    def cancelled(self) -> bool:
        return self.inner.cancelled

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.inner.meta

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        return self.inner.progress(done, total, message)

    def log(
        self,
        level: Level,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        return self.inner.log(level, data, logger)

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        return self.inner.call_tool(name, arguments, into=into)

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        return await self.inner.ask(questions)

    async def elicit(
        self,
        message: str,
        form: Any,
        *,
        key: str | None = None,
    ) -> Accepted[Any] | Declined:
        return await self.inner.elicit(message, form, key=key)

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
    ) -> Literal["accept", "decline", "cancel"]:
        return await self.inner.elicit_url(message, url, key=key)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage | str],
        max_tokens: int,
        *,
        key: str | None = None,
        **options: Any,
    ) -> CreateMessageResult:
        return await self.inner.sample(messages, max_tokens, key=key, **options)

    async def roots(self, *, key: str | None = None) -> list[Root]:
        return await self.inner.roots(key=key)

    async def once(
        self,
        key: str,
        make: Callable[[], object],
        kind: Any = Any,
    ) -> Any:
        # Any: the call fits either overload.
        inner: Any = self.inner
        return await inner.once(key, make, kind)

    def wait(self, awaitable: Awaitable[T]) -> T:
        return self.inner.wait(awaitable)

    # A runtime's Context has members that are not part of this interface, such as `request_id`.
    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
