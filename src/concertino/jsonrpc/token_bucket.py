"""A token bucket: limits how often something happens, with a burst of one second's worth."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["TokenBucket"]


class TokenBucket:
    """Token bucket that refills `per_s` tokens a second and holds at most `per_s` tokens.

    clock: returns seconds; must not go backwards.
    """

    __slots__ = ("_clock", "_per_s", "_tokens", "_updated_at")

    def __init__(self, per_s: int, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._tokens = float(per_s)
        self._updated_at = clock()

    def take(self) -> bool:
        """Take one token. Returns False if the bucket is empty."""
        now = self._clock()
        refill = (now - self._updated_at) * self._per_s
        self._tokens = min(float(self._per_s), self._tokens + refill)
        self._updated_at = now

        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
