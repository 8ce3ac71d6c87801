"""Rate: a rate limit, and Window: the counter for it.

The limit holds exactly in every interval, because the time of each accepted call is stored (a
sliding window).
"""

from __future__ import annotations

import re
import sys
from collections import deque

from msgspec import Struct

from concertino.guards.operation_names import Patterns
from concertino.near_names import HintingStructMeta

__all__ = ["Rate", "Window"]

# [GLOB=]CALLS/SECONDS
_TEXT = re.compile(r"(?:(.+)=)?(\d+)/(\d+(?:\.\d+)?)", re.DOTALL)


class Rate(Struct, frozen=True, metaclass=HintingStructMeta):
    """A rate limit of a Guard: at most `calls` calls of an operation within any `within_s` seconds.

        run(Guard(server, rate_limit=Rate(100, 60, match="search_*", shared=True)))

    An operation is a tool, prompt or resource. A Guard also accepts a string for a Rate: `10/60`,
    or `search_*=10/60` with a pattern.

    calls: how many calls are accepted.
    within_s: the length of the time in seconds.
    match: patterns of the operations to which the limit applies, such as `search_*` for tools,
        `prompt:*` or `resource:notes://*`; by default all tools.
    shared: whether all these operations are counted together; by default each is counted alone.
    Raises ValueError for invalid fields.
    """

    # The defaults are the limits of the Orchestre system (its protocol reference, "Rate Limiting").

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
    def read(cls, rate: Rate | str, *, shared: bool = False) -> Rate:
        """Return the Rate for a string such as `10/60`: 10 calls within any 60 seconds.

        rate: a string, or a Rate, which is returned unchanged.
        shared: if `rate` is a string, the value of the field `shared`.
        Raises ValueError for a string of another form, and for any other value.
        """
        if isinstance(rate, Rate):
            return rate
        is_text = isinstance(rate, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        match = _TEXT.fullmatch(rate) if is_text else None
        if match is None:
            raise ValueError(
                f"rate: expected CALLS/SECONDS or GLOB=CALLS/SECONDS, such as '10/60', got {rate!r}"
            )
        return cls(int(match[2]), float(match[3]), match[1] or "*", shared)


class Window:
    """Counts the accepted calls of the last `within_s` seconds, for one Rate.

    The guard counts a call by appending the current time to `times`.

    Attributes:
    calls, within_s: the limit of the Rate: at most `calls` calls within any `within_s` seconds.
    times: the times of the last accepted calls, at most `calls` of them, in ascending order.
    """

    __slots__ = ("calls", "times", "within_s")

    def __init__(self, rate: Rate) -> None:
        self.calls = rate.calls
        self.times: deque[float] = deque(maxlen=rate.calls)
        self.within_s = rate.within_s

    def wait_s(self, now: float) -> float:
        """Return how many seconds pass until one more call is accepted; 0 if it may begin now.

        A call that was accepted exactly within_s seconds ago no longer counts.
        now: the current time by the guard's clock.
        """
        times = self.times
        if len(times) < self.calls:
            return 0.0
        return max(0.0, times[0] + self.within_s - now)

    def is_idle(self, now: float) -> bool:
        """Return whether no call was accepted within the last `within_s` seconds."""
        return not self.times or now - self.times[-1] >= self.within_s
