"""WorkerPeers: passes a request on to the worker process that has the request's session.

All workers accept clients at the same socket, so a request can reach any of them. The id of a
session contains the number of the worker that has the session. Each worker listens at a private
Unix socket. A worker that gets a request for another one's session sends it to that worker's
socket, and streams the response to the client.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from msgspec import DecodeError
from msgspec.json import Decoder, encode

from concertino.http.chunked_body import ChunkedBody
from concertino.http.exchange import Exchange
from concertino.http.request_head import HttpError
from concertino.protocol.principal import Principal
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.runtime.worker_link import WorkerPlace
from concertino.transports.listeners import BACKLOG, listen_unix

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "MAX_PRINCIPAL_BYTES",
    "NO_SESSION",
    "Examine",
    "PeerServer",
    "Relay",
    "SessionPeers",
    "WorkerPeers",
    "create_session_id",
    "pass_on",
    "read_passed_on",
]

log = logging.getLogger("concertino.http")

# The headers of a request that are passed on. The worker that passes it on has already checked the
# others.
PASSED = (
    b"accept",
    b"content-type",
    b"mcp-session-id",
    b"mcp-protocol-version",
    b"last-event-id",
)
# The headers of a response that are not passed on to the client, because the worker that the client
# is connected to writes its own.
OWN_HEADERS = (b"content-type", b"content-length", b"cache-control", b"connection", b"date")
# The largest line with a principal that _encode_request() adds to a body, in bytes.
MAX_PRINCIPAL_BYTES = 64 * 1024
# The largest head of a response, in bytes.
MAX_HEAD_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"
# If a client has more unread output than this, reading from the other worker pauses.
MAX_UNREAD_BYTES = 256 * 1024
# How often to check whether the client has read enough to resume, in seconds.
CHECK_S = 0.05
NO_SESSION = "no such session: send initialize again"
NOT_PASSED_ON = "the request could not be passed on to the process with its session"
LOST = "the process with this session has ended; the call may have run"

_decode_principal = Decoder(Principal | None).decode


Examine = Callable[[asyncio.Transport], Mapping[str, object]]
"""Returns the facts about a process that passes requests on. Raises OSError to refuse it."""


class PeerServer(Protocol):
    """Accepts the connections of other processes that pass requests on."""

    def close(self) -> None:
        """Stop accepting connections."""
        ...


class SessionPeers(Protocol):
    """The processes of a server that share their sessions."""

    def create_id(self) -> str:
        """Return an id for a session of this process. It has 128 random bits: none can guess it."""
        ...

    def pass_on(self, exchange: Exchange, id: str) -> bool:
        """Pass a request on to the process that has its session.

        id: the id of the session.
        Returns False if this process has the session. Raises HttpError 404 if the id is malformed.
        """
        ...

    async def serve(self, make: Callable[[Examine], Callable[[], asyncio.Protocol]]) -> PeerServer:
        """Begin to accept the requests that other processes pass on.

        make: returns the function that makes the protocol of each connection.
        Raises OSError.
        """
        ...


class WorkerPeers:
    """The SessionPeers of one worker: passes requests on to the other workers.

    place: the number of this worker, the number of workers, and the folder of their sockets.
    """

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place

    def create_id(self) -> str:
        """See SessionPeers.create_id."""
        while True:
            # One byte more than 128 bits, because the worker's number takes some of them.
            id = os.urandom(17).hex()
            if self.find_owner(id) == self._place.number:
                return id

    def find_owner(self, id: str) -> int | None:
        """Return the number of the worker that has created an id; None if the id is malformed."""
        try:
            return int.from_bytes(bytes.fromhex(id)) % self._place.count + 1
        except ValueError:
            return None

    async def serve(self, make: Callable[[Examine], Callable[[], asyncio.Protocol]]) -> PeerServer:
        """See SessionPeers.serve."""
        listener = listen_unix(self._socket_of(self._place.number))
        protocol = make(lambda transport: listener.examine(transport.get_extra_info("socket")))
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(protocol, sock=listener.socket, backlog=BACKLOG)

    def pass_on(self, exchange: Exchange, id: str) -> bool:
        """See SessionPeers.pass_on."""
        owner = self.find_owner(id)
        if owner == self._place.number:
            return False
        if owner is None:
            raise HttpError(HTTPStatus.NOT_FOUND, NO_SESSION)
        path = os.fspath(self._socket_of(owner))
        Relay(exchange, partial(_connect_unix, path))
        return True

    def _socket_of(self, number: int) -> Path:
        return self._place.folder / f"worker-{number}"


async def _connect_unix(path: str, relay: Relay) -> None:
    await asyncio.get_running_loop().create_unix_connection(lambda: relay, path)


def create_session_id(peers: SessionPeers | None) -> str:
    """Return a random session id. peers: None if this process shares its sessions with no other."""
    # Not with the module secrets, whose imports take 0.9 MB of memory.
    return os.urandom(16).hex() if peers is None else peers.create_id()


def pass_on(peers: SessionPeers | None, exchange: Exchange, id: str) -> bool:
    """Pass a request whose session is not in this process on to the process that has it.

    A request that was passed on to this process is not passed on again: it could go in a circle,
    for example if this process has the address of one that was killed.
    peers: None if this process shares its sessions with no other.
    Returns False if the request must be answered here. Raises HttpError 404 if the id is malformed.
    """
    return peers is not None and not exchange.is_passed_on and peers.pass_on(exchange, id)


class Relay(asyncio.Protocol):
    """The connection to another process for one request. It passes the response on to the client.

    It buffers at most MAX_UNREAD_BYTES of a response that the client does not read. The rest stays
    in the process with the session, whose limits apply to it.

    connect: connects this protocol to the process with the session. It raises OSError if there is
        none, because the session has ended, and HttpError to refuse the request.
    """

    def __init__(self, exchange: Exchange, connect: Callable[[Relay], Awaitable[None]]) -> None:
        self._exchange = exchange
        self._transport: asyncio.Transport | None = None
        # The head of the response while it arrives; None afterwards.
        self._head: bytes | None = b""
        # How many bytes of a body with a known length have not arrived.
        self._missing_bytes = 0
        self._chunks = ChunkedBody()
        exchange.sends_comments = False
        exchange.on_disconnect = self._close
        task = asyncio.get_running_loop().create_task(self._connect(connect))
        self._connecting = hide_from_all_tasks(task)

    async def _connect(self, connect: Callable[[Relay], Awaitable[None]]) -> None:
        try:
            await connect(self)
        except HttpError as exc:
            self._refuse(exc)
        except OSError:
            self._refuse(HttpError(HTTPStatus.NOT_FOUND, NO_SESSION))
        except Exception:
            log.exception("a request was not passed on to the process with its session")
            self._refuse(HttpError(HTTPStatus.SERVICE_UNAVAILABLE, NOT_PASSED_ON))

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._exchange.is_done:
            transport.abort()
        else:
            transport.write(_encode_request(self._exchange))

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            data = self._read_head(self._head + data)
        if data and not self._exchange.is_done:
            self._pass_on(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange = self._exchange
        if exchange.is_done:
            return
        if exchange.is_stream or self._missing_bytes:
            # Abort, because after a regular end an incomplete response would look complete.
            exchange.connection.abort()
        else:
            self._refuse(HttpError(HTTPStatus.BAD_GATEWAY, LOST))

    # The response

    def _read_head(self, received: bytes) -> bytes:
        """Begin the response to the client when the head has arrived.

        Returns the part of the body that has arrived and was not passed on.
        """
        head, end, body = received.partition(HEAD_END)
        if not end:
            self._head = received
            if len(received) > MAX_HEAD_BYTES:
                self._refuse(HttpError(HTTPStatus.BAD_GATEWAY, LOST))
            return b""
        self._head = None
        line, *lines = head.split(b"\r\n")
        status = HTTPStatus(int(line.split(b" ", 2)[1]))
        headers: dict[bytes, bytes] = {}
        for item in lines:
            name, _, value = item.partition(b":")
            headers[name.lower()] = value.strip()
        exchange = self._exchange
        if headers.get(b"content-type") == b"text/event-stream":
            exchange.open_stream()
            # Send the head now, because the first event may come much later.
            exchange.connection.flush()
            return body
        length = int(headers.get(b"content-length", b"0"))
        others = b"".join(
            b"%b: %b\r\n" % item for item in headers.items() if item[0] not in OWN_HEADERS
        )
        if len(body) == length:
            exchange.respond(status, body, others)
            exchange.connection.flush()
            return b""
        self._missing_bytes = length
        exchange.begin_response(status, length, others)
        return body

    def _pass_on(self, data: bytes) -> None:
        """Send a part of the body to the client. Pauses reading if the client reads too slowly."""
        exchange = self._exchange
        connection = exchange.connection
        if exchange.is_stream:
            self._pass_events_on(data)
        elif len(data) < self._missing_bytes:
            self._missing_bytes -= len(data)
            connection.send(data)
        else:
            self._missing_bytes = 0
            connection.end_exchange(exchange, data)
        connection.flush()
        if connection.unread_bytes > MAX_UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()
            self._check_later()

    def _pass_events_on(self, data: bytes) -> None:
        """Send the events of some chunks to the client, and end its stream after the last one."""
        exchange, chunks = self._exchange, self._chunks
        chunks.feed(data)
        if chunks.parts:
            exchange.send_event(b"".join(chunks.parts))
            chunks.parts.clear()
        if chunks.is_complete:
            exchange.end_stream()

    def _check_later(self) -> None:
        asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        """Resume reading if the client has read enough, else check again later."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._exchange.connection.unread_bytes > MAX_UNREAD_BYTES:
            self._check_later()
        else:
            transport.resume_reading()

    def _refuse(self, refusal: HttpError) -> None:
        self._exchange.refuse(refusal)
        self._exchange.connection.flush()
        self._close()

    def _close(self) -> None:
        """Close the connection to the process with the session."""
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()


def _encode_request(exchange: Exchange) -> bytes:
    """Return a request as bytes, to pass it on to another process.

    Its body begins with a line that has the principal as JSON. The other process does not verify
    the user again.
    """
    head = exchange.head
    target = f"{head.path}?{head.query}" if head.query else head.path
    who = encode(exchange.principal)
    lines = b"".join(
        b"%b: %b\r\n" % (name, head.headers[name]) for name in PASSED if name in head.headers
    )
    request = b"%b %b HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n"
    return (request + b"%b\n%b") % (
        head.method.encode(),
        target.encode(),
        lines,
        len(who) + 1 + len(exchange.body),
        who,
        exchange.body,
    )


def read_passed_on(exchange: Exchange) -> None:
    """Set the body and the principal of a request that another worker has passed on, and mark it.

    Raises HttpError 400 if its body has no line with a principal (see _encode_request()).
    """
    exchange.is_passed_on = True
    who, _, exchange.body = exchange.body.partition(b"\n")
    try:
        exchange.principal = _decode_principal(who)
    except DecodeError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "expected a request of another worker") from None
