"""Reads the stderr of a child process, so that it never blocks, and keeps its end for errors."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from concertino.transports.pipe import READ_BYTES, READS

__all__ = ["StderrCapture"]

log = logging.getLogger("concertino.process")

# The end of stderr that is kept for error messages.
TAIL_BYTES = 8192


class StderrCapture:
    """Reads a child's stderr, passes on each chunk and keeps the last 8 KiB in `tail`."""

    def __init__(
        self,
        descriptor: int,
        pid: int,
        sink: Callable[[bytes], object] | None,
    ) -> None:
        self.tail = bytearray()
        self._descriptor = descriptor
        self._pid = pid
        self._sink = sink
        os.set_blocking(descriptor, False)

    def start(self) -> None:
        """Start to read, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self.read)

    def read(self) -> None:
        """Read what is available now."""
        for _ in READS:
            try:
                chunk = os.read(self._descriptor, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._loop.remove_reader(self._descriptor)
                return

            self.tail += chunk
            del self.tail[:-TAIL_BYTES]
            if self._sink is not None:
                try:
                    self._sink(chunk)
                except Exception:
                    log.exception("the stderr function of process %d failed", self._pid)

    def close(self) -> None:
        """Read what is left and close the descriptor."""
        self.read()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
