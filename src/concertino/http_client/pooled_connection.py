"""PooledConnection: one HTTP/1.1 connection to a server, for one request at a time.

httptools (llhttp) parses the responses.
Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from concertino.installation import missing_extra

try:
    import httptools
except ModuleNotFoundError:
    raise ImportError(missing_extra("HTTP", "http")) from None

__all__ = ["PooledConnection", "ResponseHead", "ResponseListener"]

# The head of a response may have this many bytes.
MAX_HEAD_BYTES = 64 * 1024


class ResponseHead(Struct, frozen=True):
    """The status and the headers of a response. headers: the values by lower-case name."""

    status: int
    headers: Mapping[str, str]

    @property
    def media_type(self) -> str:
        """Return the media type of the body in lower case, without parameters; "" if unknown."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class ResponseListener(Protocol):
    """What gets the response to a request."""

    def on_head(self, head: ResponseHead, /) -> None:
        """Handle the head of the response. Informational responses are left out."""
        ...

    def on_body(self, data: bytes, /) -> None:
        """Handle a piece of the body."""
        ...

    def on_end(self) -> None:
        """Handle the end of the response. The connection may already carry another request."""
        ...

    def on_lost(self, reason: str, unanswered: bool, /) -> None:
        """Handle the loss of the connection.

        unanswered: whether not one byte of the response has come, on a connection that had carried
            other requests before. Probably the server has closed it because it was idle.
        """
        ...


class PooledConnection(asyncio.Protocol):
    """One connection to a server.

    on_idle: called when a response is complete, and the connection may carry another request.
    on_close: called when the connection is closed, however that came.
    """

    def __init__(
        self,
        on_idle: Callable[[PooledConnection], object],
        on_close: Callable[[PooledConnection], object],
    ) -> None:
        self._on_idle = on_idle
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._listener: ResponseListener | None = None
        self._was_used = False
        self._is_closed = False
        self._start_response()

    def _start_response(self) -> None:
        # typing: httptools describes its parser without the methods' types
        self._parser: Any = httptools.HttpResponseParser(self)
        self._head: ResponseHead | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._heard = False

    # Requests

    @property
    def is_closed(self) -> bool:
        """Return whether the connection cannot carry a request any more."""
        return self._is_closed or self._transport is None or self._transport.is_closing()

    def send(self, request: bytes, listener: ResponseListener) -> None:
        """Send a request, with head and body. The listener gets the response."""
        assert self._transport is not None
        self._listener = listener
        self._transport.write(request)

    def pause(self, paused: bool) -> None:
        """Stop reading (True), or continue (False)."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.is_reading() is not paused:
            return
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once. The listener hears nothing more."""
        self._listener = None
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._listener is None:
            # Nothing was asked.
            self.abort()
            return
        self._heard = True
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the server has changed to another protocol")
        except httptools.HttpParserCallbackError as exc:
            raise exc.__context__ or exc from None
        except httptools.HttpParserError as exc:
            self._fail(f"the server sends no HTTP/1.1: {exc}")
        if self._head is None and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(f"the head of the response has more than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        listener, self._listener = self._listener, None
        self._on_close(self)
        if listener is None:
            return
        head = self._head
        if head is not None and exc is None and not _has_length(head.headers):
            # The end of the connection is the end of this body.
            listener.on_end()
            return
        reason = f": {exc}" if exc is not None else ""
        listener.on_lost(
            f"the server closed the connection before the end of its response{reason}",
            self._was_used and not self._heard,
        )

    # Called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        # Several lines with one name mean the same as one line with all values.
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status >= 200 and self._listener is not None:
            self._head = ResponseHead(status, self._headers)
            self._listener.on_head(self._head)
        self._headers = {}

    def on_body(self, data: bytes) -> None:
        if self._listener is not None:
            self._listener.on_body(data)

    def on_message_complete(self) -> None:
        listener = self._listener
        if listener is None or self._head is None:
            return
        self._listener = None
        self._was_used = True
        if self._parser.should_keep_alive():
            self._start_response()
            self._on_idle(self)
        else:
            self.abort()
        listener.on_end()

    def _fail(self, reason: str) -> None:
        listener, self._listener = self._listener, None
        self.abort()
        if listener is not None:
            listener.on_lost(reason, False)


def _has_length(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
