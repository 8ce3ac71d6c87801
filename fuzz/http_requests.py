"""RequestReader: however a stream is cut, it gives the same requests; and what it accepts, h11
reads in the same way.

Where the two disagree, we must be the stricter one: a proxy in front that reads a request in
another way could be made to pass a second request on inside of the first ("request smuggling").

Input: three bytes for the sizes of the chunks (used in turn, 0 counts as 1), then the stream.
Needs httptools and h11.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from concertino.http.request_head import MAX_HEADERS, HeadParser, HttpError
from concertino.http.request_reader import MAX_HEAD_BYTES, HttpRequest, RequestReader

__all__ = ["MAX_BYTES", "TOKENS", "AcceptedRequest", "one", "read_requests", "split_target"]

MAX_BYTES = 700
MAX_BODY_BYTES = 256
# The headers that have one meaning for every parser, and all that the server goes by.
TOKENS = (
    b"POST /mcp HTTP/1.1\r\nHost: a\r\n",
    b"GET / HTTP/1.1\r\n",
    b"GET / HTTP/1.0\r\n",
    b"GET http://b:1/mcp?x HTTP/1.1\r\n",
    b"Host: a\r\n",
    b"Content-Length: 3\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Connection: close\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Encoding: gzip\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b"\x00",
    b"\x0b",
    b"\xff",
    b":",
    b";",
    b",",
    b"abc",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


class AcceptedRequest(NamedTuple):
    """A request as a server acts on it.

    headers: name and value, with the values of a repeated name joined. Without Upgrade, which
        RequestReader ignores.
    end: where the request ends in the stream, in bytes.
    """

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    keeps_connection: bool
    end: int


def one(data: bytes) -> None:
    """See the head of this file."""
    if len(data) < 4:
        return
    sizes = [1 + size % 61 for size in data[:3]]
    stream = data[3:]
    pieces: list[bytes] = []
    at = 0
    while at < len(stream):
        size = sizes[len(pieces) % 3]
        pieces.append(stream[at : at + size])
        at += size

    whole = read_requests([stream])
    cut = read_requests(pieces)
    assert cut == whole, f"in pieces: {cut}, expected {whole}"
    _compare(whole, stream)


def read_requests(pieces: list[bytes]) -> list[AcceptedRequest]:
    """Return the requests that RequestReader accepts before it refuses something."""
    accepted: list[AcceptedRequest] = []
    size = 0
    reader = RequestReader(
        HeadParser(), lambda _: None, lambda _: None, lambda _: None, MAX_BODY_BYTES
    )
    try:
        for piece in pieces:
            size += len(piece)
            request = reader.receive(piece)
            while request is not None:
                accepted.append(_describe(request, size - reader.unused_bytes))
                # After such a request, a connection reads nothing more.
                if not request.head.keep_alive:
                    return accepted
                request = reader.next()
            assert reader.held_bytes <= MAX_HEAD_BYTES + MAX_BODY_BYTES, "too much is held"
    except HttpError:
        pass
    return accepted


def _describe(request: HttpRequest, end: int) -> AcceptedRequest:
    head = request.head
    assert len(head.headers) <= MAX_HEADERS
    assert len(request.body) <= MAX_BODY_BYTES
    headers = dict(head.headers)
    if b"transfer-encoding" in headers:
        # As h11 does.
        headers[b"transfer-encoding"] = headers[b"transfer-encoding"].lower()
    return AcceptedRequest(head.method, head.path, headers, request.body, head.keep_alive, end)


def _compare(accepted: list[AcceptedRequest], stream: bytes) -> None:
    """Raise AssertionError if h11 reads other requests than these at the beginning of a stream."""
    peer = h11.Connection(h11.SERVER)
    # h11 does not skip empty lines between requests by itself, as RFC 9112, section 2.2 asks.
    peer.receive_data(stream.lstrip(b"\r\n"))
    for request in accepted:
        try:
            wanted = _read_with_h11(peer)
        except h11.RemoteProtocolError as exc:
            raise AssertionError(f"accepted, and refused by h11: {request}: {exc}") from None
        assert request[:4] == wanted[:4], f"h11 reads {wanted}, and we read {request}"
        assert wanted.keeps_connection or not request.keeps_connection, f"kept open: {request}"
        if not (request.keeps_connection and _answer(peer)):
            return
        rest = peer.trailing_data[0]
        if rest[:1] in (b"\r", b"\n"):
            return


def _read_with_h11(peer: h11.Connection) -> AcceptedRequest:
    head = peer.next_event()
    assert isinstance(head, h11.Request), f"h11 needs more than we do: {head}"
    headers: dict[bytes, bytes] = {}
    for name, value in head.headers:
        if name != b"upgrade":
            headers[name] = headers[name] + b", " + value if name in headers else value
    body = b""
    while isinstance(part := peer.next_event(), h11.Data):
        body += part.data
    assert isinstance(part, h11.EndOfMessage), f"h11 needs more than we do: {part}"
    host, path = split_target(head.target.decode("ascii", "replace"))
    if host:
        headers[b"host"] = host.encode()
    keeps = peer.our_state is not h11.MUST_CLOSE
    return AcceptedRequest(head.method.decode("ascii"), path, headers, body, keeps, 0)


def split_target(target: str) -> tuple[str, str]:
    """Return the host and the path in the target of a request; "" for no host.

    If the target is a whole URL, its host counts, and not the header (RFC 9112, section 3.2.2).
    """
    if target.startswith("/") or target == "*":
        return "", target.partition("?")[0]
    url = urlsplit(target)
    return url.netloc, url.path or "/"


def _answer(peer: h11.Connection) -> bool:
    """Answer h11's request. Returns whether it can read another one."""
    try:
        peer.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
        peer.send(h11.EndOfMessage())
        if peer.our_state is not h11.DONE or peer.their_state is not h11.DONE:
            return False
        peer.start_next_cycle()
    except h11.LocalProtocolError:
        return False
    return True
