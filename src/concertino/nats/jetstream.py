"""Responses of JetStream, with the members that bucket.py and stream.py read.

Source: docs.nats.io, "JetStream wire API Reference".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

__all__ = ["OTHER_SETTINGS", "Answer", "Problem", "StoredMessage", "StreamState", "decode_answer"]

# The error code of a stream that exists with other settings.
OTHER_SETTINGS = 10058


class Problem(Struct):
    """An error of JetStream."""

    err_code: int = 0
    description: str = ""


class StoredMessage(Struct, rename={"sequence": "seq", "headers": "hdrs"}):
    """A message of a stream. data, headers: in base64."""

    sequence: int
    data: str = ""
    headers: str = ""


class StreamState(Struct):
    """The state of a stream.

    first_seq, last_seq: the numbers of the first and of the last message.
    last_ts: the time of the last message.
    subjects: subject -> the number of its messages; None if it was not asked for.
    """

    first_seq: int = 0
    last_seq: int = 0
    last_ts: str = ""
    subjects: dict[str, int] | None = None


class Answer(Struct, rename={"sequence": "seq"}):
    """A response of JetStream.

    sequence: the number of a message that was published.
    created: when the stream was created.
    config: the settings of the stream.
    """

    error: Problem | None = None
    sequence: int = 0
    message: StoredMessage | None = None
    created: str = ""
    config: Mapping[str, Any] = {}
    state: StreamState | None = None


decode_answer = Decoder(Answer).decode
