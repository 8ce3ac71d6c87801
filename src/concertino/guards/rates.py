"""How often something may happen: so many calls in a window that slides, counted exactly."""

from __future__ import annotations

import re
import sys
from collections import deque

from msgspec import Struct

from concertino.guards.operation_names import Patterns

__all__ = ["Rate", "Window"]

_TEXT = re.compile(r"(?:(.+)=)?(\d+)/(\d+(?:\.\d+)?)", re.DOTALL)


class Rate(Struct, frozen=True):
    """At most `calls` accepted calls within any `within_s` seconds, of each operation that `match` is about.

    match: a glob, or several; see guards/operation_names.py. shared: one count for all of them together. As a text `10/60`,
    or `search_*=10/60`. Raises ValueError for what is none of these.
    Ten in sixty seconds is what the rate limiter of the Orchestre system allows (its protocol reference, "Rate Limiting").
    """

    calls: int = 10
    within_s: float = 60.0
    match: str | tuple[str, ...] = "*"
    shared: bool = False

    def __post_init__(self) -> None:
        if type(self.calls) is not int or not 1 <= self.calls <= sys.maxsize:
            raise ValueError(
                f"rate: calls: expected a positive number of calls, got {self.calls!r}"
            )
        if type(self.within_s) not in (int, float) or not 0 < self.within_s < float("inf"):
            raise ValueError(
                f"rate: within_s: expected a positive number of seconds, got {self.within_s!r}"
            )
        Patterns(self.match)

    @classmethod
    def read(cls, said: Rate | str, *, shared: bool = False) -> Rate:
        """A rate that was given as a text."""
        if isinstance(said, Rate):
            return said
        found = _TEXT.fullmatch(said) if isinstance(said, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if found is None:
            raise ValueError(
                f"rate: expected CALLS/SECONDS or GLOB=CALLS/SECONDS, such as '10/60', got {said!r}"
            )
        return cls(int(found[2]), float(found[3]), found[1] or "*", shared)


class Window:
    """The calls that were accepted lately. times: of the last of them, as many as are allowed; they never decrease."""

    __slots__ = ("calls", "times", "within_s")

    def __init__(self, rate: Rate) -> None:
        self.calls = rate.calls
        self.times: deque[float] = deque(maxlen=rate.calls)
        self.within_s = rate.within_s

    def wait_s(self, now: float) -> float:
        """How long until one more is accepted; 0 for now. A call of exactly within_s ago counts no more."""
        times = self.times
        if len(times) < self.calls:
            return 0.0
        left = times[0] + self.within_s - now
        return max(0.0, left)

    def is_idle(self, now: float) -> bool:
        """Whether no call counts any more."""
        return not self.times or now - self.times[-1] >= self.within_s
