"""PooledConnection: one HTTP/1.1 connection to a server, which carries one request at a time.

A PooledConnection writes requests and reads responses, with the parser of the package httptools. It
passes the parts of a response to the ResponseListener of the request, which is a ClientExchange
(exchange.py). Between two requests, the connection is in the ConnectionPool (pool.py).
Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from msgspec import Struct

from concertino.installation import missing_extra

try:
    import httptools
except ModuleNotFoundError:
    raise ImportError(missing_extra("HTTP", "http")) from None

__all__ = ["PooledConnection", "ResponseHead", "ResponseListener"]

# The largest size of the head of a response, and of the trailers after its body, in bytes.
MAX_HEAD_BYTES = 64 * 1024
# The size of one read, in bytes.
READ_BYTES = 64 * 1024


class ResponseHead(Struct, frozen=True):
    """The status and the headers of a response. headers: header name in lower case -> value."""

    status: int
    headers: Mapping[str, str]

    @property
    def media_type(self) -> str:
        """The media type of the body in lower case, without parameters; "" if unknown."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class ResponseListener(Protocol):
    """Gets the parts of the response to one request as they arrive.

    on_head() is called first, then on_body() any number of times, then on_end(). If the connection
    is lost before on_end(), on_lost() is called, and no other method after it.
    """

    def on_head(self, head: ResponseHead, /) -> None:
        """Handle the head of the response. It is not called for informational responses (1xx)."""
        ...

    def on_body(self, data: bytes, /) -> None:
        """Handle a piece of the body."""
        ...

    def on_end(self) -> None:
        """Handle the end of the response. The connection may already carry another request."""
        ...

    def on_lost(self, reason: str, is_unreceived: bool, /) -> None:
        """Handle that the connection was lost, or that the response is malformed.

        reason: a description of what has happened.
        is_unreceived: whether the server has probably not received the request, because it has
            closed an idle connection: one that had carried other requests, and on which no byte of
            a response was received.
        """
        ...


class _ResponseReader:
    """Reads one response, and passes its parts to a listener. httptools calls `on_...` methods.

    Attributes:
    head: the head of the response; None until it is complete.
    overhead_bytes: how many bytes were received since the last byte of the body: heads, trailers,
        and lines between chunks.
    is_complete: whether the response has ended.
    has_surplus: whether bytes were received after the end of the response.
    keeps_alive: whether the server allows another request on the connection.
    """

    def __init__(self, listener: ResponseListener) -> None:
        # typing: httptools describes its parser without the methods' types
        self._parser: Any = httptools.HttpResponseParser(self)
        self._listener = listener
        self._headers: dict[str, str] = {}
        self.head: ResponseHead | None = None
        self.overhead_bytes = 0
        self.is_complete = self.has_surplus = self.keeps_alive = False

    def feed(self, data: bytes | memoryview) -> str:
        """Read a piece of the response. Returns "", or a description of the error in it."""
        self.overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return "the server has changed to another protocol"
        except httptools.HttpParserCallbackError as exc:
            # A method of the listener has raised an exception. Raise the same exception here.
            raise exc.__context__ or exc from None
        except httptools.HttpParserError as exc:
            if not self.is_complete:
                return f"the server sends no HTTP/1.1: {exc}"
            # The response was read before the malformed bytes.
            self.has_surplus = True
        # Without this limit, a server could fill the memory.
        if self.is_complete or self.overhead_bytes <= MAX_HEAD_BYTES:
            return ""
        part = "head" if self.head is None else "trailer"
        return f"the {part} of the response has more than {MAX_HEAD_BYTES} bytes"

    # Called by httptools

    def on_message_begin(self) -> None:
        # A message that begins after the end of the response was not requested. Both attributes are
        # False before the end, and stay True after it.
        self.has_surplus = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        # RFC 9110, section 5.3: header lines with the same name are joined by commas.
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status >= 200 and not self.is_complete:
            self.head = ResponseHead(status, self._headers)
            self._listener.on_head(self.head)
        self._headers = {}

    def on_body(self, data: bytes) -> None:
        self.overhead_bytes = 0
        if not self.is_complete:
            self._listener.on_body(data)

    def on_message_complete(self) -> None:
        if self.head is not None and not self.is_complete:
            self.is_complete = True
            self.keeps_alive = self._parser.should_keep_alive()


