"""Links over QUIC, for other machines and for upstream's programs: one bidirectional stream for each request.

A request is one frame and the end of the stream, in one call: quic-go gives a stream's credit back only when it has read the end,
and overlooks an end that comes in a later packet than the last byte, so that a connection would stall after 100 requests. A request
is answered as soon as its frame is complete, since upstream's end may come later. A cancelled request is a reset of its stream.
What the connections of both ends have in common is in streams.py.

All of it runs on the loop of whoever asks or answers; decision 0013 says why not beside it. aioquic sends some sixteen datagrams at
a time and is given one, so the loop turns within milliseconds whatever the size of a message.
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
from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, framed
from concertino.orchestra.handshake import (
    CRYPTO_ERROR,
    CurrentIdentity,
    QuicConnection,
    configuration,
    ensure_strict,
    secure,
)
from concertino.orchestra.link import (
    CLOSED,
    Answer,
    ConnectionRefused,
    LinkListener,
    Relay,
    RemotePeer,
    refusal,
)
from concertino.orchestra.quic_connection import CANCELLED, QuicRpcConnection, reason
from concertino.orchestra.rpc import RpcClient, RpcServer
from concertino.transports.listeners import split_address
from concertino.transports.sockets import format_address

from aioquic.asyncio.server import QuicServer  # isort: skip
from aioquic.quic import events  # isort: skip
from aioquic.quic.retry import QuicRetryTokenHandler  # isort: skip

__all__ = ["connect_quic", "listen_quic"]

log = logging.getLogger("concertino.orchestra")

SOCKET_BYTES = 4 * 2**20  # of a socket's buffers; the system may give less
MAX_DATAGRAM_BYTES = 2**16  # of UDP
MAX_CONNECTIONS = 256
HALF_OPEN = 32  # connections without a handshake, before an address must prove itself
MAX_LEAVING_BYTES = 4 * MAX_FRAME_BYTES  # of requests without a response, before further ones wait


# The asking end


async def connect_quic(
    address: str, certificates: Certificates, name: str, expects: str | None, timeout_s: float
) -> QuicLink:
    """See links.connect."""
    return await dial(address, certificates.identity(name), expects, timeout_s)


async def dial(address: str, identity: Identity, expects: str | None, timeout_s: float) -> QuicLink:
    """The same, with a certificate that is loaded."""
    host, port = _split(address)
    loop = asyncio.get_running_loop()

    def admits(name: str) -> str | None:
        return None if expects in (None, name) else f"{name!r} answers, and not {expects!r}"

    quic = QuicConnection(configuration=configuration("client", identity, host))
    secure(quic, identity, admits)
    try:
        async with asyncio.timeout(timeout_s):
            family, found = await _resolved(host, port)
            asking = _Asking(quic, QuicLink(RemotePeer(address)))
            try:
                # Connected, so that the system says when nobody listens there.
                transport, _ = await loop.create_datagram_endpoint(
                    lambda: asking, remote_addr=found[:2], family=family
                )
                _suited(transport)
                asking.connect(found)
                await asking.entered
            except BaseException:
                asking.entered.cancel()
                asking.leave("client closed", "it was given up")
                raise
            return asking.link
    except TimeoutError:
        raise Disconnected(f"{address}: nobody answers within {timeout_s:g} s") from None
    except OSError as why:
        raise Disconnected(f"{address}: {why.strerror or why}") from None


def _split(address: str) -> tuple[str, int]:
    """Raises ValueError."""
    try:
        return split_address(address)
    except ValueError:
        raise ValueError(
            f"{address!r}: expected HOST:PORT, as in localhost:50100 or [::1]:50100, or unix:PATH"
        ) from None


async def _resolved(
    host: str, port: int, flags: int = 0
) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """The UDP address that a name stands for: the first of IPv4, else the first. flags: of getaddrinfo. Raises OSError.

    As Go chooses, who must be found, and find us, at `localhost`. Source: Go's net.ResolveUDPAddr.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


