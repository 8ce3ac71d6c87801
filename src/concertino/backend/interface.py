"""The seam behind the protocol: what answers calls.

A `Server` of Python functions, a folder of Markdown, a bridge to a hub are Backends; so is a guard around one. A backend never sees
an era: it gets canonical 2026-07-28 calls and gives canonical results, and the session lifts and lowers.
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
    """The way up, outside any call; usable from any thread; reaches every session."""

    def report_change(self, what: ChangeKind) -> None:
        """Tell the clients that a list is no longer what it was."""
        ...

    def report_update(self, uri: str) -> None:
        """Tell the clients that subscribed to this resource that its content is no longer what it was."""
        ...


class Context(Protocol):
    """One call's way to its caller. Every method acts when it is called; awaiting the answer only waits for a slow reader."""

    @property
    def client(self) -> ClientFacts:
        """Who calls."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the caller has given up; an `async def` handler gets CancelledError as well."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the request's `_meta` holds that is not the protocol's own: trace context (`traceparent`), a vendor's keys."""
        ...

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """Tell the caller how far the work is. Nothing is sent if it did not ask, or if done does not grow.

        done, total: in any one unit. message: for people; callers older than 2025-03-26 do not get it.
        """
        ...

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        """Send the caller a log message, if it wants that level. data: any JSON value."""
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
        """Call another tool of the same server, in process: as a client would, with its validation and every guard.

        Returns its result; with `into`, a type, its structured content as that type (or its text, read as JSON, where there is
        none), and a tool that failed raises ToolError with its text. The tool has this call's client, trace context and
        cancellation; what it tells of its progress goes nowhere, for it counts something else. At most 16 calls inside each other.
        Raises RpcError for an unknown tool. In a `def` handler: `context.wait(context.call_tool(...))`.
        """
        ...

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        """Ask the client, all at once, and return its answers undecoded. questions: by key; elicit() and the others are made of it.

        A client of 2026-07-28 answers with a new call: this one ends here, by Suspended, and the handler runs again from its start,
        where it gets the answers at once. So what it does before a question it does again; once() is for what must not be.
        Only tools, prompts and resources may ask, and at most 16 times in a call. Raises MissingCapability, InvalidClientResponse, RpcError
        when the client answers with an error, TimedOut after ten minutes, ValueError for a key that another question has.
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
        """Let a person fill in a form. form: a class whose fields are texts, numbers, bools and choices; or a JSON Schema of such.

        Returns Accepted(content), or Declined(action) with `decline` or `cancel`. key: names the question, `q1` and so on by
        default. Raises as ask(), and RegistrationError for a class that is no form.
        """
        ...

    async def elicit_url(
        self, message: str, url: str, *, key: str | None = None
    ) -> Literal["accept", "decline", "cancel"]:
        """Let a person open a page, for what a form must not ask. `accept` means that it was opened, not that anything was done.

        url: https, without a secret in it. Raises as ask(), and ValueError for another URL.
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
        """Let the client's model continue a conversation. options: the other fields of Sampling (system_prompt, tools, ...).

        Raises as ask(), and ValueError for messages in which a use of a tool is not followed by its result.
        """
        ...

    async def roots(self, *, key: str | None = None) -> list[Root]:
        """Ask for the places that this server may work in. Raises as ask()."""
        ...

    @overload
    async def once(self, key: str, make: Callable[[], Awaitable[T]], kind: type[T]) -> T: ...
    @overload
    async def once(self, key: str, make: Callable[[], object]) -> Any: ...
    async def once(self, key: str, make: Callable[[], object], kind: Any = Any) -> Any:
        """Do something once in a call, however often its handler runs because of questions; every time the value is the same.

        make: gives a JSON value, or awaits one. It travels with the client, which can read it, not change it. kind: its class.
        It holds from one question to the next, not after the last one: a call that is made anew is another call.
        """
        ...

    def wait(self, awaitable: Awaitable[T]) -> T:
        """In a `def` handler: wait in its thread for what an `async def` one awaits, as in `context.wait(context.elicit(...))`.

        Raises CancelledError when the caller has given up, RuntimeError on the event loop.
        """
        ...


class Backend(Protocol):
    """Answers calls. One backend serves any number of connections."""

    async def start(self, outlet: Notifier) -> None:
        """Get ready; called once, beside the opening of the first connection. Calls wait until it returns."""
        ...

    def features(self) -> ServerFeatures:
        """What is offered now. Cheap; before start() has returned it may say more than there will be, never less."""
        ...

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Answer one call with a result Struct of `protocol.types`, or the canonical result as Raw JSON.

        Or with an InputRequired: the client is asked, and the call comes again with its `answers` and the `state`.
        Raises RpcError for an error answer; any other exception is logged and answered with -32603.
        CancelledError means that the caller is gone; Suspended, that it will come again. Both are to be let pass.
        """
        ...

    async def watch(self, uris: frozenset[str]) -> None:
        """Every resource that somebody subscribes to now: the whole set, each time that it changes.

        Called one after the other, from start() on, if features() has `subscriptions`. Notifier.report_update says that one changed.
        """
        ...

    async def close(self) -> None:
        """Release what start() took; called once, after the last call."""
        ...


def describe_non_backend(value: object) -> str | None:
    """What a value is instead of a Backend, as far as that can be seen; None if it is one."""
    if isinstance(value, type):
        return f"the class {value.__name__}; give an object"
    methods = ("start", "features", "handle", "watch", "close")
    return (
        None
        if all(callable(getattr(value, each, None)) for each in methods)
        else type(value).__name__
    )


class BackendWrapper:
    """A Backend around another that forwards everything. A guard overrides `handle` alone."""

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
    """A Context around another that forwards everything. A guard overrides what it changes."""

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
        inner: Any = self.inner  # of the overloads it is either
        return await inner.once(key, make, kind)

    def wait(self, awaitable: Awaitable[T]) -> T:
        return self.inner.wait(awaitable)

    def __getattr__(self, name: str) -> Any:  # what a driver's Context can do beyond the above
        return getattr(self.inner, name)
