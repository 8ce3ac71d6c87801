"""FileReader: reads input that the event loop cannot poll, such as a regular file or /dev/null.

PipeConnection uses one when the descriptor of its input cannot be polled.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

__all__ = ["FileReader"]


class FileReader:
    """Reads, in a daemon thread, a descriptor that the event loop cannot poll.

    The thread starts at once. It reads a chunk only when on_chunk() has returned for the chunk
    before.
    descriptor: the descriptor to read; this object does not close it.
    loop: the event loop on which on_chunk() is called.
    on_chunk: called on the loop with each chunk; an empty one is the end of input, or a failed
        read.
    max_chunk_bytes: the size of the largest chunk.
    """

    def __init__(
        self,
        descriptor: int,
        loop: asyncio.AbstractEventLoop,
        on_chunk: Callable[[bytes], None],
        max_chunk_bytes: int,
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._on_chunk = on_chunk
        self._max_chunk_bytes = max_chunk_bytes
        # Released once for each chunk that the thread may read.
        self._permits = threading.Semaphore(1)
        self._stopped = False
        self._paused = False
        # Whether a chunk was handled while reading was paused; pause(False) then releases the
        # semaphore.
        self._owes_permit = False
        threading.Thread(target=self._run, name="concertino-reader", daemon=True).start()

    def pause(self, paused: bool) -> None:
        """Pause reading if `paused` is true; otherwise resume it.

        A read that has begun still calls on_chunk().
        """
        self._paused = paused
        if self._owes_permit and not paused:
            self._owes_permit = False
            self._permits.release()

    def stop(self) -> None:
        """End the thread. A read that has begun still calls on_chunk()."""
        self._stopped = True
        self._permits.release()

    def _run(self) -> None:
        """Read chunks until the end of input, each when the loop permits it; runs in the thread."""
        # Any bytes that are not empty, to enter the loop.
        chunk = b" "
        while chunk:
            self._permits.acquire()
            if self._stopped:
                return
            try:
                chunk = os.read(self._descriptor, self._max_chunk_bytes)
            except OSError:
                chunk = b""
            try:
                self._loop.call_soon_threadsafe(self._deliver, chunk)
            except RuntimeError:
                # The loop is closed.
                return

    def _deliver(self, chunk: bytes) -> None:
        """Pass a chunk on, and permit the next read unless reading is paused. Runs on the loop."""
        self._on_chunk(chunk)
        if self._paused:
            self._owes_permit = True
        else:
            self._permits.release()
