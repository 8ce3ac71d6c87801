"""RequestReader: reads the HTTP/1.1 requests in the bytes that one client sends.

HttpConnection passes the bytes to it as they arrive. RequestReader finds the end of each head and
body, calls the connection back before a body is read, and returns complete requests.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from msgspec import Struct

from concertino.http.byte_pieces import add_piece
from concertino.http.chunked_body import ChunkedBody
from concertino.http.large_responses import LargeResponse, may_hold_response, too_large
from concertino.http.request_head import HeadParser, HttpError, RequestHead
from concertino.protocol.principal import Principal

__all__ = ["HttpRequest", "RequestReader"]

# The longest head of a request, in bytes: the request line and the headers.
MAX_HEAD_BYTES = 16 * 1024
# For a larger body, in bytes, memory is reserved with on_reserve() before it is read.
LARGE_BODY = 64 * 1024

# The empty line after the headers ends the head.
HEAD_END = b"\r\n\r\n"
# The first byte of a connection with TLS: RFC 8446, section 5.1. No HTTP method begins with it.
TLS_HANDSHAKE = 0x16


class HttpRequest(Struct, frozen=True):
    """One HTTP request.

    head: the request line and the headers.
    body: the whole body, with chunks (Transfer-Encoding) joined. A body over the size limit is
        replaced by LargeResponse.error, so that the request of the server to which the body
        responded fails; empty if the body was no such response.
    principal: the user who has sent the request; None if the user is not known.
    refusal: the error for a body over the size limit; None for any other request.
    """

    head: RequestHead
    body: bytes
    principal: Principal | None = None
    refusal: HttpError | None = None


class RequestReader:
    """Reads the requests in the bytes that one client sends.

    Call receive() with each input. While it returns a request, call next() for the requests that
    have arrived together with it. Call feed() with input that arrives while no request may be read.

    parser: parses the heads. Several readers may share it.
    on_head: called with the head of each request before its body is read, unless the head is
        `admitted`. It raises HttpError to refuse the request.
    on_body_due: called with the head when the client is to send the rest of the body, but not if
        the whole body has arrived, and not while `awaits_user` is True.
    on_reserve: called with the size of a large body before it is read. If the size is not known in
        advance, it is called again as the body grows. Raises HttpError to refuse the body.
    max_body_bytes: the limit for a body, in bytes.

    Attributes that on_head sets:
    admitted: a head for which on_head need not be called again, because it would set the same
        `principal`; None to call on_head each time.
    principal: the user who has sent the request; None if the user is not known.
    awaits_user: whether the rest of the request must wait until its user has been verified. The
        code that verifies the user then sets `principal`, sets this to False, and calls next().

    Other attributes:
    head: the head of the request whose body is being read; None between requests.
    unused_bytes: the number of bytes that have arrived and were not read yet.
    """

    def __init__(
        self,
        parser: HeadParser,
        on_head: Callable[[RequestHead], object],
        on_body_due: Callable[[RequestHead], object],
        on_reserve: Callable[[int], object],
        max_body_bytes: int,
    ) -> None:
        self._parser = parser
        self._on_head = on_head
        self._on_body_due = on_body_due
        self._on_reserve = on_reserve
        self._max_body_bytes = max_body_bytes
        # The largest body that is returned at once if it arrives together with its head.
        self._small_body = min(LARGE_BODY, max_body_bytes)
        self.admitted: RequestHead | None = None
        self.principal: Principal | None = None
        self.awaits_user = False
        # The bytes that have arrived and are not used. They stay in pieces, so that a large body is
        # joined only once.
        self._pieces: list[bytes] = []
        self.unused_bytes = 0
        self.head: RequestHead | None = None
        # The last head and its bytes. Most requests of a client begin with the same bytes. Then one
        # comparison replaces the search for the end of the head and the look-up in the cache, which
        # take ten times as long.
        self._last_head: RequestHead | None = None
        self._last_bytes = b""
        # Finds the end of the body that is being read, if it arrives in chunks.
        self._chunks: ChunkedBody | None = None
        # The size that on_reserve() was last called with for the body that is being read.
        self._reserved_bytes = 0
        # Reads the current body if it is over the limit, and may be the client's response to a
        # request of this server; None for any other body.
        self._large: LargeResponse | None = None

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the reader keeps: unused_bytes, and the body that it reads.

        The owner limits this number.
        """
        size = self.unused_bytes
        if self._chunks is not None:
            size += self._chunks.size
        if self._large is not None:
            size += self._large.size
        return size

    @property
    def is_inside(self) -> bool:
        """Whether a request has begun to arrive and is not complete."""
        return self.head is not None or self.unused_bytes > 0

    def feed(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        add_piece(self._pieces, data)
        self.unused_bytes += len(data)

    def take_rest(self) -> bytes:
        """Remove and return the bytes that have arrived after a request.

        They belong to another protocol, because the request has switched the protocol.
        """
        return self._take()

    def receive(self, data: bytes) -> HttpRequest | None:
        """Add bytes that have arrived, and return the next complete request.

        data: at least one byte.
        Returns None if more bytes are needed, or if the user must be verified first. Raises
        HttpError if the request is malformed or not acceptable.
        """
        if self._pieces or self.head is not None:
            self.feed(data)
            return self.next()
        found = self._read_head(data)
        return self._read_body(found) if isinstance(found, RequestHead) else found

    def next(self) -> HttpRequest | None:
        """Return the next complete request.

        Returns None if more bytes are needed, or if the user must be verified first. Raises
        HttpError if the request is malformed or not acceptable. After an HttpError, or a request
        with `refusal`, no further request can be read.
        """
        head = self.head
        if head is None:
            if not self.unused_bytes:
                return None
            found = self._read_head(self._take())
            if not isinstance(found, RequestHead):
                return found
            head = found
        return self._read_body(head)

    def _read_body(self, head: RequestHead) -> HttpRequest | None:
        """Return the request with this head.

        Returns None if the body is not complete, or if the user must be verified first.
        """
        self.head = head
        if self.awaits_user:
            return None
        if self._large is not None:
            return self._read_large(head, self._large)
        length = head.body_bytes
        if length is None:
            body = self._read_chunks(head)
            # _read_chunks() may just have found that the body is over the limit.
            if self._large is not None:
                return self._read_large(head, self._large)
            if body is None:
                return None
        elif self.unused_bytes < length:
            return None
        else:
            data = self._take()
            body = data[:length]
            self._put_back(data[length:])
        self.head = None
        return HttpRequest(head, body, self.principal)

    def _take(self) -> bytes:
        """Remove and return all bytes that were kept."""
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self.unused_bytes = 0
        return data

    def _put_back(self, data: bytes) -> None:
        """Keep bytes that _take() has returned but that were not used."""
        if data:
            self._pieces.append(data)
            self.unused_bytes = len(data)

    def _read_head(self, data: bytes) -> RequestHead | HttpRequest | None:
        """Read the head of the next request.

        Returns one of these:

        - the request, if the bytes contain exactly one request with a small body. That is the usual
          case, because most clients send one request and wait for the response.
        - the head otherwise; _read_body() then reads the body.
        - None if the head is not complete.

        data: all bytes that have arrived. Unused bytes are kept for the next call.
        """
        head = self._last_head
        if head is not None and data.startswith(self._last_bytes):
            end = len(self._last_bytes)
        else:
            data, end = self._find_head_end(data)
            if not end:
                self._put_back(data)
                return None
            head_bytes = data[:end]
            head = self._last_head = self._parser.parse(head_bytes)
            self._last_bytes = head_bytes

        length = head.body_bytes
        if length is None:
            self._chunks = ChunkedBody()
            self._reserved_bytes = 0
        elif length > self._max_body_bytes:
            # Only a POST for a session may contain a response of the client.
            if not may_hold_response(head):
                raise too_large(length, self._max_body_bytes)
            self._large = LargeResponse(self._max_body_bytes)
            self._reserved_bytes = 0
        # The parser returns the same object for the same bytes.
        if head is not self.admitted:
            self.principal = None
            self._on_head(head)
        arrived = len(data) - end
        # A large body, or one whose user is not known yet, is read by _read_body(), even if it has
        # arrived completely.
        if arrived == length and arrived <= self._small_body and not self.awaits_user:
            return HttpRequest(head, data[end:], self.principal)

        self._put_back(data[end:])
        if not self.awaits_user and (length is None or arrived < length):
            self._on_body_due(head)
        # A LargeResponse keeps little of the body. _read_large() reserves memory for that.
        if length is not None and length > LARGE_BODY and self._large is None:
            self._on_reserve(length)
        return head

    def _find_head_end(self, data: bytes) -> tuple[bytes, int]:
        """Return the bytes without empty lines before the head, and the size of the head.

        The size is 0 if the head is not complete. Raises HttpError if the bytes are not HTTP.
        """
        if data[0] == TLS_HANDSHAKE:
            # Refuse it at once. Otherwise the client would wait until the time limit for a head.
            raise HttpError(HTTPStatus.BAD_REQUEST, "expected HTTP without TLS")
        # RFC 9112, section 2.2: empty lines before a request are ignored.
        if data[0] in b"\r\n":
            data = data.lstrip(b"\r\n")
        end = data.find(HEAD_END, 0, MAX_HEAD_BYTES)
        if end >= 0:
            return data, end + len(HEAD_END)
        if len(data) >= MAX_HEAD_BYTES:
            raise HttpError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request has more than {MAX_HEAD_BYTES} bytes",
            )
        return data, 0

    def _read_large(self, head: RequestHead, large: LargeResponse) -> HttpRequest | None:
        """Return a request whose body is over the limit, with `refusal`.

        If the body is the client's response to a request of the server, the returned body is an
        error response with the same id; otherwise it is empty. Returns None if more of the body
        must be read to find the id. After this, no further request can be read.
        """
        data = self._take()
        chunks, length = self._chunks, head.body_bytes
        if chunks is not None:
            chunks.feed(data)
            data = b"".join(chunks.parts)
            chunks.parts.clear()
            is_last = chunks.is_complete
        else:
            assert length is not None
            data = data[: length - large.size]
            is_last = large.size + len(data) == length
        is_read = large.feed(data, is_last=is_last)
        self._reserve_more(large.held_bytes)
        if not is_read:
            return None
        refusal = too_large(large.size if length is None else length, self._max_body_bytes)
        return HttpRequest(head, large.error, self.principal, refusal)

    def _read_chunks(self, head: RequestHead) -> bytes | None:
        """Return the body of a request with chunks; None if it is not complete, or too large.

        Sets `_large` for a body that is too large and may be the client's response to a request of
        the server. Raises HttpError 413 for any other body that is too large.
        """
        chunks = self._chunks
        assert chunks is not None
        data = self._take()
        self._put_back(data[chunks.feed(data) :])
        if chunks.size > self._max_body_bytes:
            if not may_hold_response(head):
                raise too_large(chunks.size, self._max_body_bytes)
            self._large = LargeResponse(self._max_body_bytes)
            return None
        self._reserve_more(chunks.size)
        if not chunks.is_complete:
            return None
        self._chunks = None
        return b"".join(chunks.parts)

    def _reserve_more(self, size: int) -> None:
        """Call on_reserve() with the size of the body that is held so far.

        Does nothing until the size has grown by more than LARGE_BODY since the last call.
        """
        if size > self._reserved_bytes + LARGE_BODY:
            self._reserved_bytes = size
            self._on_reserve(size)
