"""ConnectionPool: the HTTP connections to one server, which are used again when they are idle.

The RequestSender (request_sender.py) takes a connection for each request, and opens another one if
none is idle. A PooledConnection returns to the pool by itself when its response is complete.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from concertino.http_client.pooled_connection import PooledConnection
from concertino.http_client.proxy_tunnel import find_proxy, open_tunnel
from concertino.http_client.server_url import ServerUrl

if TYPE_CHECKING:
    import ssl

__all__ = ["CONNECT_S", "HANDSHAKE_LOST", "ConnectionPool", "make_tls_context", "open_transport"]

# The largest number of idle connections. If there are more, they are closed. If this number were
# less than the number of concurrent calls of a proxy, most calls would open a connection, which
# takes 122 us CPU instead of 27 (64 concurrent calls).
MAX_IDLE = 64
# Servers close idle connections, usually after 5 s or more. A connection that has been idle for
# less than this time, in seconds, is very probably still open.
SURE_S = 4.0
# The error for a server that closes the connection during the TLS handshake.
HANDSHAKE_LOST = "the connection ended during the TLS handshake"
# How long opening a connection may take, in seconds.
CONNECT_S = 60.0


class ConnectionPool:
    """The connections to one server. A connection carries one request at a time.

    take() returns an idle connection, and connect() opens one. A connection that has carried a
    request returns to the pool by itself when the response is complete.

    url: the URL of the server.
    """

    def __init__(self, url: ServerUrl) -> None:
        self._url = url
        self._tls: ssl.SSLContext | None = None
        self._idle: list[PooledConnection] = []
        # All connections, the idle ones included.
        self._open: set[PooledConnection] = set()
        self._is_paused = False
        self._is_closed = False

    def take(self, *, sure: bool = False) -> PooledConnection | None:
        """Return an idle connection; None if there is none.

        sure: True for a request that must not be sent twice. Then a connection is returned only if
            it was idle for less than 4 s, so that the server has very probably not closed it.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.is_closed:
                continue
            if sure and asyncio.get_running_loop().time() - connection.idle_since > SURE_S:
                # This connection was used last, so all other idle connections are idle for longer.
                self._idle.append(connection)
                return None
            return connection
        return None

    async def connect(self) -> PooledConnection:
        """Open a connection, through an HTTP proxy if the environment names one.

        Raises OSError if the server cannot be reached within a minute, and ValueError if the
        environment names the proxy in a malformed way.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self._connect()
        except TimeoutError:
            raise TimeoutError(f"no connection within {CONNECT_S:.0f} s") from None

    async def _connect(self) -> PooledConnection:
        connection = PooledConnection(self._on_idle, self._on_close)
        tls = self._tls_context() if self._url.is_tls else None
        await open_transport(self._url, connection, tls)
        if self._is_closed:
            connection.abort()
            raise ConnectionAbortedError("the client was closed")
        self._open.add(connection)
        if self._is_paused:
            connection.pause(True)
        return connection

    def put_back(self, connection: PooledConnection) -> None:
        """Make a connection from connect() available to take(). It must have carried no request."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._on_idle(connection)

    def pause(self, paused: bool) -> None:
        """Stop reading from all connections, or continue. paused: whether to stop."""
        self._is_paused = paused
        for connection in self._open:
            connection.pause(paused)

    def close(self) -> None:
        """Close all connections, without waiting for responses."""
        self._is_closed = True
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def _on_close(self, connection: PooledConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _on_idle(self, connection: PooledConnection) -> None:
        if len(self._idle) < MAX_IDLE and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.abort()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = make_tls_context()
        return self._tls


async def open_transport(
    url: ServerUrl,
    protocol: asyncio.Protocol | asyncio.BufferedProtocol,
    tls: ssl.SSLContext | None,
) -> None:
    """Connect a protocol to a URL's server, through an HTTP proxy if the environment names one.

    Returns when the connection is open and its TLS handshake is done.

    url: the URL of the server.
    protocol: gets connection_made() when the connection is open.
    tls: the TLS context; None for a connection without TLS.
    Raises OSError if the server cannot be reached, and ValueError if the environment names the
    proxy in a malformed way.
    """
    loop = asyncio.get_running_loop()
    proxy = find_proxy(url.over_http.scheme, url.host, url.port)
    try:
        if proxy is None:
            await loop.create_connection(lambda: protocol, url.host, url.port, ssl=tls)
            return
        transport = await open_tunnel(proxy, url.host, url.port)
        if tls is None:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return
        secured = await loop.start_tls(transport, protocol, tls, server_hostname=url.host)
    except ConnectionError as exc:
        # asyncio's error for a connection that ends during the TLS handshake has no text.
        if str(exc):
            raise
        raise ConnectionError(HANDSHAKE_LOST) from exc
    if secured is None:
        raise ConnectionError(HANDSHAKE_LOST)
    # asyncio calls connection_made() neither after start_tls() nor after set_protocol().
    protocol.connection_made(secured)


def make_tls_context() -> ssl.SSLContext:
    """Return a TLS context for clients, which verifies the server's certificate.

    With the package truststore, it trusts the certificates of the operating system. Otherwise it
    trusts the certificates of OpenSSL, which SSL_CERT_FILE and SSL_CERT_DIR can replace.
    """
    # Imported here, because many servers use no TLS.
    import ssl
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("truststore") is not None:
        context: ssl.SSLContext = import_module("truststore").SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = ssl.create_default_context()
    # Without this, a server could choose HTTP/2.
    context.set_alpn_protocols(["http/1.1"])
    return context
