"""AsgiChannel: passes the requests of an ASGI server to an HttpConnection, and its responses back.

An ASGI server such as uvicorn parses HTTP itself, but the code that answers requests needs an
HttpConnection. So a channel acts as the asyncio transport of an HttpConnection: it encodes each
ASGI request as HTTP bytes, passes them to the connection, and converts the bytes that the
connection writes to ASGI messages. The usual response, a JSON body, is not encoded as HTTP in
between. A call that does not wait for anything has its response before data_received() returns, so
the request is answered without another iteration of the event loop.
AsgiApplication (asgi.py) makes the channels.
Source: the ASGI specification 3.0, "HTTP & WebSocket".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from concertino.http.connection import REPORTED_BYTES, HttpConnection
from concertino.http.exchange import Exchange
from concertino.http.request_head import httptools
from concertino.http.responses import JSON_HEADERS
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.sockets import format_address

__all__ = ["AsgiChannel", "AsgiConnection"]

# Headers about the connection between the client and the ASGI server. They are not passed on.
HOP_BY_HOP = frozenset(
    (b"connection", b"content-length", b"expect", b"keep-alive", b"transfer-encoding", b"upgrade")
)
# The status `100 Continue`, which comes before the response.
CONTINUE = 100
# The headers of a response that the ASGI server adds by itself.
LEFT_TO_SERVER = (b"connection", b"date", b"transfer-encoding")


class AsgiConnection(HttpConnection):
    """An HttpConnection whose transport is an AsgiChannel.

    It passes a JSON response to the channel directly. If it encoded the response as HTTP, and the
    channel parsed that, a call would take a tenth more instructions (Python 3.11).
    """

    def end_with_json(self, exchange: Exchange, body: bytes, headers: bytes) -> None:
        channel = self._transport
        if self.exchange is exchange and isinstance(channel, AsgiChannel):
            self._activity.since = self._loop.time()
            channel.send_json(body, headers)
        self.end_exchange(exchange, b"")


class AsgiChannel(asyncio.Transport):
    """The transport of an HttpConnection whose requests come from an ASGI server.

    http: the connection.
    find_path: returns the path that the connection gets for a request, from its ASGI scope.

    Attributes:
    is_closed: whether the channel is closed, so that it cannot serve another request.
    """

    def __init__(self, http: HttpConnection, find_path: Callable[[Mapping[str, Any]], str]) -> None:
        super().__init__()
        self._http = http
        self._find_path = find_path
        self._loop = asyncio.get_running_loop()
        self._response = _ResponseMessages()
        # The future that serve() waits for. It is done when the response has more messages, or the
        # channel is closed.
        self._wakeup: asyncio.Future[None] | None = None
        # The task that waits until the client disconnects.
        self._watching: asyncio.Task[None] | None = None
        self.is_closed = False
        self._is_paused = False
        # What _encode_head_of() last encoded, and the HTTP head that it returned.
        self._last_parts: tuple[object, ...] = ()
        self._last_head = b""
        # The path at which the application is mounted, and the client, of the last request.
        self._last_root_and_client: tuple[object, object] = ("", None)
        http.connection_made(self)

    async def serve(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> bool:
        """Serve one request. Returns whether the channel can serve another one afterwards.

        Waits until the response is complete, or the client has disconnected.

        scope, receive, send: what the ASGI server has passed to the application.
        """
        response = self._response = _ResponseMessages(has_body=scope["method"] != "HEAD")
        message = await receive()
        if message["type"] != "http.request":
            # The client has disconnected before anything was passed to the connection, so the
            # channel is as good as before.
            return True
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            self._feed(self._encode_head_of(scope, len(body)) + body, receive)
        else:
            self._feed(self._encode_head_of(scope, None), None)
            if not await self._pass_on_body(body, receive):
                return False

        messages = response.messages
        while True:
            while messages:
                outgoing = messages.popleft()
                response.held_bytes -= len(outgoing.get("body", b""))
                await send(outgoing)
                if outgoing.get("more_body") is False:
                    self._stop_watching()
                    self._resume_writing()
                    return response.is_reusable
            # send() returns when the ASGI server has room for more. Now the connection may write
            # the output that it has held, which adds messages at once.
            self._resume_writing()
            if messages:
                continue
            if self.is_closed:
                return False
            await self._wait()

    def _encode_head_of(self, scope: Mapping[str, Any], length: int | None) -> bytes:
        """Return the head of a request as bytes. Set the connection's facts to those of its client.

        length: the length of the body; None for a body in chunks.
        """
        # Requests of different clients may use one channel, so the facts may change. Most requests
        # have the same head as the request before, and comparing takes a third of the time of
        # encoding.
        get = scope.get
        root = get("root_path", "")
        client = get("client")
        root_and_client = (root, client)
        if root_and_client != self._last_root_and_client:
            self._last_root_and_client = root_and_client
            self._http.facts = _describe_client(root, None if client is None else tuple(client))
        parts = (
            scope["headers"], length, scope["path"], root, scope["method"], get("query_string", b"")
        )  # fmt: skip
        if parts != self._last_parts:
            self._last_head = _encode_head(self._find_path(scope), scope, length)
            self._last_parts = parts
        return self._last_head

    async def _pass_on_body(
        self, body: bytes, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]
    ) -> bool:
        """Pass on a body that arrives in several ASGI messages, as HTTP chunks.

        If the response begins before the end of the body, the request was refused, and the rest of
        the body is not read.

        body: the first piece of the body.
        Returns False if the client has disconnected.
        """
        more = True
        while True:
            if body:
                self._feed(b"%x\r\n%b\r\n" % (len(body), body), None)
            if self._response.messages or not more:
                break
            message = await receive()
            if message["type"] != "http.request":
                self.disconnect()
                return False
            body = message.get("body", b"")
            more = bool(message.get("more_body"))
        if not self._response.messages:
            self._feed(b"0\r\n\r\n", receive)
        return True

    def _feed(
        self, data: bytes, receive: Callable[[], Awaitable[MutableMapping[str, Any]]] | None
    ) -> None:
        """Pass bytes of a request to the connection.

        receive: the ASGI function that returns when the client disconnects. It is awaited in a task
            if the response is not complete at once. Pass None while the request is not complete.
        """
        # The server may have closed the connection since serve() began.
        if self.is_closed:
            self._wake()
            return
        self._http.data_received(data)
        if receive is not None and not self._response.is_complete:
            # Hidden, so that a handler that cancels all tasks of asyncio.all_tasks() spares it.
            self._watching = hide_from_all_tasks(
                self._loop.create_task(self._watch(receive, self._response))
            )

    async def _watch(
        self,
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        response: _ResponseMessages,
    ) -> None:
        """Close the connection if the client disconnects before the response is complete."""
        message = await receive()
        has_left = message["type"] == "http.disconnect" and not response.is_complete
        if has_left and not self.is_closed:
            self._watching = None
            self._close()
            # Reported at once, and not with call_soon(): the client's next request, such as one
            # that resumes the stream, may already have arrived.
            self._http.connection_lost(None)

    def _stop_watching(self) -> None:
        """Cancel the task that waits until the client disconnects."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()

    async def _wait(self) -> None:
        """Wait until the response has more messages, or the channel is closed."""
        self._wakeup = self._loop.create_future()
        try:
            await self._wakeup
        finally:
            self._wakeup = None

    def _wake(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)

    def disconnect(self) -> None:
        """Close the channel: the client has disconnected, or the channel is not used again."""
        self._stop_watching()
        self.abort()

    def send_json(self, body: bytes, headers: bytes) -> None:
        """Send a response with status 200 and a JSON body.

        headers: more headers, as whole lines.
        """
        self._response.set_json(body, headers)
        if len(body) >= REPORTED_BYTES:
            # The body counts as unread until serve() passes it to the ASGI server. Nobody waits
            # until a smaller body is read.
            self._pause_writing()
        self._wake()

    # The methods of asyncio.Transport, which the HttpConnection calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        response = self._response
        response.feed(bytes(data))
        if not response.is_complete:
            self._pause_writing()
        self._wake()

    def _pause_writing(self) -> None:
        """Tell the connection that output waits in the channel."""
        if not self._is_paused:
            self._is_paused = True
            self._http.pause_writing()

    def _resume_writing(self) -> None:
        """Tell the connection that all of its output was sent, if it waits for that."""
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            self._http.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing. write() calls pause_writing() after any output, as with the limit 0."""

    def get_write_buffer_size(self) -> int:
        return self._response.held_bytes

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.is_closed

    def is_reading(self) -> bool:
        return not self.is_closed

    def pause_reading(self) -> None:
        """Do nothing. The channel passes one request at a time, so no input can pile up."""

    def resume_reading(self) -> None:
        """Do nothing, because pause_reading() does nothing."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_closed:
            self._close()
            self._loop.call_soon(self._http.connection_lost, None)

    def _close(self) -> None:
        """Mark the channel as closed, and end the response."""
        self.is_closed = True
        self._response.end()
        self._wake()


