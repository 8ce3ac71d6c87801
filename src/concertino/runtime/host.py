"""Host and serve(): start a backend once and serve it on any number of connections."""

from __future__ import annotations

import asyncio
import logging
from threading import get_ident

from concertino.backend.interface import Backend
from concertino.jsonrpc.limits import Limits
from concertino.runtime.connection_end import CLEANUP_S
from concertino.runtime.server_connection import ServerConnection
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.connection import Connection

__all__ = ["Host", "serve"]

log = logging.getLogger("concertino.host")


async def serve(backend: Backend, connection: Connection, limits: Limits | None = None) -> None:
    """Serve one connection until its input ends or it is lost, then drain and release everything.

    Raises what the backend's start() raises. For more than one connection use Host.
    """
    async with Host(backend, limits) as host:
        served = host.attach(connection)
        await asyncio.wait((host.started, served.closed), return_when=asyncio.FIRST_COMPLETED)
        if host.started.done():
            host.started.result()

        # Wait without awaiting the future itself: else a cancellation of this task would cancel it.
        await asyncio.wait((served.closed,))


class Host:
    """Serves a backend on any number of connections.

    Use it with `async with`; leaving drains and closes all of them. It is the backend's Notifier.

    connections: those that are open now.
    started: the task of the backend's start().
    """

    def __init__(self, backend: Backend, limits: Limits | None = None) -> None:
        self.backend = backend
        self.limits = limits or Limits()
        self.connections: set[ServerConnection] = set()
        self.started: asyncio.Task[None]
        self._has_begun = False
        # The subscribed URIs that the backend's watch() got last.
        self._watched: frozenset[str] = frozenset()
        self._watching: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        self._has_begun = True
        await self.backend.start(self)

    async def __aenter__(self) -> Host:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        # Do not wait for a slow backend: connections open meanwhile, `initialize` is answered, and
        # calls wait.
        self.started = hide_from_all_tasks(self._loop.create_task(self._start()))
        self.started.add_done_callback(self._on_started)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drain()
        if self.connections:
            await asyncio.wait([connection.closed for connection in self.connections])

        ending = [self.started, *([] if self._watching is None else [self._watching])]
        for task in ending:
            task.cancel()
        await asyncio.wait(ending, timeout=CLEANUP_S)

        # A backend whose start() never ran must not be closed.
        if self._has_begun:
            await self._close_backend()

    async def _close_backend(self) -> None:
        closing = hide_from_all_tasks(self._loop.create_task(self.backend.close()))
        await asyncio.wait([closing], timeout=self.limits.drain_s)
        if not closing.done():
            closing.cancel()
            log.error("the backend did not close within %g s", self.limits.drain_s)
        elif not closing.cancelled() and closing.exception() is not None:
            log.error("the backend failed to close", exc_info=closing.exception())

    def attach(self, connection: Connection) -> ServerConnection:
        """Serve one more connection. Await `closed` of the returned object to know its end."""
        served = ServerConnection(self.backend, connection, self.limits, self.watch_changed)
        self.connections.add(served)
        served.closed.add_done_callback(lambda _: self._on_closed(served))
        connection.open(served)
        if self.started.done():
            self._report_started(served, self.started)
        return served

    def drain(self) -> None:
        """Stop reading on all connections, let calls finish within the drain time, close."""
        for connection in list(self.connections):
            connection.drain()

    def report_change(self, what: str) -> None:
        """Tell every client that a list changed. From any thread."""
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.report_change, what)
            return
        for connection in self.connections:
            connection.report_change(what)

    def report_update(self, uri: str) -> None:
        """Tell every client that subscribed to it that a resource changed. From any thread."""
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.report_update, uri)
            return
        for connection in self.connections:
            connection.report_update(uri)

    def watch_changed(self) -> None:
        """Tell the backend which resources have subscribers now, after a change of them."""
        if self._watching is None:
            self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        """Call the backend's watch() until it knows the newest set; one call after the other."""
        try:
            await asyncio.wait((self.started,))
            while not self.started.cancelled() and self.started.exception() is None:
                wanted = frozenset[str]().union(
                    *(connection.session.subscribed_uris for connection in self.connections)
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

    def _on_closed(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        if connection.session.subscribed_uris:
            self.watch_changed()

    def _on_started(self, started: asyncio.Task[None]) -> None:
        for connection in list(self.connections):
            self._report_started(connection, started)

    def _report_started(self, connection: ServerConnection, started: asyncio.Task[None]) -> None:
        failure = asyncio.CancelledError() if started.cancelled() else started.exception()
        connection.ready(failure)