def _suited(transport: asyncio.DatagramTransport) -> None:
    """Give a UDP socket room for what comes while Python is at work, and a reading of it no more than a datagram can have."""
    sock = transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
    # asyncio would take 256 KiB each time, so much that the allocator asks the system for it: 30 us.
    with suppress(AttributeError):
        cast(Any, transport).max_size = MAX_DATAGRAM_BYTES


class QuicLink(RpcClient):
    """A Link over QUIC."""

    connection: _Asking

    def __init__(self, peer: RemotePeer) -> None:
        super().__init__(peer)
        self._count = 0
        self._sizes: dict[Hashable, int] = {}
        self._leaving = 0

    def _ask(self, payload: bytes, id: bytes) -> Hashable:
        self._count = key = self._count + 1
        self._sizes[key] = len(payload)
        self._leaving += len(payload)
        if self._leaving > MAX_LEAVING_BYTES:
            self._held(True)
        self.connection.ask(key, framed(payload))
        return key

    def _abandon(self, key: Hashable) -> None:
        self.connection.abandon(key)
        self._settled(key)

    def _settled(self, key: Hashable) -> None:
        self._leaving -= self._sizes.pop(key, 0)
        if self._leaving <= MAX_LEAVING_BYTES:
            self._held(False)

    def arrived(self, key: Hashable, payload: bytes) -> None:
        """A response has come."""
        self._settled(key)
        self._delivered(key, payload)

    def failed(self, key: Hashable, why: str) -> None:
        """There will be no response to this one."""
        self._settled(key)
        self._failed(key, ProtocolError(f"{self.peer.address}: no response: {why}"))

    def ended(self, why: str) -> None:
        """The connection is over."""
        self._held(False)
        self._lose(why)

    async def close(self, why: str = CLOSED) -> None:
        self.connection.leave("client closed", why)


class _Asking(QuicRpcConnection):
    """A connection on which we ask. entered: the other side has let us in; or the exception that says why not."""

    def __init__(self, quic: QuicConnection, link: QuicLink) -> None:
        super().__init__(quic)
        link.connection = self
        self.link = link
        self.entered: asyncio.Future[None] = self._loop.create_future()
        self._keys: dict[int, Hashable] = {}
        self._streams: dict[Hashable, int] = {}
        self._queued: dict[
            Hashable, bytes
        ] = {}  # in order; the other side allows no further stream at the moment

    def _opened(self, name: str) -> None:
        self.link.peer = RemotePeer(self.link.peer.address, name)
        # In TLS 1.3 the client is done first; that the server took its certificate shows in this.
        self._quic.send_ping(1)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        super().quic_event_received(event)
        if isinstance(event, events.PingAcknowledged) and not self.entered.done():
            self.entered.set_result(None)

    def _over(self, code: int, why: str) -> None:
        said = reason(code, why)
        if not self.entered.done():
            kind = ConnectionRefused if code in CRYPTO_ERROR else Disconnected
            self.entered.set_exception(kind(f"{self.link.peer.address}: {said}"))
        self._queued.clear()
        self.link.ended(said)
        if self._transport is not None:
            self._transport.close()

    def error_received(self, exc: Exception) -> None:
        """The system says that nobody listens there, by ICMP; a stranger could say so as well, hence only about this machine."""
        address = self._quic.get_peer_address()
        if address is not None and str(address[0]) in ("127.0.0.1", "::1"):
            self._end(0, str(cast(OSError, exc).strerror))

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        super().datagram_received(data, addr)
        if self._queued:
            self._open_queued()

    def ask(self, key: Hashable, frame: bytes) -> None:
        if not self._ended:  # else the link knows, or will soon
            self._queued[key] = frame
            self._open_queued()

    def _open_queued(self) -> None:
        """Send requests for as many streams as there may be.

        aioquic would keep what is beyond them itself, but a stream of that kind cannot be reset: the other side is told of one that
        it has not allowed, and ends the connection.
        """
        allowed = cast(Any, self._quic)._remote_max_streams_bidi
        while self._queued and (stream := self._quic.get_next_available_stream_id()) // 4 < allowed:
            key = next(iter(self._queued))
            frame = self._queued.pop(key)
            self._keys[stream] = key
            self._streams[key] = stream
            self._arriving[stream] = (Assembler(), 0.0)
            self._send(stream, frame)

    def abandon(self, key: Hashable) -> None:
        if self._ended or self._queued.pop(key, None) is not None:
            return
        stream = self._streams.pop(key, None)
        if stream is None:
            return
        del self._keys[stream]
        self._arriving.pop(stream, None)
        self._quic.reset_stream(stream, CANCELLED)
        self._stop(stream)
        self._transmit_soon()

    def _taken(self, stream: int, payload: bytes) -> None:
        key = self._forget(stream)
        if key is not None:
            self.link.arrived(key, payload)

    def _broken(self, stream: int, why: str) -> None:
        key = self._forget(stream)
        self._stop(stream)
        if key is not None:
            self.link.failed(key, why)

    def _forget(self, stream: int) -> Hashable:
        key = self._keys.pop(stream, None)
        if key is not None:
            del self._streams[key]
        return key


