"""RPC connections over QUIC: the client side, which sends requests.

Hubs, plugins and bridges send each other requests. They use QUIC between different machines, and
between this package and Go programs. open_link() (link.py) calls open_quic_link(). quic_listener.py
has the server side, and quic_connection.py the code that both sides share.

A QuicLink implements the interface ForwardingConnection (rpc_interface.py): it matches responses to
requests, and limits the bytes of the requests without a response. Its _QuicClientConnection has the
socket, the handshake and the streams.

Each request uses a new stream. A request and the end of its stream must be sent in one call. The
reason is quic-go, the library of Go programs: it overlooks an end that arrives in a later packet
than the last byte, counts the stream as open forever, and allows no new streams after 100 requests.
Cancelling a request resets its stream.

Everything runs on the caller's event loop, not in a thread (decision 0013). Even a large message
blocks the loop for a few milliseconds only, because aioquic sends about sixteen datagrams at a
time, and udp.py receives for at most two milliseconds.
Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC"; RFC 9000.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Hashable, Iterator
from math import inf
from typing import Any, cast

from concertino.errors import Disconnected, ProtocolError
from concertino.installation import missing_extra
from concertino.orchestra.certificates import Certificates, Identity
from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, encode_frame
from concertino.orchestra.handshake import (
    CRYPTO_ERROR,
    QuicConnection,
    enlarge_datagrams,
    make_configuration,
    require_peer_certificate,
)
from concertino.orchestra.plugin_messages import PluginRequest, StreamCancel
from concertino.orchestra.quic_connection import (
    CANCELLED,
    SENDING,
    QuicRpcConnection,
    describe_end,
)
from concertino.orchestra.rpc_client import RpcClient
from concertino.orchestra.rpc_interface import CLOSED, HandshakeFailure, RemotePeer
from concertino.orchestra.udp import Address, UdpSocket, resolve_udp, split_quic_address
from concertino.transports.addresses import is_loopback

try:
    from aioquic.quic import events
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = ["connect_with_identity", "open_quic_link"]

# If the requests without a response have more bytes together, new requests wait.
MAX_PENDING_BYTES = 4 * MAX_FRAME_BYTES


async def open_quic_link(
    address: str,
    certificates: Certificates,
    name: str,
    expects: str | None,
    timeout_s: float,
) -> QuicLink:
    """Connect to the listener at an address, and return the connection.

    address: HOST:PORT.
    certificates: the directory of certificates.
    name: the name of the certificate with which this process identifies itself.
    expects: the name that the listener's certificate must contain; None accepts any name. The
        certificate must also be valid for the host in the address.
    timeout_s: how long to wait for the listener's first answer, in seconds.
    Raises Disconnected when there is no answer in time, HandshakeFailure when one side refuses the
    other, ValueError for a malformed address, and CertificateError if this process has no valid
    certificate.
    """
    return await connect_with_identity(address, certificates.identity(name), expects, timeout_s)


async def connect_with_identity(
    address: str,
    identity: Identity,
    expects: str | None,
    timeout_s: float,
) -> QuicLink:
    """Connect to the listener at an address, with a certificate that was loaded already.

    address, expects, timeout_s: as in open_quic_link().
    identity: this process's certificate and key.
    Raises Disconnected when there is no answer in time, HandshakeFailure when one side refuses the
    other, and ValueError for a malformed address.
    """
    host, port = split_quic_address(address)

    def check_name(name: str) -> str | None:
        if expects is None or name == expects:
            return None
        return f"{name!r} answers, and not {expects!r}"

    quic = QuicConnection(configuration=make_configuration("client", identity, host))
    require_peer_certificate(quic, identity, check_name)
    try:
        async with asyncio.timeout(timeout_s):
            family, resolved = await resolve_udp(host, port)
        connection = _QuicClientConnection(quic, QuicLink(RemotePeer(address)))
        try:
            connection.open_socket(family, resolved)
            await connection.wait_ready(timeout_s)
        except BaseException:
            # Nobody awaits the future any more, so it must not get an exception.
            connection.ready.cancel()
            connection.disconnect("client closed", "it was given up")
            raise
        return connection.link
    except TimeoutError:
        raise Disconnected(f"{address}: nobody answers within {timeout_s:g} s") from None
    except OSError as exc:
        raise Disconnected(f"{address}: {exc.strerror or exc}") from None


class QuicLink(RpcClient):
    """Sends requests over one QUIC connection, and passes each response to its request.

    It implements ForwardingConnection (rpc_interface.py). The *key* of a request, which identifies
    the request on the connection, is a number: 1 for the first request.

    peer: the process that answers the requests.

    Attribute:
    connection: the QUIC connection. The _QuicClientConnection sets this attribute when it is
        created, and calls the on_... methods.
    """

    connection: _QuicClientConnection

    def __init__(self, peer: RemotePeer) -> None:
        super().__init__(peer)
        self._count = 0
        # Key of each request without a response -> its size in bytes.
        self._sizes: dict[Hashable, int] = {}
        # The sum of these sizes.
        self._pending_bytes = 0

    def _send_request(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        # `id` and `deadline` are for other transports. Here, the QUIC stream identifies a request.
        self._count = key = self._count + 1
        self._sizes[key] = len(payload)
        self._pending_bytes += len(payload)
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._set_backpressure(True)
        self.connection.send_request(key, encode_frame(payload))
        return key

    def _send_cancel(self, key: Hashable, stream: str = "") -> None:
        self.connection.cancel_request(key)
        self._release(key)
        if stream:
            # `stream` is the id of a stream of the plugin protocol. A Go program does not end it
            # when its QUIC stream is reset, but when it gets a StreamCancel, a request on another
            # QUIC stream.
            cancel = PluginRequest(stream_cancel=StreamCancel(stream_id=stream))
            self._send_request(cancel.SerializeToString(), b"", inf)

    def _release(self, key: Hashable) -> None:
        """Stop counting the bytes of a request, because it has a response or was cancelled."""
        self._pending_bytes -= self._sizes.pop(key, 0)
        if self._pending_bytes <= MAX_PENDING_BYTES:
            self._set_backpressure(False)

    def on_response(self, key: Hashable, payload: bytes) -> None:
        """Handle a serialized response to the request with this key."""
        self._release(key)
        self._on_response(key, payload)

    def on_stream_error(self, key: Hashable, reason: str) -> None:
        """Make a request fail, because no response will arrive on its QUIC stream.

        reason: why no response will arrive, for the error.
        """
        self._release(key)
        self._fail_request(key, ProtocolError(f"{self.peer.address}: no response: {reason}"))

    def on_end(self, reason: str) -> None:
        """Make all pending requests fail, because the connection has ended.

        reason: why the connection has ended, for the errors.
        """
        self._set_backpressure(False)
        self._end_connection(reason)

    async def close(self, reason: str = CLOSED) -> None:
        """Close the connection. Pending requests raise Disconnected with this reason."""
        self.connection.disconnect("client closed", reason)


class _QuicClientConnection(QuicRpcConnection):
    """The QUIC connection of a QuicLink. It sends each request on a new stream.

    link: the QuicLink, whose on_... methods this object calls.

    Attribute:
    ready: a future that is done when the server has accepted this client. If the server refuses the
        client, the future has an exception.
    """

    def __init__(self, quic: QuicConnection, link: QuicLink) -> None:
        super().__init__(quic)
        link.connection = self
        self.link = link
        self.ready: asyncio.Future[None] = self._loop.create_future()
        # Number of a stream -> key of its request, until the last response is complete.
        self._keys: dict[int, Hashable] = {}
        # Key of a request -> number of its stream: the inverse of _keys.
        self._streams: dict[Hashable, int] = {}
        # Key -> frame, for each request that waits until the server allows another stream, in
        # order.
        self._queue: dict[Hashable, bytes] = {}

    def open_socket(self, family: socket.AddressFamily, address: Address) -> None:
        """Open the UDP socket, and begin the handshake.

        family, address: the address of the server, from resolve_udp().
        Raises OSError if the socket cannot be opened or connected.
        """
        # On a connected socket, the system reports an error if no process listens at the port.
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        UdpSocket(sock, self)
        self.connect(address)

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until the server has accepted this client.

        timeout_s: the time limit for the server's first packet, in seconds. Then the rest of the
            handshake may take HANDSHAKE_S (15 s).
        Raises TimeoutError if no packet arrives in time, HandshakeFailure if one side refuses the
        other, and Disconnected if the connection ends.
        """
        start = self._last_received
        await asyncio.wait((self.ready,), timeout=timeout_s)
        if not self.ready.done() and self._last_received == start:
            raise TimeoutError
        # A server with hundreds of handshakes sends its first packet, a Retry packet, at once, but
        # the other packets late.
        await self.ready

    def datagrams_received(self, datagrams: Iterator[tuple[bytes, Address]]) -> None:
        """Handle the datagrams that have arrived, and then send the answers. UdpSocket calls it."""
        with SENDING:
            for data, address in datagrams:
                self.datagram_received(data, address)

    def _on_handshake(self, name: str) -> None:
        self.link.peer = RemotePeer(self.link.peer.address, name)
        # In TLS 1.3, the handshake is finished for the client before the server has checked the
        # client's certificate. The server acknowledges this ping, or a later one of _on_tick(),
        # only after the check. So it does not matter which ping is acknowledged.
        self._quic.send_ping(1)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        super().quic_event_received(event)
        # The server has acknowledged a ping, so it has accepted this client: see _on_handshake().
        if isinstance(event, events.PingAcknowledged) and not self.ready.done():
            enlarge_datagrams(self._quic)
            self.ready.set_result(None)

    def _on_end(self, code: int, reason: str) -> None:
        """Fail the handshake or all requests, and close the socket."""
        text = describe_end(code, reason)
        if not self.ready.done():
            # These codes stand for TLS alerts: one side has refused the other.
            error_type = HandshakeFailure if code in CRYPTO_ERROR else Disconnected
            self.ready.set_exception(error_type(f"{self.link.peer.address}: {text}"))
        self._queue.clear()
        self.link.on_end(text)
        if self._transport is not None:
            self._transport.close()

    def error_received(self, exc: Exception) -> None:
        """End the connection if the server is on this machine and no process listens at its port.

        exc: the OSError with which the system reports this.
        """
        address = self._quic.get_peer_address()
        # A report about another machine comes from an ICMP packet, which anybody could forge.
        if address is not None and is_loopback(str(address[0])):
            self._report_end(0, str(cast(OSError, exc).strerror))

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        super().datagram_received(data, addr)
        if self._queue:
            self._open_streams()

    def send_request(self, key: Hashable, frame: bytes) -> None:
        """Send a request as soon as the server allows another stream. Does not wait.

        key: the key of the request.
        frame: the request as a frame (frames.py).
        """
        # After the end of the connection, do nothing: QuicLink.on_end() has failed all requests.
        if not self._is_ended:
            self._queue[key] = frame
            self._open_streams()

    def _open_streams(self) -> None:
        """Send queued requests while the server allows more streams."""
        # aioquic has a queue for this, too. But if a request in that queue were cancelled, aioquic
        # would reset a stream that the server has not allowed yet, and the server would end the
        # connection.
        allowed = cast(Any, self._quic)._remote_max_streams_bidi
        # Stream numbers of one kind differ by four; see RFC 9000, section 2.1.
        while self._queue and (stream := self._quic.get_next_available_stream_id()) // 4 < allowed:
            key = next(iter(self._queue))
            frame = self._queue.pop(key)
            self._keys[stream] = key
            self._streams[key] = stream
            # 0.0 means no time limit for frames. The time limit of the request is enough.
            self._incomplete[stream] = (Assembler(), 0.0)
            self._send(stream, frame)

    def cancel_request(self, key: Hashable) -> None:
        """Cancel the request with this key: remove it from the queue, or reset its stream."""
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

    def _expects_more(self, stream: int) -> bool:
        return stream in self._keys and self.link.is_pending(self._keys[stream])

    def _on_frame(self, stream: int, payload: bytes) -> None:
        key = self._keys.get(stream)
        if key is not None:
            self.link.on_response(key, payload)
            if not self._expects_more(stream):
                self._forget(stream)
                self._incomplete.pop(stream, None)

    def _on_stream_error(self, stream: int, reason: str) -> None:
        key = self._forget(stream)
        self._stop(stream)
        if key is not None:
            self.link.on_stream_error(key, reason)

    def _forget(self, stream: int) -> Hashable:
        """Forget the request of a stream, and return its key; None if there is none."""
        key = self._keys.pop(stream, None)
        if key is not None:
            del self._streams[key]
        return key
