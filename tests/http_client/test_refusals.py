"""When a request that was refused is sent again. RFC 9110, section 10.2.3 has these examples."""

from __future__ import annotations

import pytest

from concertino.http_client.pooled_connection import ResponseHead
from concertino.http_client.refusals import (
    describe_refusal,
    encode_body_error,
    parse_retry_after,
)

# Fri, 31 Dec 1999 23:59:59 GMT, by `date -u -d ... +%s`.
CENTURY_END = 946684799


def wait_s(retry_after: str, date: str = "", now: float = CENTURY_END - 5) -> float | None:
    headers = {"retry-after": retry_after} | ({"date": date} if date else {})
    return parse_retry_after(ResponseHead(503, headers), clock=lambda: now)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20", 20.0),
        ("0", 0.0),
        ("120", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
        # The three forms of RFC 9110, section 5.6.7.
        ("Fri, 31 Dec 1999 23:59:59 GMT", 5.0),
        ("Friday, 31-Dec-99 23:59:59 GMT", 5.0),
        ("Fri Dec 31 23:59:59 1999", 5.0),
        # Too far away.
        ("Sat, 01 Jan 2000 23:59:59 GMT", None),
        # A date in the past: at once.
        ("Thu, 30 Dec 1999 23:59:59 GMT", 0.0),
        ("Fri, 99 Dec 1999 23:59:59 GMT", None),
        # Numbers that no date and no clock can hold.
        ("Fri, 31 Dec 99999999999999 23:59:59 GMT", None),
        ("Fri, 31 Dec 1999 99999999999:59:59 GMT", None),
        ("Fri, 31 Dec 1999 23:59:59 +99999999999999999999", None),
        ("9" * 5000, None),
    ],
)
def test_the_wait_that_a_server_asks_for(text: str, expected: float | None) -> None:
    assert wait_s(text) == expected


def test_a_date_counts_from_the_servers_own_time() -> None:
    until, date = "Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:57 GMT"

    assert wait_s(until, date, now=0.0) == 2.0


ORIGIN = b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"Origin: not this one"}}'


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (401, {}, b"", "HTTP 401 Unauthorized: the server asks for authorization"),
        (
            403,
            {"www-authenticate": "Bearer"},
            b"",
            "HTTP 403 Forbidden: the server asks for authorization (Bearer)",
        ),
        (403, {}, ORIGIN, "HTTP 403 Forbidden: Origin: not this one"),
        (
            429,
            {"retry-after": "99"},
            b"slow\n",
            "HTTP 429 Too Many Requests: try again after 99 s: slow",
        ),
        (
            302,
            {"location": "/a"},
            b"",
            "HTTP 302 Found: a redirect to '/a' is not followed",
        ),
        (500, {}, b'{"error":"?"}', 'HTTP 500 Internal Server Error: {"error":"?"}'),
        (500, {}, b"[" * 5000, f"HTTP 500 Internal Server Error: {'[' * 200}"),
        # Latin-1 in place of UTF-8.
        (
            500,
            {},
            b'{"error":{"message":"\xfc"}}',
            'HTTP 500 Internal Server Error: {"error":{"message":"\ufffd"}}',
        ),
    ],
)
def test_the_text_of_a_refusal(
    status: int, headers: dict[str, str], body: bytes, expected: str
) -> None:
    assert describe_refusal(ResponseHead(status, headers), body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":1,"error":{},"\xfc":1}',
        b'{"error":{"message":"\xfc"}}',
        b"\xff\xfe",
        b"[" * 5000,
        b"",
    ],
)
def test_a_body_that_cannot_be_read_is_no_error_response(body: bytes) -> None:
    assert encode_body_error(1, body) is None
