"""RPC connections over QUIC: the server side, which answers requests.

listen_for_links() (link.py) calls listen_quic_links(). quic_link.py has the client side, and
quic_connection.py the code that both sides share. A request is handled as soon as its frame is
complete, because Go programs may send the end of the stream later.

Anybody can begin handshakes, even with forged addresses. So there are two limits for the number of
handshakes that are not finished:

- Above MAX_UNPROVEN, a new client must first answer a Retry packet, which proves its address.
  Before this answer, the server stores nothing for the client.
- Above MAX_HALF_OPEN, each new handshake ends the oldest handshake. This hits attackers only: a
  real client finishes its handshake within one round trip, before it becomes the oldest.

Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC"; RFC 9000, section
8.1.2 for Retry.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any, cast

from concertino.installation import missing_extra
from concertino.orchestra.certificates import CertificateError, Certificates
from concertino.orchestra.frames import Assembler, encode_frame
from concertino.orchestra.handshake import (
    CurrentIdentity,
    QuicConnection,
    enlarge_datagrams,
    ensure_strict,
    make_configuration,
    require_peer_certificate,
)
from concertino.orchestra.quic_connection import (
    CANCELLED,
    SENDING,
    QuicRpcConnection,
    describe_end,
)
from concertino.orchestra.refusal_log import RefusalLog
from concertino.orchestra.rpc_interface import (
    RelayHandler,
    RemotePeer,
    RequestHandler,
    RpcListener,
    error_response,
)
from concertino.orchestra.rpc_server import RpcServer
from concertino.orchestra.udp import Address, UdpSocket, resolve_udp, split_quic_address
from concertino.transports.sockets import format_address

try:
    from aioquic.asyncio.server import QuicServer
    from aioquic.quic.packet import PACKET_LONG_HEADER
    from aioquic.quic.retry import QuicRetryTokenHandler
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = ["listen_quic_links"]

log = logging.getLogger("concertino.orchestra")

# Limit for connections whose handshake is finished.
MAX_CONNECTIONS = 1024
# Limits for unfinished handshakes; see the docstring of this module.
MAX_UNPROVEN, MAX_HALF_OPEN = 32, 512
# How long Retry packets are sent after MAX_UNPROVEN was reached, in seconds. The first message of a
# client may need several datagrams. If Retry packets ended after the first of these datagrams, the
# second would begin another handshake, which the client does not continue.
RETRY_S = 1.0
# Length of the connection ids that the server chooses: aioquic's default.
CONNECTION_ID_BYTES = 8
# While the listener closes, the time between two checks whether the peers have acknowledged all
# responses, in seconds.
CLOSE_POLL_S = 0.005


async def listen_quic_links(
    address: str,
    handler: RequestHandler,
    relay: RelayHandler | None,
    certificates: Certificates,
    name: str,
    admits: Callable[[str], bool] | None,
) -> RpcListener:
    """Listen at an address, and handle the requests that arrive.

    address: HOST:PORT; port 0 for a free port.
    handler: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. If it returns None,
        `handler` handles the request. None if every request goes to `handler`.
    certificates: the directory of certificates.
    name: the name of this side's certificate.
    admits: called with the name in a client's verified certificate. Returns whether this client may
        connect. None admits every client with a valid certificate.
    Raises OSError if the address cannot be used, ValueError if it is malformed, and
    CertificateError if this side has no valid certificate.
    """
    # Test once in this process that clients without a certificate are refused.
    ensure_strict()
    host, port = split_quic_address(address)
    current = CurrentIdentity(certificates, name)
    try:
        family, resolved = await resolve_udp(host, port, socket.AI_PASSIVE)
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.bind(resolved)
            # For port 0, the system has chosen the port.
            actual_address = format_address((host, sock.getsockname()[1]))
            server = _QuicRpcServer(actual_address, handler, relay, current, admits)
        except BaseException:
            sock.close()
            raise
    except OSError as exc:
        raise OSError(exc.errno, f"{address}: {exc.strerror}") from None
    UdpSocket(sock, server)
    return _QuicRpcListener(server)


class _QuicRpcListener:
    """An RpcListener at a UDP socket.

    server: aioquic's server, with the connections of all clients. Each connection has an RpcServer.
    """

    def __init__(self, server: _QuicRpcServer) -> None:
        self.server = server

    @property
    def address(self) -> str:
        return self.server.address

    async def close(self, drain_s: float = 0.0) -> None:
        """Accept no more connections, wait up to drain_s seconds for responses, and disconnect."""
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

        # Wait until the peers have acknowledged the responses. Poll, because aioquic reports no
        # event for this.
        while loop.time() < deadline and server.is_sending:  # noqa: ASYNC110
            await asyncio.sleep(CLOSE_POLL_S)
        for client in list(server.clients):
            client.disconnect("", "nothing is answered here any more")
        server.close()
        server.refusals.report_end(server.address)


class _QuicRpcServer(QuicServer):
    """aioquic's server with a renewable certificate, limits, and an orderly end.

    address: the address at which the server listens, HOST:PORT with the actual port.
    handler: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `handler`.
    current: the certificate of this process, which may be renewed while the server listens.
    admits: called with the name in a client's certificate. Returns whether the client may connect.
        None admits every client with a valid certificate.
    """

    def __init__(
        self,
        address: str,
        handler: RequestHandler,
        relay: RelayHandler | None,
        current: CurrentIdentity,
        admits: Callable[[str], bool] | None,
    ) -> None:
        first = make_configuration("server", current.identity())
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            configuration=first, create_protocol=cast(Any, self._create_connection)
        )
        self.handler = handler
        self.relay = relay
        self.address = address
        # Whether the listener is closing. New connections are then refused.
        self.is_closing = False
        self.clients: set[_QuicServerConnection] = set()
        # The clients whose handshake is not finished, the oldest first.
        self.half_open: dict[_QuicServerConnection, None] = {}
        self.refusals = RefusalLog()
        self._current = current
        self._admits = admits
        # Makes and checks the tokens in Retry packets.
        self._tokens = QuicRetryTokenHandler()
        # Until when Retry packets are sent, by the loop's clock.
        self._retry_until = 0.0

    @property
    def rpc_servers(self) -> list[RpcServer]:
        """The RpcServer of each client whose handshake is finished."""
        return [client.rpc for client in self.clients if client.rpc is not None]

    @property
    def is_sending(self) -> bool:
        """Whether at least one client has not acknowledged all data."""
        return any(client.is_sending for client in self.clients)

    def datagrams_received(self, datagrams: Iterator[tuple[bytes, Address]]) -> None:
        """Handle the datagrams that have arrived, and then send the answers. UdpSocket calls it."""
        with SENDING:
            for data, address in datagrams:
                self.datagram_received(data, address)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        """Pass a datagram to its connection, or begin a handshake with a new client.

        data: the content of the datagram.
        addr: the address of its sender.
        """
        data = cast(bytes, data)
        # After the handshake, clients send packets with a short header. Find the connection by the
        # connection id in this header. aioquic's server would parse the whole header, which the
        # connection parses again.
        if not data or not data[0] & PACKET_LONG_HEADER:
            connection = self._protocols.get(data[1 : 1 + CONNECTION_ID_BYTES])
            if connection is not None:
                connection.datagram_received(data, addr)
            return

        now = asyncio.get_running_loop().time()
        if len(self.half_open) >= MAX_UNPROVEN:
            self._retry_until = now + RETRY_S
        # Also check the token of a client that got its Retry packet when there were more
        # handshakes. Its handshake would fail otherwise.
        is_retry = now < self._retry_until or _has_token(data)
        # While this attribute is set, aioquic's server answers new clients with Retry packets, and
        # checks tokens.
        self._retry = self._tokens if is_retry else None
        try:
            super().datagram_received(data, addr)
        except _ConnectionLimit as exc:
            self.refusals.add(f"{self.address}: refused {format_address(addr)}: {exc}")

    def _create_connection(self, quic: QuicConnection, stream_handler: object) -> QuicRpcConnection:
        """Return the object for a new connection. Raises _ConnectionLimit to refuse the connection.

        aioquic's server calls this method for the first packet of a client.
        """
        if self.is_closing:
            raise _ConnectionLimit("the listener is closing")
        if len(self.clients) - len(self.half_open) >= MAX_CONNECTIONS:
            raise _ConnectionLimit(f"{MAX_CONNECTIONS} connections are open, which is the limit")
        if len(self.half_open) >= MAX_HALF_OPEN:
            oldest = next(iter(self.half_open))
            oldest.disconnect("", "it began a handshake and others waited for its place")
        try:
            identity = self._current.identity()
        except CertificateError as exc:
            raise _ConnectionLimit(str(exc)) from None
        require_peer_certificate(quic, identity, self._check_name)
        return _QuicServerConnection(quic, self)

    def _check_name(self, name: str) -> str | None:
        """Return why a client is refused; None to accept the client.

        name: the name in the client's certificate.
        """
        if self._admits is None or self._admits(name):
            return None
        return f"{name!r} may not come in here"


def _has_token(data: bytes) -> bool:
    """Return whether an Initial packet, the first packet of a handshake, has a token.

    For other packets, the result means nothing. Source: RFC 9000 section 17.2.2.
    """
    try:
        # Byte 5 is the length of the destination connection id. After this id come the length of
        # the source connection id, that id, and the length of the token.
        source_id = 6 + data[5]
        return data[source_id + 1 + data[source_id]] != 0
    except IndexError:
        return False


class _ConnectionLimit(Exception):
    """The server refuses a new connection before its handshake; the text says why."""


class _QuicServerConnection(QuicRpcConnection):
    """The server's side of one connection.

    server: the listener that has accepted the connection.

    Attribute:
    rpc: handles the requests; None until the handshake is finished.
    """

    def __init__(self, quic: QuicConnection, server: _QuicRpcServer) -> None:
        super().__init__(quic)
        self.rpc: RpcServer | None = None
        self._server = server
        # The streams whose last response was not sent yet.
        self._open: set[int] = set()
        # The streams on which data has arrived, but not the end.
        self._receiving: set[int] = set()
        # Whether the requests in progress take too much memory, so that new ones are refused.
        self._is_holding = False
        server.clients.add(self)
        server.half_open[self] = None

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
        enlarge_datagrams(self._quic)
        server = self._server
        server.half_open.pop(self, None)
        peer = RemotePeer(format_address(self._quic.get_peer_address()), name)
        self.rpc = RpcServer(
            server.handler,
            peer,
            respond=self._respond,
            hold=self._hold,
            unread=self._unread_bytes,
            relay=server.relay,
        )

    def _on_data(
        self,
        stream: int,
        data: bytes,
        is_end: bool,
    ) -> None:
        # This is the first data of a new stream, which the client has opened for a request. After
        # the end of a stream, aioquic reports no more data on it.
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
        # End this side's direction of the stream as well, unless the last response has ended it
        # already. A stream that is not in _receiving was reset before any data arrived on it,
        # because aioquic reports no reset after the end of a stream.
        if stream in self._open or stream not in self._receiving:
            self._quic.reset_stream(stream, CANCELLED)
            self._transmit_soon()
            self._on_stop_sending(stream)
        self._receiving.discard(stream)

    def _send_error(
        self,
        stream: int,
        code: str,
        message: str,
    ) -> None:
        self._respond(stream, error_response("", code, message).SerializeToString(), True)

    def _respond(self, key: Hashable, payload: bytes | None, is_last: bool) -> None:
        """Send a response on the stream of its request. RpcServer calls this.

        key: the number of the stream.
        payload: None if the request gets no response.
        is_last: whether to end the stream.
        """
        stream = cast(int, key)
        if stream in self._open and not self._is_ended:
            if is_last:
                self._open.discard(stream)
            # aioquic raises these errors if the peer has sent STOP_SENDING for the stream.
            with suppress(RuntimeError, ValueError):
                self._send(stream, b"" if payload is None else encode_frame(payload), is_last)

    def _unread_bytes(self) -> int:
        """Return how many bytes of responses the peer has not acknowledged."""
        streams = cast(Any, self._quic)._streams
        return sum(len(stream.sender._buffer) for stream in streams.values() if stream.sender)

    def _hold(self, is_full: bool) -> None:
        self._is_holding = is_full

    def _on_end(self, code: int, reason: str) -> None:
        self._server.clients.discard(self)
        if not self._is_ready:
            self._server.half_open.pop(self, None)
            self._server.refusals.add(f"{self._name()} was refused: {describe_end(code, reason)}")
        if self.rpc is not None:
            self.rpc.close()

    def _name(self) -> str:
        """Return the addresses of the listener and of the client, for messages."""
        address = self._quic.get_peer_address()
        client = format_address(address) if address else "a client"
        return f"{self._server.address}: {client}"
