"""memory_pair(): two Connections in one process that are connected to each other.

    ours, theirs = memory_pair()

A frame that is written to one Connection is delivered by the other one, in the next iteration of
the event loop. Tests, demos, and clients with a server in the same process use such a pair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver

__all__ = ["MemoryConnection", "memory_pair"]

# At most this many frames are delivered in one loop iteration. One read of a pipe contains about as
# many short frames.
MAX_FRAMES = 256


def memory_pair() -> tuple[MemoryConnection, MemoryConnection]:
    """Return two connected Connections, for the same event loop.

        ours, theirs = memory_pair()

    A frame that is written to one of them is delivered to the receiver of the other one.
    """
    one, other = MemoryConnection(), MemoryConnection()
    one.other, other.other = other, one
    return one, other


class MemoryConnection:
    """One end of a memory_pair(). There is no limit for the size of frames."""

    other: MemoryConnection

    def __init__(self) -> None:
        self.facts: Mapping[str, object] = {"transport": "memory"}
        self._receiver: Receiver | None = None

        # Frames that were written at this end and not flushed yet.
        self._queue: list[bytes] = []
        # Frames that the other end has flushed and that were not delivered here yet.
        self._inbox: list[bytes] = []
        # How many bytes of this end's frames the other end has not delivered yet.
        self._held = 0

        self._paused = False
        self._closed = False
        # Whether the other end is closed and on_eof() was not called yet.
        self._eof_pending = False
        # Whether _deliver() will run in the next loop iteration.
        self._scheduled = False

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._schedule_delivery()

    def write(self, frame: bytes, request_id: Id | None) -> int:
        if not self._closed:
            self._queue.append(frame)
            self._held += len(frame)
        return self._held

    def flush(self) -> None:
        if self._queue and not self._closed:
            self.other._inbox += self._queue
            self._queue = []
            self.other._schedule_delivery()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._schedule_delivery()

    async def close(self, within_s: float) -> None:
        """Close this end. The other end delivers the frames that were written, then on_eof().

        Does not wait for that, so `within_s` has no effect.
        """
        self.flush()
        if not self._closed:
            self._closed = True
            self.other._eof_pending = True
            self.other._schedule_delivery()

    def _schedule_delivery(self) -> None:
        # Deliver in the next loop iteration, and not at once: the caller may be a task, and on
        # Python 3.11 an eager task cannot start inside another task.
        is_open = self._receiver is not None and not self._closed
        if is_open and not self._scheduled and not self._paused:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver up to MAX_FRAMES frames to the receiver, and the end of input after the last."""
        self._scheduled = False
        receiver = self._receiver
        if receiver is None or self._paused or self._closed:
            return

        if self._inbox:
            frames, self._inbox = self._inbox[:MAX_FRAMES], self._inbox[MAX_FRAMES:]
            receiver.on_frames(frames)
            self.other._on_delivery()
            self._schedule_delivery()

        # The receiver may have closed this end meanwhile.
        if self._eof_pending and not self._inbox and not self._closed:
            self._eof_pending = False
            receiver.on_eof()

    def _on_delivery(self) -> None:
        """Update the number of held bytes. Called when the other end has delivered some frames."""
        self._held = sum(map(len, self._queue)) + sum(map(len, self.other._inbox))
        if self._receiver is not None and not self._closed:
            self._receiver.on_drain(self._held)
