"""Host and serve: a backend started once, and any number of connections to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING

from concertino.backend.interface import Backend
from concertino.jsonrpc.limits import Limits
from concertino.runtime.context import CallContext
from concertino.runtime.server_connection import CLEANUP_S, ServerConnection
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.connection import Connection

if TYPE_CHECKING:
    from concertino.runtime.call_hooks import BeginCall

__all__ = ["Host", "serve"]

log = logging.getLogger("concertino.host")


async def serve(backend: Backend, connection: Connection, limits: Limits | None = None) -> None:
    """Serve one connection until its input ends or it is lost, then drain and release everything.

    Raises what the backend's start() raises. For more than one connection use Host.
    """
    async with Host(backend, limits) as host:
        link = host.attach(connection)
        await asyncio.wait((host.started, link.closed), return_when=asyncio.FIRST_COMPLETED)
        if host.started.done():
            host.started.result()
        await asyncio.wait(
            (link.closed,)
        )  # not the future itself: a cancel of this task would cancel it


class Host:
    """Serves a backend on any number of connections. Use it with `async with`; leaving drains and closes all of them."""

    def __init__(self, backend: Backend, limits: Limits | None = None) -> None:
        self.backend = backend
        self.limits = limits or Limits()
        self.admit, self.admits, self.context = _admission(backend)
        self.links: set[ServerConnection] = set()
        self.started: asyncio.Task[None]
        self._begun = False
        self._watched: frozenset[str] = frozenset()  # what the backend was told last
        self._watching: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        self._begun = True
        await self.backend.start(self)

    async def __aenter__(self) -> Host:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        # Beside the opening, not before it: initialize is answered while a slow backend starts, calls wait.
        self.started = hide_from_all_tasks(self._loop.create_task(self._start()))
        self.started.add_done_callback(self._ready)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drain()
        if self.links:
            await asyncio.wait([link.closed for link in self.links])
        self.started.cancel()
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.wait(
            [self.started, *(() if self._watching is None else (self._watching,))],
            timeout=CLEANUP_S,
        )
        if not self._begun:  # left at once: what was never started is not closed
            return
        closing = hide_from_all_tasks(self._loop.create_task(self.backend.close()))
        await asyncio.wait([closing], timeout=self.limits.drain_s)
        if not closing.done():
            closing.cancel()
            log.error("the backend did not close within %g s", self.limits.drain_s)
        elif not closing.cancelled() and closing.exception() is not None:
            log.error("the backend failed to close", exc_info=closing.exception())

    def attach(self, connection: Connection) -> ServerConnection:
        """Serve one more connection. Await the link's `closed` to know when it is over."""
        link = ServerConnection(self, connection)
        self.links.add(link)
        link.closed.add_done_callback(lambda _: self._detached(link))
        connection.open(link)
        if self.started.done():
            self._tell(link, self.started)
        return link

    def drain(self) -> None:
        """Stop reading everywhere, let calls finish within the drain time, close."""
        for link in list(self.links):
            link.drain()

    def report_change(self, what: str) -> None:
        """Notifier: tell every client that a list changed. From any thread."""
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.report_change, what)
            return
        for link in self.links:
            link.report_change(what)

    def report_update(self, uri: str) -> None:
        """Notifier: tell every client that subscribed to it that a resource changed. From any thread."""
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.report_update, uri)
            return
        for link in self.links:
            link.report_update(uri)

    def watch_changed(self) -> None:
        """Some session's subscriptions are not what they were: tell the backend, one set after the other."""
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            await asyncio.wait((self.started,))
            while not self.started.cancelled() and self.started.exception() is None:
                wanted = frozenset[str]().union(
                    *(link.session.subscribed_uris for link in self.links)
                )
                if wanted == self._watched:
                    return
                self._watched = wanted
                try:
                    await self.backend.watch(wanted)
                except Exception:
                    log.exception("the backend could not watch %d resources", len(wanted))
        finally:
            self._watching = None

    def _detached(self, link: ServerConnection) -> None:
        self.links.discard(link)
        if link.session.subscribed_uris:
            self.watch_changed()

    def _ready(self, started: asyncio.Task[None]) -> None:
        for link in list(self.links):
            self._tell(link, started)

    def _tell(self, link: ServerConnection, started: asyncio.Task[None]) -> None:
        link.ready(asyncio.CancelledError() if started.cancelled() else started.exception())


def _admission(
    backend: Backend,
) -> tuple[BeginCall | None, Mapping[str, BeginCall], type[CallContext]]:
    """How its calls are begun, if it has another way than `handle`; see admission.py, which is loaded for those alone."""
    if not hasattr(backend, "admit_call"):
        return None, {}, CallContext
    from concertino.runtime.call_hooks import RedactingContext, admission

    context = RedactingContext if getattr(backend, "hushes", False) else CallContext
    return admission(backend), getattr(backend, "admits", {}), context
