"""What RequestReader finds in bytes, however they are cut, and what it refuses.

The expected values are those of RFC 9110 and RFC 9112. fuzz/http_requests.py compares with h11, and
tests/interop/test_http_parsers.py with Node.
"""

from __future__ import annotations

import tracemalloc
from http import HTTPStatus

import pytest

from concertino.http.request_head import HeadParser, HttpError
from concertino.http.request_reader import HttpRequest, RequestReader

LIMIT = 1000
POST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
PLAIN = POST + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;name=value\r\nlo\r\n0\r\n\r\n"


def read(*pieces: bytes, limit: int = LIMIT) -> list[HttpRequest]:
    """Return the requests in bytes that arrive in these pieces."""
    reader = RequestReader(HeadParser(), lambda _: None, lambda _: None, lambda _: None, limit)
    found: list[HttpRequest] = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.next()) is not None:
            found.append(request)
    return found


@pytest.mark.parametrize("data", [PLAIN, CHUNKED, b"\r\n" + PLAIN], ids=["plain", "chunks", "CRLF"])
def test_a_request_in_pieces_of_one_byte_is_the_same(data: bytes) -> None:
    (whole,) = read(data)
    (cut,) = read(*(data[at : at + 1] for at in range(len(data))))

    assert whole.body == cut.body == b"hello"
    assert (whole.head.method, whole.head.path) == ("POST", "/mcp")
    assert cut.head.headers == whole.head.headers


