"""The seam behind the protocol: what answers calls.

A `Server` of Python functions, a folder of Markdown, a bridge to a hub are Backends; so is a guard around one. A backend never sees
an era: it gets canonical 2026-07-28 calls and gives canonical results, and the session lifts and lowers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Raw, Struct

from concertino.protocol.call import Call, ClientFacts, Offer
from concertino.protocol.types import Level

__all__ = ["Around", "Backend", "Call", "ClientFacts", "Context", "Offer", "Outlet"]

Changed = Literal["tools", "prompts", "resources", "offer"]


class Outlet(Protocol):
    """The way up, outside any call; usable from any thread; reaches every session."""

    def changed(self, what: Changed) -> None:
        """Tell the clients that a list is no longer what it was."""
        ...

    def updated(self, uri: str) -> None:
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

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> Awaitable[None]:
        """Tell the caller how far the work is. Nothing is sent if it did not ask, or if done does not grow.

        done, total: in any one unit. message: for people; callers older than 2025-03-26 do not get it.
        """
        ...

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        """Send the caller a log message, if it wants that level. data: any JSON value."""
        ...


class Backend(Protocol):
    """Answers calls. One backend serves any number of connections."""

    async def start(self, outlet: Outlet) -> None:
        """Get ready; called once, beside the opening of the first connection. Calls wait until it returns."""
        ...

    def offer(self) -> Offer:
        """What is offered now. Cheap; before start() has returned it may say more than there will be, never less."""
        ...

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Answer one call with a result Struct of `protocol.types`, or the canonical result as Raw JSON.

        Raises RpcError for an error answer; any other exception is logged and answered with -32603.
        CancelledError means that the caller is gone.
        """
        ...

    async def watch(self, uris: frozenset[str]) -> None:
        """Every resource that somebody subscribes to now: the whole set, each time that it changes.

        Called one after the other, from start() on, if offer() has `subscriptions`. Outlet.updated says that one changed.
        """
        ...

    async def close(self) -> None:
        """Release what start() took; called once, after the last call."""
        ...


class Around:
    """A Backend around another that forwards everything. A guard overrides `handle` alone."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    async def start(self, outlet: Outlet) -> None:
        await self.inner.start(outlet)

    def offer(self) -> Offer:
        return self.inner.offer()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        return await self.inner.handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        await self.inner.watch(uris)

    async def close(self) -> None:
        await self.inner.close()
