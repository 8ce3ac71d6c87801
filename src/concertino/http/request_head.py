"""RequestHead: the request line and the headers of an HTTP/1.1 request.

httptools (llhttp) parses them. This module also refuses requests that llhttp accepts but that a
server of JSON never needs. It caches heads, since most requests of a client have the same head.
Sources: RFC 9110, RFC 9112.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from msgspec import Struct

from concertino.installation import missing_extra

try:
    import httptools
except ModuleNotFoundError:
    raise ImportError(missing_extra("HTTP", "http")) from None

__all__ = ["HeadParser", "HttpError", "RequestHead", "bad_request", "feed_parser", "unavailable"]

# How many headers a request may have.
MAX_HEADERS = 64
# The largest number of cached heads, and the longest of them, in bytes.
MAX_CACHED_HEADS = 256
MAX_CACHED_HEAD_BYTES = 2048
# llhttp also reads lines without a version (HTTP/0.9) or with several spaces. Another parser in
# front of this server may read such lines differently.
REQUEST_LINE = re.compile(rb"[^ \r\n]+ ([^ \r\n]+) HTTP/1\.[01]\r\n")
# A target that names the host, too (RFC 9112, section 3.2.2). RFC 9110, section 4.2.4: a user name
# before the host is an error, because it can make another host look like this one.
ABSOLUTE_TARGET = re.compile(rb"(https?)://([^/?#@]+)((?:[/?].*)?)", re.IGNORECASE)
# A whole Upgrade header, which _cut_upgrade() removes. A value with other bytes does not match, so
# it stays in the head, and llhttp refuses it. An example is a bare newline, after which other
# parsers would see another header.
UPGRADE = re.compile(rb"\r\nupgrade:([\t\x20-\x7e\x80-\xff]*)(?=\r\n)", re.IGNORECASE)


class HttpError(Exception):
    """Raised to refuse a request with an HTTP status.

    status: the status of the response.
    text: the reason, for people. It becomes the message of the JSON-RPC error in the body.
    headers: additional headers for the response, as bytes of whole lines.
    """

    def __init__(self, status: HTTPStatus, text: str, headers: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def unavailable(text: str) -> HttpError:
    """Return the error 503 for a request that the client may send again a moment later.

    text: the reason, for people.
    """
    return HttpError(HTTPStatus.SERVICE_UNAVAILABLE, text, b"Retry-After: 1\r\n")


def bad_request(text: str) -> HttpError:
    """Return the error 400 for a malformed request. text: what is wrong with it, for people."""
    return HttpError(HTTPStatus.BAD_REQUEST, text)


class RequestHead(Struct, frozen=True, eq=False):
    """The request line and the headers of one request.

    Requests with byte-identical heads share one object (HeadParser), which is hashable.

    method: the HTTP method, such as `POST`.
    path: the path of the target, without the query.
    query: the query of the target, without the question mark; "" for none.
    scheme: the scheme of a target that is a whole URL, `http` or `https`; "" for the usual target,
        which is only a path.
    headers: the values by lower-case name. Values of a repeated name are joined with ", ". If the
        target is a whole URL, `host` is the host in it, and the header Host is ignored.
    repeated: the names that came more than once.
    keep_alive: whether the connection may carry another request afterwards.
    is_http_1_0: whether the client speaks HTTP/1.0, which has no chunked bodies.
    body_bytes: the length of the body; None if it comes in chunks.
    expects_continue: whether the client waits for `100 Continue` before it sends the body.
    upgrade: the other protocol that the client asks for, such as `websocket`; b"" for none.
    """

    method: str
    path: str
    query: str
    scheme: str
    headers: dict[bytes, bytes]
    repeated: frozenset[bytes]
    keep_alive: bool
    is_http_1_0: bool
    body_bytes: int | None
    expects_continue: bool
    upgrade: bytes


class HeadParser:
    """Parses the heads of requests, and caches the results."""

    def __init__(self) -> None:
        self._known: dict[bytes, RequestHead] = {}

    def parse(self, data: bytes) -> RequestHead:
        """Return the head in these bytes. They must end with the empty line after the head.

        Raises HttpError if it is malformed, or not acceptable.
        """
        head = self._known.get(data)
        if head is None:
            head = _parse(data)
            if len(data) <= MAX_CACHED_HEAD_BYTES:
                if len(self._known) >= MAX_CACHED_HEADS:
                    self._known.clear()
                self._known[data] = head
        return head


class _Events:
    """Collects the URL and the headers that llhttp finds in a head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        # typing: httptools describes its parser without the methods' types
        self.parser: Any = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes | None) -> None:
        self.headers.append((name.lower(), (value or b"").strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.keep_alive = self.parser.should_keep_alive()


def _parse(data: bytes) -> RequestHead:
    """Parse a head. Raises HttpError."""
    line = REQUEST_LINE.match(data)
    if line is None:
        raise bad_request("expected a request line of HTTP/1.1, such as `POST /mcp HTTP/1.1`")
    written_target = line[1]
    absolute = ABSOLUTE_TARGET.fullmatch(written_target)
    is_path = written_target.startswith(b"/") or written_target == b"*"
    if absolute is None and not is_path:
        raise bad_request("expected a target that begins with /")
    events = _Events()
    data, upgrade = _cut_upgrade(data)
    try:
        feed_parser(events.parser, data)
    except httptools.HttpParserUpgrade:
        raise bad_request("expected no CONNECT, and no other protocol") from None
    method: str = events.parser.get_method().decode("ascii")
    is_http_1_0: bool = events.parser.get_http_version() == "1.0"
    # `*` is a target of OPTIONS only (RFC 9112, section 3.2.4).
    if events.url == b"*" and method != "OPTIONS":
        raise bad_request("expected a target that begins with /")
    if len(events.headers) > MAX_HEADERS:
        raise HttpError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the request has {len(events.headers)} headers, and at most {MAX_HEADERS} "
            "are accepted",
        )

    headers: dict[bytes, bytes] = {}
    repeated: set[bytes] = set()
    for name, value in events.headers:
        if name in headers:
            repeated.add(name)
            headers[name] += b", " + value
        else:
            headers[name] = value
    if b"host" not in headers or b"host" in repeated:
        raise bad_request("expected exactly one Host header")
    expect = headers.get(b"expect", b"").lower()
    if expect not in (b"", b"100-continue"):
        raise HttpError(HTTPStatus.EXPECTATION_FAILED, "Expect: expected 100-continue")
    target, scheme = events.url, b""
    if absolute is not None:
        scheme, headers[b"host"], target = absolute.groups()
    path, _, query = target.decode("ascii", "replace").partition("?")
    return RequestHead(
        method=method,
        path=path or "/",
        query=query,
        scheme=scheme.decode("ascii").lower(),
        headers=headers,
        repeated=frozenset(repeated),
        keep_alive=events.keep_alive,
        is_http_1_0=is_http_1_0,
        body_bytes=_body_length(headers, is_http_1_0),
        # RFC 9110, sections 10.1.1 and 7.8: in HTTP/1.0, ignore Expect and Upgrade.
        expects_continue=expect == b"100-continue" and not is_http_1_0,
        upgrade=b"" if is_http_1_0 else upgrade,
    )


def _body_length(headers: dict[bytes, bytes], is_http_1_0: bool) -> int | None:
    """Return the length of the body; None for chunks. Raises HttpError if it is not accepted."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding: the body must not be encoded"
        )
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        # llhttp has checked that it is a number, and that there is only one.
        return int(headers.get(b"content-length", b"0"))
    if coding.lower() != b"chunked" or is_http_1_0:
        raise bad_request("Transfer-Encoding: expected chunked, in HTTP/1.1")
    return None


def feed_parser(parser: Any, data: bytes) -> None:
    """Pass bytes to a parser of httptools. Raises HttpError 400 if they are malformed.

    An HttpError that a callback of the parser has raised is raised unchanged.
    """
    try:
        parser.feed_data(data)
    except httptools.HttpParserCallbackError as exc:
        if isinstance(exc.__context__, HttpError):
            raise exc.__context__ from None
        raise
    except httptools.HttpParserError as exc:
        raise bad_request(f"malformed HTTP: {exc}") from None


def _cut_upgrade(head: bytes) -> tuple[bytes, bytes]:
    """Return the head of a request without its Upgrade header, and the header's value or b"".

    With the header, llhttp would treat the body as the other protocol's data. Java's HTTP client
    offers `Upgrade: h2c` with its first request.
    """
    match = UPGRADE.search(head)
    if match is None:
        return head, b""
    return UPGRADE.sub(b"", head), match[1].strip(b" \t").lower()
