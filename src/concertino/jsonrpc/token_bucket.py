"""How often something may be said: a token bucket that holds what may be said in one second."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["TokenBucket"]


class TokenBucket:
    """per_s: how many a second, and how many at once. clock: seconds, steady."""

    __slots__ = ("_allowance", "_at", "_clock", "_per_s")

    def __init__(self, per_s: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._allowance = float(per_s)
        self._at = clock()

    def take(self) -> bool:
        """Whether one more may be said now; if so, it counts as said."""
        now = self._clock()
        self._allowance = min(float(self._per_s), self._allowance + (now - self._at) * self._per_s)
        self._at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True
