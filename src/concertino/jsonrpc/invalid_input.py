"""InvalidInput: counts frames that are not JSON-RPC messages, and makes the responses to them.

A Peer (jsonrpc/peer.py) has one InvalidInput; runtime/malformed_input.py logs its counts.
Spec: JSON-RPC 2.0 section 5.1 "Error object".
"""

from __future__ import annotations

from msgspec import UNSET, Raw

from concertino.jsonrpc.incoming_requests import TokenBucket
from concertino.jsonrpc.messages import InvalidMessage, encode_error, encode_id

__all__ = ["InvalidInput"]

# This many bytes of the first malformed frame are kept for the log.
MAX_LOGGED_FRAME_BYTES = 2048


class InvalidInput:
    """Counts the invalid frames that a peer has received, and makes the error responses to them.

    A frame is one JSON text as it was received. It is invalid if it is not a JSON-RPC message.
    bucket: the rate limit for error responses to invalid frames without a readable id.

    Attributes:
    answered: whether an invalid frame gets an error response. A client sets it to False; invalid
        frames are then only counted, in `unsolicited`.
    unknown_id: the id, as JSON, in error responses to frames without a readable id. If it is None,
        these responses have no member `id`.
    count: how many invalid frames have arrived, except blank lines and frames that were too long.
    oversize: how many frames have arrived that were too long.
    first_problem: what was wrong with the first invalid frame.
    first_frame: the beginning of the first invalid frame.
    has_news: set to True whenever `count`, `oversize` or `suppressed` grows, which servers log. The
        code that logs the numbers sets it to False.
    suppressed: how many error responses the rate limit has prevented.
    unsolicited: how many frames arrived that this end has not asked for: responses for which no
        request was pending, and, in a client, invalid frames. If the number has grown after a
        frame, a client knows that it has not asked for this frame.
    """

    __slots__ = (
        "answered",
        "bucket",
        "count",
        "first_frame",
        "first_problem",
        "has_news",
        "oversize",
        "suppressed",
        "unknown_id",
        "unsolicited",
    )

    def __init__(self, bucket: TokenBucket) -> None:
        self.answered = True
        self.count = 0
        self.first_problem = ""
        self.first_frame = b""
        self.has_news = False
        self.oversize = 0
        self.unknown_id: bytes | None = b"null"
        self.suppressed = 0
        self.unsolicited = 0
        self.bucket = bucket

    def add(self, problem: str, frame: bytes | Raw) -> None:
        """Count an invalid frame, and keep the beginning of the first one for the log.

        problem: what is wrong with the frame.
        """
        if not self.count:
            self.first_problem = problem
            self.first_frame = bytes(frame)[:MAX_LOGGED_FRAME_BYTES]
        self.count += 1
        self.has_news = True

    def answer(
        self,
        invalid: InvalidMessage,
        frame: bytes | Raw | None,
        data: object = None,
        *,
        in_batch: bool,
    ) -> bytes | None:
        """Count an invalid frame, and return the error response to send; None to send none.

        None is returned in three cases:

        - The frame is a malformed response, a malformed notification or a blank line.
        - `answered` is False.
        - The frame has no readable id, and the rate limit is reached.

        invalid: the result of decode() for the frame.
        frame: the frame; None if it was too long and was discarded.
        data: the data of the error response; None for no data.
        in_batch: whether the frame is an element of a batch; the rate limit does not apply then.
        """
        if not self.answered:
            self.unsolicited += 1
            return None
        # Blank lines have no text, and are not counted. A frame that was too long is counted in
        # `oversize`.
        if invalid.message and frame is not None:
            self.add(invalid.message, frame)
        # Malformed responses, malformed notifications and blank lines have the code 0.
        if invalid.code == 0:
            return None

        if invalid.id is not UNSET:
            id: bytes | None = encode_id(invalid.id)
        elif in_batch or self.bucket.take():
            id = self.unknown_id
        else:
            self.suppressed += 1
            self.has_news = True
            return None
        return encode_error(id, invalid.code, invalid.message, data)
