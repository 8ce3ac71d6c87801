"""ConnectionPool: connections are used again, by one request at a time."""

from __future__ import annotations

import asyncio
import ssl
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from loops import on_a_loop

from concertino import Client, Disconnected
from concertino.http_client.pool import MAX_IDLE, ConnectionPool, make_tls_context
from concertino.http_client.pooled_connection import PooledConnection, ResponseHead
from concertino.http_client.server_url import parse_url

RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Listener:
    """Waits for the end of a response."""

    def __init__(self) -> None:
        self.body = b""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_head(self, head: ResponseHead) -> None: ...

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        self.ended.set_result(None)

    def on_lost(self, reason: str, unanswered: bool) -> None:
        self.ended.set_exception(ConnectionError(reason))


class Site:
    """A server that counts its connections, and answers each request with `ok`."""

    def __init__(self) -> None:
        self.served: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.served.append(task)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(RESPONSE)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.transport.abort()


async def request(pool: ConnectionPool, connection: PooledConnection | None) -> bytes:
    listener = Listener()
    connection = connection or await pool.connect()
    connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", listener)
    async with asyncio.timeout(20):
        await listener.ended
    return listener.body


@on_a_loop
async def test_as_many_connections_are_kept_as_a_proxy_has_calls_in_flight() -> None:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = ConnectionPool(parse_url(f"http://127.0.0.1:{port}/"))
    for _ in range(3):
        taken = [pool.take() for _ in range(64)]
        bodies = await asyncio.gather(*(request(pool, connection) for connection in taken))
        assert bodies == [b"ok"] * 64
    assert len(site.served) == 64

    # One more than the limit at once: the one that ends last is closed.
    taken = [pool.take() for _ in range(MAX_IDLE + 1)]
    await asyncio.gather(*(request(pool, connection) for connection in taken))
    kept = [connection for _ in range(MAX_IDLE + 1) if (connection := pool.take()) is not None]
    assert len(kept) == MAX_IDLE
    for connection in kept:
        connection.abort()
    pool.close()
    server.close()
    await asyncio.gather(*site.served)


class SystemContext(ssl.SSLContext):
    """Stands for the class of the package truststore."""


def test_the_certificates_of_the_system_are_trusted_if_truststore_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "truststore", None)
    assert type(make_tls_context()) is ssl.SSLContext

    package = ModuleType("truststore")
    package.__spec__ = ModuleSpec("truststore", None)
    package.SSLContext = SystemContext
    monkeypatch.setitem(sys.modules, "truststore", package)
    assert type(make_tls_context()) is SystemContext


@pytest.mark.parametrize("scheme", ["https", "wss"])
@on_a_loop
async def test_a_server_that_leaves_during_the_tls_handshake_is_an_error_with_a_text(
    scheme: str,
) -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(leave, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Disconnected, match=": the connection ended during the TLS handshake"):
            async with Client(f"{scheme}://127.0.0.1:{port}/mcp"):
                pass
