"""HttpServer: serves a backend over HTTP at listening sockets.

    async with Host(server) as host:
        http = HttpServer(host, [listen_tcp("127.0.0.1", 8000)])
        await http.start()
        ...
        http.stop()
        await http.closed

The MCP endpoint is `/mcp`. `/healthz` tells whether the server is ready. `/metrics` has metrics if
the options contain a source of them. HttpFrontend makes an HttpServer for `concertino serve`, and
AsgiApplication one without listeners.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Protocol

from concertino.http.access import AccessRules
from concertino.http.admission import Admission
from concertino.http.connection import HttpConnection
from concertino.http.connection_table import ConnectionTable
from concertino.http.endpoint import McpEndpoint
from concertino.http.exchange import Exchange
from concertino.http.optional_transports import OptionalTransports, method_not_allowed
from concertino.http.options import HttpOptions
from concertino.http.relay import MAX_PRINCIPAL_BYTES, read_passed_on
from concertino.http.request_head import HeadParser, HttpError, RequestHead, unavailable
from concertino.http.session_peers import Examine, PeerServer, SessionPeers
from concertino.http.session_table import SessionTable
from concertino.http.time_limits import HttpTimeouts
from concertino.http.tls import TlsAcceptor, TlsCertificate
from concertino.http.write_turn import WriteTurn
from concertino.protocol.principal import Principal, unix_principal
from concertino.runtime.host import Host, Wrap, unwrapped
from concertino.runtime.server_connection import load_calls
from concertino.transports.listeners import BACKLOG, Listener

__all__ = ["ENDPOINT", "ClientSource", "HttpServer"]

log = logging.getLogger("concertino.http")

ENDPOINT = "/mcp"
# Clients and frameworks write the path of a mounted application with and without a slash at its
# end.
PATHS = (ENDPOINT, ENDPOINT + "/")
HEALTH = "/healthz"
METRICS = "/metrics"
# 0.0.4 is the version of Prometheus' text format.
METRICS_HEADERS = (
    b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\nCache-Control: no-store\r\n"
)
# The large bodies of all running requests together may have this many times max_message_bytes.
MAX_BODIES_FACTOR = 4
# stop() aborts the connections that are still open this many seconds after the host's drain time.
END_S = 0.3
HEALTHY = b'{"status":"ok"}'
NOT_STARTED = b'{"status":"starting"}'
FAILED = b'{"status":"failed"}'
ENDING = b'{"status":"shutting down"}'


class ClientSource(Protocol):
    """The source of clients: a Listener, or an ASGI server that passes requests on.

    is_unix: whether clients connect to a Unix socket, which no browser can reach.
    address: where clients connect, for the log.
    """

    @property
    def is_unix(self) -> bool: ...

    @property
    def address(self) -> str: ...

    def examine(self, sock: socket.socket, /) -> Mapping[str, object]:
        """Return what is known about a client, such as its address.

        The keys are those of Connection.facts (transports/connection.py).
        sock: the client's connection.
        Raises OSError if the client may not connect.
        """
        ...


class HttpServer:
    """Serves a backend over HTTP.

        http = HttpServer(host, [listen_tcp("127.0.0.1", 8000)])
        await http.start()

    host: serves the backend on each connection or session of a client. A Host is the part of the
        runtime that does this for every transport.
    listeners: the listening sockets. This object closes them.
    options: the settings of the server; None for the defaults.
    wrap: wraps each connection before the host gets it, for example to trace messages.
    peers: passes requests to the other processes that share the sessions. None to pass them to the
        processes of `options.shared_sessions`; without these options, sessions stay in this
        process.
    Raises ValueError if the options are not safe for the addresses of the listeners, and if
    `options.shared_sessions` cannot be used. Raises OSError if certificates cannot be read.

    Attributes:
    admission: decides which requests are served, by their headers, tokens and rates.
    connections: the open connections.
    """

    def __init__(
        self,
        host: Host,
        listeners: Sequence[Listener],
        options: HttpOptions | None = None,
        wrap: Wrap | None = None,
        peers: SessionPeers | None = None,
    ) -> None:
        self.host = host
        self.options = options = options or HttpOptions()
        self._listeners = listeners
        self.admission = Admission(options, listeners, ENDPOINT, frozenset((HEALTH,)))
        # Counts what each user has open; None without authorization.
        use = self.admission.principal_use
        # Makes the header WWW-Authenticate of refusals; None if the server takes no tokens.
        challenges = self.admission.challenges
        wrap = wrap or unwrapped
        if peers is None and options.shared_sessions is not None:
            # Most servers do not need this module, which loads the client of NATS.
            from concertino.http.machine_peers import MachinePeers

            peers = MachinePeers(options.shared_sessions)
        self._sessions = SessionTable(
            host,
            wrap,
            options.max_sessions,
            options.timeouts.session_s,
            challenges,
            max_own_sessions=None if use is None else use.limits.max_sessions,
            polling=options.polling,
            peers=peers,
        )
        self._endpoint = McpEndpoint(host, wrap, self._sessions, challenges)
        self._optional = OptionalTransports(host, wrap, options, self.admission, peers)
        self.connections = ConnectionTable(
            options.max_connections, options.timeouts, self._sessions.end_idle
        )
        self.connections.closed.add_done_callback(lambda _: self._endpoint.report_end())
        self._servers: list[PeerServer] = []

    @property
    def closed(self) -> asyncio.Future[None]:
        """A future that is done when the server has stopped and all connections are closed."""
        return self.connections.closed

    @property
    def addresses(self) -> list[str]:
        """The URL of the MCP endpoint at each listener; `unix:PATH` for a Unix socket."""
        scheme = "http" if self.options.tls is None else "https"
        addresses: list[str] = []
        for listener in self._listeners:
            if listener.is_unix:
                addresses.append(listener.address)
            else:
                host = listener.address.removeprefix("tcp:")
                addresses.append(f"{scheme}://{host}{ENDPOINT}")
        return addresses

    async def start(self) -> None:
        """Start to accept clients.

        Raises ValueError if the certificate cannot be used. Raises OSError if sessions are shared
        with other machines, and the NATS servers, which store the addresses of these machines,
        cannot be reached. In both cases the listeners are closed.
        """
        # Import the modules that handle calls now. With many clients, the process may have no file
        # descriptor left to import them at the first call.
        load_calls()
        try:
            await self._open_servers()
        except BaseException:
            self.stop()
            # stop() closes the servers that were opened. Also close the listeners for which no
            # server was opened.
            for listener in self._listeners:
                listener.close()
            raise

    async def _open_servers(self) -> None:
        """Serve the listeners, and the processes with which sessions are shared."""
        tls = self.options.tls
        certificate = None if tls is None else TlsCertificate(tls)
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            make = self.connection_factory(listener)
            if certificate is not None and not listener.is_unix:
                self._servers.append(TlsAcceptor(listener, certificate, make))
                continue
            create = loop.create_unix_server if listener.is_unix else loop.create_server
            self._servers.append(await create(make, sock=listener.socket, backlog=BACKLOG))
        peers = self._sessions.peers
        if peers is not None:
            self._servers.append(await peers.serve(self._peer_connection_factory))

    def _peer_connection_factory(self, examine: Examine) -> Callable[[], HttpConnection]:
        """Return a function that makes the connection of another process of this server.

        On this connection the other process passes on the requests for sessions of this process.
        """
        return partial(HttpConnection, _PassedOnHandler(self, examine))

    def connection_factory(
        self,
        source: ClientSource,
        make: type[HttpConnection] = HttpConnection,
        *,
        writes_at_once: bool = False,
    ) -> Callable[[], HttpConnection]:
        """Return a protocol factory: a function that makes the connection of each new client.

        source: where the clients connect.
        make: the class of the connections.
        writes_at_once: whether each output is written at once. Otherwise, a WriteTurn writes small
            outputs of several connections together.
        """
        options = self.options
        has_tls = options.tls is not None and not source.is_unix
        access = self.admission.access_rules(
            options.origins,
            checks_host=not source.is_unix,
            accepts_https=has_tls or options.behind_proxy,
        )
        turn = None if writes_at_once else self.connections.turn
        return partial(make, _ListenerHandler(self, source, access, turn))

    def stop(self) -> None:
        """Accept no more clients, and close each connection as soon as it is idle.

        Returns at once; `closed` is done when all connections are closed. Call host.drain() as
        well: it lets running calls finish within limits.drain_s seconds, and then ends them.
        """
        if self.connections.is_stopping:
            return
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.remove()
        self.connections.stop(self.host.limits.drain_s + END_S)

    # Requests

    def check_room(self, size: int) -> None:
        """Raise HttpError 503 if there is no memory for `size` more bytes of large bodies."""
        limit = MAX_BODIES_FACTOR * self.host.limits.max_message_bytes
        if size + self.connections.reserved_bytes > limit:
            raise unavailable("too many large requests are under way")

    def answer(self, access: AccessRules, exchange: Exchange) -> None:
        """Serve a request of a client, whose head was accepted. Raises HttpError to refuse it.

        access: makes the CORS headers of the response.
        """
        head = exchange.head
        if access.has_origins:
            exchange.headers = access.response_headers(head)
        path = head.path
        if exchange.principal is not None:
            self.admission.begin(exchange, exchange.principal)
        if path not in PATHS:
            self._answer_other(exchange, access)
        elif head.method == "POST":
            self._endpoint.post(exchange)
        elif head.method == "GET":
            if not self._optional.accept_websocket(exchange):
                self._endpoint.get(exchange)
        elif head.method == "DELETE":
            self._endpoint.delete(exchange)
        elif head.method == "OPTIONS" and (allowed := access.preflight_headers(head)):
            # `allowed` contains the headers of response_headers() already.
            exchange.headers = b""
            exchange.respond(HTTPStatus.NO_CONTENT, headers=allowed)
        else:
            raise method_not_allowed(head.method, "GET, POST, DELETE")

    def answer_passed_on(self, exchange: Exchange) -> None:
        """Serve a request that another process of this server has passed on.

        The request is for a session of this process, which may be one of 2024-11-05. Raises
        HttpError to refuse the request.
        """
        read_passed_on(exchange)
        head = exchange.head
        if head.path not in PATHS:
            self._optional.answer_passed_on(exchange)
        elif head.method == "POST":
            self._endpoint.post(exchange)
        elif head.method == "GET":
            self._endpoint.get(exchange)
        else:
            # Requests with other methods are not passed on.
            self._endpoint.delete(exchange)

    def _answer_other(self, exchange: Exchange, access: AccessRules) -> None:
        """Answer a request that is not for the MCP endpoint."""
        path = exchange.head.path
        if path == HEALTH:
            self._answer_health(exchange)
        elif path == METRICS and self.options.metrics is not None:
            self._answer_metrics(exchange, self.options.metrics)
        elif self._optional.answer(exchange, access) or self.admission.answer_metadata(exchange):
            # One of the two has sent the response.
            return
        else:
            raise HttpError(HTTPStatus.NOT_FOUND, f"nothing is served here, try {ENDPOINT}")

    def _answer_metrics(self, exchange: Exchange, metrics: Callable[[], str]) -> None:
        """Send the metrics, such as the numbers of calls, to a client that may see them."""
        method = exchange.head.method
        if method not in ("GET", "HEAD"):
            raise method_not_allowed(method, "GET")
        self.admission.check_local(exchange)
        exchange.respond_as(METRICS_HEADERS, metrics().encode())

    def _answer_health(self, exchange: Exchange) -> None:
        """Answer a health check: 200, or 503 before the backend has started and at the end."""
        method = exchange.head.method
        if method not in ("GET", "HEAD"):
            raise method_not_allowed(method, "GET, HEAD")
        status = HTTPStatus.SERVICE_UNAVAILABLE
        if self.connections.is_stopping:
            body = ENDING
        elif not self.host.started.done():
            body = NOT_STARTED
        elif self.host.start_failure is not None:
            body = FAILED
        else:
            status, body = HTTPStatus.OK, HEALTHY
        exchange.respond(status, body)


class _ListenerHandler:
    """The RequestHandler of the clients of one listener or ASGI server."""

    def __init__(
        self,
        server: HttpServer,
        source: ClientSource,
        access: AccessRules,
        turn: WriteTurn | None,
    ) -> None:
        self._server = server
        self.turn = turn
        self._source = source
        self._access = access
        self.parser = HeadParser()
        self.checks_each_head = server.admission.checks_each_head
        # A partial object takes less time than a method that calls server.answer().
        self.on_request: Callable[[Exchange], None] = partial(server.answer, access)

    @property
    def max_body_bytes(self) -> int:
        return self._server.host.limits.max_message_bytes

    @property
    def timeouts(self) -> HttpTimeouts:
        return self._server.options.timeouts

    def examine(self, transport: asyncio.Transport) -> Mapping[str, object]:
        try:
            facts = self._source.examine(transport.get_extra_info("socket"))
        except PermissionError as exc:
            log.warning("%s: a client was refused: %s", self._source.address, exc.strerror)
            raise
        # On a Unix socket, the system says which user the client's process belongs to.
        uid = facts.get("uid")
        return {**facts, "principal": unix_principal(uid)} if isinstance(uid, int) else facts

    def on_connect(self, connection: HttpConnection) -> bool:
        return self._server.connections.add(connection)

    def on_head(
        self, connection: HttpConnection, head: RequestHead
    ) -> Principal | asyncio.Future[Principal] | None:
        self._access.check(head)
        return self._server.admission.admit(head, connection.facts)

    def on_reserve(self, size: int) -> None:
        self._server.check_room(size)

    def on_disconnect(self, connection: HttpConnection) -> None:
        self._server.connections.remove(connection)


class _PassedOnHandler:
    """The RequestHandler of the requests that other processes of this server pass on.

    The other process has already checked the request and its user.

    examine: returns facts about the other process, from its connection. Raises OSError if the
        process may not pass requests on.
    """

    checks_each_head = False

    def __init__(self, server: HttpServer, examine: Examine) -> None:
        self._server = server
        self.examine = examine
        self.parser = HeadParser()
        self.max_body_bytes = server.host.limits.max_message_bytes + MAX_PRINCIPAL_BYTES
        self.timeouts = server.options.timeouts
        self.turn = server.connections.turn
        self.on_request = server.answer_passed_on
        self.on_reserve = server.check_room
        self.on_disconnect = server.connections.remove

    def on_connect(self, connection: HttpConnection) -> bool:
        # The other process has already counted the client's connection against the limit.
        self._server.connections.add_unlimited(connection)
        return True

    def on_head(self, connection: HttpConnection, head: RequestHead) -> None:
        return None
