"""Heartbeats: progress for clients while a server is silent.

Some hosts give up a call that they hear nothing of for 60 s, and wait longer if there is progress.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from concertino.backend.interface import Context

__all__ = ["Heartbeat"]

# What each heartbeat adds to the progress of before: it must grow, and leave room for the server's.
STEP = 1e-6


class Heartbeat:
    """Passes the progress of one call on, and adds some of its own while there is none.

    Use it with `with`, around the call. every_s: how long the server may be silent.
    """

    def __init__(self, context: Context, every_s: float) -> None:
        self._context = context
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._last: float = 0
        self._total: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Heartbeat:
        self._restart()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def report(self, done: float, total: float | None, message: str | None) -> None:
        """Pass the server's progress on."""
        self._last, self._total = done, total
        self._context.progress(done, total, message)
        self._restart()

    def _restart(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._every_s, self._beat)

    def _beat(self) -> None:
        self._last += STEP * max(1.0, abs(self._last))
        waited_s = self._loop.time() - self._began
        self._context.progress(self._last, self._total, f"still running after {waited_s:.0f} s")
        self._restart()
