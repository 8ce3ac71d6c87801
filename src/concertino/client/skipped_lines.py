"""Counts the lines of a server's output that a client skips.

A client skips

- lines that are not JSON-RPC messages, such as the text that a tool prints,
- responses to no pending request,
- lines that are longer than Limits.max_message_bytes.

ServerMessages (client/server_messages.py) reports each such line to SkippedLines. A line that is
too long may never end, and then the server cannot send anything else. OversizeWatch notices this.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable

from concertino.client.pending_request import FOREVER, quote_frame
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Connection, SupportsOversizeReports

# This many skipped lines are kept for inspection. The same number of lines is logged at first.
MAX_SKIPPED_KEPT = 8
# After the first MAX_SKIPPED_KEPT lines, only the 10th, the 100th and so on are logged.
LOGGED_COUNTS = frozenset(10**power for power in range(1, 10))
# The log text for a skipped line: its number, what it is, and the line itself.
SKIPPED = "line %d was skipped, it is %s: %s"
# The ids of at most this many abandoned requests are remembered.
MAX_ABANDONED = 4096
# If a line that is too long has not ended after this time, the client closes the connection.
ENDLESS_S = 10.0
# One key and its value at the beginning of a message. The second group is the value if the value is
# a string without escapes or an integer of at most 18 digits. For any other value, the group is
# empty. The next match then fails, because parse_head() does not find where this value ends.
MEMBER = rb'[\s{,]*"(jsonrpc|id|result|error|method|params)"\s*:\s*("[^"\\]*"|-?\d{1,18}|)'


class SkippedLines:
    """Counts the lines of a server that were skipped, and recognizes late responses.

    A late response is a response to a request that the client has abandoned, for example after a
    timeout. The server did nothing wrong, so a late response does not count as a skipped line.

    Attributes:
    count: how many lines were skipped.
    recent: the last MAX_SKIPPED_KEPT skipped lines, shortened.
    late: how many late responses have arrived.
    on_add: a function that is called with each skipped line, shortened; None to call nothing.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.count = 0
        self.late = 0
        self.recent: deque[str] = deque(maxlen=MAX_SKIPPED_KEPT)
        self.on_add: Callable[[str], object] | None = None
        self._log = log
        # A dict and not a set, because it keeps the order: the oldest id is dropped first.
        self._abandoned: dict[Id, None] = {}

    def add(self, frame: bytes, reason: str) -> None:
        """Count a skipped line. Log the first 8 lines, and then the 10th, the 100th and so on.

        reason: the end of the sentence "the line is ...", for the log.
        """
        self.count += 1
        line = quote_frame(frame)
        self.recent.append(line)
        if self.count <= MAX_SKIPPED_KEPT or self.count in LOGGED_COUNTS:
            self._log.warning(SKIPPED, self.count, reason, line)
        if self.on_add is not None:
            self.on_add(line)

    def expect_late(self, id: Id) -> None:
        """Remember that a request was abandoned, and that its response may still come."""
        if len(self._abandoned) >= MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]
        self._abandoned[id] = None

    def take_late(self, id: Id) -> bool:
        """Forget the id of an abandoned request, and count its response as late.

        Returns False if no abandoned request has this id.
        """
        if id not in self._abandoned:
            return False
        del self._abandoned[id]
        self.late += 1
        return True


class OversizeWatch:
    """Watches a line that is longer than the limit, while the Connection discards it.

    If the line has not ended after ENDLESS_S seconds, the Channel closes the connection.

    Attributes:
    checks_at: the time at which the Channel must call expire(), by the loop's clock; infinite if no
        line is watched.
    discarded_bytes: the size of the latest line that was too long and matched no request, when it
        exceeded the limit; 0 if there was none. Errors of requests that time out name this size,
        because the line may have been the response.
    """

    def __init__(self, connection: Connection) -> None:
        self.checks_at = FOREVER
        self.discarded_bytes = 0
        self._reports = connection if isinstance(connection, SupportsOversizeReports) else None

    def on_oversize(self, now: float) -> bytes:
        """Start to watch a line that has exceeded the limit.

        now: the time by the loop's clock.
        Returns the first bytes of the line; empty if the Connection does not keep them.
        """
        self.checks_at = now + ENDLESS_S
        return b"" if self._reports is None else self._reports.oversize_head

    def expire(self, now: float) -> bool:
        """End the watch of the line, and return whether the line still has not ended.

        Call this at `checks_at`, which is ENDLESS_S after the line has exceeded the limit. An
        earlier call returns False and changes nothing.
        now: the time by the loop's clock.
        """
        if now < self.checks_at:
            return False
        self.checks_at = FOREVER
        return self._reports is not None and self._reports.is_discarding


def parse_head(head: bytes) -> tuple[bool, int | None]:
    """Return whether a message is a response, and the id of the response.

    The id is None if the message is not a response, if the id comes after the result, and if the id
    is not a non-negative integer.
    head: the first bytes of the message.
    """
    id: int | None = None
    position = 0
    # The pattern is compiled here, because compiling it at import would delay the start of clients.
    match = re.compile(MEMBER).match
    while (member := match(head, position)) is not None:
        name, value = member.groups()
        if name in (b"result", b"error"):
            return True, id
        if name in (b"method", b"params"):
            return False, None
        if name == b"id":
            id = int(value) if value.isdigit() else None
        position = member.end()
    return False, None
