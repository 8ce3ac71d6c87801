"""Wrappers that forward everything to another Backend, Context, Caller or Notifier.

Derived classes override the methods that do something else: for example, guards are BackendWrappers
that override `handle`. A server without guards never imports this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import Raw, Struct

from concertino.backend.call_hooks import ParamHeaders, param_headers_of
from concertino.backend.interface import (
    Backend,
    ChangeKind,
    Context,
    Notifier,
    SupportsClientNotifications,
    SupportsEarlyOpening,
    SupportsHeldOpening,
    opens_with_handshake,
    refuse_foreign_names,
)
from concertino.protocol.call import Call, ClientFacts, ServerFeatures
from concertino.types.results import Level

if TYPE_CHECKING:
    from concertino.backend.caller import Caller, CallerSession
    from concertino.protocol.principal import Principal
    from concertino.types.client_requests import (
        Accepted,
        ClientRequest,
        CreateMessageResult,
        Declined,
        Root,
        SamplingMessage,
    )

__all__ = [
    "BackendWrapper",
    "CallerWrapper",
    "ContextWrapper",
    "NotifierWrapper",
    "pass_client_notification",
]

T = TypeVar("T")


class BackendWrapper:
    """A Backend that forwards the methods of Backend, and clients' notifications, to `inner`.

    It does not forward the optional interfaces that make calls faster, such as call_starter(),
    because they would bypass the `handle` of a derived class. It forwards param_headers(), which
    calls no tool. A derived class overrides some of the methods, usually only `handle`:

        class Echo(BackendWrapper):
            async def handle(self, call: Call, context: Context) -> Struct | Raw:
                context.log("info", f"call of {call.name}")
                return await self.inner.handle(call, context)

    inner: the other Backend.
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

    def on_client_notification(
        self,
        session: CallerSession,
        method: str,
        params: Mapping[str, Raw],
    ) -> None:
        pass_client_notification(self.inner, session, method, params)

    def param_headers(self, name: str) -> ParamHeaders:
        """Return which arguments of a tool clients repeat in HTTP headers; see ParamHeaders."""
        return param_headers_of(self.inner, name)


def pass_client_notification(
    backend: Backend,
    session: CallerSession,
    method: str,
    params: Mapping[str, Raw],
) -> None:
    """Pass a client's notification to a backend; drop it if the backend takes no notifications.

    The backend takes them if it implements SupportsClientNotifications.
    """
    if isinstance(backend, SupportsClientNotifications):
        backend.on_client_notification(session, method, params)


# Attributes that Context has in other MCP libraries, such as `info`, raise AttributeError with a
# hint.
@refuse_foreign_names
class ContextWrapper:
    """A Context that forwards everything to another Context, `inner`.

    A derived class overrides the methods that do something else.

    inner: the other Context.
    """

    def __init__(self, inner: Context) -> None:
        self.inner = inner

    @property
    def client(self) -> ClientFacts:
        return self.inner.client

    @property
    def principal(self) -> Principal | None:
        return self.inner.principal

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
        # Any, because the type checker finds no overload of once() for these arguments.
        inner: Any = self.inner
        return await inner.once(key, make, kind)

    def wait(self, awaitable: Awaitable[T]) -> T:
        return self.inner.wait(awaitable)

    # Forward also the attributes that are not part of the interface Context. For example, the
    # runtime's CallContext has `request_id`.
    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class CallerWrapper:
    """A Caller that forwards everything to another Caller, `inner`."""

    def __init__(self, inner: Caller) -> None:
        self.inner = inner

    @property
    def session(self) -> CallerSession | None:
        return self.inner.session

    @property
    def wants_progress(self) -> bool:
        return self.inner.wants_progress

    @property
    def log_level(self) -> Level | None:
        return self.inner.log_level

    def pass_result(self, result: Raw, revision: str) -> None:
        self.inner.pass_result(result, revision)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        await self.inner.notify(method, params)

    def hold_open(self) -> None:
        self.inner.hold_open()


class NotifierWrapper:
    """A Notifier that forwards everything to another Notifier, `outlet`.

    It also has the methods of the optional Protocols of a Notifier, such as open_early(). A method
    that `outlet` lacks does nothing; opens_with_handshake() then returns False.
    """

    def __init__(self, outlet: Notifier) -> None:
        self.outlet = outlet

    def report_change(self, what: ChangeKind) -> None:
        self.outlet.report_change(what)

    def report_update(self, uri: str) -> None:
        self.outlet.report_update(uri)

    def open_early(self) -> None:
        if isinstance(self.outlet, SupportsEarlyOpening):
            self.outlet.open_early()

    def hold_opening(self, within_s: float, describe: Callable[[], str]) -> None:
        if isinstance(self.outlet, SupportsHeldOpening):
            self.outlet.hold_opening(within_s, describe)

    async def opens_with_handshake(self, within_s: float) -> bool:
        return await opens_with_handshake(self.outlet, within_s)