class PooledConnection(asyncio.BufferedProtocol):
    """One connection to a server, which carries one request at a time.

    It is an asyncio protocol: open_transport() (pool.py) connects it.

    on_idle: called with this connection when a response is complete and another request may be
        sent.
    on_close: called with this connection when either side has closed it.

    Attributes:
    idle_since: when the last response was complete, by the clock of the event loop.
    """

    def __init__(
        self,
        on_idle: Callable[[PooledConnection], object],
        on_close: Callable[[PooledConnection], object],
    ) -> None:
        self.idle_since = 0.0
        self._on_idle = on_idle
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._listener: ResponseListener | None = None
        # The reader of the current response; None until its first byte is received.
        self._reader: _ResponseReader | None = None
        # Whether the connection has carried a complete response.
        self._was_used = False
        self._is_closed = False
        # The connection is a BufferedProtocol and reads into this buffer, because for a plain
        # Protocol asyncio allocates 256 KiB for each read, which takes 10 us. A memoryview, because
        # asyncio's TLS writes into slices of it.
        self._buffer = memoryview(bytearray(READ_BYTES))

    # Requests

    @property
    def is_closed(self) -> bool:
        """Whether the connection cannot carry a request any more."""
        return self._is_closed or self._transport is None or self._transport.is_closing()

    def send(self, request: bytes, listener: ResponseListener) -> None:
        """Send a request. The response to the previous request must be complete.

        Call this only while is_closed is False.

        request: the complete HTTP request.
        listener: gets the parts of the response.
        """
        assert self._transport is not None
        self._listener = listener
        self._transport.write(request)

    def pause(self, paused: bool) -> None:
        """Stop reading from the connection, or continue. paused: whether to stop."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if paused and transport.is_reading():
            transport.pause_reading()
        elif not paused and not transport.is_reading():
            transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once. After that, the listener is not called any more."""
        self._listener = None
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assert checks the type: uvloop's transports are no subclasses of asyncio.Transport.
        self._transport = transport = cast("asyncio.Transport", transport)
        if self._is_closed:
            # abort() was called while the connection was being opened.
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes]
        listener = self._listener
        if listener is None:
            # The server sends bytes although there is no request.
            self.abort()
            return
        reader = self._reader
        if reader is None:
            reader = self._reader = _ResponseReader(listener)
        problem = reader.feed(data)
        # The listener may have called abort() when it got a part of the response. Then it is not
        # called any more.
        if problem and self._listener is listener:
            self.abort()
            listener.on_lost(problem, False)
        elif reader.is_complete and self._listener is listener:
            self._end_response(reader, listener)

    def _end_response(self, reader: _ResponseReader, listener: ResponseListener) -> None:
        """Make the connection idle or close it, and report the end of the response.

        Call this only when all bytes that were received together with the end are read.
        reader: has read the response.
        listener: gets the end of the response.
        """
        self._listener = self._reader = None
        self._was_used = True
        # Surplus bytes must not be taken for the response to the next request.
        if reader.keeps_alive and not reader.has_surplus:
            self.idle_since = asyncio.get_running_loop().time()
            # Before on_end(), so that the listener can send another request on this connection.
            self._on_idle(self)
        else:
            self.abort()
        listener.on_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report to the listener of a pending response that the connection has ended."""
        self._is_closed = True
        listener, self._listener = self._listener, None
        reader, self._reader = self._reader, None
        self._on_close(self)
        if listener is None:
            return
        head = None if reader is None else reader.head
        # A body without a length ends with the connection.
        if head is not None and exc is None and not _has_length(head.headers):
            listener.on_end()
            return
        reason = f": {exc}" if exc is not None else ""
        listener.on_lost(
            f"the server closed the connection before the end of its response{reason}",
            self._was_used and reader is None,
        )


def _has_length(headers: Mapping[str, str]) -> bool:
    """Return whether a response says where its body ends. If not, it ends with the connection."""
    return "content-length" in headers or "transfer-encoding" in headers
