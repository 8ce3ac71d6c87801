"""Host: starts a backend once, and serves it on any number of connections.

    async with Host(server) as host:
        host.attach(connection)
        ...

serve(backend, connection) does the same for one connection. Each connection gets a ServerConnection
(runtime/server_connection.py), which does the work; the Host starts and closes the backend, and
passes the backend's change notifications to all connections.
"""

from __future__ import annotations

import asyncio
import logging
from threading import get_ident
from typing import TYPE_CHECKING, TypeAlias

from concertino.backend.interface import Backend
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.unread_results import ProcessBudget
from concertino.near_names import hint_keywords
from concertino.runtime.connection_end import CLEANUP_S
from concertino.runtime.server_connection import ServerConnection
from concertino.runtime.tasks import hide_from_all_tasks, loop_watch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from concertino.transports.connection import Connection

__all__ = ["Host", "Wrap", "serve", "unwrapped"]

log = logging.getLogger("concertino.host")

# A function that wraps a new connection before it is attached, for example to trace its messages.
# Its second argument is the client's name for the log, "" on stdio.
Wrap: TypeAlias = "Callable[[Connection, str], Connection]"


def unwrapped(connection: Connection, name: str) -> Connection:
    """Return a connection without wrapping it. This is the default for a Wrap."""
    return connection


@hint_keywords
async def serve(backend: Backend, connection: Connection, limits: Limits | None = None) -> None:
    """Serve a backend on one connection, until the client has disconnected.

    Calls that still run when the input ends may take limits.drain_s more seconds. For several
    connections use Host.
    limits: the limits of the connection; None for Limits().
    If the backend's start() raises, the client's first request gets the exception as an error
    response, and this function raises the exception soon afterwards; after 2 s if no request comes.
    """
    async with Host(backend, limits) as host:
        server_connection = host.attach(connection)
        # Not `await server_connection.closed`: cancelling this task would then cancel that future.
        await asyncio.wait((server_connection.closed,))
        if host.started.done():
            host.started.result()


