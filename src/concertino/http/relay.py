"""Relay: sends a request to the process that has its session, and the response to the client.

A server may have several processes: workers on one machine (WorkerPeers) or front ends on several
machines (MachinePeers). A client may connect to any of them, but only one has its session, here
called the *owner*. The process that gets a request checks the headers and verifies the user. If
another process is the owner, a Relay passes the request on. The owner reads it with
read_passed_on(), and does not verify the user again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.http.chunked_body import ChunkedBody
from concertino.http.exchange import Exchange
from concertino.http.request_head import HttpError
from concertino.http.session_peers import NO_SESSION
from concertino.protocol.principal import Principal
from concertino.runtime.tasks import hide_from_all_tasks

__all__ = ["MAX_PRINCIPAL_BYTES", "Relay", "read_passed_on"]

log = logging.getLogger("concertino.http")

# The headers of a request that are passed on to the owner. This process has already checked the
# others.
PASSED_HEADERS = (
    b"accept",
    b"content-type",
    b"mcp-session-id",
    b"mcp-protocol-version",
    b"last-event-id",
)
# The headers of the owner's response that are not passed on to the client, because this process
# writes its own.
NOT_PASSED_HEADERS = (b"content-type", b"content-length", b"cache-control", b"connection", b"date")
# The owner accepts bodies that are larger than the limit by this, in bytes, for the line with the
# principal that _encode_request() adds. If the line is longer, the largest bodies get 413.
MAX_PRINCIPAL_BYTES = 64 * 1024
# The largest head of a response, in bytes.
MAX_HEAD_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"
# If a client has more unread output than this, reading from the owner pauses. The rest of the
# response stays with the owner, whose limits apply to it.
MAX_UNREAD_BYTES = 256 * 1024
# How often to check whether the client has read enough to resume reading, in seconds.
CHECK_S = 0.05
NOT_PASSED_ON = "the request could not be passed on to the process with its session"
LOST = "the process with this session has ended; the call may have run"

_decode_principal = Decoder(Principal | None).decode


class Relay(asyncio.Protocol):
    """Passes one request on to the owner of its session, and the response back to the client.

    The owner is the process of this server that has the session. A Relay is the asyncio protocol of
    a connection to the owner, which carries only this request.

    exchange: the request, and the way to respond to the client.
    connect: connects to the owner, with the Relay as the protocol. The constructor starts
        connect(relay) in a task. Errors that it may raise:
        - OSError: the owner cannot be reached. The client gets 404, and opens another session.
        - HttpError: the client gets this error.
        - Any other Exception is logged, and the client gets 503.
    """

    def __init__(self, exchange: Exchange, connect: Callable[[Relay], Awaitable[None]]) -> None:
        self._exchange = exchange
        self._transport: asyncio.Transport | None = None
        # The head of the response while it arrives; None afterwards.
        self._head: bytes | None = b""
        # How many bytes of a body with Content-Length have not arrived. 0 for a stream of events.
        self._missing_bytes = 0
        self._chunks = ChunkedBody()
        # The owner sends the comments that keep a stream alive. A comment of this process could be
        # sent in the middle of an event.
        exchange.sends_comments = False
        exchange.on_disconnect = self._close
        task = asyncio.get_running_loop().create_task(self._connect(connect))
        # A handler that cancels all tasks must not cancel this task.
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
        # No assert checks the type: uvloop's transports are no subclasses of asyncio.Transport.
        self._transport = transport = cast("asyncio.Transport", transport)
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
            # The response is incomplete. After a regular end of the stream or the connection, the
            # client would take it for complete.
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
        # The first line is, for example, `HTTP/1.1 200 OK`.
        status_line, *lines = head.split(b"\r\n")
        status = HTTPStatus(int(status_line.split(b" ", 2)[1]))
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
            b"%b: %b\r\n" % (name, value)
            for name, value in headers.items()
            if name not in NOT_PASSED_HEADERS
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
        """Send an error response to the client, and close the connection to the owner."""
        self._exchange.refuse(refusal)
        self._exchange.connection.flush()
        self._close()

    def _close(self) -> None:
        """Close the connection to the owner."""
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()


def _encode_request(exchange: Exchange) -> bytes:
    """Return the HTTP request with which a request is passed on to the owner of its session.

    Its body begins with a line that contains the principal (the verified user) as JSON. The body of
    the client's request follows.
    """
    head = exchange.head
    target = f"{head.path}?{head.query}" if head.query else head.path
    principal = encode(exchange.principal)
    lines = b"".join(
        b"%b: %b\r\n" % (name, head.headers[name])
        for name in PASSED_HEADERS
        if name in head.headers
    )
    length = len(principal) + 1 + len(exchange.body)
    # HTTP/1.1 requires Host, and the owner does not check its value.
    request_line = b"%b %b HTTP/1.1\r\n" % (head.method.encode(), target.encode())
    headers = b"Host: worker\r\nConnection: close\r\n%bContent-Length: %d\r\n" % (lines, length)
    return b"".join((request_line, headers, b"\r\n", principal, b"\n", exchange.body))


def read_passed_on(exchange: Exchange) -> None:
    """Decode a request that another process of this server has passed on.

    The first line of its body contains the principal (the verified user) as JSON. This function
    sets exchange.principal to it, and removes the line from exchange.body.
    Raises HttpError 400 if there is no such line.
    """
    exchange.is_passed_on = True
    principal, _, exchange.body = exchange.body.partition(b"\n")
    try:
        exchange.principal = _decode_principal(principal)
    except DECODE_ERRORS:
        raise HttpError(HTTPStatus.BAD_REQUEST, "expected a request of another worker") from None
