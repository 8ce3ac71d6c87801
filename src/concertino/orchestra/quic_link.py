"""RPC connections over QUIC, for other machines and upstream's programs: one stream per request.

A request is one frame and the end of its stream, sent in one call. quic-go returns a stream's
credit only when it has read the end, and overlooks an end that arrives in a later packet than the
last byte; the connection would stall after 100 requests. A request is handled as soon as its frame
is complete, since upstream's end may arrive later. Cancelling a request resets its stream.
quic_connection.py has what both sides share.

All of it runs on the caller's loop and not in a thread of its own; decision 0013 gives the reasons.
aioquic sends about sixteen datagrams at a time and receives one, so the loop continues within
milliseconds whatever the size of a message.
Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC"; RFC 9000.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, cast

from concertino.errors import Disconnected, ProtocolError
from concertino.orchestra.certificates import CertificateError, Certificates, Identity
from concertino.orchestra.extra import MISSING_EXTRA
from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, encode_frame
from concertino.orchestra.handshake import (
    CRYPTO_ERROR,
    CurrentIdentity,
    QuicConnection,
    configuration,
    ensure_strict,
    secure,
)
from concertino.orchestra.quic_connection import CANCELLED, QuicRpcConnection, describe_end
from concertino.orchestra.rpc import RpcClient, RpcServer
from concertino.orchestra.rpc_interface import (
    CLOSED,
    HandshakeFailure,
    RelayHandler,
    RemotePeer,
    RequestHandler,
    RpcListener,
    error_response,
)
from concertino.transports.listeners import split_address
from concertino.transports.sockets import format_address

try:
    from aioquic.asyncio.server import QuicServer
    from aioquic.quic import events
    from aioquic.quic.retry import QuicRetryTokenHandler
except ImportError:
    raise ImportError(MISSING_EXTRA) from None

__all__ = ["dial", "listen_quic_links", "open_quic_link"]

log = logging.getLogger("concertino.orchestra")

# Size of a socket's buffers; the system may give less.
SOCKET_BYTES = 4 * 2**20
# The largest datagram of UDP.
MAX_DATAGRAM_BYTES = 2**16
MAX_CONNECTIONS = 256
# Connections without a finished handshake; above it, clients must prove their address first.
MAX_HALF_OPEN = 32
# Total size of the requests without a response; above it, further requests wait.
MAX_PENDING_BYTES = 4 * MAX_FRAME_BYTES


# The side that sends requests


async def open_quic_link(
    address: str, certificates: Certificates, name: str, expects: str | None, timeout_s: float
) -> QuicLink:
    """Connect to an address with the certificate of a name. See open_link."""
    return await dial(address, certificates.identity(name), expects, timeout_s)


async def dial(address: str, identity: Identity, expects: str | None, timeout_s: float) -> QuicLink:
    """Connect to an address with a loaded certificate, as open_link() does."""
    host, port = _split(address)
    loop = asyncio.get_running_loop()

    def check_name(name: str) -> str | None:
        return None if expects in (None, name) else f"{name!r} answers, and not {expects!r}"

    quic = QuicConnection(configuration=configuration("client", identity, host))
    secure(quic, identity, check_name)
    try:
        async with asyncio.timeout(timeout_s):
            family, resolved = await _resolve(host, port)
            connection = _QuicClientConnection(quic, QuicLink(RemotePeer(address)))
            try:
                # A connected socket, so that the system reports a port without a listener.
                transport, _ = await loop.create_datagram_endpoint(
                    lambda: connection, remote_addr=resolved[:2], family=family
                )
                _configure_udp(transport)
                connection.connect(resolved)
                await connection.ready
            except BaseException:
                connection.ready.cancel()
                connection.disconnect("client closed", "it was given up")
                raise
            return connection.link
    except TimeoutError:
        raise Disconnected(f"{address}: nobody answers within {timeout_s:g} s") from None
    except OSError as exc:
        raise Disconnected(f"{address}: {exc.strerror or exc}") from None


def _split(address: str) -> tuple[str, int]:
    """Return the host and port of an address. Raises ValueError."""
    try:
        return split_address(address)
    except ValueError:
        raise ValueError(
            f"{address!r}: expected HOST:PORT, as in localhost:50100 or [::1]:50100, or unix:PATH"
        ) from None


async def _resolve(
    host: str, port: int, flags: int = 0
) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Return the UDP address of a host: its first IPv4 address, else its first.

    Go chooses in the same way, and both sides must find each other at `localhost`. flags: of
    getaddrinfo. Raises OSError. Source: Go's net.ResolveUDPAddr.
    """
    loop = asyncio.get_running_loop()
    candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    family, *_, address = min(candidates, key=lambda item: item[0] != socket.AF_INET)
    return family, address


