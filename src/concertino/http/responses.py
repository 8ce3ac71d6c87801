"""encode_response() and others: encode HTTP responses and server-sent events as bytes.

Exchange, EventStream and HttpConnection send what these functions return.

Sources: RFC 9110, RFC 9112; WHATWG HTML "Server-sent events".
"""

from __future__ import annotations

import time
from http import HTTPStatus

__all__ = [
    "CONTINUE",
    "EVENT_STREAM",
    "JSON",
    "JSON_HEADERS",
    "KEEP_ALIVE_COMMENT",
    "LAST_CHUNK",
    "encode_chunk",
    "encode_event",
    "encode_head",
    "encode_json_head",
    "encode_json_response",
    "encode_response",
    "encode_retry",
    "format_date",
]

# Asks a client that has sent `Expect: 100-continue` to send the body.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# The end of a body that is sent in chunks.
LAST_CHUNK = b"0\r\n\r\n"
# A comment line, which a client ignores. It keeps middleboxes from closing a silent stream.
KEEP_ALIVE_COMMENT = b":\r\n\r\n"

JSON = b"Content-Type: application/json\r\n"
# X-Accel-Buffering tells nginx to pass events on at once.
EVENT_STREAM = (
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-store, no-transform\r\n"
    b"X-Accel-Buffering: no\r\n"
)
NO_STORE = b"Cache-Control: no-store\r\n"
# The headers of the usual response, but for Date and Content-Length.
JSON_HEADERS = JSON + NO_STORE

STATUS_LINES = {
    status: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


# Names of days and months for the header Date, in English whatever the locale is.
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_date(now: float) -> str:
    """Return a time as an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.

    now: seconds since the epoch.
    """
    # Not email.utils.formatdate(), whose module takes 0.6 MB of memory.
    year, month, day, hour, minute, second, weekday, *_ = time.gmtime(now)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{DAYS[weekday]}, {day:02} {MONTHS[month - 1]} {year:04} {clock} GMT"


class _DatedLines:
    """Lines of a response with the header Date. The bytes are made only once a second.

    before, after: the lines before and after the header Date.
    """

    def __init__(self, before: bytes = b"", after: bytes = b"") -> None:
        self._before = before
        self._after = after
        # The time at which the value becomes outdated, in seconds since the epoch.
        self._end = 0.0
        self._value = b""

    def __call__(self) -> bytes:
        now = time.time()
        # The time may also be before this second, if the clock was set back.
        if not self._end - 1 <= now < self._end:
            self._end = int(now) + 1.0
            date = format_date(now).encode()
            self._value = b"%bDate: %b\r\n%b" % (self._before, date, self._after)
        return self._value


_date_header = _DatedLines()
_json_head_start = _DatedLines(b"HTTP/1.1 200 OK\r\n" + JSON_HEADERS, b"Content-Length: ")


def encode_head(status: HTTPStatus, headers: bytes, *, keep_alive: bool) -> bytes:
    """Return the head of a response.

    headers: whole lines, each with its CRLF, including the headers that describe the body.
    keep_alive: whether the connection stays open after the response.
    """
    close = b"" if keep_alive else b"Connection: close\r\n"
    return b"%b%b%b%b\r\n" % (STATUS_LINES[status], _date_header(), close, headers)


def encode_json_response(body: bytes, headers: bytes) -> bytes:
    """Return the usual response: 200 with a JSON body, on a connection that stays open.

    headers: more headers, as whole lines.
    """
    # Formatting all parts with one format string would take twice as long.
    return b"".join((_json_head_start(), b"%d\r\n" % len(body), headers, b"\r\n", body))


def encode_response(
    status: HTTPStatus, body: bytes = b"", headers: bytes = b"", *, keep_alive: bool
) -> bytes:
    """Return a response with a JSON body, or with none.

    body: the JSON; empty for no body.
    headers: more headers, as whole lines.
    keep_alive: whether the connection stays open after the response.
    """
    if status is HTTPStatus.NO_CONTENT:
        return encode_head(status, headers, keep_alive=keep_alive)
    return encode_json_head(status, len(body), headers, keep_alive=keep_alive) + body


def encode_json_head(
    status: HTTPStatus, length: int, headers: bytes = b"", *, keep_alive: bool
) -> bytes:
    """Return the head of a response whose JSON body has this length, in bytes; 0 for no body.

    headers: more headers, as whole lines.
    keep_alive: whether the connection stays open after the response.
    """
    all_headers = b"%bContent-Length: %d\r\n%b%b" % (
        JSON if length else b"",
        length,
        NO_STORE,
        headers,
    )
    return encode_head(status, all_headers, keep_alive=keep_alive)


def encode_event(data: bytes, id: bytes | None = None) -> bytes:
    """Return one server-sent event.

    data: a JSON text without newlines, or b"" for an event that only has an id.
    id: the id of the event; None for none.
    """
    if b"\r" in data:
        # JSON of another server may contain CR between its tokens, which would end the line here.
        data = data.replace(b"\r", b" ")
    if id is None:
        return b"event: message\ndata: %b\n\n" % data
    if not data:
        return b"id: %b\ndata:\n\n" % id
    return b"id: %b\nevent: message\ndata: %b\n\n" % (id, data)


def encode_retry(id: bytes, retry_s: float) -> bytes:
    """Return an event without data that tells the client when to resume the stream.

    id: the id of the last event; the stream continues after it.
    retry_s: the time after which the client is to resume the stream, in seconds.
    """
    return b"id: %b\nretry: %d\ndata:\n\n" % (id, max(1, round(retry_s * 1000)))


def encode_chunk(data: bytes) -> bytes:
    """Return a chunk of a body with `Transfer-Encoding: chunked`."""
    return b"%x\r\n%b\r\n" % (len(data), data)
