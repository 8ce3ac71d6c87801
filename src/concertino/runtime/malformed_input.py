"""The log of input that is not a message: the first line is shown, the others are counted."""

from __future__ import annotations

import logging

from concertino.excerpts import shorten
from concertino.jsonrpc.peer import InvalidInput
from concertino.logs.formats import AS_ERROR, escape_controls
from concertino.logs.redact import redactor

__all__ = ["MalformedInputLog"]

log = logging.getLogger("concertino.host")

# How many characters of the first line are shown.
MAX_SHOWN = 200
# The log says how many there are when there are so many times more than it said last.
GROWTH = 10


class MalformedInputLog:
    """Logs the malformed input of one connection.

    is_typed: whether a person at a terminal types it.
    """

    def __init__(self, input: InvalidInput, *, is_typed: bool = False) -> None:
        self._input = input
        self._is_typed = is_typed
        self._logged_count = 0

    def report(self) -> None:
        """Show the first malformed message, or say how many came if those are many more."""
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
        """Say how many malformed messages came in all, if there was more than one."""
        if self._input.count > 1:
            self._log_count("in all")

    def _log_count(self, when: str) -> None:
        input = self._input
        self._logged_count = input.count
        text = f"{input.count} malformed messages {when}"
        if input.suppressed:
            text += f"; {input.suppressed} malformed messages were not answered: too many at once"
        input.suppressed = 0
        log.warning(text, extra=AS_ERROR)
