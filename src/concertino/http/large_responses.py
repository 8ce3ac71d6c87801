"""LargeResponse: reads the id of a client's response that is over the size limit.

In a session of a revision before 2026-07-28, the server sends requests to the client, such as
sampling/createMessage, and the client POSTs its responses. A response that is too large is refused
with 413. Its id must be read all the same, so that the server's request with this id fails at once,
and not at its time limit. RequestReader passes such a body to a LargeResponse, which keeps only the
beginning and the end: most clients write the id before the result, and the TypeScript SDK after the
result. A batch of responses, which only 2025-03-26 has, is kept until all of it has arrived.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_REQUEST
from concertino.http.byte_pieces import add_piece
from concertino.http.request_head import HttpError, RequestHead
from concertino.jsonrpc.framing import HEAD_BYTES
from concertino.jsonrpc.messages import encode_error, encode_id, reject_oversize

__all__ = ["LargeResponse", "may_hold_response", "too_large"]

# How many times the limit for a body is read in search of the id of a response.
MAX_TIMES = 4
# The id at the end of a body is searched for in this many bytes.
TAIL_BYTES = 1024
# A batch with more objects than this is not read, because that would hold up other clients: each
# object may be a response, and 100,000 of them take 30 ms.
MAX_OBJECTS = 100_000


def may_hold_response(head: RequestHead) -> bool:
    """Return whether the body of a request may be a client's response to a request of the server.

    Only a session has such responses. Its id is in a header, or, for clients of 2024-11-05, in the
    query.
    """
    names_session = b"mcp-session-id" in head.headers or head.query != ""
    return head.method == "POST" and names_session


def too_large(size: int, limit: int) -> HttpError:
    """Return the error 413 for a body with more bytes than the limit."""
    return HttpError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body has {size} bytes or more, and at most {limit} are accepted",
    )


class _BatchElement(Struct, frozen=True):
    """The members of a message in a batch that show to which request the message responds."""

    method: Any = None
    id: Any = None


_decode_batch = Decoder(list[_BatchElement]).decode


class LargeResponse:
    """Reads a body that is over the size limit, and may be a response to a request of the server.

    max_bytes: the limit.

    Attributes:
    size: how many bytes of the body have arrived.
    held_bytes: how many bytes are kept: all of a batch, else 0.
    error: the JSON-RPC error response that is passed on in place of the client's response, so that
        the server's request fails; for a batch, an array of such responses. Empty while the id of
        that request is not known.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.size = 0
        self.error = b""
        # The first and the last bytes of the body, as far as they have arrived.
        self._beginning = b""
        self._tail = b""
        # The pieces of a batch; None for another body.
        self._batch: list[bytes] | None = None
        # False if the beginning shows that the body is not a response.
        self._may_be_response = True

    @property
    def held_bytes(self) -> int:
        return 0 if self._batch is None else self.size

    def feed(self, data: bytes, *, is_last: bool) -> bool:
        """Read the next bytes of the body. Returns True if no more bytes need be read.

        No more are needed if the id was found, the body cannot be a response, the body has ended,
        or it is larger than four times the limit.

        is_last: whether the body ends with these bytes.
        """
        # `not self.size`: these are the first bytes of the body.
        if data and not self.size and data.lstrip().startswith(b"["):
            self._batch = []
        if self._batch is not None:
            add_piece(self._batch, data)
        elif len(self._beginning) < HEAD_BYTES:
            self._beginning += data[: HEAD_BYTES - len(self._beginning)]
            if is_last or len(self._beginning) == HEAD_BYTES:
                self._read_beginning()
        self.size += len(data)
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if is_last and self._batch is not None:
            self._read_batch(b"".join(self._batch))
        elif is_last and self._may_be_response and not self.error:
            # Imported here, because most servers do not need the module.
            from concertino.jsonrpc.deep_frames import find_last_id

            id = find_last_id(self._tail)
            if id is not None:
                self.error = self._make_error(id)
        is_known = bool(self.error) or not self._may_be_response
        return is_last or is_known or self.size > MAX_TIMES * self._max_bytes

    def _read_beginning(self) -> None:
        """Find out whether the body is a response, and its id if that stands at the beginning."""
        # This reads the kind of the message and its id. The text of the error is not used.
        invalid = reject_oversize(self._beginning, "")
        # The code of a response is 0, because no error response may be sent for it.
        self._may_be_response = invalid.code == 0
        # The id of the server's request to which the body responds, if it was found.
        if invalid.answered_ids:
            self.error = self._make_error(encode_id(invalid.answered_ids[0]))

    def _read_batch(self, body: bytes) -> None:
        """Set `error` for the server's requests to which the messages of a batch respond."""
        if body.count(b"{") > MAX_OBJECTS:
            return
        try:
            batch = _decode_batch(body)
        except DECODE_ERRORS:
            return
        ids = [element.id for element in batch if element.method is None]
        errors = [self._make_error(encode_id(id)) for id in ids if type(id) in (int, str)]
        if errors:
            self.error = b"[%b]" % b",".join(errors)

    def _make_error(self, id: bytes) -> bytes:
        """Return the error for the server's request with an id. id: the id as JSON."""
        text = f"the answer is larger than {self._max_bytes} bytes (limit)"
        return encode_error(id, INVALID_REQUEST, text)
