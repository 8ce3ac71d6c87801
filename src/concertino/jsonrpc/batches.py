"""Batches: arrays of messages, whose requests are answered by one array (revision 2025-03-26).

A Peer (jsonrpc/peer.py) has one Batches object. It decides which batches are accepted, and collects
the responses to the requests of each.
Spec: 2025-03-26 basic "Batching"; JSON-RPC 2.0 section 6.
"""

from __future__ import annotations

from msgspec import UNSET, Raw

from concertino.errors import INTERNAL_ERROR, INVALID_REQUEST
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import (
    Id,
    InvalidMessage,
    Message,
    decode,
    encode_error,
    encode_id,
)

__all__ = ["Batch", "Batches"]


class Batch:
    """Collects the responses to the requests of one batch, which are sent as one array.

    responses: the responses so far.
    size: the total size in bytes of the responses to requests. The errors for elements that are not
        messages do not count.
    ids: the ids of the requests, to find duplicates.
    missing: how many requests have no response yet. At 0 the array is sent.
    """

    __slots__ = ("ids", "missing", "responses", "size")

    def __init__(self) -> None:
        self.responses: list[bytes] = []
        self.size = 0
        self.ids: set[Id] = set()
        self.missing = 0


class Batches:
    """The batches that one peer receives.

    limits: the limits for the number of messages in a batch, and for the size of all responses that
        wait until their batches are complete.

    Attributes:
    accepted: whether batches are accepted; only revision 2025-03-26 has them.
    size: how many bytes of responses wait until their batches are complete.
    """

    __slots__ = ("_limits", "accepted", "size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.accepted = False
        self.size = 0

    def refuse(self, elements: list[Raw]) -> InvalidMessage | None:
        """Return the error for a batch that is not accepted; None if it is accepted.

        A batch is refused if it is empty or too long, or if the revision has no batches.
        elements: the undecoded messages of the batch.
        The field `answered_ids` of the returned error contains the ids of the responses in the
        batch. The caller must fail our requests with these ids.
        """
        limit = self._limits.max_batch
        if not self.accepted:
            text = "batches are not part of this protocol revision"
        elif not 0 < len(elements) <= limit:
            text = f"expected a batch of 1 to {limit} messages, got {len(elements)}"
        else:
            return None

        answered_ids: list[Id] = []
        for message in map(decode, elements[:limit]):
            if type(message) is InvalidMessage:
                answered_ids += message.answered_ids
            # A message with an id and without a method is a response.
            elif type(message) is Message and message.method is UNSET and message.id is not UNSET:
                answered_ids.append(message.id)
        text = f"Invalid Request: {text}"
        return InvalidMessage(INVALID_REQUEST, text, answered_ids=tuple(answered_ids))

    def add_response(self, batch: Batch, id: Id, frame: bytes) -> None:
        """Add the response to the request `id` of a batch.

        If the responses of all unfinished batches would together exceed max_message_bytes, an error
        response is added instead.
        frame: the response.
        """
        limit = self._limits.max_message_bytes
        if self.size + len(frame) > limit:
            text = (
                "Internal error: the answers of unfinished batches "
                f"would have more than {limit} bytes (limit)"
            )
            error = encode_error(encode_id(id), INTERNAL_ERROR, text)
            # An error that is longer than the response would save nothing.
            if len(error) < len(frame):
                frame = error
        batch.responses.append(frame)
        batch.size += len(frame)
        self.size += len(frame)

    def finish_item(self, batch: Batch) -> bytes:
        """Count one request of a batch as answered or cancelled.

        Returns the array of all responses, as a frame to be sent, if this was the last request.
        Returns b"" if other responses are missing, or if the batch has no responses.
        """
        batch.missing -= 1
        if batch.missing:
            return b""
        self.size -= batch.size
        return b"[%b]" % b",".join(batch.responses) if batch.responses else b""
