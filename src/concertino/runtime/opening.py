"""Input that comes before a backend has started, which few backends take long enough for.

It is held back for a moment, so that a client whose server fails at once gets the reason as the
answer to its first request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["EarlyInput"]

# More input than an opener needs: then it is no longer held.
MAX_FRAMES = 64
MAX_BYTES = 2**20


class EarlyInput:
    """The frames that came before the backend had started, in order.

    release: called when they must wait no longer: at the time `until`, or when there are too many.
    has_ended: the input has ended, too.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        until: float,
        release: Callable[[], object],
    ) -> None:
        self.frames: list[bytes] = []
        self.has_ended = False
        self._size = 0
        self._loop = loop
        self._release = release
        self._timer = loop.call_at(until, release)

    def hold(self, frame: bytes) -> None:
        """Add a frame."""
        self.frames.append(frame)
        self._size += len(frame)
        if len(self.frames) == MAX_FRAMES or self._size > MAX_BYTES >= self._size - len(frame):
            self._loop.call_soon(self._release)

    def end(self, within_s: float) -> None:
        """Note the end of the input: what came is held at most `within_s` seconds from now."""
        self.has_ended = True
        until = min(self._timer.when(), self._loop.time() + within_s)
        self._timer.cancel()
        self._timer = self._loop.call_at(until, self._release)

    def close(self) -> None:
        """Hold nothing any longer."""
        self._timer.cancel()
