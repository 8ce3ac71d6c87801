"""What a child process has not read of its stdin when it ends.

Those frames can be sent to the next process without doing anything twice. What is read back from a
pipe has been read by nobody else: a pipe delivers each byte once.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable
from fcntl import ioctl
from termios import FIONREAD

__all__ = ["UnreadInput", "count_unread", "read_back"]

READ_BYTES = 65536


class UnreadInput:
    """Collects what was not written to a child process, in order.

    max_bytes: more is dropped, and so counts as read.
    """

    def __init__(self, max_bytes: int) -> None:
        self._chunks: list[bytes] = []
        self._room = max_bytes

    def add(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Keep the bytes of complete lines, or the end of a line whose beginning was written."""
        for chunk in chunks:
            self._room -= len(chunk)
            if self._room < 0:
                return
            self._chunks.append(bytes(chunk))

    def take(self, in_pipe: bytes) -> list[bytes]:
        """Return the lines and forget them. in_pipe: what was written before and not read.

        The first one may be the end of a line whose beginning was read. A proper end of a JSON
        object is never a JSON object itself: its braces or its quotes do not match.
        """
        lines = (in_pipe + b"".join(self._chunks)).split(b"\n")
        self._chunks.clear()
        # After the last newline stands nothing, or a line that is not complete.
        return lines[:-1]


def count_unread(writing: int) -> int:
    """Return how many bytes of a pipe nobody has read, given its writing end.

    Returns 0 where that cannot be found out.
    """
    count = bytearray(4)
    try:
        ioctl(writing, FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


def read_back(writing: int) -> bytes:
    """Return what is in a pipe, given its writing end, and remove it.

    Returns b"" if a process may still read from the pipe, and where there is no /proc.
    """
    poll = select.poll()
    poll.register(writing, 0)
    # POLLERR: nobody has the reading end open.
    if not poll.poll(0):
        return b""
    try:
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""

    chunks: list[bytes] = []
    try:
        # An empty pipe raises BlockingIOError, because we have its writing end open ourselves.
        while chunk := os.read(reading, READ_BYTES):
            chunks.append(chunk)
    except BlockingIOError:
        pass
    finally:
        os.close(reading)
    return b"".join(chunks)
