"""RefusalLog: logs what a hub refuses or loses, without a line for each of many.

A QUIC listener (quic_listener.py) may refuse hundreds of clients in a second, and a hub may lose as
many events while its cluster is unreachable (cluster_events.py). The first FIRST refusals are
logged, then at most one in INTERVAL_S, with the number of those that were not logged. After
INTERVAL_S without a refusal, FIRST are logged again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

__all__ = ["RefusalLog"]

FIRST = 5
INTERVAL_S = 10.0

log = logging.getLogger("concertino.orchestra")


class RefusalLog:
    """Logs refusals.

    clock: returns the time in seconds.
    things, participle: say in the log what was refused or lost, as in "clients" and "refused".
    """

    def __init__(
        self,
        clock: Callable[[], float] = monotonic,
        things: str = "clients",
        participle: str = "refused",
    ) -> None:
        self._clock = clock
        self._things = things
        self._participle = participle
        # How many refusals were logged since the last quiet time, and not logged since the last
        # line.
        self._logged = 0
        self._unlogged = 0
        self._last_refusal = self._last_line = float("-inf")

    def add(self, text: str) -> None:
        """Log a refusal, or count it. text: says who was refused, and why."""
        now = self._clock()
        if now - self._last_refusal >= INTERVAL_S:
            self._logged = 0
        self._last_refusal = now
        if self._logged >= FIRST and now - self._last_line < INTERVAL_S:
            self._unlogged += 1
            return
        if self._unlogged:
            text += f"; {self._unlogged} more were {self._participle} since the last such line"
            self._unlogged = 0
        self._logged += 1
        self._last_line = now
        log.warning("%s", text)

    def report_end(self, place: str) -> None:
        """Log how many refusals were not logged. place: where, such as the listener's address."""
        if self._unlogged:
            log.warning(
                "%s: %d more %s were %s", place, self._unlogged, self._things, self._participle
            )
            self._unlogged = 0
