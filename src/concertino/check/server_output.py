"""ServerOutput: the messages and stray lines that one server process has written to stdout.

A stray line is one that is not a JSON-RPC message. ServerProcess (server_process.py) passes the
bytes of stdout to its ServerOutput; the cases of `concertino check` look for responses in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from concertino.check.findings import Violation
from concertino.check.messages import (
    KEPT_STRAY_BYTES,
    Id,
    Message,
    StrayLine,
    is_id,
    parse_line,
)

# A server that writes more in one case is at fault.
MAX_OUTPUT_BYTES = 512 * 2**20
# At most this many stray lines are stored.
MAX_STRAY_LINES = 1000

# An id with its type, because in Python 1 == 1.0 == True.
IdKey = tuple[type, Id]


class ServerOutput:
    """Splits stdout into lines, parses the messages, and stores them by kind.

    Attributes:
    responses: (type of an id, id) -> all responses with this id.
    responses_without_id: the errors whose id is null or missing.
    arrival_times: (type of an id, id) -> time.monotonic() at the first response with this id.
    notifications, requests: the notifications and requests of the server.
    messages: all messages, in the order of their arrival.
    stray_lines: the lines that are not JSON-RPC messages.
    allow_batch: whether a line may be an array of messages.
    on_request: called with each request of the server; None to call nothing.
    """

    def __init__(self) -> None:
        self.responses: dict[IdKey, list[Message]] = {}
        self.responses_without_id: list[Message] = []
        self.arrival_times: dict[IdKey, float] = {}
        self.notifications: list[Message] = []
        self.requests: list[Message] = []
        self.messages: list[Message] = []
        self.stray_lines: list[StrayLine] = []
        self.allow_batch = False
        self.on_request: Callable[[Message], None] | None = None
        self._partial = bytearray()
        self._total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of stdout. Raises Violation after more than MAX_OUTPUT_BYTES."""
        self._total_bytes += len(chunk)
        if self._total_bytes > MAX_OUTPUT_BYTES:
            raise Violation(f"more than {MAX_OUTPUT_BYTES >> 20} MiB on stdout in one case")

        self._partial += chunk
        if b"\n" in chunk:
            *lines, rest = self._partial.split(b"\n")
            self._partial = bytearray(rest)
            now = time.monotonic()
            for line in lines:
                self._add_line(bytes(line), now)

    def feed_eof(self) -> None:
        """Handle the end of stdout. An unfinished line becomes a stray line."""
        if self._partial:
            line = StrayLine(bytes(self._partial[:KEPT_STRAY_BYTES]), "stdout ended inside a line")
            self.stray_lines.append(line)

    def reset_volume(self) -> None:
        """Allow MAX_OUTPUT_BYTES again from now on.

        soak/pressure.py calls this in a long run, after it has cleared the stored messages.
        """
        self._total_bytes = 0

    def _add_line(self, line: bytes, now: float) -> None:
        messages = parse_line(line, allow_batch=self.allow_batch)
        if isinstance(messages, StrayLine):
            if len(self.stray_lines) < MAX_STRAY_LINES:
                self.stray_lines.append(messages)
            return
        for message in messages:
            self._add_message(message, now)

    def _add_message(self, message: Message, now: float) -> None:
        self.messages.append(message)
        id: object = message.get("id")
        if "method" in message and "id" not in message:
            self.notifications.append(message)
        elif "method" in message:
            self.requests.append(message)
            if self.on_request is not None:
                self.on_request(message)
        elif is_id(id):
            key: IdKey = (type(id), id)
            self.responses.setdefault(key, []).append(message)
            self.arrival_times.setdefault(key, now)
        else:
            self.responses_without_id.append(message)
