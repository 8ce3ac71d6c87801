"""AsgiApplication: serves a backend inside of an application of Starlette, FastAPI or Django.

    mcp = server.asgi()
    app = Starlette(routes=[Route("/mcp", mcp)], lifespan=mcp.lifespan)

An ASGI server can also serve `mcp` alone: `uvicorn shop:mcp` for a module shop. An HttpConnection
answers the requests, with the same checks and limits as in an HttpServer at a socket
(asgi_channel.py). The backend starts with the lifespan of the application. Without `lifespan=`, it
starts with the first request.
Source: the ASGI specification 3.0, "HTTP & WebSocket" and "Lifespan".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from concertino.backend.interface import Backend
from concertino.http.asgi_channel import AsgiChannel, AsgiConnection
from concertino.http.connection import HttpConnection
from concertino.http.options import HttpOptions
from concertino.http.server import ENDPOINT, HttpServer
from concertino.jsonrpc.limits import Limits
from concertino.runtime.host import Host
from concertino.runtime.tasks import hide_from_all_tasks

__all__ = ["AsgiApplication"]

# For how long requests get the error of a start that has failed, in seconds. Without this pause,
# each request would start and end the backend, and wait for a server that cannot be reached.
RETRY_S = 1.0

# ASGI describes each message by its own keys.
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class AsgiApplication:
    """An ASGI application that serves a backend, such as a Server, to MCP clients.

        mcp = AsgiApplication(server)
        app = Starlette(routes=[Route("/mcp", mcp)], lifespan=mcp.lifespan)

    backend: the Backend to serve.
    path: the path of the MCP endpoint, below the path at which the application is mounted. The root
        is served too, so that Mount("/mcp", ...) works.
    options: the settings of the MCP endpoint, such as its authorization; None for the defaults.
    limits: the limits of each session, such as the size of a message; None for the defaults.
    """

    def __init__(
        self,
        backend: Backend,
        path: str = ENDPOINT,
        options: HttpOptions | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._backend = backend
        # The paths of the MCP endpoint, below the path of the mount.
        self._paths = frozenset(("", "/", path.rstrip("/"), path.rstrip("/") + "/"))
        self._options = options
        self._limits = limits
        self._service: _Service | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request or a lifespan of the ASGI server, or refuse a WebSocket."""
        kind = scope["type"]
        if kind == "http":
            # A service runs on one event loop. Test clients use a new loop for each test.
            service = self._service
            if (
                service is None
                or not service.is_ready
                or service.loop is not asyncio.get_running_loop()
            ):
                service = await self._start()
            channel = service.borrow()
            is_reusable = False
            try:
                is_reusable = await channel.serve(scope, receive, send)
            finally:
                service.give_back(channel, reusable=is_reusable)
        elif kind == "lifespan":
            await self._follow_lifespan(receive, send)
        elif kind == "websocket":
            # Refuse the handshake, because only an HttpServer at a socket serves WebSockets.
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise NotImplementedError(f"concertino serves no ASGI scope of the type {kind!r}")

    def _find_path(self, scope: Mapping[str, Any]) -> str:
        """Return the path that the HttpServer gets: ENDPOINT for each path of the MCP endpoint."""
        path = _path_below_mount(scope)
        return ENDPOINT if path in self._paths else path

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:
        """Start the backend, and close it when the framework ends its lifespan.

        Frameworks take this method as their lifespan: `Starlette(lifespan=mcp.lifespan)`.
        app: the application of the framework, which is not used.
        """
        await self._start()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the backend. Calls that run may finish within limits.drain_s seconds."""
        service, self._service = self._service, None
        if service is not None:
            await service.close()

    async def _start(self) -> _Service:
        """Start the service on the running event loop if necessary, and return it.

        Raises the error of HttpServer if the start fails. Later calls raise the same error for
        RETRY_S (1 s); the first call after this time starts a new service.
        """
        service = self._service
        if service is None or service.loop is not asyncio.get_running_loop() or service.may_retry:
            service = self._service = _Service(
                self._backend, self._options, self._limits, self._find_path
            )
        # Shielded, because other requests wait for the same start and must not be cancelled
        # together with this one.
        await asyncio.shield(service.started)
        return service

    async def _follow_lifespan(self, receive: Receive, send: Send) -> None:
        """Start and end the backend when the ASGI server sends the lifespan messages."""
        await receive()
        try:
            await self._start()
        except Exception as exc:
            # The ASGI server shows the text and ends. An error that is raised would mean that this
            # application has no lifespan.
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})


def _path_below_mount(scope: Mapping[str, Any]) -> str:
    """Return the path of a request below the path at which the application is mounted.

    Since ASGI 2.3, the path in the scope begins with `root_path`. But some ASGI servers and
    frameworks pass the path without it.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


