"""The responses of JetStream, the storage of NATS servers. bucket.py and stream.py decode them.

JetStream stores messages in streams. The types have only the fields that these modules read.
Source: docs.nats.io, "JetStream wire API Reference".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

__all__ = [
    "NO_STREAM",
    "OTHER_SETTINGS",
    "Answer",
    "Problem",
    "StoredMessage",
    "StreamState",
    "decode_answer",
]

# Error codes: there is no such stream; a stream cannot be created because it exists already, with
# other settings.
NO_STREAM, OTHER_SETTINGS = 10059, 10058


class Problem(Struct):
    """An error of JetStream.

    err_code: the code of the error, such as OTHER_SETTINGS.
    description: a text for people.
    """

    err_code: int = 0
    description: str = ""


class StoredMessage(Struct, rename={"sequence": "seq", "headers": "hdrs"}):
    """A message of a stream.

    sequence: the number of the message in the stream.
    data, headers: the payload and the header block, in base64.
    """

    sequence: int
    data: str = ""
    headers: str = ""


class StreamState(Struct):
    """The state of a stream.

    first_seq, last_seq: the numbers of the oldest and of the newest message in the stream.
    last_ts: the time of the newest message, as RFC 3339 text.
    subjects: subject -> how many messages it has; None if the request had no filter for subjects.
    """

    first_seq: int = 0
    last_seq: int = 0
    last_ts: str = ""
    subjects: dict[str, int] | None = None


class Answer(Struct, rename={"sequence": "seq"}):
    """A response of JetStream to any request.

    The fields of a response depend on the request. Missing fields have their default values.
    error: why the request has failed; None if it succeeded.
    sequence: the number of the message that the request has published to the stream.
    message: the message that was requested.
    created: when the stream was created, as RFC 3339 text.
    config: the settings of the stream.
    state: the state of the stream.
    """

    error: Problem | None = None
    sequence: int = 0
    message: StoredMessage | None = None
    created: str = ""
    config: Mapping[str, Any] = {}
    state: StreamState | None = None


decode_answer = Decoder(Answer).decode
