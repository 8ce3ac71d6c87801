"""EventStreamParser: reads a stream of server-sent events, and returns the messages in it.

A ClientExchange passes the body of a response of the type text/event-stream to an
EventStreamParser, in pieces as they arrive. Each event is a few lines; its `data` is a JSON-RPC
message. Lines end with CR, LF or CRLF. str.splitlines() is not used, because it also splits at
characters that JSON texts may contain, such as U+2028.
Source: HTML Standard, section 9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

import re

from concertino.http.byte_pieces import add_piece

__all__ = ["MAX_RETRY_S", "EventStreamParser", "EventTooLong", "doubled_pause_s"]

LINE_END = re.compile(rb"\r\n|\n|\r")
# The shortest and the longest pause before a broken stream is opened again, in seconds, if the
# server has not sent one in the field `retry`.
RETRY_S = 1.0
MAX_RETRY_S = 30.0
# The shortest pause that a server can demand. Without it, a server that ends each stream at once
# would keep both sides busy.
LEAST_RETRY_S = 0.01
# Longer ids are ignored, because few servers would accept them in the header Last-Event-ID.
MAX_ID_BYTES = 4096
BOM = b"\xef\xbb\xbf"


def doubled_pause_s(tries: int) -> float:
    """Return how many seconds to wait after a number of tries: 1, 2, 4 and so on, up to 30."""
    # The exponent is limited, because 2**tries may be too large for a float.
    return min(RETRY_S * 2 ** min(tries - 1, 10), MAX_RETRY_S)


class EventTooLong(ValueError):
    """Raised for an event that is larger than the limit for messages."""


class EventStreamParser:
    """Reads one stream of server-sent events, in pieces of any size.

    max_bytes: how many bytes the lines of one event may have.

    Attributes:
    last_id: the id of the latest event that had an id, for the header `Last-Event-ID`; "" if no
        event had one.
    endpoint: the data of the latest event with the name `endpoint` (2024-11-05); "" if there was
        none.
    retry_s: how many seconds clients have to wait before they connect again, as the server demands
        in the field `retry`; None if it demands nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.last_id = ""
        self.endpoint = ""
        self.retry_s: float | None = None
        self._max_bytes = max_bytes
        # The size of the data of the current event, and of the line that has not ended yet.
        self._event_bytes = self._line_bytes = 0
        # The pieces of the line that has not ended yet.
        self._line: list[bytes] = []
        # Whether the previous piece ended with CR. An LF at the beginning of the next piece then
        # belongs to the same line end.
        self._ended_with_cr = False
        # Whether no line was read yet. The first line may begin with a byte order mark.
        self._at_start = True
        # The fields of the current event. The data is a list of pieces, joined at its end.
        self._data: list[bytes] = []
        self._name = b""
        self._id: str | None = None

    def pause_s(self, tries: int) -> float:
        """Return how many seconds to wait before the stream is opened again.

        - If the server demands a pause, this is the demanded pause, but at least 10 ms after the
          first try, 20 ms after the second, and so on up to 1 s.
        - Otherwise, it is 1 s after the first try, 2 s after the second, and so on up to 30 s.

        tries: 1 for the first try. Callers begin again at 1 after the stream was open for more than
            30 s.
        """
        if self.retry_s is not None:
            return max(self.retry_s, min(LEAST_RETRY_S * 2 ** min(tries - 1, 10), RETRY_S))
        return doubled_pause_s(tries)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read a piece of the stream, and return the data of the events that end in it.

        Events without data, or with another name than `message`, are left out.
        Raises EventTooLong if an event has more than max_bytes.
        """
        if not chunk:
            return []
        if self._ended_with_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._ended_with_cr = chunk.endswith(b"\r")

        messages: list[bytes] = []
        *lines, rest = LINE_END.split(chunk)
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)
                self._line.clear()
                self._line_bytes = 0
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(BOM)
            if line:
                self._read_field(line)
            elif (message := self._end_event()) is not None:
                messages.append(message)
        if rest:
            add_piece(self._line, rest)
            self._line_bytes += len(rest)
            self._check_size()
        return messages

    def _check_size(self) -> None:
        """Raise EventTooLong if the current event is too large."""
        # Complete comment lines are not counted, because a server may send many of them to keep the
        # connection alive.
        if self._event_bytes + self._line_bytes > self._max_bytes:
            raise EventTooLong(f"an event of the stream has more than {self._max_bytes} bytes")

    def _read_field(self, line: bytes) -> None:
        """Read a complete line, which is one field of the current event, or a comment."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._event_bytes += len(value) + 1
            self._check_size()
            add_piece(self._data, b"\n" + value if self._data else value)
        elif name == b"event":
            self._name = value
        elif name == b"id":
            if b"\0" not in value and len(value) <= MAX_ID_BYTES:
                self._id = value.decode("utf-8", "replace")
        # A pause of more than 9 digits, in ms, is longer than 11 days, and is ignored.
        elif name == b"retry" and value.isdigit() and len(value) <= 9:
            self.retry_s = int(value) / 1000

    def _end_event(self) -> bytes | None:
        """End the current event, and return its data; None if it has no message."""
        # The id of an event counts even if the event has no data.
        if self._id is not None:
            self.last_id, self._id = self._id, None
        self._event_bytes = 0
        data, self._data = b"".join(self._data), []
        name, self._name = self._name, b""
        if name == b"endpoint":
            self.endpoint = data.decode("utf-8", "replace")
        return data if data and name in (b"", b"message") else None
