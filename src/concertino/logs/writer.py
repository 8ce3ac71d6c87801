"""BoundedWriter: a writer for stderr that never blocks.

If the reader of stderr stops reading, an ordinary write blocks the whole server forever. Setting
O_NONBLOCK on the descriptor is not possible, because the flag belongs to the open file description,
which the parent process and child processes may share. Therefore the writer does two things:

- It opens a pipe or a terminal a second time, non-blocking, through /proc or by its name. poll()
  alone would not be enough: it reports a terminal as writable if the terminal accepts a single
  byte, and a child that writes to the same pipe may fill the pipe between our poll() and our
  write().
- It calls poll() without waiting before each write. It writes at most 4096 bytes (PIPE_BUF) at a
  time, which a writable pipe always accepts. For sockets (Node gives those to its children), for
  files, and on systems without /proc, the writer does only this.

Output that the descriptor does not accept is held in memory, up to a limit. Above the limit, whole
lines are dropped and counted.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["HELD_LIMIT", "BoundedWriter"]

# The largest size of held output, in bytes. It is the size of a pipe on Linux.
HELD_LIMIT: Final = 64 * 1024

# The largest size of one write, in bytes. It is PIPE_BUF on Linux.
_PIECE: Final = 4096

# Replaces the end of a line that is longer than the limit.
_CUT: Final = b" [cut]\n"

# How many seconds pass between two attempts of flush().
_RETRY_S: Final = 0.005


class BoundedWriter:
    """Writes lines to a descriptor. Never blocks, and never raises OSError.

        BoundedWriter().write(b"listening\\n")      # to stderr

    Any thread and any signal handler may use a BoundedWriter. While `pending` is true, the owner
    should call flush() from time to time.

    descriptor: the descriptor to write to; by default 2, which is stderr. It belongs to the caller
        and stays open.
    limit: how many bytes of output are held while the descriptor does not accept them.

    Attribute:
    on_held: a function that write() calls in its thread or signal handler if a part of the output
        was not written. It must not raise. None at first, and in a forked child.
    """

    def __init__(self, descriptor: int = 2, limit: int = HELD_LIMIT) -> None:
        self.descriptor = descriptor
        self._limit = limit
        self._output = _NonBlockingOutput(descriptor)
        self._closed = False
        self._reset()

    def _reset_after_fork(self) -> None:
        """Call _reset() if this process is a forked child that has not done so."""
        if os.getpid() != self._pid:
            self._reset()

    def _reset(self) -> None:
        """Create an empty buffer and a new lock, for a new object or in a forked child.

        In a child, the held output must not be written, because the parent process will write it.
        The lock must be new, because another thread of the parent may have held the old one.
        """
        self._pid = os.getpid()
        self.on_held: Callable[[], object] | None = None
        self._lock = threading.RLock()
        self._busy = False
        self._held = bytearray()
        # Output that arrived while a write was in progress, from a signal handler.
        self._late: list[bytes] = []
        self._dropped_lines = 0

    @property
    def pending(self) -> bool:
        """Return whether output is held, so that flush() should be called again."""
        return bool(self._held or self._late)

    def write(self, lines: bytes) -> None:
        """Write one or more lines, each with its newline.

        Lines that the descriptor does not accept are held, up to `limit` bytes in all. Above this:

        - The line that exceeds the limit is dropped. If no other line is held, this line is cut
          instead, and ends with ` [cut]`.
        - All later lines are dropped until the held lines have been written. This keeps the output
          in order.
        - Then `N lines dropped (stderr was not read)` is written in place of the dropped lines.
        """
        self._reset_after_fork()
        if self._closed:
            return
        with self._lock:
            self._late.append(lines)
            self._process()
        if self._held and self.on_held is not None:
            self.on_held()

    def write_first(self, line: bytes) -> None:
        """Write a line before the held output, and never drop it.

        This is for a line that another program waits for.
        """
        self._reset_after_fork()
        if self._closed:
            return
        with self._lock:
            index = 0
            if not self._output.at_line_start:
                # First write the rest of an unfinished line, or end the line if there is no rest.
                index = self._held.find(b"\n") + 1
                if index == 0:
                    line = b"\n" + line
            self._held[index:index] = line
            self._process()

    def flush(self, timeout_s: float = 0) -> bool:
        """Try to write the held output, for at most timeout_s seconds; by default once.

        Returns whether all output was written.
        """
        self._reset_after_fork()
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._process()
            left = deadline - time.monotonic()
            if not self.pending or left <= 0:
                return not self.pending
            # Do not wait in poll(), which reports a full terminal as writable.
            time.sleep(min(left, _RETRY_S))

    def close(self) -> None:
        """Write nothing any more. Held output and later output are lost.

        Closes the second descriptor that the writer has opened for the same file, if any, and not
        `descriptor`. May be called again.
        """
        with self._lock:
            self._closed = True
            self._held.clear()
            self._output.close()

    def _process(self) -> None:
        """Write held output, then the output in self._late. The caller must hold the lock.

        If a signal handler interrupts a call of this method and calls it again, the inner call
        returns at once, and the outer call writes the output of both.
        """
        if self._busy or self._closed:
            return
        self._busy = True
        try:
            self._write_held()
            while self._late:
                lines = self._late.pop(0)
                if self._dropped_lines:
                    self._dropped_lines += _count_lines(lines)
                else:
                    self._held += lines
                    self._write_held()
                    self._drop_excess()
        finally:
            self._busy = False

    def _write_held(self) -> None:
        """Write held output and the notice of dropped lines until the descriptor is full."""
        while self._held or self._dropped_lines:
            notice = b"" if self._held else self._make_notice()
            # Write whole lines, so that lines of other processes cannot come between.
            end_of_lines = self._held.rfind(b"\n", 0, _PIECE) + 1
            # A part of a line is written only if the line is longer than a piece.
            cut = end_of_lines if end_of_lines else _PIECE
            try:
                size = self._output.write(notice or bytes(self._held[:cut]))
            except OSError as exc:
                # After EPIPE, ENOSPC or EIO a later write may succeed. After EBADF nothing more may
                # be written, because the descriptor's number may soon belong to another file.
                self._dropped_lines += _count_lines(self._held)
                self._held.clear()
                if exc.errno == errno.EBADF:
                    self._closed = True
                return

            if size == 0:
                return
            if notice:
                # Hold the part of the notice that was not written.
                self._dropped_lines = 0
                self._held += notice[size:]
            else:
                del self._held[:size]

    def _drop_excess(self) -> None:
        """Drop whole lines above the limit. Cut a single line that is longer, and mark it."""
        if len(self._held) <= self._limit:
            return
        cut = self._held.rfind(b"\n", 0, self._limit) + 1
        if cut:
            self._dropped_lines = _count_lines(self._held[cut:])
            del self._held[cut:]
        else:
            cut = self._limit - len(_CUT)
            # Do not cut inside a UTF-8 character.
            while cut and self._held[cut] & 0xC0 == 0x80:
                cut -= 1
            # The line that is cut does not count as dropped.
            self._dropped_lines = _count_lines(self._held[cut:]) - 1
            self._held[cut:] = _CUT

    def _make_notice(self) -> bytes:
        """Return the line that says how many lines were dropped."""
        start = "" if self._output.at_line_start else "\n"
        noun = "line" if self._dropped_lines == 1 else "lines"
        return f"{start}{self._dropped_lines} {noun} dropped (stderr was not read)\n".encode()


class _NonBlockingOutput:
    """Writes to a descriptor without blocking, through a second descriptor if possible.

    at_line_start: whether the last written byte was a newline.
    """

    def __init__(self, descriptor: int) -> None:
        self.at_line_start = True
        self._second = _reopen(descriptor)
        self._target = descriptor if self._second is None else self._second
        self._poll = select.poll()
        self._poll.register(self._target, select.POLLOUT)

    def write(self, piece: bytes) -> int:
        """Write as many bytes as the descriptor accepts, and return their number.

        Raises OSError if the descriptor cannot be written.
        """
        try:
            if not self._poll.poll(0):
                return 0
            size = os.write(self._target, piece)
        except (BlockingIOError, InterruptedError):
            return 0
        self.at_line_start = piece[size - 1] == ord("\n")
        return size

    def close(self) -> None:
        """Close the second descriptor, if there is one. May be called again."""
        if self._second is not None:
            os.close(self._second)
            self._second = None


def _count_lines(lines: bytes | bytearray) -> int:
    """Return the number of lines, including a last line without a newline."""
    count = lines.count(b"\n")
    if lines and not lines.endswith(b"\n"):
        count += 1
    return count


def _reopen(descriptor: int) -> int | None:
    """Open a pipe or a terminal a second time, non-blocking, and return the new descriptor.

    Returns None for files and sockets, and if opening fails. It fails without /proc, for a pipe of
    another user, for a pipe without a reader, and for a closed descriptor.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        if os.isatty(descriptor):
            return os.open(os.ttyname(descriptor), flags)
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        pass
    return None