def _configure_udp(transport: asyncio.DatagramTransport) -> None:
    """Set the sizes of a UDP socket's buffers and of its reads.

    Large buffers hold the datagrams that arrive while Python is busy. Reads get the size of a
    datagram: asyncio allocates 256 KiB for each, which the allocator takes from the system every
    time (30 us).
    """
    sock = transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    with suppress(AttributeError):
        cast(Any, transport).max_size = MAX_DATAGRAM_BYTES


class QuicLink(RpcClient):
    """A ForwardingConnection over QUIC."""

    connection: _QuicClientConnection

    def __init__(self, peer: RemotePeer) -> None:
        super().__init__(peer)
        self._count = 0
        # Sizes of the requests without a response, by key, and their sum.
        self._sizes: dict[Hashable, int] = {}
        self._pending_bytes = 0

    def _send_request(self, payload: bytes, id: bytes) -> Hashable:
        self._count = key = self._count + 1
        self._sizes[key] = len(payload)
        self._pending_bytes += len(payload)
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._set_backpressure(True)
        self.connection.send_request(key, encode_frame(payload))
        return key

    def _send_cancel(self, key: Hashable) -> None:
        self.connection.cancel_request(key)
        self._release(key)

    def _release(self, key: Hashable) -> None:
        self._pending_bytes -= self._sizes.pop(key, 0)
        if self._pending_bytes <= MAX_PENDING_BYTES:
            self._set_backpressure(False)

    def on_response(self, key: Hashable, payload: bytes) -> None:
        """Handle a response."""
        self._release(key)
        self._on_response(key, payload)

    def on_stream_error(self, key: Hashable, reason: str) -> None:
        """Handle that a request will have no response."""
        self._release(key)
        self._fail_request(key, ProtocolError(f"{self.peer.address}: no response: {reason}"))

    def on_end(self, reason: str) -> None:
        """Handle the end of the connection."""
        self._set_backpressure(False)
        self._end_connection(reason)

    async def close(self, reason: str = CLOSED) -> None:
        """See RpcConnection.close."""
        self.connection.disconnect("client closed", reason)


class _QuicClientConnection(QuicRpcConnection):
    """The connection of a QuicLink.

    ready: done when the server has accepted us; else it holds the exception.
    """

    def __init__(self, quic: QuicConnection, link: QuicLink) -> None:
        super().__init__(quic)
        link.connection = self
        self.link = link
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._keys: dict[int, Hashable] = {}
        self._streams: dict[Hashable, int] = {}
        # Requests that wait until the server allows another stream, in order.
        self._queue: dict[Hashable, bytes] = {}

    def _on_handshake(self, name: str) -> None:
        self.link.peer = RemotePeer(self.link.peer.address, name)
        # In TLS 1.3 the client finishes first. The acknowledgement of this ping shows that the
        # server has accepted our certificate.
        self._quic.send_ping(1)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        super().quic_event_received(event)
        if isinstance(event, events.PingAcknowledged) and not self.ready.done():
            self.ready.set_result(None)

    def _on_end(self, code: int, reason: str) -> None:
        text = describe_end(code, reason)
        if not self.ready.done():
            error_type = HandshakeFailure if code in CRYPTO_ERROR else Disconnected
            self.ready.set_exception(error_type(f"{self.link.peer.address}: {text}"))
        self._queue.clear()
        self.link.on_end(text)
        if self._transport is not None:
            self._transport.close()

    def error_received(self, exc: Exception) -> None:
        """End the connection when the system reports, by ICMP, that nobody listens there.

        A stranger could send such a packet from another machine, so only this machine is believed.
        """
        address = self._quic.get_peer_address()
        if address is not None and str(address[0]) in ("127.0.0.1", "::1"):
            self._report_end(0, str(cast(OSError, exc).strerror))

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        super().datagram_received(data, addr)
        if self._queue:
            self._open_streams()

    def send_request(self, key: Hashable, frame: bytes) -> None:
        """Send a request, as soon as the server allows another stream."""
        # After the end the link fails the request, at once or soon.
        if not self._is_ended:
            self._queue[key] = frame
            self._open_streams()

    def _open_streams(self) -> None:
        """Send queued requests, as many as the server allows streams.

        aioquic would queue further streams itself, but a stream that it queues cannot be reset:
        the server gets a reset for a stream that it has not allowed, and ends the connection.
        """
        allowed = cast(Any, self._quic)._remote_max_streams_bidi
        while self._queue and (stream := self._quic.get_next_available_stream_id()) // 4 < allowed:
            key = next(iter(self._queue))
            frame = self._queue.pop(key)
            self._keys[stream] = key
            self._streams[key] = stream
            self._incomplete[stream] = (Assembler(), 0.0)
            self._send(stream, frame)

    def cancel_request(self, key: Hashable) -> None:
        """Drop a queued request, or reset its stream."""
        if self._is_ended or self._queue.pop(key, None) is not None:
            return
        stream = self._streams.pop(key, None)
        if stream is None:
            return
        del self._keys[stream]
        self._incomplete.pop(stream, None)
        self._quic.reset_stream(stream, CANCELLED)
        self._stop(stream)
        self._transmit_soon()

    def _on_frame(self, stream: int, payload: bytes) -> None:
        key = self._forget(stream)
        if key is not None:
            self.link.on_response(key, payload)

    def _on_stream_error(self, stream: int, reason: str) -> None:
        key = self._forget(stream)
        self._stop(stream)
        if key is not None:
            self.link.on_stream_error(key, reason)

    def _forget(self, stream: int) -> Hashable:
        key = self._keys.pop(stream, None)
        if key is not None:
            del self._streams[key]
        return key


