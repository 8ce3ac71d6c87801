"""The Backend interface: what handles MCP calls, and what surrounds a call.

A `Server` of Python functions, a folder of Markdown and a bridge to a hub are Backends; so is a guard
around one. A backend gets canonical calls of revision 2026-07-28 and returns canonical results; the
session translates for clients of other revisions. Optional parts: backend/call_hooks.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from msgspec import Raw, Struct

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
    "ChangeKind",
    "ClientFacts",
    "Context",
    "ContextWrapper",
    "InputRequired",
    "Notifier",
    "ServerFeatures",
    "describe_non_backend",
]

T = TypeVar("T")
ChangeKind = Literal["tools", "prompts", "resources", "features"]


class Notifier(Protocol):
    """How a backend tells all clients about changes, outside any call; usable from any thread."""

    def report_change(self, what: ChangeKind) -> None:
        """Tell the clients that a list has changed."""
        ...

    def report_update(self, uri: str) -> None:
        """Tell the clients that subscribed to this resource that its content has changed."""
        ...


class Context(Protocol):
    """What a handler knows of its caller, and can send it during a call.

    Every method acts when it is called; awaiting its result only waits for a slow client.
    """

    @property
    def client(self) -> ClientFacts:
        """The client that calls."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the client has cancelled the call.

        An `async def` handler gets CancelledError as well.
        """
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """The members of the request's `_meta` that the protocol does not define.

        For example trace context (`traceparent`), or a vendor's keys.
        """
        ...

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Report progress to the client.

        Nothing is sent if the client did not ask for progress, or if `done` does not grow.
        done, total: in any one unit. message: for people; clients before 2025-03-26 do not get it.
        """
        ...

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        """Send the client a log message, if it wants that level. data: any JSON value."""
        ...

    @overload
    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None
    ) -> Coroutine[Any, Any, CallToolResult]: ...
    @overload
    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: type[T]
    ) -> Coroutine[Any, Any, T]: ...
    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Any:
        """Call another tool of the same server, in process, with its validation and every guard.

        Returns its result. With `into`, a type: its structured content as that type, or its text
        parsed as JSON if there is none; a tool that failed raises ToolError with its text. The tool
        has this call's client, trace context and cancellation; its progress is not sent, since it
        counts something else. At most 16 calls may be inside each other.
        Raises RpcError for an unknown tool. In a `def` handler:
        `context.wait(context.call_tool(...))`.
        """
        ...

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        """Send the client several requests at once and return its answers, undecoded, by key.

        elicit() and the others are built on this. Since 2026-07-28 a client answers with a new
        call: this one ends here, by Suspended, and the handler runs again from its start, where it
        gets the answers at once. What it does before a question it does again; use once() for what
        must not be repeated.
        Only tools, prompts and resources may ask, at most 16 times in a call. Raises
        MissingCapability, InvalidClientResponse, RpcError when the client answers with an error,
        TimedOut after ten minutes, ValueError for a key that another question has.
        """
        ...

    @overload
    async def elicit(
        self, message: str, form: type[T], *, key: str | None = None
    ) -> Accepted[T] | Declined: ...
    @overload
    async def elicit(
        self, message: str, form: Mapping[str, Any], *, key: str | None = None
    ) -> Accepted[dict[str, Any]] | Declined: ...
    async def elicit(
        self, message: str, form: Any, *, key: str | None = None
    ) -> Accepted[Any] | Declined:
        """Let a person fill in a form.

        form: a class whose fields are texts, numbers, bools and choices, or a JSON Schema of such.
        key: names the question; `q1` and so on by default.
        Returns Accepted(content), or Declined(action) with `decline` or `cancel`. Raises as ask()
        does, and RegistrationError for a class that is not a form.
        """
        ...

    async def elicit_url(
        self, message: str, url: str, *, key: str | None = None
    ) -> Literal["accept", "decline", "cancel"]:
        """Let a person open a page, for what a form must not ask.

        url: https, without a secret in it.
        `accept` means that the page was opened, not that anything was done there. Raises as ask()
        does, and ValueError for another URL.
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
        """Let the client's model continue a conversation.

        options: the other fields of Sampling (system_prompt, tools, ...).
        Raises as ask() does, and ValueError for messages in which the use of a tool is not followed
        by its result.
        """
        ...

    async def roots(self, *, key: str | None = None) -> list[Root]:
        """Return the folders that this server may work in. Raises as ask() does."""
        ...

    @overload
    async def once(self, key: str, make: Callable[[], Awaitable[T]], kind: type[T]) -> T: ...
    @overload
    async def once(self, key: str, make: Callable[[], object]) -> Any: ...
    async def once(self, key: str, make: Callable[[], object], kind: Any = Any) -> Any:
        """Return a value that is made once in a call, however often questions repeat its handler.

        make: returns a JSON value, or an awaitable of one. The value travels with the client, which
        can read but not change it. kind: its class.
        A call that the client makes anew is another call.
        """
        ...

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait in a `def` handler's thread, as in `context.wait(context.elicit(...))`.

        Raises CancelledError when the client has cancelled the call, RuntimeError on the loop.
        """
        ...


class Backend(Protocol):
    """Handles calls. One backend serves any number of connections."""

    async def start(self, outlet: Notifier) -> None:
        """Get ready. Called once, while the first connection opens; calls wait until it returns."""
        ...

    def features(self) -> ServerFeatures:
        """Return what is offered now. Must be cheap.

        Before start() has returned it may promise more than there will be, never less.
        """
        ...

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Handle one call and return a result Struct of `concertino.types`, or canonical JSON as Raw.

        Or return an InputRequired: the client is asked, and the call comes again with its `answers`
        and the `state`. Raises RpcError for an error response; any other exception is logged and
        answered with -32603. Let CancelledError (the client is gone) and Suspended (the call will
        be repeated) propagate.
        """
        ...

    async def watch(self, uris: frozenset[str]) -> None:
        """Watch the resources that clients subscribe to now: the whole set, after each change.

        Called from start() on, one call after the other, if features() has `subscriptions`. Report
        changes by Notifier.report_update.
        """
        ...

    async def close(self) -> None:
        """Release what start() took. Called once, after the last call."""
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
    """A Backend around another one, to which it forwards everything; override `handle` alone."""

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


class ContextWrapper:
    """A Context around another one, to which it forwards everything; override what changes."""

    def __init__(self, inner: Context) -> None:
        self.inner = inner

    @property
    def client(self) -> ClientFacts:
        return self.inner.client

    @property
    def cancelled(self) -> bool:
        return self.inner.cancelled

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.inner.meta

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        return self.inner.progress(done, total, message)

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        return self.inner.log(level, data, logger)

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Coroutine[Any, Any, Any]:
        return self.inner.call_tool(name, arguments, into=into)

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        return await self.inner.ask(questions)

    async def elicit(
        self, message: str, form: Any, *, key: str | None = None
    ) -> Accepted[Any] | Declined:
        return await self.inner.elicit(message, form, key=key)

    async def elicit_url(
        self, message: str, url: str, *, key: str | None = None
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

    async def once(self, key: str, make: Callable[[], object], kind: Any = Any) -> Any:
        # Any: the call fits either overload.
        inner: Any = self.inner
        return await inner.once(key, make, kind)

    def wait(self, awaitable: Awaitable[T]) -> T:
        return self.inner.wait(awaitable)

    # A runtime's Context has members beyond this interface.
    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