class _ResponseMessages:
    """Converts the bytes of one response to ASGI messages. AsgiChannel.serve() sends these.

    has_body: whether a body follows the head. A response to HEAD has none, whatever its head says.

    Attributes:
    messages: the messages that were not sent yet.
    held_bytes: the size of the parts of the body in these messages.
    is_complete: whether the response has ended.
    is_reusable: whether the connection stays open after the response.
    """

    # Values that most responses do not change. Setting them for each response would take time.
    held_bytes = 0
    is_complete = False
    is_reusable = False
    _headers: Sequence[tuple[bytes, bytes]] = ()
    # typing: httptools describes its parser without the methods' types
    _parser: Any = None

    def __init__(self, *, has_body: bool = True) -> None:
        self._has_body = has_body
        self.messages: deque[dict[str, Any]] = deque()

    def feed(self, data: bytes) -> None:
        """Read bytes that the connection has written. Bytes after the response are ignored."""
        if self.is_complete:
            return
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def set_json(self, body: bytes, headers: bytes) -> None:
        """Set a response with status 200 and a JSON body.

        headers: more headers, as whole lines.
        """
        length = (b"content-length", b"%d" % len(body))
        pairs = [*_parse_headers(JSON_HEADERS + headers), length]
        self.is_complete = self.is_reusable = True
        self.held_bytes = len(body)
        self.messages += (
            {"type": "http.response.start", "status": 200, "headers": pairs},
            {"type": "http.response.body", "body": body, "more_body": False},
        )

    def end(self) -> None:
        """End the response, because the connection is closed."""
        if self.messages or self._headers:
            self._end_body()

    # Called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers = (*self._headers, (name.lower(), value))

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        self.is_reusable = self._parser.should_keep_alive()
        if status == CONTINUE:
            self._headers = ()
            return
        headers = [pair for pair in self._headers if pair[0] not in LEFT_TO_SERVER]
        self.messages.append({"type": "http.response.start", "status": status, "headers": headers})
        if not self._has_body:
            self._end_body()

    def on_body(self, data: bytes) -> None:
        self.held_bytes += len(data)
        self.messages.append({"type": "http.response.body", "body": data, "more_body": True})

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != CONTINUE:
            self._end_body()

    def _end_body(self) -> None:
        """Complete the response: mark its last message as the end of the body.

        Does nothing if the response is complete, as a response without a body is after its head.
        """
        if self.is_complete:
            return
        self.is_complete = True
        last = self.messages[-1] if self.messages else None
        if last is not None and last["type"] == "http.response.body":
            last["more_body"] = False
        else:
            self.messages.append({"type": "http.response.body", "body": b"", "more_body": False})