# The answering end


async def listen_quic(
    address: str,
    answer: Answer,
    relay: Relay | None,
    certificates: Certificates,
    name: str,
    admits: Callable[[str], bool] | None,
) -> LinkListener:
    """See links.listen."""
    ensure_strict()
    host, port = _split(address)
    current = CurrentIdentity(certificates, name)
    loop = asyncio.get_running_loop()
    try:
        family, found = await _resolved(host, port, socket.AI_PASSIVE)
        transport, server = await loop.create_datagram_endpoint(
            lambda: _Server(host, answer, relay, current, admits),
            local_addr=found[:2],
            family=family,
        )
    except OSError as why:
        raise OSError(why.errno, f"{address}: {why.strerror}") from None
    _suited(transport)
    return _Listening(server)


class _Listening:
    """A UDP socket that QUIC is answered at."""

    def __init__(self, server: _Server) -> None:
        self.server = server

    @property
    def address(self) -> str:
        return self.server.address

    async def close(self, drain_s: float = 0.0) -> None:
        server = self.server
        loop = asyncio.get_running_loop()
        server.is_refusing = True
        deadline = loop.time() + drain_s
        if drain_s and (answering := server.answering):
            _, late = await asyncio.wait(
                [loop.create_task(each.drained()) for each in answering], timeout=drain_s
            )
            for task in late:
                task.cancel()
        # Wait until what was sent has arrived. aioquic tells nobody when something was acknowledged.
        while loop.time() < deadline and any(client.is_sending for client in server.clients):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for client in list(server.clients):
            client.leave("", "nothing is answered here any more")
        server.close()


