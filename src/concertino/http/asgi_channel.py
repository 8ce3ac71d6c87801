"""AsgiChannel: passes the requests of an ASGI server to an HttpConnection, and its responses back.

An ASGI server such as uvicorn parses HTTP itself, but the code that answers requests needs an
HttpConnection. So a channel acts as the asyncio transport of one: it encodes each ASGI request as
HTTP bytes, passes them to the connection, and converts the bytes that the connection writes to ASGI
messages. A call that does not wait for anything has written its response before data_received()
returns, so the request is answered without another iteration of the event loop.
AsgiApplication (asgi.py) makes the channels.
Source: the ASGI specification 3.0, "HTTP & WebSocket".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from concertino.http.connection import HttpConnection
from concertino.http.request_head import httptools
from concertino.http.responses import JSON_RESPONSE
from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.sockets import format_address

__all__ = ["AsgiChannel"]

# Headers about the connection between the client and the ASGI server. They are not passed on.
HOP_BY_HOP = frozenset(
    (b"connection", b"content-length", b"expect", b"keep-alive", b"transfer-encoding", b"upgrade")
)
# The headers that JSON_RESPONSE contains.
JSON_HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
# The headers of a response that the ASGI server adds by itself.
LEFT_TO_SERVER = (b"connection", b"date", b"transfer-encoding")


class AsgiChannel(asyncio.Transport):
    """The transport of an HttpConnection whose requests come from an ASGI server.

    http: the connection.
    """

    def __init__(self, http: HttpConnection) -> None:
        super().__init__()
        self._http = http
        self._loop = asyncio.get_running_loop()
        self._response = _ResponseMessages()
        # The future that serve() waits for. It is done when the response has more messages, or the
        # channel is closed.
        self._wakeup: asyncio.Future[None] | None = None
        # The task that waits until the client disconnects.
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_paused = False
        # What _reuse_head() last encoded, and the HTTP head that it made of it.
        self._last_parts: tuple[object, ...] = ()
        self._last_head = b""
        # The path at which the application is mounted, and the client, of the last request.
        self._last_place: tuple[str, object] = ("", None)
        http.connection_made(self)

    @property
    def is_usable(self) -> bool:
        """Whether the channel can serve another request."""
        return not self._is_closed and self._http.is_idle and not self._http.is_ending

    async def serve(
        self,
        path: str,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> bool:
        """Serve one request. Returns whether the channel can serve another one afterwards.

        Waits until the response is complete, or the client has disconnected.

        path: the path that the HttpConnection in this channel gets: usually that of the URL without
            the prefix at which the application is mounted.
        scope, receive, send: what the ASGI server has passed to the application.
        """
        response = self._response = _ResponseMessages(has_body=scope["method"] != "HEAD")
        message = await receive()
        if message["type"] != "http.request":
            # The client has disconnected before anything was passed to the connection, so the
            # channel is as good as before.
            return True
        body: bytes = message.get("body", b"")
        is_complete = not message.get("more_body")
        head = self._reuse_head(path, scope, len(body) if is_complete else None)
        if is_complete:
            self._feed(head + body, receive)
        else:
            self._feed(head, None)
            if not await self._pass_on_body(body, receive):
                return False

        while True:
            while response.messages:
                outgoing = response.messages.popleft()
                response.held_bytes -= len(outgoing.get("body", b""))
                await send(outgoing)
                if outgoing.get("more_body") is False:
                    self._stop_watching()
                    return response.is_reusable
            # send() returns when the ASGI server has room for more.
            self._resume_writing()
            if self._is_closed:
                return False
            await self._wait()

    def _reuse_head(self, path: str, scope: Mapping[str, Any], length: int | None) -> bytes:
        """Return the head of a request as bytes, and update the facts of the connection.

        Most requests have the same head as the request before. Then the bytes of that head are
        returned again, because comparing takes a third of the time of encoding. Requests of
        different clients may use one channel. So the facts get the address of this request's
        client, and the path at which the application is mounted, if they have changed.

        scope: the ASGI scope of the request.
        length: the length of the body; None for a body in chunks.
        """
        query: bytes = scope.get("query_string", b"")
        root = scope.get("root_path", "").rstrip("/")
        client = scope.get("client")
        parts = (path, scope["method"], scope["headers"], length, query)
        if parts != self._last_parts:
            self._last_head = _encode_head(path, scope, length)
            self._last_parts = parts
        if (root, client) != self._last_place:
            self._last_place = (root, client)
            address = {} if client is None else {"address": format_address(tuple(client))}
            self._http.facts = {"transport": "asgi", "root_path": root, **address}
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
        if self._is_closed:
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
        if has_left and not self._is_closed:
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

    # The methods of asyncio.Transport, which the HttpConnection calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        response = self._response
        response.feed(bytes(data))
        if not response.is_complete and not self._is_paused:
            self._is_paused = True
            self._http.pause_writing()
        self._wake()

    def _resume_writing(self) -> None:
        """Tell the connection that all of its output was sent."""
        if self._is_paused and not self._is_closed:
            self._is_paused = False
            self._http.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing. write() calls pause_writing() after any output, as with the limit 0."""

    def get_write_buffer_size(self) -> int:
        return self._response.held_bytes

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closed

    def is_reading(self) -> bool:
        return not self._is_closed

    def pause_reading(self) -> None:
        """Do nothing. The channel passes one request at a time, so no input can pile up."""

    def resume_reading(self) -> None:
        """Do nothing, because pause_reading() does nothing."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closed:
            self._close()
            self._loop.call_soon(self._http.connection_lost, None)

    def _close(self) -> None:
        """Mark the channel as closed, and end the response."""
        self._is_closed = True
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

    def __init__(self, *, has_body: bool = True) -> None:
        self._has_body = has_body
        self.messages: deque[dict[str, Any]] = deque()
        self.held_bytes = 0
        self.is_complete = False
        self.is_reusable = False
        self._headers: list[tuple[bytes, bytes]] = []
        # typing: httptools describes its parser without the methods' types
        self._parser: Any = None

    def feed(self, data: bytes) -> None:
        """Read bytes that the connection has written. Bytes after the response are ignored."""
        if self.is_complete or (self._parser is None and self._read_usual(data)):
            return
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(data)

    def _read_usual(self, data: bytes) -> bool:
        """Read the usual response: 200 with a JSON body, in one write.

        Returns False for any other response, which the parser must read. Reading the usual response
        without the parser takes half of the time.
        """
        if not data.startswith(JSON_RESPONSE):
            return False
        head, _, body = data.partition(b"\r\n\r\n")
        headers = list(JSON_HEADERS)
        for line in head[len(JSON_RESPONSE) :].split(b"\r\n"):
            name, _, value = line.partition(b": ")
            if name != b"Date":
                headers.append((name.lower(), value))
        self.is_complete = self.is_reusable = True
        self.held_bytes = len(body)
        self.messages.append({"type": "http.response.start", "status": 200, "headers": headers})
        self.messages.append({"type": "http.response.body", "body": body, "more_body": False})
        return True

    def end(self) -> None:
        """End the response, because the connection is closed."""
        if self.messages or self._headers:
            self._end_body()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        self.is_reusable = self._parser.should_keep_alive()
        if status == 100:
            # `100 Continue` is not the response.
            self._headers.clear()
            return
        headers = [pair for pair in self._headers if pair[0] not in LEFT_TO_SERVER]
        self.messages.append({"type": "http.response.start", "status": status, "headers": headers})
        if not self._has_body:
            self._end_body()

    def on_body(self, data: bytes) -> None:
        self.held_bytes += len(data)
        self.messages.append({"type": "http.response.body", "body": data, "more_body": True})

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 100:
            self._end_body()

    def _end_body(self) -> None:
        """Complete the response: mark its last message as the end of the body."""
        if self.is_complete:
            return
        self.is_complete = True
        last = self.messages[-1] if self.messages else None
        if last is not None and last["type"] == "http.response.body":
            last["more_body"] = False
        else:
            self.messages.append({"type": "http.response.body", "body": b"", "more_body": False})


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
    # A newline in a header would let the client add lines, or even another request.
    if head.count(b"\n") != len(lines) + 2 or head.count(b" HTTP/1.1\r\n") != 1:
        raise ValueError("the ASGI server has passed a header or a path on that spans lines")
    return head
