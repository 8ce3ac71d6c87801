"""Links over QUIC, for other machines and for upstream's programs: one bidirectional stream for each request.

A request is one frame and the end of the stream, in one call: quic-go gives a stream's credit back only when it has read the end,
and overlooks an end that comes in a later packet than the last byte, so that a connection would stall after 100 requests. A request
is answered as soon as its frame is complete, since upstream's end may come later. A cancelled request is a reset of its stream.
What the connections of both ends have in common is in streams.py.

Two threads: classes whose names begin with _Net live in the network's, the others with whoever asks or answers. Neither calls the
other but through `Across`. Frames pass from one to the other whole.
Sources: the Orchestra plugin protocol, "One bidirectional QUIC stream per RPC"; RFC 9000.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Hashable
from typing import Any, cast

from concertino.errors import Disconnected, ProtocolError
from concertino.orchestra.certificates import CertificateError, Certificates, Identity
from concertino.orchestra.ends import Answering, Calling
from concertino.orchestra.frames import MAX_FRAME_BYTES, Assembler, framed
from concertino.orchestra.handshake import (
    CRYPTO_ERROR,
    CurrentIdentity,
    QuicConnection,
    configuration,
    ensure_strict,
    secure,
)
from concertino.orchestra.links import Answer, Listening, Peer, Refused, Relay, refusal
from concertino.orchestra.network import Across, enlarge, network, resolved, run_there
from concertino.orchestra.streams import CANCELLED, NetConnection, reason
from concertino.transports.listeners import split_address
from concertino.transports.sockets import shown

from aioquic.asyncio.server import QuicServer  # isort: skip
from aioquic.quic import events  # isort: skip
from aioquic.quic.retry import QuicRetryTokenHandler  # isort: skip

__all__ = ["connect_quic", "listen_quic"]

log = logging.getLogger("concertino.orchestra")

MAX_CONNECTIONS = 256
HALF_OPEN = 32  # connections without a handshake, before an address must prove itself
MAX_LEAVING_BYTES = 4 * MAX_FRAME_BYTES  # of requests without a response, before further ones wait


# The asking end


async def connect_quic(
    address: str, certificates: Certificates, name: str, expects: str | None, timeout_s: float
) -> QuicLink:
    """See links.connect."""
    host, port = _split(address)
    identity = certificates.identity(name)
    link = QuicLink(Peer(address))
    link.net = await run_there(_dial(link, host, port, identity, expects, timeout_s))
    link.peer = Peer(address, link.net.name)
    return link


def _split(address: str) -> tuple[str, int]:
    """Raises ValueError."""
    try:
        return split_address(address)
    except ValueError:
        raise ValueError(
            f"{address!r}: expected HOST:PORT, as in localhost:50100 or [::1]:50100, or unix:PATH"
        ) from None


async def _dial(
    link: QuicLink, host: str, port: int, identity: Identity, expects: str | None, timeout_s: float
) -> _NetAsking:
    loop = asyncio.get_running_loop()
    address = link.peer.address

    def admits(name: str) -> str | None:
        return None if expects in (None, name) else f"{name!r} answers, and not {expects!r}"

    quic = QuicConnection(configuration=configuration("client", identity, host))
    secure(quic, identity, admits)
    try:
        async with asyncio.timeout(timeout_s):
            family, found = await resolved(host, port)
            # Connected, so that the system says when nobody listens there.
            transport, net = await loop.create_datagram_endpoint(
                lambda: _NetAsking(quic, link, Across(link.loop)), remote_addr=found[:2], family=family
            )
            enlarge(transport)
            try:
                net.connect(found)
                await net.entered
            except BaseException:
                net.close()
                transport.close()
                raise
            return net
    except TimeoutError:
        raise Disconnected(f"{address}: nobody answers within {timeout_s:g} s") from None
    except OSError as why:
        raise Disconnected(f"{address}: {why.strerror or why}") from None


class QuicLink(Calling):
    """A Link over QUIC."""

    net: _NetAsking

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self._there = Across(network())
        self._count = 0
        self._sizes: dict[Hashable, int] = {}
        self._leaving = 0

    def _ask(self, payload: bytes, id: bytes) -> Hashable:
        self._count = key = self._count + 1
        self._sizes[key] = len(payload)
        self._leaving += len(payload)
        if self._leaving > MAX_LEAVING_BYTES:
            self._held(True)
        self._there(self.net.ask, key, framed(payload))
        return key

    def _abandon(self, key: Hashable) -> None:
        self._there(self.net.abandon, key)
        self._settled(key)

    def _settled(self, key: Hashable) -> None:
        self._leaving -= self._sizes.pop(key, 0)
        if self._leaving <= MAX_LEAVING_BYTES:
            self._held(False)

    def arrived(self, key: Hashable, payload: bytes) -> None:
        """A response has come, or none will: then the payload is empty and key was failed."""
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

    async def close(self) -> None:
        if not self.lost.done():
            self._there(self.net.leave)
            await asyncio.wait((self.lost,))


class _NetAsking(NetConnection):
    """A connection on which we ask. entered: the other side has let us in; or the exception that says why not."""

    def __init__(self, quic: QuicConnection, link: QuicLink, across: Across) -> None:
        super().__init__(quic, across)
        self._link = link
        self._keys: dict[int, Hashable] = {}
        self._streams: dict[Hashable, int] = {}
        self._queued: dict[Hashable, bytes] = {}  # in order; the other side allows no further stream at the moment
        self._leaving = False
        self.name = ""
        self.entered: asyncio.Future[None] = self._loop.create_future()

    def _opened(self, name: str) -> None:
        self.name = name
        # In TLS 1.3 the client is done first; that the server took its certificate shows in this.
        self._quic.send_ping(1)

    def quic_event_received(self, event: events.QuicEvent) -> None:
        super().quic_event_received(event)
        if isinstance(event, events.PingAcknowledged) and not self.entered.done():
            self.entered.set_result(None)

    def _over(self, code: int, why: str) -> None:
        said = reason(code, why)
        if not self.entered.done():
            kind = Refused if code in CRYPTO_ERROR else Disconnected
            self.entered.set_exception(kind(f"{self._link.peer.address}: {said}"))
        self._across(self._link.ended, "the link was closed" if self._leaving else said)
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
            self._quic.send_stream_data(stream, frame, end_stream=True)
            self._transmit_soon()

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

    def leave(self) -> None:
        self._leaving = True
        self.close(error_code=0, reason_phrase="client closed")
        self._end(0, "")

    def _taken(self, stream: int, payload: bytes) -> None:
        key = self._forget(stream)
        if key is not None:
            self._across(self._link.arrived, key, payload)

    def _broken(self, stream: int, why: str) -> None:
        key = self._forget(stream)
        self._stop(stream)
        if key is not None:
            self._across(self._link.failed, key, why)

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
) -> Listening:
    """See links.listen."""
    ensure_strict()
    host, port = _split(address)
    current = CurrentIdentity(certificates, name)
    listening = _Listening(answer, relay)
    try:
        await run_there(listening.open(host, port, current, admits))
    except OSError as why:
        raise OSError(why.errno, f"{address}: {why.strerror}") from None
    return listening


class _Listening:
    """A UDP socket that QUIC is answered at."""

    def __init__(self, answer: Answer, relay: Relay | None) -> None:
        self._relay = relay
        self.address = ""
        self.loop = asyncio.get_running_loop()
        self.here = Across(self.loop)
        self._there = Across(network())
        self._answer = answer
        self._answering: dict[_NetAnswering, Answering] = {}
        self._server: _NetServer
        self._transport: asyncio.DatagramTransport

    async def open(self, host: str, port: int, current: CurrentIdentity, admits: Callable[[str], bool] | None) -> None:
        """In the network's thread: take the port."""
        loop = asyncio.get_running_loop()
        family, found = await resolved(host, port, socket.AI_PASSIVE)
        self._transport, self._server = await loop.create_datagram_endpoint(
            lambda: _NetServer(self, current, admits), local_addr=found[:2], family=family
        )
        enlarge(self._transport)
        self.address = shown((host, self._transport.get_extra_info("sockname")[1]))

    def entered(self, net: _NetAnswering, peer: Peer) -> None:
        """Somebody was let in."""

        def respond(key: Hashable, payload: bytes | None) -> None:
            self._there(net.respond, key, None if payload is None else framed(payload))

        def hold(held: bool) -> None:
            self._there(net.hold, held)

        self._answering[net] = Answering(self._answer, peer, respond, hold, self._relay)

    def asked(self, net: _NetAnswering, stream: int, payload: bytes) -> None:
        """A request has come."""
        answering = self._answering.get(net)
        if answering is not None:
            answering.receive(payload, stream)

    def cancelled(self, net: _NetAnswering, stream: int) -> None:
        """A response is not wanted any more."""
        answering = self._answering.get(net)
        if answering is not None:
            answering.cancel(stream)

    def left(self, net: _NetAnswering) -> None:
        """Somebody is gone."""
        answering = self._answering.pop(net, None)
        if answering is not None:
            answering.close()

    async def close(self, drain_s: float = 0.0) -> None:
        self._there(self._server.refuse)
        deadline = self.loop.time() + drain_s
        if drain_s and self._answering:
            waiting = [self.loop.create_task(each.drained()) for each in self._answering.values()]
            _, late = await asyncio.wait(waiting, timeout=drain_s)
            for task in late:
                task.cancel()
        await run_there(self._server.finish(max(0.0, deadline - self.loop.time())))
        for answering in self._answering.values():
            answering.close()
        self._answering.clear()