class Host:
    """Serves a backend on any number of connections.

    It has nothing to do with the "host" of MCP, which is the application of the user.

        async with Host(server) as host:
            host.attach(connection)
            ...

    Entering starts the backend, without waiting for it. If the start fails, the clients' requests
    get the exception as an error response, and `start_failure` returns it. Leaving drains and
    closes all connections, then closes the backend. The backend gets the Host as its Notifier.

    Calls wait until the backend has started. Requests that need no backend, such as `initialize`,
    wait for at most limits.opening_s seconds.

    limits: the limits of the connections; None for Limits().
    on_started: called when the backend has started, before the backend gets its first call.

    Attributes:
    budget: counts and limits the memory for unread responses of all connections.
    connections: the connections that are open now.
    started: the task that runs the backend's start().
    """

    def __init__(
        self,
        backend: Backend,
        limits: Limits | None = None,
        on_started: Callable[[], object] | None = None,
    ) -> None:
        self.backend = backend
        self.limits = limits or Limits()
        self.budget = ProcessBudget(self.limits)
        self.connections: set[ServerConnection] = set()
        self.started: asyncio.Task[None]
        self._on_started = on_started
        # Whether the backend's start() was called.
        self._has_begun = False
        self._subscriptions = _SubscriptionWatch(self)

    @property
    def start_failure(self) -> BaseException | None:
        """Return the exception of the backend's start(); None if the backend has started.

        Read it only when `started` is done.
        """
        if self.started.cancelled():
            # Task.exception() would raise it, instead of returning it.
            return asyncio.CancelledError()
        return self.started.exception()

    async def _start(self) -> None:
        """Start the backend, then let all connections start the calls that wait for it."""
        self._has_begun = True
        await self.backend.start(self)
        if self._on_started is not None:
            self._on_started()
        # Not in a callback of this task, which would run one loop iteration later: messages that
        # have arrived by then would be held back.
        for connection in list(self.connections):
            connection.ready(None)

    async def __aenter__(self) -> Host:
        # These attributes are set here and not in __init__, which may run before there is a loop.
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        # Do not wait for the backend's start. Meanwhile connections can be attached, `initialize`
        # is answered after opening_s, and calls wait.
        self._opening_until = self._loop.time() + self.limits.opening_s
        self._describe_start: Callable[[], str] | None = None
        # A handler that cancels all tasks must not cancel this task.
        self.started = hide_from_all_tasks(self._loop.create_task(self._start()))
        self.started.add_done_callback(self._on_start_done)
        loop_watch_of(self._loop).begin(self._has_calls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drain()
        await self.closed()

        ending = [self.started]
        if self._subscriptions.task is not None:
            ending.append(self._subscriptions.task)
        for task in ending:
            task.cancel()
        await asyncio.wait(ending, timeout=CLEANUP_S)

        # If the task was cancelled before its first step, the backend's start() was never called,
        # and then close() must not be called either.
        if self._has_begun:
            await self._close_backend()
        await loop_watch_of(self._loop).end(self._has_calls)

    async def _close_backend(self) -> None:
        """Close the backend, within limits.drain_s seconds. A failure is logged and not raised."""
        closing = hide_from_all_tasks(self._loop.create_task(self.backend.close()))
        await asyncio.wait([closing], timeout=self.limits.drain_s)
        if not closing.done():
            closing.cancel()
            log.error("the backend did not close within %g s", self.limits.drain_s)
        elif not closing.cancelled() and closing.exception() is not None:
            log.error("the backend failed to close", exc_info=closing.exception())

    def attach(self, connection: Connection, limits: Limits | None = None) -> ServerConnection:
        """Serve one more connection, from now on, until its client disconnects.

        connection: a Connection that is not open yet.
        limits: the limits of this connection; None for the limits of this Host.
        Returns a ServerConnection. Its attribute `closed` is a future that is done when the
        connection has ended.
        """
        server_connection = ServerConnection(
            self.backend,
            connection,
            limits or self.limits,
            on_subscriptions_changed=self.watch_changed,
            budget=self.budget,
            opening_until=self._opening_until,
            describe_start=self._describe_start,
        )
        self.connections.add(server_connection)
        server_connection.closed.add_done_callback(lambda _: self._on_closed(server_connection))
        connection.open(server_connection)
        if self.started.done():
            server_connection.ready(self.start_failure)
        return server_connection

    @property
    def calls_under_way(self) -> int:
        """Return how many calls run or wait, on all connections; subscriptions do not count."""
        return sum(connection.calls_under_way for connection in self.connections)

    def _has_calls(self) -> bool:
        return self.calls_under_way > 0

    def drain(self) -> None:
        """Start to end all connections: read nothing more, let calls finish, close.

        Calls may run for another drain_s seconds. closed() waits for the end.
        """
        for connection in list(self.connections):
            connection.drain()

    async def closed(self) -> None:
        """Wait until the connections that are open now have ended."""
        if self.connections:
            await asyncio.wait([connection.closed for connection in self.connections])

    def open_early(self) -> None:
        """Answer requests that need no backend, such as `initialize`, from now on.

        Called while the backend has not started. Without this call, these requests wait for up to
        limits.opening_s seconds.
        """
        self._opening_until = self._loop.time()
        for connection in self.connections:
            connection.open_early()

    def hold_opening(self, within_s: float, describe: Callable[[], str]) -> None:
        """Let requests that open a session wait at most `within_s` seconds, then refuse them.

        If the backend has not started by then, `initialize` and `server/discover` are answered with
        an error until it starts. Calls wait for the start without this limit.
        describe: returns the text of the error responses.
        """
        self._opening_until = self._loop.time() + within_s
        self._describe_start = describe
        for connection in self.connections:
            connection.hold_opening(self._opening_until, describe)

    async def opens_with_handshake(self, within_s: float) -> bool:
        """Wait for the first client's first message, and return whether it is `initialize`.

        Returns False if no client is connected, or if no message arrives within `within_s` seconds.
        A client of MCP 2026-07-28 sends another request first, because it needs no handshake.
        """
        connection = next(iter(self.connections), None)
        return connection is not None and await connection.opens_with_handshake(within_s)

    def report_change(self, what: str) -> None:
        """Notify every client that a list has changed. May be called from any thread.

        what: the list: "tools", "prompts" or "resources". For "features", which means that the
            result of the backend's features() has changed, clients are not notified, but later
            requests see the new features.
        """
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.report_change, what)
            return
        for connection in self.connections:
            connection.report_change(what)

    def report_update(self, uri: str) -> None:
        """Notify the subscribed clients that a resource has changed. May be called from any thread.

        uri: the resource's URI.
        """
        if get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.report_update, uri)
            return
        for connection in self.connections:
            connection.report_update(uri)

    def watch_changed(self) -> None:
        """Call the backend's watch() soon, with the URIs to which any client subscribes.

        Called when a client has subscribed or unsubscribed, or has disconnected.
        """
        self._subscriptions.update()

    def _on_closed(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        if connection.session.subscriptions.uris:
            self.watch_changed()

    def _on_start_done(self, _: object) -> None:
        """Fail the waiting calls if the start has failed; _start() has handled the other case."""
        if (failure := self.start_failure) is not None:
            for connection in list(self.connections):
                connection.ready(failure)


class _SubscriptionWatch:
    """Tells the backend of a Host which resources the clients of all connections subscribe to.

    task: the task that runs the backend's watch(); None if it is not running.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.task: asyncio.Task[None] | None = None
        # The URIs that were last passed to watch().
        self._watched: frozenset[str] = frozenset()

    def update(self) -> None:
        """Call the backend's watch() soon. Called when the subscriptions have changed."""
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Call the backend's watch() with the subscribed URIs, until they no longer change."""
        host = self._host
        try:
            await asyncio.wait((host.started,))
            while host.start_failure is None:
                wanted = frozenset[str]().union(
                    *(connection.session.subscriptions.uris for connection in host.connections)
                )
                if wanted == self._watched:
                    return
                self._watched = wanted
                try:
                    await host.backend.watch(wanted)
                except Exception:
                    log.exception("the backend could not watch %d resources", len(wanted))
        finally:
            self.task = None