def test_pipelined_requests_come_in_order_and_nothing_is_lost() -> None:
    data = PLAIN + CHUNKED + b"GET /healthz?x=1 HTTP/1.1\r\nHost: a\r\n\r\n" + PLAIN

    for size in (1, 7, 50, len(data)):
        found = read(*(data[at : at + size] for at in range(0, len(data), size)))
        assert [(item.head.path, item.body) for item in found] == [
            ("/mcp", b"hello"),
            ("/mcp", b"hello"),
            ("/healthz", b""),
            ("/mcp", b"hello"),
        ]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /mcp HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),
        (POST + b"Host: other\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: identity\r\n\r\n", 400),
        (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: 1_0\r\n\r\n0123456789", 400),
        (POST + b"X: a\r\n folded\r\n\r\n", 400),
        (POST + b"X: a\x00b\r\n\r\n", 400),
        (POST + b"X : a\r\n\r\n", 400),
        (b"POST http://localhost/mcp HTTP/1.1\r\n\r\n", 400),
        (POST.replace(b"/mcp", b"http://me@localhost/mcp") + b"\r\n", 400),
        (POST.replace(b"/mcp", b"http:///mcp") + b"\r\n", 400),
        (POST.replace(b"/mcp", b"http://localhost#/mcp") + b"\r\n", 400),
        (POST.replace(b"/mcp", b"ftp://localhost/mcp") + b"\r\n", 400),
        (POST.replace(b"/mcp", b"localhost/mcp") + b"\r\n", 400),
        (POST.replace(b"/mcp", b"mcp") + b"\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        # HTTP/0.9, where a newline ends the request line.
        (b"GET /\nHost: localhost\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        # A header that some parsers see, and some do not.
        (POST + b"Upgrade: h2c\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"not http at all\r\n\r\n", 400),
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415),
        (POST + b"Expect: 200-ok\r\nContent-Length: 1\r\n\r\na", 417),
        (POST + b"Content-Length: 1001\r\n\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e9\r\n" + b"x" * 1001, 413),
        (POST + b"".join(b"X-%d: a\r\n" % at for at in range(64)) + b"\r\n", 431),
        (POST + b"X: " + b"a" * 16384, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 300 + b"\r\na\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\rb\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n folded\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 1000, 400),
    ],
)
def test_refuses(data: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refusal:
        read(data)

    assert refusal.value.status == status


def test_a_body_over_the_limit_that_comes_together_with_its_head_is_refused_in_a_session() -> None:
    head = POST + b"Mcp-Session-Id: a\r\nContent-Length: 1001\r\n\r\n"
    reader = RequestReader(HeadParser(), lambda _: None, lambda _: None, lambda _: None, LIMIT)

    request = reader.receive(head + b"x" * 1001)

    assert request is not None
    assert (request.body, request.refusal and request.refusal.status) == (b"", 413)


@pytest.mark.parametrize(
    ("target", "host", "path", "query"),
    [
        (b"http://localhost:8000/mcp?a=1", b"localhost:8000", "/mcp", "a=1"),
        (b"HTTP://[::1]/mcp", b"[::1]", "/mcp", ""),
        (b"https://evil.example.com/a//b", b"evil.example.com", "/a//b", ""),
        (b"http://localhost", b"localhost", "/", ""),
        (b"http://localhost?a=http://b/", b"localhost", "/", "a=http://b/"),
    ],
)
def test_the_host_in_a_target_counts_instead_of_the_header(
    target: bytes, host: bytes, path: str, query: str
) -> None:
    (request,) = read(b"POST %b HTTP/1.1\r\nHost: other\r\n\r\n" % target)

    head = request.head
    assert (head.headers[b"host"], head.path, head.query) == (host, path, query)
    assert head.scheme == target[:5].decode().rstrip(":").lower()


def test_a_client_of_http_1_0_can_neither_wait_for_100_nor_switch_protocols() -> None:
    asks = b"Expect: 100-continue\r\nUpgrade: websocket\r\n\r\n"
    (new,) = read(POST + asks)
    (old,) = read(POST.replace(b"1.1", b"1.0") + asks)

    assert (new.head.expects_continue, new.head.upgrade) == (True, b"websocket")
    assert (old.head.expects_continue, old.head.upgrade) == (False, b"")


def test_a_head_that_ends_with_bare_newlines_never_ends() -> None:
    assert read(b"GET / HTTP/1.1\nHost: a\n\n") == []


def test_an_offer_of_another_protocol_is_ignored_and_the_body_is_read() -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"

    (request,) = read(POST + offer + b"Content-Length: 5\r\n\r\nhello")

    assert request.body == b"hello"


def test_a_large_body_is_reported_before_it_is_read() -> None:
    reported: list[int] = []
    reader = RequestReader(HeadParser(), lambda _: None, lambda _: None, reported.append, 2**20)

    reader.feed(POST + b"Content-Length: 100000\r\n\r\n")

    assert reader.next() is None
    assert reported == [100_000]


def test_a_head_is_checked_before_its_body_is_read() -> None:
    def refuse(_: object) -> None:
        raise HttpError(HTTPStatus.FORBIDDEN, "no")

    reader = RequestReader(HeadParser(), refuse, lambda _: None, lambda _: None, LIMIT)
    reader.feed(POST + b"Content-Length: 5\r\n\r\n")

    with pytest.raises(HttpError, match="no"):
        reader.next()


def test_the_connection_ends_where_the_client_says_so() -> None:
    (last,) = read(POST + b"Connection: close\r\n\r\n")
    (old,) = read(b"GET /mcp HTTP/1.0\r\nHost: a\r\n\r\n")
    (usual,) = read(POST + b"\r\n")

    assert (last.head.keep_alive, old.head.keep_alive, usual.head.keep_alive) == (
        False,
        False,
        True,
    )
    assert old.head.is_http_1_0


def test_a_repeated_header_is_joined_and_named() -> None:
    (request,) = read(POST + b"Mcp-Name: a\r\nMCP-NAME: b\r\n\r\n")

    assert request.head.headers[b"mcp-name"] == b"a, b"
    assert request.head.repeated == {b"mcp-name"}


def test_heads_are_remembered_within_a_limit() -> None:
    parser = HeadParser()
    first = parser.parse(POST + b"\r\n")

    assert parser.parse(POST + b"\r\n") is first
    for number in range(300):
        parser.parse(POST + b"X: %d\r\n\r\n" % number)
    assert parser.parse(POST + b"\r\n") is not first


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_in_tiny_pieces_takes_little_more_memory_than_its_size(is_chunked: bool) -> None:
    size = 20_000
    length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % size
    reader = RequestReader(HeadParser(), lambda _: None, lambda _: None, lambda _: None, size)
    reader.feed(POST + length + b"\r\n\r\n")
    assert reader.next() is None
    # Two bytes, because Python keeps one object for each single byte.
    piece = b"2\r\nab\r\n" if is_chunked else b"ab"

    tracemalloc.start()
    for _ in range(size // 2 - 1):
        reader.feed(bytes(bytearray(piece)))
        assert reader.next() is None
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reader.held_bytes == size - 2
    assert taken < 2 * size