class _NetServer(QuicServer):
    """Lets clients in. aioquic's server, with an identity that may change, limits, and an end."""

    def __init__(self, listening: _Listening, current: CurrentIdentity, admits: Callable[[str], bool] | None) -> None:
        first = configuration("server", current.identity())
        super().__init__(configuration=first, create_protocol=cast(Any, self._created))  # pyright: ignore[reportUnknownMemberType]
        self._listening = listening
        self._current = current
        self._admits = admits
        self._refusing = False
        self.clients: set[_NetAnswering] = set()
        self.half_open = 0
        self._tokens = QuicRetryTokenHandler()

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        # Many that do not go on with their handshake: from now on an address proves first that it is one.
        self._retry = self._tokens if self.half_open >= HALF_OPEN else None
        try:
            super().datagram_received(data, addr)
        except _Unwelcome as why:
            log.warning("%s: %s was sent away: %s", self._listening.address, shown(addr), why)

    def _created(self, quic: QuicConnection, stream_handler: object) -> _NetAnswering:
        if self._refusing:
            raise _Unwelcome("nobody is let in any more")
        if len(self.clients) >= MAX_CONNECTIONS:
            raise _Unwelcome(f"{MAX_CONNECTIONS} are connected, as many as may be")
        try:
            identity = self._current.identity()
        except CertificateError as why:
            raise _Unwelcome(str(why)) from None
        secure(quic, identity, self._why_not)
        return _NetAnswering(quic, self, self._listening)

    def _why_not(self, name: str) -> str | None:
        return None if self._admits is None or self._admits(name) else f"{name!r} may not come in here"

    def refuse(self) -> None:
        """Let nobody in any more."""
        self._refusing = True

    async def finish(self, within_s: float) -> None:
        """Wait until what was sent has arrived, and close everything."""
        deadline = self._loop.time() + within_s
        # aioquic tells nobody when something was acknowledged.
        while self._loop.time() < deadline and any(client.is_sending for client in self.clients):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self.close()