class _Server(QuicServer):
    """Lets clients in. aioquic's server, with an identity that may change, limits, and an end."""

    def __init__(
        self,
        host: str,
        answer: Answer,
        relay: Relay | None,
        current: CurrentIdentity,
        admits: Callable[[str], bool] | None,
    ) -> None:
        first = configuration("server", current.identity())
        super().__init__(configuration=first, create_protocol=cast(Any, self._created))  # pyright: ignore[reportUnknownMemberType]
        self.answer = answer
        self.relay = relay
        self.address = host
        self.is_refusing = False  # lets nobody in any more
        self.clients: set[_Answering] = set()
        self.half_open = 0
        self._current = current
        self._admits = admits
        self._tokens = QuicRetryTokenHandler()

    @property
    def answering(self) -> list[RpcServer]:
        """Of each client that was let in."""
        return [client.answering for client in self.clients if client.answering is not None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = format_address((self.address, transport.get_extra_info("sockname")[1]))

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        # Many that do not go on with their handshake: from now on an address proves first that it is one.
        self._retry = self._tokens if self.half_open >= HALF_OPEN else None
        try:
            super().datagram_received(data, addr)
        except _Unwelcome as why:
            log.warning("%s: %s was sent away: %s", self.address, format_address(addr), why)

    def _created(self, quic: QuicConnection, stream_handler: object) -> _Answering:
        if self.is_refusing:
            raise _Unwelcome("nobody is let in any more")
        if len(self.clients) >= MAX_CONNECTIONS:
            raise _Unwelcome(f"{MAX_CONNECTIONS} are connected, as many as may be")
        try:
            identity = self._current.identity()
        except CertificateError as why:
            raise _Unwelcome(str(why)) from None
        secure(quic, identity, self._why_not)
        return _Answering(quic, self)

    def _why_not(self, name: str) -> str | None:
        return (
            None if self._admits is None or self._admits(name) else f"{name!r} may not come in here"
        )


class _Unwelcome(Exception):
    """A datagram that opens a connection which there will not be."""


class _Answering(QuicRpcConnection):
    """A connection on which we answer. answering: once it was let in."""

    def __init__(self, quic: QuicConnection, server: _Server) -> None:
        super().__init__(quic)
        self.answering: RpcServer | None = None
        self._server = server
        self._open: set[int] = set()  # streams whose response is awaited
        self._unended: set[int] = set()  # streams of which something has come, and not the end
        self._holding = False
        server.clients.add(self)
        server.half_open += 1

    @property
    def is_sending(self) -> bool:
        """Whether something that was sent may not have arrived."""
        streams = cast(Any, self._quic)._streams
        return any(
            not stream.sender.is_finished
            for stream in streams.values()
            if stream.sender is not None
        )

    def _opened(self, name: str) -> None:
        server = self._server
        server.half_open -= 1
        peer = RemotePeer(format_address(self._quic.get_peer_address()), name)
        self.answering = RpcServer(server.answer, peer, self._give, self._hold, server.relay)

    def _data(self, stream: int, data: bytes, end: bool) -> None:
        if stream not in self._unended:  # clients open no other streams than those of requests
            self._unended.add(stream)
            self._open.add(stream)
            self._arriving[stream] = (Assembler(), self._loop.time())
        if end:
            self._unended.discard(stream)
        super()._data(stream, data, end)

    def _taken(self, stream: int, payload: bytes) -> None:
        if self._holding:
            self._refuse(
                stream, "busy", "the requests that are being answered hold too much memory"
            )
        elif self.answering is not None:
            self.answering.receive(payload, stream)

    def _broken(self, stream: int, why: str) -> None:
        log.warning("%s: a request was dropped: %s", self._name(), why)
        self._stop(stream)
        self._refuse(stream, "invalid_request", why)

    def _unwanted(self, stream: int) -> None:
        self._open.discard(stream)
        self._arriving.pop(stream, None)
        if self.answering is not None:
            self.answering.cancel(stream)

    def _given_up(self, stream: int) -> None:
        if stream in self._open or stream not in self._unended:  # else its response is on its way
            self._quic.reset_stream(stream, CANCELLED)  # nor will the other direction have an end
            self._transmit_soon()
            self._unwanted(stream)
        self._unended.discard(stream)

    def _refuse(self, stream: int, code: str, why: str) -> None:
        self._give(stream, refusal("", code, why).SerializeToString())

    def _give(self, key: Hashable, payload: bytes | None) -> None:
        """Send a response and the end, in one call; without one, the end alone."""
        stream = cast(int, key)
        if stream in self._open and not self._ended:
            self._open.discard(stream)
            # That it is not wanted may have come before the request, or with it and not be told yet.
            with suppress(RuntimeError, ValueError):
                self._send(stream, b"" if payload is None else framed(payload))

    def _hold(self, held: bool) -> None:
        self._holding = held

    def _over(self, code: int, why: str) -> None:
        self._server.clients.discard(self)
        if not self._ready:
            self._server.half_open -= 1
            log.warning("%s was refused: %s", self._name(), reason(code, why))
        if self.answering is not None:
            self.answering.close()

    def _name(self) -> str:
        address = self._quic.get_peer_address()
        return f"{self._server.address}: {format_address(address) if address else 'somebody'}"
