"""ClientExchange: one HTTP request to an MCP server, and its response.

The response is a single JSON body or a stream of events. ClientExchange reads the response and
reports the JSON-RPC messages in it to its ExchangeOwner, which is the StreamableHttpConnection
(connection.py). In revisions before 2026-07-28, the owner resumes a broken stream: it sends the
exchange again, as a GET with Last-Event-ID. In 2026-07-28, streams cannot be resumed, and the
request fails.
Spec: 2025-11-25 basic/transports "Resumability and Redelivery".
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Literal, Protocol

from msgspec import Struct

from concertino.http.byte_pieces import add_piece
from concertino.http.envelope import Envelope
from concertino.http_client.event_stream import EventStreamParser, EventTooLong, doubled_pause_s
from concertino.http_client.pooled_connection import PooledConnection, ResponseHead
from concertino.jsonrpc.messages import Id

__all__ = [
    "EVENT_STREAM",
    "ClientExchange",
    "ExchangeOwner",
    "HttpFailure",
    "PostedMessage",
    "describe_status",
]

# What an HTTP request is for; ClientExchange describes each kind.
RequestKind = Literal["post", "listen", "resume", "delete", "sse", "message"]
EVENT_STREAM = "text/event-stream"
# The largest part of a refusal's body that is read, in bytes.
MAX_REFUSAL_BYTES = 64 * 1024


class HttpFailure(Exception):
    """The reason why a request gets no JSON-RPC response. It is passed on, and never raised.

    text: the reason, for people.
    head: the head of the HTTP response; None if there was no response, or a malformed one.
    may_resend: whether to send the request once more, because the server has probably not received
        it, and it does no harm if the server receives it twice.
    login: the command with which a user can log in, if the request needs a login; otherwise "".
    """

    def __init__(
        self,
        text: str,
        head: ResponseHead | None = None,
        *,
        may_resend: bool = False,
        login: str = "",
    ) -> None:
        super().__init__(text)
        self.head = head
        self.may_resend = may_resend
        self.login = login

    @property
    def status(self) -> int:
        """The status of the response; 0 if there was none."""
        return 0 if self.head is None else self.head.status


class ExchangeOwner(Protocol):
    """Gets the parts of the response to a ClientExchange as they arrive.

    StreamableHttpConnection implements it. For each request, one of these methods is the last:
    on_exchange_end(), on_refusal() or on_failure().
    """

    @property
    def max_bytes(self) -> int:
        """How many bytes a body, or one event of a stream, may have."""
        ...

    def on_head(self, exchange: ClientExchange, head: ResponseHead, /) -> None:
        """Handle the head of a response with a status of 2xx."""
        ...

    def on_message(self, exchange: ClientExchange, frame: bytes, /) -> None:
        """Handle a JSON-RPC message in the response."""
        ...

    def on_endpoint(self, exchange: ClientExchange, location: str, /) -> None:
        """Handle the event `endpoint` of a 2024-11-05 stream.

        location: the URL to which the client has to send its messages.
        """
        ...

    def on_refusal(self, exchange: ClientExchange, head: ResponseHead, body: bytes, /) -> None:
        """Handle a complete response with a status other than 2xx."""
        ...

    def on_exchange_end(self, exchange: ClientExchange, /) -> None:
        """Handle the end of a response with a status of 2xx."""
        ...

    def on_failure(self, exchange: ClientExchange, failure: HttpFailure, /) -> None:
        """Handle a response that is missing, incomplete or malformed."""
        ...


class PostedMessage(Struct, frozen=True):
    """The JSON-RPC message in a POST.

    frame: the encoded message.
    method: the method of the message; "" for a response.
    id: the id of a request; None for other messages.
    is_modern: whether the message belongs to revision 2026-07-28.
    envelope: the decoded fields of the message from which HTTP headers are made.
    """

    frame: bytes
    method: str
    id: Id | None
    is_modern: bool
    envelope: Envelope


class _Response:
    """The received part of a response: its head, and its body unless it is a stream of events.

    authorization: the header Authorization of the request; "" for none.

    Attributes:
    head: the head (status and headers); None until it is received.
    is_success: whether the status is 2xx.
    media_type: the media type of the body, such as "application/json".
    size: the number of received bytes of the body.
    """

    def __init__(self, authorization: str = "") -> None:
        self.authorization = authorization
        self.head: ResponseHead | None = None
        self.is_success = False
        self.media_type = ""
        self._pieces: list[bytes] = []
        self.size = 0

    def begin(self, head: ResponseHead) -> None:
        """Set the head."""
        self.head = head
        self.is_success = 200 <= head.status < 300
        self.media_type = head.media_type

    def add(self, data: bytes) -> None:
        """Add a piece of the body."""
        add_piece(self._pieces, data)
        self.size += len(data)

    def body(self) -> bytes:
        """Return the received part of the body."""
        return b"".join(self._pieces)


class ClientExchange:
    """One HTTP request to a server, and its response.

    owner: handles the messages in the response, and failures.
    kind: what the request is for:
        - "post": a POST with a message.
        - "listen": the GET for the stream of messages that belong to no request of the client.
        - "resume": a GET for the rest of the broken stream of a POST.
        - "delete": the DELETE that ends the session.
        - "sse": the GET for the stream of a server of MCP 2024-11-05 (sse_fallback.py).
        - "message": a POST to such a server. The JSON-RPC response comes on that stream.
    path: the path of the request; a redirect changes it.
    posted: the message of a POST; None for requests of another kind.

    Attributes:
    events: reads the response if it is a stream of events; None before the first such response.
        After a stream has broken, its `last_id` is the event after which to resume.
    is_answered: whether the JSON-RPC response to the message has arrived.
    is_over: whether the exchange has ended, so that nothing more is received.
    expiry: the timer of the request's time limit, which the owner starts and the exchange stops;
        None without a limit.

    The owner decides by these when to give up, and how long to wait between attempts:
    tries: how many times the client has tried to send the request. The owner sets it back to 1
        after a stream that was open for more than 30 s, or that the server has ended on purpose.
    failures: how many times in a row a broken stream could not be opened again.
    """

    def __init__(
        self,
        owner: ExchangeOwner,
        kind: RequestKind,
        path: str,
        posted: PostedMessage | None = None,
    ) -> None:
        self.kind = kind
        self.path = path
        self.posted = posted
        self.is_answered = False
        self.is_over = False
        self.tries = 0
        self.failures = 0
        self.expiry: asyncio.TimerHandle | None = None
        self.events: EventStreamParser | None = None
        self._owner = owner
        self._response = _Response()
        self._connection: PooledConnection | None = None

    @property
    def method(self) -> str:
        """The method of the JSON-RPC message; "" for a response, or without a message."""
        return "" if self.posted is None else self.posted.method

    @property
    def id(self) -> Id | None:
        """The id of the message if it is a request; else None."""
        return None if self.posted is None else self.posted.id

    @property
    def is_modern(self) -> bool:
        """Whether the message belongs to revision 2026-07-28."""
        return self.posted is not None and self.posted.is_modern

    @property
    def body(self) -> bytes:
        """The received part of the response's body; empty if it is a stream of events."""
        return self._response.body()

    @property
    def authorization(self) -> str:
        """The header Authorization of the request as it was last sent; "" for none."""
        return self._response.authorization

    def send(self, connection: PooledConnection, request: bytes, authorization: str = "") -> None:
        """Send the request on a connection.

        request: the complete HTTP request.
        authorization: the value of the header Authorization in it; "" for none.
        """
        self.tries += 1
        self._connection = connection
        self._response = _Response(authorization)
        connection.send(request, self)

    def reopening_pause_s(self, tries: int, demanded_s: float | None = None) -> float:
        """Return how many seconds to wait before the stream of this exchange is opened again.

        This is the longest of three pauses: `demanded_s`, that of EventStreamParser.pause_s(), and
        one that doubles with each failure in a row to open the stream.

        tries: the argument of EventStreamParser.pause_s().
        demanded_s: the pause that the server demands in Retry-After; None without a demand.
        """
        pause = demanded_s or 0.0
        if self.events is not None:
            pause = max(pause, self.events.pause_s(tries))
        if self.failures:
            pause = max(pause, doubled_pause_s(self.failures))
        return pause

    def abort(self) -> None:
        """End the exchange, and close its connection if the response is not complete."""
        self.is_over = True
        self.stop_expiry()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def stop_expiry(self) -> None:
        """Stop the timer of the time limit, if there is one."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    # Called by the connection

    def on_head(self, head: ResponseHead) -> None:
        """Handle the head of the response."""
        response = self._response
        response.begin(head)
        if not response.is_success:
            return
        if response.media_type == EVENT_STREAM:
            if head.headers.get("content-encoding", "identity").lower() != "identity":
                self._fail(f"expected a stream of events, got {self.describe_response()}")
                return
            previous = self.events
            self.events = EventStreamParser(self._owner.max_bytes)
            # If this stream ends before its first event, the next request resumes it after the last
            # event of the previous stream.
            if previous is not None:
                self.events.last_id, self.events.retry_s = previous.last_id, previous.retry_s
        self._owner.on_head(self, head)

    def on_body(self, data: bytes) -> None:
        """Handle a piece of the body."""
        response = self._response
        if self.is_over:
            return
        if not response.is_success:
            if response.size < MAX_REFUSAL_BYTES:
                response.add(data)
        elif response.media_type == EVENT_STREAM and self.events is not None:
            self._read_events(self.events, data)
        else:
            response.add(data)
            if response.size > self._owner.max_bytes:
                self._fail(f"the response has more than {self._owner.max_bytes} bytes")

    def _read_events(self, events: EventStreamParser, data: bytes) -> None:
        """Read a piece of a stream of events, and report the messages in it."""
        try:
            messages = events.feed(data)
        except EventTooLong as exc:
            # Without an id, the stream is not resumed. A resumed stream would begin with the event
            # that is too long.
            events.last_id = ""
            self._fail(str(exc))
            return
        if self.kind == "sse" and events.endpoint:
            location, events.endpoint = events.endpoint, ""
            self._owner.on_endpoint(self, location)
        for message in messages:
            if not self.is_over:
                self._owner.on_message(self, message)

    def on_end(self) -> None:
        """Handle the end of the response."""
        response, self._connection = self._response, None
        head = response.head
        assert head is not None
        self.stop_expiry()
        if self.is_over:
            return
        body = response.body()
        if not response.is_success:
            self._owner.on_refusal(self, head, body)
            return
        # Only the POST of a request gets a JSON-RPC response as its body. The body of another HTTP
        # response, such as that to a notification, is ignored.
        if self.kind == "post" and self.id is not None and body and not body.isspace():
            if response.media_type != "application/json":
                self._fail(f"expected JSON or a stream of events, got {self.describe_response()}")
                return
            self._owner.on_message(self, body)
        self._owner.on_exchange_end(self)

    def describe_response(self) -> str:
        """Return a description of an unexpected response, for the text of an error.

        The description has the status, the media type, and the beginning of the body.
        """
        head, body = self._response.head, self.body
        assert head is not None
        if head.media_type != EVENT_STREAM and (not body or body.isspace()):
            return f"{describe_status(head.status)} without a body"
        kind = head.media_type or "a body without Content-Type"
        if encoding := head.headers.get("content-encoding"):
            kind += f" in the encoding {encoding[:20]}"
        return f"HTTP {head.status} with {kind}: {body[:200]!r}"

    def on_lost(self, reason: str, is_unreceived: bool) -> None:
        """Handle that the connection was lost before the end of the response.

        reason: what has happened, for the text of the error.
        is_unreceived: whether the server has probably not received the request.
        """
        self._connection = None
        if self.is_over:
            return
        # Send the request at most twice. Otherwise a server that closes each connection would get
        # the request for ever.
        self._fail(reason, may_resend=is_unreceived and self.tries == 1 and self.is_repeatable)

    @property
    def is_repeatable(self) -> bool:
        """Return whether the request may be sent twice.

        Returns False for a tools/call, because a tool may have side effects, and for a POST of a
        notification or a response.
        """
        if self.kind not in ("post", "message"):
            return True
        return self.id is not None and self.method != "tools/call"

    def _fail(self, text: str, *, may_resend: bool = False) -> None:
        """Close the connection, and report a failure to the owner."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._owner.on_failure(self, HttpFailure(text, self._response.head, may_resend=may_resend))


def describe_status(status: int) -> str:
    """Return a status with its name, such as `HTTP 404 Not Found`."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"
