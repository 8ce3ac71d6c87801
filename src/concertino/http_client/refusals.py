"""Reads HTTP responses that refuse a request (status 3xx, 4xx, 5xx).

StreamableHttpConnection (connection.py) calls these functions to find out whether and when to send
the request again, and which error the caller gets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import HTTP_FAILURE, METHOD_NOT_FOUND
from concertino.http_client.exchange import HttpFailure, describe_status
from concertino.http_client.pooled_connection import ResponseHead
from concertino.jsonrpc.messages import Id, encode_error, encode_id, one_line

__all__ = [
    "BUSY_STATUSES",
    "REDIRECTS",
    "ErrorInBody",
    "demanded_pause_s",
    "describe_refusal",
    "encode_body_error",
    "encode_failure",
    "is_temporary",
    "parse_retry_after",
    "read_body_error",
]

# The redirects that may be followed: they keep the method and the body of the request.
REDIRECTS = frozenset((307, 308))
# The statuses of a busy server. It has not handled the request, so the request may be sent again.
BUSY_STATUSES = frozenset((429, 503))
# The statuses with which servers of older revisions refuse `server/discover`.
UNKNOWN_REQUEST = frozenset((400, 404, 405, 406, 410, 415, 422, 501))
# If a server asks for a longer pause, a request that somebody waits for fails at once.
MAX_RETRY_AFTER_S = 20.0


class _UndecodedError(Struct):
    """A JSON-RPC error response, for encode_body_error().

    error: the undecoded error; empty if the message is no error response.
    """

    id: Id | None = None
    error: Raw = Raw()


class ErrorInBody(Struct, frozen=True):
    """The JSON-RPC error in the body of a refusal.

    code: the code of the error; 0 if the body contains none.
    message: the text of the error; "" if the body contains none.
    """

    code: int = 0
    message: str = ""


class _ErrorResponse(Struct):
    """A JSON-RPC error response, for read_body_error()."""

    error: ErrorInBody = ErrorInBody()


_decode_undecoded = Decoder(_UndecodedError).decode
_decode_error = Decoder(_ErrorResponse).decode


def parse_retry_after(
    head: ResponseHead,
    max_s: float = MAX_RETRY_AFTER_S,
    clock: Callable[[], float] = time.time,
) -> float | None:
    """Return how many seconds the header Retry-After tells the client to wait.

    The header is a number of seconds or an HTTP date (RFC 9110, section 10.2.3). Returns None if it
    is missing or malformed, or demands more than max_s.

    head: the head of the response.
    max_s: the longest pause that counts, in seconds.
    clock: returns the seconds since the epoch, to compare with an HTTP date if the response has no
        header Date.
    """
    text = head.headers.get("retry-after", "")
    if text.isascii() and text.isdigit() and len(text) <= 9:
        seconds = float(text)
    else:
        until = _parse_date(text)
        if until is None:
            return None
        # Compare with the time that the server sends, because its clock may differ from ours.
        now = _parse_date(head.headers.get("date", ""))
        seconds = max(0.0, until - (clock() if now is None else now))
    return seconds if seconds <= max_s else None


def is_temporary(failure: HttpFailure) -> bool:
    """Return whether the reason of a failure may be temporary, so that another try makes sense."""
    # With these statuses a server refuses the request for good. The status 0 means no response.
    is_final = 300 <= failure.status < 500 and failure.status not in BUSY_STATUSES
    return not is_final


def demanded_pause_s(failure: HttpFailure | None, max_s: float = MAX_RETRY_AFTER_S) -> float | None:
    """Return the pause that a busy server (429 or 503) demands, in seconds; None without a demand.

    failure: the server's refusal; None for no failure.
    max_s: the longest pause that counts, in seconds.
    """
    if failure is None or failure.head is None or failure.status not in BUSY_STATUSES:
        return None
    return parse_retry_after(failure.head, max_s)


def _parse_date(text: str) -> float | None:
    """Return an HTTP date as seconds since the epoch; None if it is malformed."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # An HTTP date is always in GMT, although one of its old forms does not say so.
    return date.replace(tzinfo=date.tzinfo or UTC).timestamp()


def encode_body_error(id: Id, body: bytes) -> bytes | None:
    """Return the JSON-RPC error response in the body of a refusal, as one line of JSON.

    Returns None if the body contains none, or one for another request.

    id: the id of the request, which replaces a null id in the body.
    """
    try:
        # msgspec does not check that members which it leaves undecoded are valid UTF-8.
        str(body, "utf-8")
        response = _decode_undecoded(body)
    except DECODE_ERRORS:
        return None
    error = bytes(response.error)
    if not error or response.id not in (None, id):
        return None
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (encode_id(id), one_line(error))


def describe_refusal(head: ResponseHead, body: bytes) -> str:
    """Return a text for people that says why a server has refused a request.

    head: the head of the refusal. Its status becomes part of the text.
    body: the body of the refusal. Its error message, or its beginning, becomes part of the text.
    """
    text = describe_status(head.status)
    challenge = head.headers.get("www-authenticate", "")
    if head.status == 401 or (head.status == 403 and challenge):
        text += ": the server asks for authorization"
        if challenge:
            text += f" ({challenge[:300]})"
    elif head.status in REDIRECTS or head.status in (301, 302, 303):
        text += f": a redirect to {head.headers.get('location', '')[:300]!r} is not followed"
    elif pause := head.headers.get("retry-after"):
        # The pause is a number of seconds or a date.
        unit = " s" if pause.isdecimal() else ""
        text += f": try again after {pause[:40]}{unit}"
    reason = read_body_error(body).message[:200] or body[:200].decode("utf-8", "replace").strip()
    return f"{text}: {reason}" if reason else text


def read_body_error(body: bytes) -> ErrorInBody:
    """Return the JSON-RPC error in the body of a refusal; one with the code 0 if there is none."""
    try:
        return _decode_error(body).error
    except DECODE_ERRORS:
        return ErrorInBody()


def encode_failure(id: Id, method: str, failure: HttpFailure) -> bytes:
    """Return an error response for a request to which the server has sent no JSON-RPC response.

    The code is METHOD_NOT_FOUND if an older server may have refused `server/discover`: the client
    then sends `initialize`. For any other failure, the code is HTTP_FAILURE.

    id, method: the id and the method of the request.
    failure: the reason.
    """
    code = HTTP_FAILURE
    if method == "server/discover" and failure.status in UNKNOWN_REQUEST:
        code = METHOD_NOT_FOUND
    data: dict[str, Any] | None = None
    if failure.head is not None:
        data = {"status": failure.status}
        challenge = failure.head.headers.get("www-authenticate")
        if challenge:
            data["challenge"] = challenge
        if failure.login:
            data["login"] = failure.login
    return encode_error(encode_id(id), code, str(failure), data)
