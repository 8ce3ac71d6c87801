"""OutputBuffer: the frames that a connection has not written yet, in portions for one write each.

A PipeConnection (transports/pipe.py) has one and makes the system calls. Short frames are joined
for one write. Long frames are cut into pieces, so that each piece is freed when it was written.
"""

from __future__ import annotations

import asyncio

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import JOINED_BYTES

__all__ = ["OutputBuffer"]

# The largest size of one write, and of the frames that are joined for one write, because joining
# takes time and memory.
WRITE_BYTES = 2**20


class OutputBuffer:
    """The frames of one connection that are not yet written.

    limits: sets the high-water and the low-water mark.
    terminator: the bytes that follow each frame.

    Attributes:
    queue: the frames that wait to be written.
    pieces: the pieces of a large frame that are written after `rest`. The next one is the last
        item, because removing the last item of a list is fast.
    rest: the bytes of the last write that the system has not accepted. They are written before the
        queue.
    held: how many bytes are buffered.
    reported: the value of `held` that the receiver has got last, from write() or on_drain(), while
        it waits for on_drain(). The wait begins when the buffer reaches the high-water mark, and
        ends when the buffer falls below the low-water mark; `reported` is 0 at other times.
    drained: a future that is done when the buffer is empty; None while no task waits for that.
    watching: whether the event loop watches for the descriptor to become writable.
    broken: whether nothing can be written any more.
    """

    __slots__ = (
        "broken",
        "drained",
        "held",
        "high_water_bytes",
        "low_water_bytes",
        "pieces",
        "queue",
        "reported",
        "rest",
        "terminator",
        "terminator_bytes",
        "watching",
    )

    def __init__(self, limits: Limits, terminator: bytes) -> None:
        self.terminator = terminator
        self.terminator_bytes = len(terminator)
        self.queue: list[bytes] = []
        self.held = 0
        self.rest = memoryview(b"")
        self.pieces: list[bytes] = []
        self.reported = 0
        self.high_water_bytes = limits.high_water_bytes
        # Users may set one of the two marks alone, to any value.
        self.low_water_bytes = min(limits.low_water_bytes, limits.high_water_bytes - 1)
        self.drained: asyncio.Future[None] | None = None
        self.watching = False
        self.broken = False

    def discard(self) -> None:
        """Drop all buffered output, and wake the task that waits until the buffer is empty."""
        self.queue.clear()
        self.pieces.clear()
        self.rest = memoryview(b"")
        self.held = 0
        self.wake_closer()

    def refill(self) -> None:
        """Put the bytes for the next write into `rest`, which must be empty.

        - If pieces of a large frame are left, `rest` becomes the next piece.
        - If the first frame of the queue is long, `rest` becomes this frame, or its first piece.
        - Otherwise `rest` becomes the first frames of the queue, joined, up to about WRITE_BYTES.
        """
        if self.pieces:
            self.rest = memoryview(self.pieces.pop())
            return
        queue = self.queue
        count = size = 0
        # Take at least one frame, however long it is.
        while count < len(queue) and (not count or size + len(queue[count]) < WRITE_BYTES):
            size += len(queue[count]) + self.terminator_bytes
            count += 1
        frames = queue[:count]
        del queue[:count]
        # Up to JOINED_BYTES, copying a frame costs less than a second write for its terminator.
        if count > 1 or size <= JOINED_BYTES:
            self.rest = memoryview(self.terminator.join([*frames, b""]))
        else:
            # One long frame. Do not copy it to append the terminator: insert an empty frame, whose
            # terminator is written next.
            self.set_rest(frames[0], 0)
            queue.insert(0, b"")

    def set_rest(self, data: bytes, written: int) -> None:
        """Set `rest` to the part of `data` after its first `written` bytes.

        If the data is large, `rest` is only its next piece, and `pieces` are the pieces after it.
        """
        if len(data) <= WRITE_BYTES:
            self.rest = memoryview(data)[written:]
            return
        # Each piece is freed when it was written. Otherwise each slow client would keep a whole
        # message in memory, while `held` counts only the part that was not written.
        starts = range(written, len(data), WRITE_BYTES)
        self.pieces = [data[start : start + WRITE_BYTES] for start in reversed(starts)]
        self.rest = memoryview(self.pieces.pop())

    def wake_closer(self) -> None:
        """Wake the task that waits in close() until the buffer is empty. Called when it is."""
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)