class _Unwelcome(Exception):
    """A datagram that opens a connection which there will not be."""


class _NetAnswering(NetConnection):
    """A connection on which we answer."""

    def __init__(self, quic: QuicConnection, server: _NetServer, listening: _Listening) -> None:
        super().__init__(quic, listening.here)
        self._server = server
        self._listening = listening
        self._open: set[int] = set()  # streams whose response is awaited
        self._holding = False
        server.clients.add(self)
        server.half_open += 1

    @property
    def is_sending(self) -> bool:
        """Whether something that was sent may not have arrived."""
        streams = cast(Any, self._quic)._streams
        return any(not stream.sender.is_finished for stream in streams.values() if stream.sender is not None)

    def _opened(self, name: str) -> None:
        self._server.half_open -= 1
        address = self._quic.get_peer_address()
        self._across(self._listening.entered, self, Peer(shown(address), name))

    def _data(self, stream: int, data: bytes, end: bool) -> None:
        if stream % 4 == 0 and stream not in self._open and stream not in self._arriving:
            self._open.add(stream)
            self._arriving[stream] = (Assembler(), self._loop.time())
        super()._data(stream, data, end)

    def _taken(self, stream: int, payload: bytes) -> None:
        if self._holding:
            self._refuse(stream, "busy", "the requests that are being answered hold too much memory")
        else:
            self._across(self._listening.asked, self, stream, payload)

    def _broken(self, stream: int, why: str) -> None:
        log.warning("%s: a request was dropped: %s", self._name(), why)
        self._stop(stream)
        self._refuse(stream, "invalid_request", why)

    def _unwanted(self, stream: int) -> None:
        self._across(self._listening.cancelled, self, stream)

    def _drop(self, stream: int, why: str) -> None:
        super()._drop(stream, why)
        self._across(self._listening.cancelled, self, stream)

    def _refuse(self, stream: int, code: str, why: str) -> None:
        self.respond(stream, framed(refusal("", code, why).SerializeToString()))

    def respond(self, stream: Hashable, frame: bytes | None) -> None:
        """Send a response and the end, in one call; without one, the end alone."""
        if stream in self._open and not self._ended:
            self._open.discard(cast(int, stream))
            self._quic.send_stream_data(cast(int, stream), frame or b"", end_stream=True)
            self._transmit_soon()

    def hold(self, held: bool) -> None:
        self._holding = held

    def _over(self, code: int, why: str) -> None:
        self._server.clients.discard(self)
        if not self._ready:
            self._server.half_open -= 1
            log.warning("%s was refused: %s", self._name(), reason(code, why))
        self._across(self._listening.left, self)

    def _name(self) -> str:
        address = self._quic.get_peer_address()
        return f"{self._listening.address}: {shown(address) if address else 'somebody'}"
