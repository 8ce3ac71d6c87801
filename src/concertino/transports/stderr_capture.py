"""StderrCapture: reads the stderr of a child process, and keeps the end of it for error messages.

If the stderr of a child were not read, the child would block when the pipe is full.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from concertino.transports.pipe import READ_BYTES, READS

__all__ = ["StderrCapture"]

log = logging.getLogger("concertino.process")

# This many bytes of the end of stderr are kept for error messages.
TAIL_BYTES = 8192


class StderrCapture:
    """Reads a child's stderr, passes on each chunk, and keeps the end.

    descriptor: the reading end of the pipe; closed by close().
    pid: the process id of the child, for the log.
    sink: called on the event loop with each chunk; None to keep only the end of stderr.

    Attributes:
    tail: the last TAIL_BYTES of stderr.
    """

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
        """Start to read, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self.read)

    def read(self) -> None:
        """Read what is available now, without blocking: at most eight times 64 KiB."""
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
        """Call read() once more, and close the descriptor. Does not wait for more."""
        self.read()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
