"""Bucket: a key-value bucket of JetStream, for code that may block.

Plugins of hubs store documents in buckets (orchestra/nats_storage.py). HTTP front ends, processes
on several machines that serve one MCP server, share data in buckets (used_states.py,
http/machine_peers.py).

JetStream, the storage of NATS servers, stores messages in streams. A bucket is a stream that keeps
only the last message of each subject: the subject is the key, and the message is the value. When
put() returns, a majority of the replicas has stored the value. The value survives if servers are
killed, but may be lost if all of them lose power at once (docs.nats.io, `sync_interval`).
Source: ADR-8 of NATS, "JetStream based Key-Value Stores".
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import Disconnected
from concertino.nats.blocking import BlockingNats, PermissionsViolation, Request
from concertino.nats.jetstream import (
    NO_STREAM,
    OTHER_SETTINGS,
    Answer,
    Problem,
    StoredMessage,
    decode_answer,
)
from concertino.nats.protocol import HEADER_LINE, NO_RESPONDERS, NatsMessage, status_of

__all__ = [
    "Bucket",
    "BucketError",
    "BucketRefused",
    "BucketState",
    "Value",
    "decode_key",
    "encode_key",
]

# Error codes of JetStream: the last message of the subject has another number than expected; the
# subject has no message.
WRONG_LAST, NO_MESSAGE = 10071, 10037
# The largest value, in bytes. By default, servers accept at most 1 MiB for a message and its
# headers.
MAX_VALUE_BYTES = 2**20 - 1024
# How many requests get_all() sends before it waits for their responses.
BATCH = 256

# A character that encode_key() replaces, and one of the escapes that it writes.
_ESCAPED = re.compile(r"[^A-Za-z0-9/_-]")
_ESCAPE = re.compile(rb"=([0-9a-f]{2})")


class BucketError(Disconnected):
    """The bucket could not be read or written. The text is the server's error or another reason."""


class BucketRefused(BucketError):
    """The servers do not permit this user to do the operation."""


class Value(Struct, frozen=True):
    """The value of a key.

    data: the bytes; None if the key has no value.
    revision: the number of the last write or deletion of the key; 0 if the key never had a value.
        The bucket numbers the writes and deletions of all keys together.
    """

    data: bytes | None
    revision: int


def encode_key(text: str) -> str:
    """Return a string in a form that can be a key of a bucket.

    ASCII letters, digits, `/`, `_` and `-` stay. Each byte (UTF-8) of any other character becomes
    `=` and two hexadecimal digits: `é` becomes `=c3=a9`.
    """
    return _ESCAPED.sub(lambda m: "".join(f"={byte:02x}" for byte in m[0].encode()), text)


def decode_key(key: str) -> str:
    """Return the string that encode_key() has converted to this key.

    In a key that encode_key() has not made, invalid UTF-8 becomes U+FFFD, and the rest stays.
    """
    raw = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]), key.encode())
    return raw.decode("utf-8", "replace")


class BucketState(Struct, frozen=True):
    """The state of a bucket after Bucket.create() or add_replicas().

    is_new: whether create() has created the bucket.
    replicas: on how many servers the values are stored.
    suspicious_settings: the names of settings, such as `republish`, that connect the bucket with
        other subjects; usually empty. This package creates no such bucket, so an attacker may have
        created it to read or forge messages. create() does not refuse it: the caller must decide.
    """

    is_new: bool
    replicas: int
    suspicious_settings: Sequence[str] = ()