# The side that answers


async def listen_quic_links(
    address: str,
    handler: RequestHandler,
    relay: RelayHandler | None,
    certificates: Certificates,
    name: str,
    admits: Callable[[str], bool] | None,
) -> RpcListener:
    """Listen at an address. See listen_for_links."""
    ensure_strict()
    host, port = _split(address)
    current = CurrentIdentity(certificates, name)
    loop = asyncio.get_running_loop()
    try:
        family, resolved = await _resolve(host, port, socket.AI_PASSIVE)
        transport, server = await loop.create_datagram_endpoint(
            lambda: _QuicRpcServer(host, handler, relay, current, admits),
            local_addr=resolved[:2],
            family=family,
        )
    except OSError as exc:
        raise OSError(exc.errno, f"{address}: {exc.strerror}") from None
    _configure_udp(transport)
    return _QuicRpcListener(server)


class _QuicRpcListener:
    """An RpcListener at a UDP socket."""

    def __init__(self, server: _QuicRpcServer) -> None:
        self.server = server

    @property
    def address(self) -> str:
        return self.server.address

    async def close(self, drain_s: float = 0.0) -> None:
        """See RpcListener.close."""
        server = self.server
        loop = asyncio.get_running_loop()
        server.is_closing = True
        deadline = loop.time() + drain_s
        if drain_s and (rpc_servers := server.rpc_servers):
            _, late = await asyncio.wait(
                [loop.create_task(rpc.drain()) for rpc in rpc_servers], timeout=drain_s
            )
            for task in late:
                task.cancel()

        # Wait until the responses have arrived. Polling, since aioquic does not report that data
        # was acknowledged.
        while loop.time() < deadline and server.is_sending:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for client in list(server.clients):
            client.disconnect("", "nothing is answered here any more")
        server.close()


class _QuicRpcServer(QuicServer):
    """aioquic's server with a renewable certificate, limits, and an orderly end."""

    def __init__(
        self,
        host: str,
        handler: RequestHandler,
        relay: RelayHandler | None,
        current: CurrentIdentity,
        admits: Callable[[str], bool] | None,
    ) -> None:
        first = configuration("server", current.identity())
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            configuration=first, create_protocol=cast(Any, self._create_connection)
        )
        self.handler = handler
        self.relay = relay
        self.address = host
        # Whether new connections are refused.
        self.is_closing = False
        self.clients: set[_QuicServerConnection] = set()
        self.half_open = 0
        self._current = current
        self._admits = admits
        self._tokens = QuicRetryTokenHandler()

    @property
    def rpc_servers(self) -> list[RpcServer]:
        """The RpcServer of each client whose handshake is finished."""
        return [client.rpc for client in self.clients if client.rpc is not None]

    @property
    def is_sending(self) -> bool:
        """Whether a client has not acknowledged all data."""
        return any(client.is_sending for client in self.clients)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = format_address((self.address, transport.get_extra_info("sockname")[1]))

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        # Many unfinished handshakes may be an attack with forged addresses: from now on, a client
        # must answer a Retry packet first.
        self._retry = self._tokens if self.half_open >= MAX_HALF_OPEN else None
        try:
            super().datagram_received(data, addr)
        except _ConnectionLimit as exc:
            log.warning("%s: refused %s: %s", self.address, format_address(addr), exc)

    def _create_connection(self, quic: QuicConnection, stream_handler: object) -> QuicRpcConnection:
        if self.is_closing:
            raise _ConnectionLimit("the listener is closing")
        if len(self.clients) >= MAX_CONNECTIONS:
            raise _ConnectionLimit(f"{MAX_CONNECTIONS} connections are open, which is the limit")
        try:
            identity = self._current.identity()
        except CertificateError as exc:
            raise _ConnectionLimit(str(exc)) from None
        secure(quic, identity, self._check_name)
        return _QuicServerConnection(quic, self)

    def _check_name(self, name: str) -> str | None:
        return (
            None if self._admits is None or self._admits(name) else f"{name!r} may not come in here"
        )


