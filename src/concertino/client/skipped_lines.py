"""The lines of a server that are skipped: not messages, responses that came too late, too long."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable

from concertino.client.pending_request import FOREVER, quote_frame
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Connection, SupportsOversizeReports

# The number of skipped lines that are kept for inspection.
MAX_SKIPPED_KEPT = 8
# After the first few skipped lines, only these are logged: every power of ten.
LOGGED_COUNTS = frozenset(10**power for power in range(1, 10))
# The log text for a skipped line: its number, the reason and the line.
SKIPPED = "line %d was skipped, it is %s: %s"
# Ids of abandoned requests whose response may still come.
MAX_ABANDONED = 4096
# How long a line over the size limit may go on; then the connection is closed.
ENDLESS_S = 10.0
# One member at the beginning of a message, with its value if that is short.
MEMBER = re.compile(
    rb'[\s{,]*"(jsonrpc|id|result|error|method|params)"\s*:\s*("[^"\\]*"|-?\d{1,18}|)'
)


class SkippedLines:
    """The lines of a server that were ignored, and the ids of requests that were abandoned.

    count: number of lines that are not a message or a response to a pending request.
    recent: the last few of them, shortened.
    on_add: called with each line, shortened; None for nothing.
    late: number of responses to abandoned requests; they are expected, and not in count.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.count = 0
        self.late = 0
        self.recent: deque[str] = deque(maxlen=MAX_SKIPPED_KEPT)
        self.on_add: Callable[[str], object] | None = None
        self._log = log
        # A dict keeps the order, so that the oldest id can be dropped.
        self._abandoned: dict[Id, None] = {}

    def add(self, frame: bytes, reason: str) -> None:
        """Count a line, and log the first few."""
        self.count += 1
        line = quote_frame(frame)
        self.recent.append(line)
        if self.count <= MAX_SKIPPED_KEPT or self.count in LOGGED_COUNTS:
            self._log.warning(SKIPPED, self.count, reason, line)
        if self.on_add is not None:
            self.on_add(line)

    def expect_late(self, id: Id) -> None:
        """Remember that a response to this abandoned request may still come."""
        if len(self._abandoned) >= MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned[id] = None

    def is_late(self, id: Id) -> bool:
        """Return True, once, if the id is that of an abandoned request."""
        if id not in self._abandoned:
            return False
        del self._abandoned[id]
        self.late += 1
        return True


class OversizeWatch:
    """Watches lines over the size limit.

    checks_at: when to call is_endless(), by the loop's clock; infinite while no such line came.
    discarded_bytes: size of the last discarded message that could not be attributed to a request.
    """

    def __init__(self, connection: Connection) -> None:
        self.checks_at = FOREVER
        self.discarded_bytes = 0
        self._reports = connection if isinstance(connection, SupportsOversizeReports) else None

    def on_oversize(self, now: float) -> bytes:
        """Start to watch a line that passed the limit. Returns its first bytes, if known."""
        self.checks_at = min(self.checks_at, now + ENDLESS_S)
        return b"" if self._reports is None else self._reports.oversize_head

    def is_endless(self, now: float) -> bool:
        """Return True if a line has passed the limit a while ago and has not ended."""
        if now < self.checks_at:
            return False
        self.checks_at = FOREVER
        return self._reports is not None and self._reports.is_discarding


def parse_head(head: bytes) -> tuple[bool, int | None]:
    """Return whether a message is a response, and its id, from the first bytes of the message.

    The id is None if the result comes before it.
    """
    id: int | None = None
    position = 0
    while (member := MEMBER.match(head, position)) is not None:
        name, value = member.groups()
        if name in (b"result", b"error"):
            return True, id
        if name in (b"method", b"params"):
            return False, None
        if name == b"id":
            id = int(value) if value.isdigit() else None
        position = member.end()
    return False, None
