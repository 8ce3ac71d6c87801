"""HttpConnection: one client's TCP or Unix connection to an HTTP server.

It reads requests with a RequestReader. Each request becomes an Exchange (the request and its
response), which the RequestHandler answers, at once or later. Until then, the client's next
requests wait, up to a limit, because HTTP/1.1 requires responses in the order of the requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Protocol, cast

from concertino.errors import INVALID_REQUEST
from concertino.http.exchange import Exchange
from concertino.http.request_head import HeadParser, HttpError, RequestHead, unavailable
from concertino.http.request_reader import RequestReader
from concertino.http.responses import CONTINUE, encode_json_response, encode_response
from concertino.http.time_limits import ConnectionActivity, HttpTimeouts
from concertino.http.write_turn import WriteTurn
from concertino.jsonrpc.messages import encode_error
from concertino.protocol.principal import Principal

__all__ = [
    "READ_AHEAD_BYTES",
    "REPORTED_BYTES",
    "HttpConnection",
    "RequestHandler",
]

# How much input is read while a request is being answered, in bytes. Then reading is paused.
READ_AHEAD_BYTES = 64 * 1024
# When at least this many bytes of output were sent at once, on_drain is called even if the system
# took all of them at once. The sender has counted them as unread when it queued them, and may be
# waiting until they are read.
REPORTED_BYTES = 4 * 1024
# A body may take HttpTimeouts.body_s seconds, and one second more for each BODY_BYTES_PER_S bytes
# of it that have arrived. A slower body is refused.
BODY_BYTES_PER_S = 10_000
# How long input is read and ignored after an error response, in seconds. If the connection were
# closed while input is unread, the client might not get the response (RFC 9112, section 9.6).
LINGER_S = 1.0


class RequestHandler(Protocol):
    """The object that answers the requests of an HttpConnection."""

    @property
    def parser(self) -> HeadParser:
        """The parser for the heads of the requests."""
        ...

    @property
    def max_body_bytes(self) -> int:
        """The size of the largest body that is accepted, in bytes."""
        ...

    @property
    def timeouts(self) -> HttpTimeouts:
        """The time limits of a connection."""
        ...

    @property
    def turn(self) -> WriteTurn | None:
        """The WriteTurn, which writes the small outputs of several connections together.

        None to write each output at once.
        """
        ...

    def examine(self, transport: asyncio.Transport, /) -> Mapping[str, object]:
        """Return what is known about a new client, such as its address.

        The keys are those of Connection.facts (transports/connection.py).
        Raises OSError if the client may not connect.
        """
        ...

    def on_connect(self, connection: HttpConnection, /) -> bool:
        """Register a new connection.

        Returns False if there are too many. The HttpConnection then responds with 503 and closes.
        """
        ...

    @property
    def checks_each_head(self) -> bool:
        """Whether on_head() must be called for each request.

        If not, it is not called for a request that has the same head as the request before it on
        the same connection.
        """
        ...

    def on_head(
        self, connection: HttpConnection, head: RequestHead, /
    ) -> Principal | asyncio.Future[Principal] | None:
        """Check a request before its body is read, and return the user who has sent it.

        Returns None to serve the request without a user. Returns a future of the user if another
        server must be asked first. This method and the future raise HttpError to refuse the
        request.
        """
        ...

    def on_reserve(self, size: int, /) -> None:
        """Check whether there is memory for a large body. Raises HttpError if there is not.

        size: how many bytes are needed, in addition to those of earlier calls for the same body.
        """
        ...

    def on_request(self, exchange: Exchange, /) -> None:
        """Respond to a request with the methods of its Exchange, now or later.

        The HttpConnection flushes the output of this call. Raises HttpError to refuse the request.
        """
        ...

    def on_disconnect(self, connection: HttpConnection, /) -> None:
        """Remove a connection, because it is closed."""
        ...


class HttpConnection(asyncio.Protocol):
    """The asyncio Protocol of one client's connection.

    handler: responds to the requests.

    Attributes:
    facts: what is known about the client, such as its address, as in Connection.facts
        (transports/connection.py).
    exchange: the request that is being answered; None while there is none.
    reserved_bytes: how many bytes of the current request's body count towards the server's limit
        for large bodies; 0 for a small body. The server adds up this attribute of all connections.
    is_ending: whether the connection will be closed after the current response.
    on_close: set by code that responds: called when the connection has been closed, by either side.
    on_drain: set by code that responds: called with the number of unread bytes when the client has
        read some output.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(
            handler.parser,
            self._on_head,
            self._on_body_due,
            self.reserve,
            handler.max_body_bytes,
        )
        self.reserved_bytes = 0
        self._transport: asyncio.Transport | None = None
        self.facts: Mapping[str, object] = {}
        self.exchange: Exchange | None = None
        self.is_ending = False
        self.on_close: Callable[[], object] | None = None
        self.on_drain: Callable[[int], object] | None = None
        self._output: list[bytes] = []
        self._activity = ConnectionActivity(self._loop.time())

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assert checks the type: uvloop's transports are no subclasses of asyncio.Transport.
        self._transport = transport = cast("asyncio.Transport", transport)
        # The transport calls pause_writing() as soon as any output waits in it, and
        # resume_writing() when all of it is sent.
        transport.set_write_buffer_limits(high=0)
        try:
            self.facts = self._handler.examine(transport)
        except OSError:
            transport.abort()
            return
        if not self._handler.on_connect(self):
            self._refuse(unavailable("too many connections"))

    def data_received(self, data: bytes) -> None:
        """Read requests, or keep the input while a request is being answered."""
        exchange = self.exchange
        if exchange is not None and exchange.on_data is not None:
            # The connection carries another protocol now, such as WebSocket.
            exchange.on_data(data)
            return
        if exchange is None and self.is_ending:
            return
        reader = self._reader
        if exchange is not None or reader.awaits_user:
            # A request is being answered, or its user is being verified. Keep the input for later.
            reader.feed(data)
            if reader.held_bytes > READ_AHEAD_BYTES:
                self._pause_reading()
            return
        # This is reader.is_inside, without a function call for each request.
        was_inside = reader.unused_bytes or reader.head is not None
        self._read_requests(data)
        if not was_inside and (reader.unused_bytes or reader.head is not None):
            # A request has begun to arrive, and is not complete: its time limit begins now.
            self._activity.since = self._loop.time()

    def pause_writing(self) -> None:
        self._activity.has_unsent = True

    def resume_writing(self) -> None:
        self._activity.has_unsent = False
        if self.on_drain is not None:
            self.on_drain(self.unread_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_ending = True
        self._transport = None
        self._output.clear()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_connection_lost()
        if self.on_close is not None:
            self.on_close()
        self.on_close = self.on_drain = None
        self._handler.on_disconnect(self)

    # Input

    def _read_requests(self, data: bytes = b"") -> None:
        """Pass the requests that have arrived to the handler.

        Stops at a request to which the handler does not respond at once.

        data: bytes that have just arrived; empty if the reader has all of them already.
        """
        reader = self._reader
        while True:
            try:
                request = reader.receive(data) if data else reader.next()
            except HttpError as exc:
                self._refuse(exc)
                return
            if request is None:
                return
            head, refusal = request.head, request.refusal
            # A body over the size limit is refused at once, with one exception: if it was the
            # client's response to a request of this server, request.body is an error response with
            # the id of that request. The handler must get the error, so that the request fails.
            if refusal is not None and not request.body:
                self._refuse(refusal)
                return
            exchange = self.exchange = Exchange(
                self, head, request.body, request.principal, head.keep_alive
            )
            if refusal is not None:
                exchange.refusal = refusal
                exchange.keeps_connection = False
            try:
                self._handler.on_request(exchange)
            except HttpError as exc:
                exchange.refuse(exc)
            if self._output:
                self.flush()
            if not exchange.is_done:
                self._activity.since = self._loop.time()
                return
            if not reader.unused_bytes or self.is_ending:
                return
            data = b""

    def _on_head(self, head: RequestHead) -> None:
        """Let the handler check a request. The reader calls it before the body is read."""
        handler = self._handler
        principal = handler.on_head(self, head)
        if not handler.checks_each_head:
            # The reader does not call this method again for an equal head.
            self._reader.admitted = head
        if principal is not None:
            if isinstance(principal, asyncio.Future):
                self._activity.since = self._loop.time()
                self._reader.awaits_user = True
                principal.add_done_callback(partial(self._on_principal, head))
                return
            self._reader.principal = principal

    def _on_principal(self, head: RequestHead, verified: asyncio.Future[Principal]) -> None:
        """Read the rest of a request whose user has been verified, or refuse the request.

        verified: the future of on_head(), which is done: it has the user, or an HttpError.
        """
        if self._transport is None or self.is_ending:
            # The connection has ended meanwhile, so the exception of the future has no effect. Read
            # it, because asyncio logs an exception that nobody has read.
            if not verified.cancelled():
                verified.exception()
            return
        try:
            self._reader.principal = verified.result()
        except HttpError as refusal:
            self._refuse(refusal)
            return
        self._reader.awaits_user = False
        self._on_body_due(head)
        self._read_on()

    def _on_body_due(self, head: RequestHead) -> None:
        """Send `100 Continue` to a client that waits for it before it sends the body."""
        self._activity.since = self._loop.time()
        if head.expects_continue:
            self.send(CONTINUE)
            self.flush()

    def reserve(self, size: int) -> None:
        """Set reserved_bytes to the size of a large body. Raises HttpError if there is no memory.

        RequestReader calls this method before it reads such a body. If the size is not known in
        advance, RequestReader calls it again as the body grows.
        """
        self._handler.on_reserve(size - self.reserved_bytes)
        self.reserved_bytes = size

    def _refuse(self, refusal: HttpError) -> None:
        """Send an error response, and close the connection.

        The connection cannot be used again, because the end of the refused request is not known.
        """
        self.is_ending = True
        body = encode_error(None, INVALID_REQUEST, str(refusal))
        self.send(encode_response(refusal.status, body, refusal.headers, keep_alive=False))
        self.end_output()

    def end_output(self) -> None:
        """Send the queued output, and close the connection LINGER_S (1 s) later.

        In this time the client can read the output. A connection with TLS is closed as soon as the
        output is sent. Exchange.on_data still gets what the client sends, and must ignore it.
        """
        self.is_ending = True
        self._flush_now()
        transport = self._transport
        if transport is not None and transport.can_write_eof():
            transport.write_eof()
            self._loop.call_later(LINGER_S, transport.close)
        else:
            # TLS cannot close one direction only.
            self._close_when_sent()

    def _pause_reading(self) -> None:
        transport = self._transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()

    # Other protocols, after Exchange.switch_protocols()

    def pass_rest_on(self) -> None:
        """Pass the bytes that the client has sent after its request to Exchange.on_data.

        on_data gets these bytes in the next iteration of the event loop. Bytes that arrive later
        are passed to on_data at once.
        """
        # The code that calls Exchange.switch_protocols() is not ready for the bytes yet.
        if rest := self._reader.take_rest():
            self._loop.call_soon(self.data_received, rest)

    def set_reading(self, reading: bool) -> None:
        """Resume reading from the client (True), or pause it (False)."""
        transport = self._transport
        if not reading:
            self._pause_reading()
        elif transport is not None and not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()

    # Output

    @property
    def unread_bytes(self) -> int:
        """The number of bytes of output that are queued in this object or in the transport."""
        output = self._output
        # Nearly always there is one piece, for which sum() would take longer.
        waiting = len(output[0]) if len(output) == 1 else sum(map(len, output))
        if self._activity.has_unsent and self._transport is not None:
            waiting += self._transport.get_write_buffer_size()
        return waiting

    def send(self, data: bytes) -> None:
        """Queue output. flush() sends it."""
        if self._transport is not None:
            self._output.append(data)

    def flush(self) -> None:
        """Send the queued output."""
        if self._output and self._transport is not None:
            output = self._output
            data = output[0] if len(output) == 1 else b"".join(output)
            output.clear()
            self._activity.since = self._loop.time()
            if self._handler.turn is None:
                self._transport.write(data)
            else:
                self._handler.turn.write(self._transport, data)
            if len(data) >= REPORTED_BYTES and self.on_drain is not None:
                # If the system has taken all of it, resume_writing() will not be called.
                self._loop.call_soon(self._report_taken)

    def _report_taken(self) -> None:
        """Call on_drain, unless the transport will call resume_writing()."""
        if self.on_drain is not None and not self._activity.has_unsent:
            self.on_drain(self.unread_bytes)

    def _flush_now(self) -> None:
        """Send the queued output, also the output that the server's WriteTurn holds back."""
        self.flush()
        if self._handler.turn is not None:
            self._handler.turn.end()

    def end_with_json(self, exchange: Exchange, body: bytes, headers: bytes) -> None:
        """Queue the usual response, 200 with a JSON body, and continue with the next request.

        Exchange.respond() calls this only if the connection stays open after the response.

        exchange: the request whose response this is.
        headers: additional headers, as whole lines.
        """
        self.end_exchange(exchange, encode_json_response(body, headers))

    def end_exchange(self, exchange: Exchange, output: bytes) -> None:
        """Queue the last bytes of a response, and continue with the next request.

        exchange: the request whose response ends.
        output: the last bytes; empty if all were sent already.
        """
        exchange.is_done = True
        exchange.on_disconnect = exchange.on_idle = None
        if exchange.on_end is not None:
            exchange.on_end()
        if self._transport is not None and output:
            self._output.append(output)
        if self.exchange is not exchange:
            # The client has disconnected meanwhile. The steps above had no effect then, because
            # connection_lost() has removed on_end and the transport.
            return
        self.exchange = None
        self.reserved_bytes = 0
        if exchange.refusal is not None:
            # The rest of the body may still arrive.
            self.end_output()
        elif not exchange.keeps_connection or self.is_ending:
            self._close_when_sent()
        elif self._reader.unused_bytes:
            # With call_soon(), because the handler of this request may still be running, and would
            # be called again for the next request before it has returned.
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Resume reading if it is paused, and pass the requests that have arrived to the handler.

        Does not pass requests on while another one is being answered.
        """
        transport = self._transport
        if transport is not None and not transport.is_reading() and not transport.is_closing():
            transport.resume_reading()
        if self.exchange is None and not self.is_ending:
            self._read_requests()

    def _close_when_sent(self) -> None:
        """Send the queued output, and then close the connection."""
        self.is_ending = True
        self._flush_now()
        if self._transport is not None:
            # The rest of the buffer is sent before the socket is closed.
            self._transport.close()

    # The end. These methods differ in what is still sent:
    # - end_output(): the queued output, which the client has time to read. For refusals.
    # - close_when_idle(): the queued output, and the response to the current request.
    # - close(): the queued output. The response to the current request is cut off.
    # - abort(): nothing more.

    def close_when_idle(self) -> None:
        """Close the connection. If a request is being answered, its response is sent before."""
        self.is_ending = True
        if self.exchange is None:
            self._close_when_sent()

    def close(self) -> None:
        """Close the connection when the queued output is sent, even during a request."""
        self._close_when_sent()

    def abort(self) -> None:
        """Close the connection at once. Output that was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is arriving or being answered."""
        return self.exchange is None and not self._reader.is_inside

    def check_time(self, now: float) -> None:
        """Apply the time limits of HttpTimeouts. The server calls it at intervals.

        A request or a connection that exceeds a limit is ended, and a response without recent
        output is kept alive.
        now: the time by the clock of the event loop.
        """
        timeouts, activity = self._handler.timeouts, self._activity
        unread = self.unread_bytes
        if activity.is_stuck(unread, now, timeouts.unread_s):
            self.abort()
        elif self.exchange is not None:
            # A request is being answered. End a stream that would last for ever, such as the one of
            # a GET, when the token of its user has expired.
            if self.exchange.has_expired(time.time()):
                self.exchange.expire()
            # Add nothing to output that the client does not read: is_stuck() would take the change
            # of the size for a sign that the client reads.
            elif not unread and now - activity.since >= timeouts.keep_alive_s:
                activity.since = now
                self.exchange.keep_alive()
        elif self.is_ending:
            # The response is sent, the connection is about to be closed, and no request is read.
            return
        elif self.is_idle:
            if now - activity.since >= timeouts.idle_s:
                self._close_when_sent()
        elif now - activity.since >= self._arrival_limit_s():
            self._refuse(HttpError(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly"))

    def _arrival_limit_s(self) -> float:
        """Return the time limit for the request that is arriving, in seconds."""
        timeouts = self._handler.timeouts
        if self._reader.head is None:
            return timeouts.head_s
        return timeouts.body_s + self._reader.held_bytes / BODY_BYTES_PER_S