class _ConnectionLimit(Exception):
    """A new connection is refused before its handshake; the text says why."""


class _QuicServerConnection(QuicRpcConnection):
    """A connection whose requests are handled here. rpc: None until the handshake is finished."""

    def __init__(self, quic: QuicConnection, server: _QuicRpcServer) -> None:
        super().__init__(quic)
        self.rpc: RpcServer | None = None
        self._server = server
        # Streams whose response is awaited.
        self._open: set[int] = set()
        # Streams on which something has arrived, but not the end.
        self._receiving: set[int] = set()
        self._is_holding = False
        server.clients.add(self)
        server.half_open += 1

    @property
    def is_sending(self) -> bool:
        """Whether the peer has not acknowledged all data."""
        streams = cast(Any, self._quic)._streams
        return any(
            not stream.sender.is_finished
            for stream in streams.values()
            if stream.sender is not None
        )

    def _on_handshake(self, name: str) -> None:
        server = self._server
        server.half_open -= 1
        peer = RemotePeer(format_address(self._quic.get_peer_address()), name)
        self.rpc = RpcServer(server.handler, peer, self._respond, self._hold, server.relay)

    def _on_data(self, stream: int, data: bytes, is_end: bool) -> None:
        # A new stream is a request: clients open no others.
        if stream not in self._receiving:
            self._receiving.add(stream)
            self._open.add(stream)
            self._incomplete[stream] = (Assembler(), self._loop.time())
        if is_end:
            self._receiving.discard(stream)
        super()._on_data(stream, data, is_end)

    def _on_frame(self, stream: int, payload: bytes) -> None:
        if self._is_holding:
            self._send_error(
                stream, "busy", "the requests in progress take too much memory; try again later"
            )
        elif self.rpc is not None:
            self.rpc.receive(payload, stream)

    def _on_stream_error(self, stream: int, reason: str) -> None:
        log.warning("%s: a request was dropped: %s", self._name(), reason)
        self._stop(stream)
        self._send_error(stream, "invalid_request", reason)

    def _on_stop_sending(self, stream: int) -> None:
        self._open.discard(stream)
        self._incomplete.pop(stream, None)
        if self.rpc is not None:
            self.rpc.cancel(stream)

    def _on_reset(self, stream: int) -> None:
        # Otherwise the response is on its way already.
        if stream in self._open or stream not in self._receiving:
            # Our direction of the stream must end as well.
            self._quic.reset_stream(stream, CANCELLED)
            self._transmit_soon()
            self._on_stop_sending(stream)
        self._receiving.discard(stream)

    def _send_error(self, stream: int, code: str, message: str) -> None:
        self._respond(stream, error_response("", code, message).SerializeToString())

    def _respond(self, key: Hashable, payload: bytes | None) -> None:
        """Send a response and the end of the stream, in one call; None: the end alone."""
        stream = cast(int, key)
        if stream in self._open and not self._is_ended:
            self._open.discard(stream)
            # The peer may have stopped the stream before the request arrived, or together with it.
            with suppress(RuntimeError, ValueError):
                self._send(stream, b"" if payload is None else encode_frame(payload))

    def _hold(self, is_full: bool) -> None:
        self._is_holding = is_full

    def _on_end(self, code: int, reason: str) -> None:
        self._server.clients.discard(self)
        if not self._is_ready:
            self._server.half_open -= 1
            log.warning("%s was refused: %s", self._name(), describe_end(code, reason))
        if self.rpc is not None:
            self.rpc.close()

    def _name(self) -> str:
        address = self._quic.get_peer_address()
        return f"{self._server.address}: {format_address(address) if address else 'a client'}"
