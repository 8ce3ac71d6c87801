"""Finds out which frames a child process has not read from its stdin when it ends.

ChildProcess (process.py) uses this. The unread frames are the frames that could not be written, and
the frames that are still in the pipe. A client can send them to the restarted server, without the
risk that a call is executed twice: a pipe delivers each byte once, so no other process has read the
bytes that this process takes out of the pipe.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable
from fcntl import ioctl

__all__ = ["UnreadInput", "count_unread", "read_back"]

# The size of one read: the capacity of a pipe, unless it was enlarged.
READ_BYTES = 65536


class UnreadInput:
    """Collects, in order, the bytes that could not be written to the stdin of a child process.

    max_bytes: how many bytes are collected at most. Further bytes are dropped, and take() does not
        return their lines, as if the process had read them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._chunks: list[bytes] = []
        self._free_bytes = max_bytes

    def add(self, chunks: Iterable[bytes | memoryview]) -> None:
        """Add bytes that were not written.

        chunks: complete lines. The first may be only the end of a line, whose beginning was
            written.
        """
        for chunk in chunks:
            self._free_bytes -= len(chunk)
            if self._free_bytes < 0:
                return
            self._chunks.append(bytes(chunk))

    def take(self, in_pipe: bytes) -> list[bytes]:
        """Remove all lines that were not read, and return them.

        The first line may be only the end of a line whose beginning was read.
        in_pipe: the bytes from read_back(), which precede the collected bytes.
        """
        # The end of a line cannot be mistaken for a message: the end of a JSON object is never a
        # JSON object itself, because its braces or its quotes do not match.
        lines = (in_pipe + b"".join(self._chunks)).split(b"\n")
        self._chunks.clear()
        # Drop the text after the last newline, which is empty or an incomplete line.
        return lines[:-1]


def count_unread(writing: int) -> int:
    """Return how many bytes in a pipe nobody has read; 0 if the system does not report this.

    writing: the descriptor of the pipe's writing end.
    """
    count = bytearray(4)
    try:
        # Imported here, because most servers do not end while their client runs.
        from termios import FIONREAD

        ioctl(writing, FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


def read_back(writing: int) -> bytes:
    """Take the unread bytes out of a pipe whose reading end no process has open.

    Returns b"" if a process still has the reading end open, or if the system has no /proc.
    writing: the descriptor of the pipe's writing end. The reading end is opened again through
        /proc.
    """
    poll = select.poll()
    poll.register(writing, 0)
    # An event (POLLERR) means that no process has the reading end open.
    if not poll.poll(0):
        return b""
    try:
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""

    chunks: list[bytes] = []
    try:
        # os.read() of an empty pipe raises BlockingIOError here, and does not return b"", because
        # this process has the writing end open.
        while chunk := os.read(reading, READ_BYTES):
            chunks.append(chunk)
    except BlockingIOError:
        # The pipe is empty now.
        pass
    finally:
        os.close(reading)
    return b"".join(chunks)