@lru_cache(maxsize=256)
def _parse_headers(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Return the names and values of headers. lines: the headers, as whole lines."""
    pairs = (line.partition(b": ") for line in lines.removesuffix(b"\r\n").split(b"\r\n"))
    return [(name.lower(), value) for name, _, value in pairs]


@lru_cache(maxsize=256)
def _describe_client(root: str, client: tuple[Any, ...] | None) -> Mapping[str, object]:
    """Return facts about a client, as in Connection.facts (transports/connection.py).

    root: the path at which the application is mounted.
    client: the client in the ASGI scope: its address and its port; None if it is not known.
    """
    address = {} if client is None else {"address": format_address(client)}
    return {"transport": "asgi", "root_path": root.rstrip("/"), **address}


@lru_cache(maxsize=64)
def _encode_path(path: str) -> bytes:
    """Return a path as in a request line. A malformed one becomes "/", which gets 404 as well."""
    return quote(path).encode() if path.startswith("/") else b"/"


def _encode_head(path: str, scope: Mapping[str, Any], length: int | None) -> bytes:
    """Return the head of a request as bytes.

    length: the length of the body; None for a body in chunks.
    """
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    lines = [b"%b: %b" % pair for pair in headers if pair[0] not in HOP_BY_HOP]
    lines.append(
        b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    )
    method = scope["method"].encode("ascii", "replace")
    target = _encode_path(path)
    if query := scope.get("query_string", b""):
        target += b"?" + query
    head = b"%b %b HTTP/1.1\r\n%b\r\n\r\n" % (method, target, b"\r\n".join(lines))
    # A newline in a header would let the client add lines, or even another request. The head has
    # one line for each header, the request line and the empty line.
    if head.count(b"\n") != len(lines) + 2 or head.count(b" HTTP/1.1\r\n") != 1:
        raise ValueError("the ASGI server has passed a header or a path on that spans lines")
    return head
