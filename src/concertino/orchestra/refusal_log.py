"""RefusalLog: logs refusals and losses that may happen hundreds of times a second, in few lines.

A QUIC listener (quic_listener.py) logs the clients that it refuses, and a hub logs the events that
it loses while its cluster is unreachable (cluster_events.py). Both are called refusals in this
module. The first FIRST refusals are logged, then at most one every INTERVAL_S seconds, with the
number of refusals that were not logged. After INTERVAL_S without a refusal, the next FIRST refusals
are logged again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

__all__ = ["RefusalLog"]

# How many refusals are logged after a pause.
FIRST = 5
# The least time between two later refusals that are logged, in seconds.
INTERVAL_S = 10.0

log = logging.getLogger("concertino.orchestra")


class RefusalLog:
    """Logs the refusals of one listener or hub.

    clock: returns the time in seconds, like time.monotonic().
    noun, verb: what is refused, such as "clients", and what happens to it, such as "refused". The
        line at the end is then "9 more clients were refused".
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        noun: str = "clients",
        verb: str = "refused",
    ) -> None:
        self._clock = clock
        self._noun = noun
        self._verb = verb
        # How many refusals were logged since the last pause of INTERVAL_S.
        self._logged = 0
        # How many refusals were not logged since the last line.
        self._unlogged = 0
        self._last_refusal = self._last_line = float("-inf")

    def add(self, text: str) -> None:
        """Log a refusal, or only count it if too many were logged lately (FIRST, INTERVAL_S).

        text: the line for the log.
        """
        now = self._clock()
        if now - self._last_refusal >= INTERVAL_S:
            self._logged = 0
        self._last_refusal = now
        if self._logged >= FIRST and now - self._last_line < INTERVAL_S:
            self._unlogged += 1
            return
        if self._unlogged:
            text += f"; {self._unlogged} more were {self._verb} since the last such line"
            self._unlogged = 0
        self._logged += 1
        self._last_line = now
        log.warning("%s", text)

    def report_end(self, place: str) -> None:
        """Log at the end how many refusals were not logged.

        place: the beginning of the line, such as the listener's address.
        """
        if self._unlogged:
            log.warning("%s: %d more %s were %s", place, self._unlogged, self._noun, self._verb)
            self._unlogged = 0
