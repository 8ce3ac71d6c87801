"""Exchange: one request to an HTTP server, and its response.

HttpConnection makes an Exchange of each request. The RequestHandler and the endpoints answer it:
with a body, with a stream of events, or with another protocol on the same connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol

from msgspec import Struct

from concertino.errors import INVALID_REQUEST
from concertino.http.request_head import HttpError, RequestHead
from concertino.http.responses import (
    EVENT_STREAM,
    KEEP_ALIVE_COMMENT,
    LAST_CHUNK,
    encode_chunk,
    encode_head,
    encode_json_head,
    encode_response,
)
from concertino.jsonrpc.messages import encode_error
from concertino.protocol.principal import Principal

__all__ = ["OK", "Exchange", "RequestConnection"]

# For the usual case: reading a member of an enumeration takes a function call on Python 3.11.
OK = HTTPStatus.OK
CHUNKED = b"Transfer-Encoding: chunked\r\n"
# The method whose stream lasts until the client or the server ends it.
LISTEN = b"subscriptions/listen"


class Exchange(Struct, eq=False):
    """One request and its response, which is a body or a stream of events.

    The code that responds calls one of these methods. They queue output: outside of
    RequestHandler.on_request(), call connection.flush() afterwards. After the end of the response,
    they do nothing.
    - respond(), or respond_as() for a body that is not JSON: a complete response.
    - open_stream(), send_event() and end_stream(): a stream of server-sent events.
    - begin_response(): a JSON body in several pieces.
    - refuse(): an error response.
    - switch_protocols(): another protocol on the same connection, such as WebSocket.

    connection: the connection on which the request has come.
    head, body: the request.
    principal: the user who has sent the request; None if the user is not known.
    is_passed_on: whether another process of the same server has passed the request on to this one.
    is_stream: whether the response is a stream of events, or another protocol.
    is_done: whether the response is complete, or cannot be sent any more.

    The code that responds may set these:
    headers: additional headers for the response, as whole lines.
    on_disconnect: called when the client has closed the connection before the end of the response.
    on_idle: called when nothing was sent for HttpTimeouts.keep_alive_s, before the response has
        begun and after switch_protocols().
    on_end: called when the response is complete, or cannot be sent any more.
    is_subscription: whether this is a call that lasts until the client or the server ends it.
    sends_comments: whether keep_alive() sends comments on the stream.

    Only HttpConnection needs these:
    keeps_connection: whether the connection may carry another request after this one.
    on_data: called with what the client sends after switch_protocols(); None before.
    refusal: an error that respond() sends in place of its arguments, for a body over the size limit
        (HttpRequest.refusal); None for nearly all requests.
    """

    connection: RequestConnection
    head: RequestHead
    body: bytes
    principal: Principal | None
    keeps_connection: bool
    headers: bytes = b""
    on_disconnect: Callable[[], object] | None = None
    on_idle: Callable[[], object] | None = None
    on_end: Callable[[], object] | None = None
    on_data: Callable[[bytes], object] | None = None
    is_stream: bool = False
    is_done: bool = False
    is_subscription: bool = False
    is_passed_on: bool = False
    sends_comments: bool = True
    refusal: HttpError | None = None

    def respond(self, status: HTTPStatus, body: bytes = b"", headers: bytes = b"") -> None:
        """Send a complete response. HEAD gets its head only.

        If `refusal` is set, sends that error instead.
        headers: additional headers, as whole lines.
        """
        if self.is_done or self.is_stream:
            return
        connection = self.connection
        keep_alive = self.keeps_connection and not connection.is_ending
        if self.refusal is not None:
            status, headers = self.refusal.status, self.refusal.headers
            body = encode_error(None, INVALID_REQUEST, str(self.refusal))
        headers += self.headers
        is_head = self.head.method == "HEAD"
        if status is OK and keep_alive and not is_head:
            connection.end_with_json(self, body, headers)
            return
        response = encode_response(status, body, headers, keep_alive=keep_alive)
        connection.end_exchange(self, response.removesuffix(body) if is_head else response)

    def respond_as(self, headers: bytes, body: bytes) -> None:
        """Send a response with the status 200 and a body of any type. HEAD gets its head only.

        headers: Content-Type and Cache-Control of the body, as whole lines.
        """
        if self.is_done or self.is_stream:
            return
        all_headers = b"%bContent-Length: %d\r\n%b" % (headers, len(body), self.headers)
        keep_alive = self.keeps_connection and not self.connection.is_ending
        head = encode_head(OK, all_headers, keep_alive=keep_alive)
        self.connection.end_exchange(self, head if self.head.method == "HEAD" else head + body)

    def begin_response(self, status: HTTPStatus, length: int, headers: bytes) -> None:
        """Send the head of a response whose JSON body is sent in several pieces.

        Pass the pieces to connection.send(), and the last one to connection.end_exchange().
        length: the length of the body, in bytes.
        headers: additional headers, as whole lines.
        """
        keep_alive = self.keeps_connection and not self.connection.is_ending
        head = encode_json_head(status, length, headers + self.headers, keep_alive=keep_alive)
        self.connection.send(head)

    def refuse(self, refusal: HttpError) -> None:
        """Send an error response."""
        body = encode_error(None, INVALID_REQUEST, str(refusal))
        self.respond(refusal.status, body, refusal.headers)

    def open_stream(self) -> None:
        """Begin a response that is a stream of events."""
        if self.is_done or self.is_stream:
            return
        self.is_stream = True
        headers = EVENT_STREAM + self.headers
        if self.head.is_http_1_0:
            # HTTP/1.0 has no chunks: the end of the connection is the end of the stream.
            self.keeps_connection = False
        else:
            headers += CHUNKED
        keep_alive = self.keeps_connection
        self.connection.send(encode_head(OK, headers, keep_alive=keep_alive))

    def switch_protocols(self, headers: bytes, on_data: Callable[[bytes], object]) -> None:
        """Use the connection for another protocol, such as WebSocket, from now on.

        The exchange ends when the connection does.

        headers: the headers of the response (101), as whole lines.
        on_data: called with the bytes that the client sends; never before this method returns.
        """
        self.is_stream = True
        self.on_data = on_data
        self.connection.send(
            encode_head(HTTPStatus.SWITCHING_PROTOCOLS, headers + self.headers, keep_alive=True)
        )
        self.connection.pass_rest_on()

    def send_event(self, event: bytes) -> None:
        """Send an event of the stream. event: the bytes that encode_event() returns."""
        if self.is_stream and not self.is_done:
            self.connection.send(event if self.head.is_http_1_0 else encode_chunk(event))

    def end_stream(self) -> None:
        """End the stream."""
        if self.is_stream and not self.is_done:
            self.connection.end_exchange(self, b"" if self.head.is_http_1_0 else LAST_CHUNK)

    def keep_alive(self) -> None:
        """Send something, so that neither the client nor a proxy closes the connection as idle.

        HttpConnection calls this when no output waits, and none was sent for keep_alive_s.
        """
        # A stream of events gets a comment. For a call that has sent nothing yet, on_idle() begins
        # the stream; for a WebSocket, it sends a ping.
        if self.is_stream and self.on_data is None:
            if self.sends_comments:
                self.send_event(KEEP_ALIVE_COMMENT)
                self.connection.flush()
        elif self.on_idle is not None:
            self.on_idle()

    def has_expired(self, now: float) -> bool:
        """Return whether this response is to end because the user's token has expired.

        Only a stream without an end is to end. A call may finish, because the token was valid when
        the call began.
        now: the seconds since the epoch.
        """
        expires = None if self.principal is None else self.principal.expires
        if expires is None or now < expires or not self.is_stream:
            return False
        if self.on_data is not None:
            # A connection with another protocol, such as a WebSocket, ends by the rules of that
            # protocol.
            return False
        # The head tells a GET and subscriptions/listen. is_subscription is set for calls of other
        # methods that last as long.
        head = self.head
        is_listening = head.method == "GET" or head.headers.get(b"mcp-method") == LISTEN
        return is_listening or self.is_subscription

    def expire(self) -> None:
        """End the stream and close the connection. The client may come back with a new token."""
        # end_stream() removes the function, but the code that sends the stream must know of the
        # end.
        on_disconnect = self.on_disconnect
        self.keeps_connection = False
        self.end_stream()
        if on_disconnect is not None:
            on_disconnect()

    def on_connection_lost(self) -> None:
        """End the exchange without a complete response, because the connection is closed."""
        self.is_done = True
        on_end, on_disconnect = self.on_end, self.on_disconnect
        # These functions may refer to this exchange. Break the cycle of references, so that the
        # memory of the body is freed at once, and not at a garbage collection.
        self.on_end = self.on_disconnect = self.on_idle = self.on_data = None
        if on_end is not None:
            on_end()
        if on_disconnect is not None:
            on_disconnect()


class RequestConnection(Protocol):
    """The methods of HttpConnection that the code which responds to a request may use.

    HttpConnection has their docstrings.
    """

    is_ending: bool
    reserved_bytes: int
    on_close: Callable[[], object] | None
    on_drain: Callable[[int], object] | None

    @property
    def facts(self) -> Mapping[str, object]: ...

    @property
    def unread_bytes(self) -> int: ...

    def send(self, data: bytes, /) -> None: ...

    def flush(self) -> None: ...

    def end_exchange(self, exchange: Exchange, output: bytes, /) -> None: ...

    def end_with_json(self, exchange: Exchange, body: bytes, headers: bytes, /) -> None: ...

    def pass_rest_on(self) -> None: ...

    def reserve(self, size: int, /) -> None: ...

    def set_reading(self, reading: bool, /) -> None: ...

    def end_output(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...
