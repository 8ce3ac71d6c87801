"""A writer for stderr that never blocks.

If nobody reads stderr, a plain write blocks the whole server forever. Setting O_NONBLOCK on
the descriptor does not help: the flag belongs to the open file description, which is shared with
the parent's terminal and with our children. So there are two measures:

- A pipe or a terminal is opened a second time, privately and non-blocking (through /proc, or by
  its name). poll() alone would not do: it calls a terminal writable when a single byte fits, and a
  child that writes to the same pipe may fill it between our poll() and our write().
- Before each write of at most 4096 bytes (PIPE_BUF: a writable pipe accepts that many) we call
  poll() without waiting. This is the only measure for sockets (Node gives those to its children),
  for files, and on systems without /proc.

Output that the descriptor does not accept is held up to a limit; beyond it whole lines are dropped
and counted.
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

# Bytes; as much as a Linux pipe holds.
HELD_LIMIT: Final = 64 * 1024

# Bytes; PIPE_BUF on Linux.
_PIECE: Final = 4096

_CUT: Final = b" [cut]\n"

# Between two attempts of a flush() that may wait.
_RETRY_S: Final = 0.005


class BoundedWriter:
    """Writes lines to a descriptor; never blocks and never raises OSError.

    Safe to use from any thread and from signal handlers.

    descriptor: stays open and belongs to the caller; 2 for stderr. limit: bytes that are held
    while the descriptor does not accept them. Held output precedes the next write. While `pending`
    is true, a timer should call flush().
    on_held: called after each write that leaves output held, in the writing thread or signal
    handler; it must not raise. A forked child forgets it.
    """

    def __init__(self, descriptor: int = 2, limit: int = HELD_LIMIT) -> None:
        self.descriptor = descriptor
        self._limit = limit
        self._output = _NonBlockingOutput(descriptor)
        self._closed = False
        self._reset()

    def _reset_after_fork(self) -> None:
        if os.getpid() != self._pid:
            self._reset()

    def _reset(self) -> None:
        """Start with an empty buffer.

        A forked child does this too: held output belongs to the parent, which will write it, and
        another thread of the parent may have held the lock.
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
        """True while output is held, so that flush() should be called again."""
        return bool(self._held or self._late)

    def write(self, lines: bytes) -> None:
        """Write one or more lines, each with its newline; hold or drop what cannot be written now.

        A last line without newline is written as it is. After a line was dropped, all following
        lines are dropped until the held ones are written, so that the output stays in order; then
        follows `N lines dropped (stderr was not read)`.
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
        """Write a line in front of held output; unlike other lines, it is never dropped.

        For a line that another program waits for. It is written as a line of its own.
        """
        self._reset_after_fork()
        if self._closed:
            return
        with self._lock:
            at = 0
            if not self._output.at_line_start:
                # The rest of a line comes first; if it has no end yet, we end it.
                at = self._held.find(b"\n") + 1
                line = line if at else b"\n" + line
            self._held[at:at] = line
            self._process()

    def flush(self, timeout_s: float = 0) -> bool:
        """Try to write held output for at most timeout_s seconds. Returns whether none is left."""
        self._reset_after_fork()
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._process()
            left = deadline - time.monotonic()
            if not self.pending or left <= 0:
                return not self.pending
            # Waiting in poll() does not work: it calls a full terminal writable.
            time.sleep(min(left, _RETRY_S))

    def close(self) -> None:
        """Close the private duplicate. Held and later output is lost. Idempotent."""
        with self._lock:
            self._closed = True
            self._held.clear()
            self._output.close()

    def _process(self) -> None:
        """Write held output, then take in late output. The caller holds the lock.

        A nested call (from a signal handler) returns at once; the outer call does its work.
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
            cut = self._held.rfind(b"\n", 0, _PIECE) + 1 or _PIECE
            try:
                size = self._output.write(notice or bytes(self._held[:cut]))
            except OSError as exc:
                # After EPIPE, ENOSPC or EIO a later write may succeed. After EBADF it must not be
                # tried: the number may soon belong to another file.
                self._dropped_lines += _count_lines(self._held)
                self._held.clear()
                self._closed = exc.errno == errno.EBADF
                return

            if size == 0:
                return
            if notice:
                self._dropped_lines = 0
                self._held += notice[size:]
            else:
                del self._held[:size]

    def _drop_excess(self) -> None:
        """Drop whole lines beyond the limit; cut a single line that exceeds it, with a mark."""
        if len(self._held) <= self._limit:
            return
        cut = self._held.rfind(b"\n", 0, self._limit) + 1
        if cut:
            self._dropped_lines = _count_lines(self._held[cut:])
            del self._held[cut:]
        else:
            cut = self._limit - len(_CUT)
            # Do not cut inside of a UTF-8 character.
            while cut and self._held[cut] & 0xC0 == 0x80:
                cut -= 1
            self._dropped_lines = _count_lines(self._held[cut:]) - 1
            self._held[cut:] = _CUT

    def _make_notice(self) -> bytes:
        start = "" if self._output.at_line_start else "\n"
        plural = "s" * (self._dropped_lines > 1)
        return f"{start}{self._dropped_lines} line{plural} dropped (stderr was not read)\n".encode()


class _NonBlockingOutput:
    """A descriptor that is written without blocking; a private duplicate if one can be opened.

    at_line_start: whether the last byte written was a newline.
    """

    def __init__(self, descriptor: int) -> None:
        self.at_line_start = True
        self._private = _reopen(descriptor)
        self._target = descriptor if self._private is None else self._private
        self._poll = select.poll()
        self._poll.register(self._target, select.POLLOUT)

    def write(self, piece: bytes) -> int:
        """Write as much as fits and return its size; 0 if nothing fits. Raises OSError."""
        try:
            if not self._poll.poll(0):
                return 0
            size = os.write(self._target, piece)
        except (BlockingIOError, InterruptedError):
            return 0
        self.at_line_start = piece[size - 1] == ord("\n")
        return size

    def close(self) -> None:
        """Close the private duplicate. Idempotent."""
        if self._private is not None:
            os.close(self._private)
            self._private = None


def _count_lines(lines: bytes | bytearray) -> int:
    """Return the number of lines; a last one without newline counts, empty input does not."""
    return lines.count(b"\n") + (lines[-1:] not in b"\n")


def _reopen(descriptor: int) -> int | None:
    """Open a pipe or a terminal a second time, non-blocking.

    None for files and sockets, and if it fails: no /proc, another user's pipe, a pipe without
    reader, a closed descriptor.
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
