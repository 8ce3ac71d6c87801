"""Logs malformed messages (input that is no JSON-RPC message) and oversize ones.

The first message of each sort is logged, and later only their number, because a client that sends
nothing else could fill the log. OutputFlow imports this module when the first such message arrives.
"""

from __future__ import annotations

import logging

from concertino.excerpts import shorten
from concertino.jsonrpc.invalid_input import InvalidInput
from concertino.logs.formats import AS_ERROR, escape_controls
from concertino.logs.redact import redactor

__all__ = ["MalformedInputLog"]

log = logging.getLogger("concertino.host")

# The log shows at most this many characters of the first malformed message.
MAX_SHOWN = 200
# The count is logged again when it has grown by this factor.
GROWTH = 10


class MalformedInputLog:
    """Logs the malformed and the oversize messages of one connection.

    counts: the Peer's counts of such messages, and the first malformed message.
    max_message_bytes: the limit that oversize messages exceed.
    is_typed: whether a person types the input at a terminal; then the log explains what to do.
    """

    def __init__(
        self, counts: InvalidInput, max_message_bytes: int, *, is_typed: bool = False
    ) -> None:
        self._counts = counts
        self._max_message_bytes = max_message_bytes
        self._is_typed = is_typed
        # The number of malformed messages that was logged last; 0 before the first log message.
        self._logged_count = 0
        # The number of oversize messages that was logged last.
        self._logged_oversize = 0

    def report(self) -> None:
        """Log the first malformed message and the first oversize one, and later their counts.

        OutputFlow calls this when such a message has arrived, at most once a second. A count is
        logged again when it has grown to GROWTH times the logged one. The count of malformed
        messages is also logged when one of them got no error response, because there were too many.
        """
        self._counts.has_news = False
        if self._counts.oversize:
            self._report_oversize()
        if self._counts.count or self._counts.suppressed:
            self._report_malformed()

    def _report_oversize(self) -> None:
        """Log the first oversize message; later, log the count at GROWTH times the last one."""
        counts, limit = self._counts, self._max_message_bytes
        if not self._logged_oversize:
            self._logged_oversize = 1
            log.warning("a message of more than %d bytes was refused", limit, extra=AS_ERROR)
        elif counts.oversize >= self._logged_oversize * GROWTH:
            self._log_oversize("so far")

    def _log_oversize(self, when: str) -> None:
        """Log how many oversize messages have arrived.

        when: the end of the log message, such as "so far".
        """
        self._logged_oversize = self._counts.oversize
        log.warning(
            "%d messages of more than %d bytes %s",
            self._counts.oversize,
            self._max_message_bytes,
            when,
            extra=AS_ERROR,
        )

    def _report_malformed(self) -> None:
        """Log the first malformed message; later, log the count when report() says so."""
        counts = self._counts
        if not self._logged_count:
            self._logged_count = 1
            # If more have arrived already, let OutputFlow call report() again in a second, although
            # no message may come any more: their number may have grown by GROWTH.
            counts.has_news = counts.count > 1
            text = redactor().frame(counts.first_frame).decode("utf-8", "backslashreplace")
            log.warning(
                "malformed input: %s: %s",
                counts.first_problem,
                escape_controls(shorten(text, MAX_SHOWN)),
                extra=AS_ERROR,
            )
            if self._is_typed:
                from concertino.runtime.own_command import own_command

                log.warning(
                    "this server expects JSON-RPC messages; "
                    "to call a tool: concertino call NAME KEY=VALUE -- %s",
                    own_command(),
                )
        elif counts.suppressed or counts.count >= self._logged_count * GROWTH:
            self._log_count("so far")

    def report_end(self) -> None:
        """Log the total numbers of malformed and of oversize messages, each if it is above one."""
        if self._counts.oversize and not self._logged_oversize:
            self._report_oversize()
        if self._counts.oversize > 1:
            self._log_oversize("in all")
        if self._counts.count > 1:
            self._log_count("in all")

    def _log_count(self, when: str) -> None:
        """Log how many malformed messages have arrived.

        when: the end of the log message, such as "so far".
        """
        counts = self._counts
        self._logged_count = counts.count
        text = f"{counts.count} malformed messages {when}"
        if counts.suppressed:
            text += f"; {counts.suppressed} malformed messages were not answered: too many at once"
        counts.suppressed = 0
        log.warning(text, extra=AS_ERROR)
