"""Two ends in one process: what one writes, the other receives, a loop turn later. For tests, demos and embedding."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver

__all__ = ["MemoryConnection", "memory_pair"]

BATCH = 256  # frames delivered in one loop turn, as many as one read of a pipe may hold


def memory_pair() -> tuple[MemoryConnection, MemoryConnection]:
    """Two connected Connections. Both ends belong to one loop."""
    one, other = MemoryConnection(), MemoryConnection()
    one.other, other.other = other, one
    return one, other


class MemoryConnection:
    """One end of a pair. Frames are handed over as they are: no limit applies, and nothing is ever torn."""

    other: MemoryConnection

    def __init__(self) -> None:
        self.facts: Mapping[str, object] = {"transport": "memory"}
        self._to: Receiver | None = None
        self._queue: list[bytes] = []  # written here, not yet flushed
        self._inbox: list[bytes] = []  # flushed by the other end, not yet delivered
        self._held = 0
        self._paused = False
        self._closed = False
        self._ending = False
        self._scheduled = False

    def open(self, to: Receiver) -> None:
        self._to = to
        self._loop = asyncio.get_running_loop()
        self._wake()

    def write(self, frame: bytes, about: Id | None) -> int:
        if not self._closed:
            self._queue.append(frame)
            self._held += len(frame)
        return self._held

    def flush(self) -> None:
        if self._queue and not self._closed:
            self.other._inbox += self._queue
            self._queue = []
            self.other._wake()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._wake()

    async def close(self, within_s: float) -> None:
        """The other end sees the end of input, after what was written before."""
        self.flush()
        if not self._closed:
            self._closed = True
            self.other._ending = True
            self.other._wake()

    def _wake(self) -> None:
        # By call_soon and never at once: an eager task must not start inside another (Python 3.11).
        if self._to is not None and not self._scheduled and not self._paused and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        to = self._to
        if to is None or self._paused or self._closed:
            return
        if self._inbox:
            batch, self._inbox = self._inbox[:BATCH], self._inbox[BATCH:]
            to.on_frames(batch)
            self.other._delivered()
            self._wake()
        if self._ending and not self._inbox and not self._closed:
            self._ending = False
            to.on_eof()

    def _delivered(self) -> None:
        self._held = sum(map(len, self._queue)) + sum(map(len, self.other._inbox))
        if self._to is not None and not self._closed:
            self._to.on_drain(self._held)
