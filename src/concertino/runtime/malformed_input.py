"""Logs input that is not a JSON-RPC message: shows the first such line, and counts the others.

If each line were logged, a client that sends only such lines could fill the log. OutputFlow imports
this module when the first such line arrives.
"""

from __future__ import annotations

import logging

from concertino.excerpts import shorten
from concertino.jsonrpc.peer import InvalidInput
from concertino.logs.formats import AS_ERROR, escape_controls
from concertino.logs.redact import redactor

__all__ = ["MalformedInputLog"]

log = logging.getLogger("concertino.host")

# The log shows at most this many characters of the first line.
MAX_SHOWN = 200
# The count is logged again when it has grown by this factor.
GROWTH = 10


class MalformedInputLog:
    """Logs the malformed input of one connection.

    input: the numbers of malformed messages, which the connection's Peer counts.
    is_typed: whether a person types the input at a terminal; then the log explains what to do.
    """

    def __init__(self, input: InvalidInput, *, is_typed: bool = False) -> None:
        self._input = input
        self._is_typed = is_typed
        self._logged_count = 0

    def report(self) -> None:
        """Log the first malformed message, or the count if it has grown by the factor GROWTH.

        The count is also logged when error responses were not sent because of their rate limit.
        """
        input = self._input
        input.has_news = False
        if not self._logged_count:
            self._logged_count = 1
            input.has_news = input.count > 1
            text = redactor().frame(input.first_frame).decode("utf-8", "backslashreplace")
            log.warning(
                "malformed input: %s: %s",
                input.first_problem,
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
        elif input.suppressed or input.count >= self._logged_count * GROWTH:
            self._log_count("so far")

    def report_end(self) -> None:
        """Log the total number of malformed messages, if there was more than one."""
        if self._input.count > 1:
            self._log_count("in all")

    def _log_count(self, when: str) -> None:
        """Log how many malformed messages have arrived.

        when: the end of the log message, which names the period of time.
        """
        input = self._input
        self._logged_count = input.count
        text = f"{input.count} malformed messages {when}"
        if input.suppressed:
            text += f"; {input.suppressed} malformed messages were not answered: too many at once"
        input.suppressed = 0
        log.warning(text, extra=AS_ERROR)