class _Service:
    """Serves the backend on one event loop, by a Host and an HttpServer without listeners.

    A Host (runtime/host.py) starts the backend, and serves it on each connection. Each request of
    the ASGI server is passed to an AsgiChannel, which is used again for later requests.

    find_path: returns the path that the HttpServer gets for a request, from its ASGI scope.

    Attributes:
    loop: the event loop.
    started: a future that is done when requests can be served, or when the start has failed.
    is_ready: whether the start has succeeded.
    """

    def __init__(
        self,
        backend: Backend,
        options: HttpOptions | None,
        limits: Limits | None,
        find_path: Callable[[Mapping[str, Any]], str],
    ) -> None:
        self._find_path = find_path
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self.loop.create_future()
        self.is_ready = False
        # When the start has failed, by the clock of the event loop.
        self._failed_at: float | None = None
        self._has_to_end = asyncio.Event()
        # Makes a connection of the HttpServer. It is set when the start has succeeded.
        self._make_connection: Callable[[], HttpConnection]
        # Channels of finished requests, to be used again.
        self._idle: list[AsgiChannel] = []
        # A handler that cancels all tasks must not cancel this task.
        self._running = hide_from_all_tasks(
            self.loop.create_task(self._run(Host(backend, limits), options))
        )

    @property
    def may_retry(self) -> bool:
        """Whether the start failed at least 1 s (RETRY_S) ago, so that a new one may be tried."""
        return self._failed_at is not None and self.loop.time() - self._failed_at >= RETRY_S

    async def _run(self, host: Host, options: HttpOptions | None) -> None:
        """Run the Host and the HttpServer until close() is called."""
        try:
            async with host:
                http = HttpServer(host, [], options)
                await http.start()
                # With writes_at_once, a response reaches its AsgiChannel while the request is
                # being passed on, and not in a later iteration of the event loop.
                self._make_connection = http.connection_factory(
                    _AsgiClients(), AsgiConnection, writes_at_once=True
                )
                self.is_ready = True
                self.started.set_result(None)
                await self._has_to_end.wait()
                host.drain()
                http.stop()
                await http.closed
        except Exception as exc:
            if self.is_ready:
                # The service has failed later, which asyncio logs when it frees the task.
                raise
            # Report the failure only now, when the backend is closed, so that the next start does
            # not overlap with this one.
            self._failed_at = self.loop.time()
            self.started.set_exception(exc)

    async def close(self) -> None:
        """End the Host and the HttpServer. Calls that run may take limits.drain_s more seconds."""
        self._has_to_end.set()
        await asyncio.wait([self._running])

    def borrow(self) -> AsgiChannel:
        """Return a channel that no other request uses."""
        while self._idle:
            channel = self._idle.pop()
            if not channel.is_closed:
                return channel
        return AsgiChannel(self._make_connection(), self._find_path)

    def give_back(self, channel: AsgiChannel, *, reusable: bool) -> None:
        """Take a channel back after a request. Close the channel unless it can be used again."""
        if reusable and not channel.is_closed:
            self._idle.append(channel)
        else:
            channel.disconnect()


class _AsgiClients:
    """The ClientSource of requests that an ASGI server passes on."""

    is_unix = False
    address = "asgi"

    def examine(self, sock: object) -> Mapping[str, object]:
        """Return facts about a client, as in Connection.facts (transports/connection.py).

        sock is not used. The AsgiChannel adds the client's address, which only the ASGI server
        knows.
        """
        return {"transport": "asgi"}
