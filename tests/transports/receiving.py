"""What a connection is opened to, for tests: it keeps what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any


class Receiver:
    """told: frames, and what else came, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.changed = asyncio.Event()

    def _tell(self, what: Any) -> None:
        self.told.append(what)
        self.changed.set()

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            self._tell(bytes(frame))

    def on_frame_too_long(self, size: int) -> None:
        self._tell(("overlong", size))

    def on_drain(self, held: int) -> None:
        self._tell(("drained", held))

    def on_eof(self) -> None:
        self._tell("ended")

    def on_disconnect(self, why: Exception) -> None:
        self._tell(("lost", type(why).__name__))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was told fulfils a condition; at most 10 s."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()