class Bucket:
    """A key-value bucket, which the first operation creates if it does not exist.

        bucket = Bucket(nats, "notes", replicas=3)
        revision = bucket.put("a", b"text", expected=0)    # None if the key exists already
        bucket.get("a")                                    # Value(b"text", revision)

    All methods block. They raise BucketError if the server cannot be reached or reports an error.
    After a BucketError of put() or delete(), the change may have been stored nevertheless. Keys
    with characters other than letters, digits, `/`, `_` and `-` must come from encode_key().

    With the permissions of orchestra/nats_permissions.py, only the NATS user of a hub (the process
    that starts plugins) may create the bucket. Until it exists, the operations of other users raise
    BucketRefused.

    nats: sends the requests, and connects to the servers when needed.
    name: letters, digits, `-` and `_`.
    replicas: on how many servers the values of a new bucket are stored: 1, 3 or 5.
    max_age_s: after how many seconds the values of a new bucket are deleted; 0 for never.
    timeout_s: the time limit of each exchange with the server, in seconds. get_all() may need
        several exchanges.
    owner: the id of the plugin that uses the bucket, or `front-end`. It is used only in the text of
        BucketRefused, which advises to run `concertino cluster buckets OWNER`.
    """

    def __init__(
        self,
        nats: BlockingNats,
        name: str,
        *,
        replicas: int = 1,
        max_age_s: float = 0,
        timeout_s: float = 2.0,
        owner: str = "PLUGIN",
    ) -> None:
        self._nats = nats
        self._name = name
        self._owner = owner
        self._prefix = f"$KV.{name}."
        self._stream = f"KV_{name}"
        self._timeout_s = timeout_s
        # ADR-8 defines these settings. With one message for each subject, the bucket keeps only the
        # newest value of a key.
        self._settings: Mapping[str, Any] = {
            "name": self._stream,
            "subjects": [f"{self._prefix}>"],
            "max_msgs_per_subject": 1,
            # In nanoseconds.
            "max_age": int(max_age_s * 1e9),
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }
        # Whether create() has succeeded in this process.
        self._is_created = False

    def create(self) -> BucketState:
        """Create the bucket if it does not exist, and return its state.

        The other methods do this, too. Call create() to learn the state, or to fail early. A bucket
        that exists keeps its settings. Raises BucketRefused if this user may not create the bucket.
        """
        answer = self._ask_stream("INFO")
        is_new = answer.error is not None and answer.error.err_code == NO_STREAM
        if is_new:
            answer = self._ask_creation()
            if answer.error is not None and answer.error.err_code == OTHER_SETTINGS:
                # Another process has created it just now.
                answer, is_new = self._ask_stream("INFO"), False
        if answer.error is not None:
            raise self._error(answer.error)
        self._is_created = True
        return self._state_of(answer.config, is_new)

    def add_replicas(self) -> BucketState:
        """Store values on `replicas` servers, if the bucket has fewer servers now.

        Returns the state of the bucket after that. Raises BucketError, for example if the cluster
        has too few servers.
        """
        answer = self._ask_stream("INFO")
        if answer.error is None and answer.config["num_replicas"] < self._settings["num_replicas"]:
            config = {**answer.config, "num_replicas": self._settings["num_replicas"]}
            answer = self._ask_stream("UPDATE", config)
        if answer.error is not None:
            raise self._error(answer.error)
        return self._state_of(answer.config, is_new=False)

    def _state_of(self, config: Mapping[str, Any], is_new: bool) -> BucketState:
        """Return the state of the bucket from the settings that the server reports."""
        # Settings that let the bucket exchange messages with other subjects. The user may have
        # changed others, such as max_age.
        suspicious = [name for name in ("mirror", "sources", "republish") if config.get(name)]
        if config.get("subjects") != self._settings["subjects"]:
            suspicious.append("subjects")
        return BucketState(is_new, config.get("num_replicas", 1), suspicious)

    def get(self, key: str) -> Value:
        """Return the value of a key. Its `data` is None if the key has no value."""
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[str]) -> list[Value]:
        """Return the values of several keys, in the order of the keys."""
        values: list[Value] = []
        for start in range(0, len(keys), BATCH):
            requests = [
                # This request goes to the leader of the stream, which also has the values that were
                # stored just now.
                Request(
                    f"$JS.API.STREAM.MSG.GET.{self._stream}",
                    encode({"last_by_subj": f"{self._prefix}{key}"}),
                )
                for key in keys[start : start + BATCH]
            ]
            for answer in self._call(requests):
                if answer.error is not None and answer.error.err_code != NO_MESSAGE:
                    raise self._error(answer.error)
                values.append(_read_value(answer.message))
        return values

    def put(self, key: str, data: bytes, expected: int | None = None) -> int | None:
        """Store the value of a key, and return the new revision of the key.

        data: the value, at most MAX_VALUE_BYTES (almost 1 MiB).
        expected: the revision that the key must have before; 0 if the key must never have had a
            value; None for any revision.
        Returns None, and stores nothing, if the key has another revision than `expected`. Raises
        BucketError if the value is too large.
        """
        return self._publish(key, data, expected)

    def delete(self, key: str, expected: int | None = None) -> bool:
        """Delete the value of a key, and return True, even if the key has no value.

        expected: the revision that the key must have; None for any revision.
        Returns False, and deletes nothing, if the key has another revision than `expected`.
        """
        return self._publish(key, b"", expected, "DEL") is not None

    def list_keys(self) -> list[str]:
        """Return all keys, sorted, including keys whose value was deleted."""
        request = Request(
            f"$JS.API.STREAM.INFO.{self._stream}",
            encode({"subjects_filter": f"{self._prefix}>"}),
        )
        [answer] = self._call([request])
        if answer.error is not None:
            raise self._error(answer.error)
        subjects = (answer.state.subjects if answer.state is not None else None) or {}
        return sorted(subject.removeprefix(self._prefix) for subject in subjects)

    def close(self) -> None:
        """Disconnect from the server. The next operation connects again."""
        self._nats.close()

    def _publish(
        self, key: str, data: bytes, expected: int | None, operation: str = ""
    ) -> int | None:
        """Store a value, or a message that marks a deletion, and return its revision.

        expected: the revision that the key must have before; None for any revision.
        operation: DEL for a deletion; "" for a value.
        Returns None, and stores nothing, if the key has another revision than `expected`.
        """
        if len(data) > MAX_VALUE_BYTES:
            raise BucketError(f"a value of {len(data)} bytes; at most {MAX_VALUE_BYTES} fit")
        fields: list[str] = []
        if expected is not None:
            fields.append(f"Nats-Expected-Last-Subject-Sequence:{expected}")
        if operation:
            fields.append(f"KV-Operation:{operation}")
        lines = (HEADER_LINE.decode(), *fields, "", "")
        headers = "\r\n".join(lines).encode() if fields else b""
        [answer] = self._call([Request(f"{self._prefix}{key}", data, headers)])
        if answer.error is None:
            return answer.sequence
        if answer.error.err_code == WRONG_LAST:
            return None
        raise self._error(answer.error)

    def _call(self, requests: Sequence[Request]) -> list[Answer]:
        """Send requests, and return their responses in the same order.

        The first call creates the bucket if it does not exist.
        """
        if not self._is_created:
            self.create()
        return [_read_answer(self._stream, message) for message in self._send(requests)]

    def _ask_creation(self) -> Answer:
        """Request to create the stream. Raises BucketRefused if this user may not create it."""
        try:
            return self._ask_stream("CREATE", self._settings)
        except BucketRefused:
            raise BucketRefused(
                f"the bucket {self._name} does not exist, and this user may not create it: run "
                f"`concertino cluster buckets {self._owner} --cluster ADDR` with the certificate "
                "of the hub"
            ) from None

    def _ask_stream(self, operation: str, settings: Mapping[str, Any] | None = None) -> Answer:
        """Request the description of the stream, its creation or its update.

        operation: INFO, CREATE or UPDATE.
        settings: the settings of the stream, for CREATE and UPDATE.
        """
        payload = b"" if settings is None else encode(settings)
        [message] = self._send([Request(f"$JS.API.STREAM.{operation}.{self._stream}", payload)])
        return _read_answer(self._stream, message)

    def _send(self, requests: Sequence[Request]) -> Sequence[NatsMessage]:
        try:
            return self._nats.request_all(requests, self._timeout_s)
        except PermissionsViolation as exc:
            raise BucketRefused(str(exc)) from None
        except Disconnected as exc:
            raise BucketError(str(exc)) from None

    def _error(self, error: Problem) -> BucketError:
        return BucketError(f"{self._stream}: {error.description} ({error.err_code})")


def _read_answer(stream: str, message: NatsMessage) -> Answer:
    """Decode a response of JetStream. Raises BucketError if it cannot be decoded."""
    if status_of(message) == NO_RESPONDERS:
        raise BucketError(f"{stream}: JetStream is not available; is it enabled in the servers?")
    try:
        return decode_answer(message.payload)
    except DECODE_ERRORS as exc:
        raise BucketError(f"{stream}: a response cannot be read: {exc}") from None


def _read_value(stored: StoredMessage | None) -> Value:
    """Return the value of a key from the last message of its subject.

    stored: the message, which may mark a deletion; None if the subject has no message.
    """
    if stored is None:
        return Value(None, 0)
    # Both operations of ADR-8, DEL and PURGE, mean that the key has no value.
    is_deleted = b"KV-Operation" in b64decode(stored.headers)
    return Value(None if is_deleted else b64decode(stored.data), stored.sequence)
