"""stderr as a place that takes lines and never makes anybody wait.

Nobody may be reading stderr: then a plain write blocks for ever, and the server with it. To set O_NONBLOCK on the
descriptor is no way out, because the flag belongs to the open file description, which is shared with the parent's
terminal and with our children. Two measures instead:

- A pipe or a terminal is opened a second time, privately and non-blocking (through /proc or by its name). This is
  needed: poll() calls a terminal writable when a single byte fits, and a child that writes to the same pipe may take
  the room between our poll() and our write (tests/test_logs.py).
- Before each write of at most 4096 bytes (PIPE_BUF: a pipe that is writable takes that many) poll() is asked without
  waiting. This is all there is for sockets (Node gives those to its children), files, and systems without /proc.

What does not go is held, up to a limit; beyond it whole lines are dropped and counted.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from typing import Final

__all__ = ["HELD_LIMIT", "BoundedWriter"]

HELD_LIMIT: Final = 64 * 1024  # bytes; as much as a Linux pipe holds
_PIECE: Final = 4096  # bytes; PIPE_BUF on Linux
_CUT: Final = b" [cut]\n"
_AGAIN: Final = 0.005  # seconds between attempts of a flush that may wait


class BoundedWriter:
    """Writes lines to a descriptor, from any thread or signal handler; never blocks, never raises OSError.

    descriptor: stays the caller's; 2 for stderr. limit: bytes held while it does not take them.
    Held output goes out before the next write; while `pending`, a timer should call flush().
    """

    def __init__(self, descriptor: int = 2, limit: int = HELD_LIMIT) -> None:
        self.descriptor = descriptor
        self._private = _reopened(descriptor)
        self._target = descriptor if self._private is None else self._private
        self._limit = limit
        self._poll = select.poll()
        self._poll.register(self._target, select.POLLOUT)
        self._become_ours()
        self._dead = False
        self._torn = False  # the last byte written was not the end of a line

    def _notice_fork(self) -> None:
        if os.getpid() != self._pid:
            self._become_ours()

    def _become_ours(self) -> None:
        """Start empty. Also in a forked child: what the parent holds is the parent's, and so is its lock."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        self._held = bytearray()
        self._late: list[bytes] = []  # from a signal handler that came while a write was under way
        self._dropped = 0  # lines

    @property
    def pending(self) -> bool:
        """True while output is held: somebody should call flush() again."""
        return bool(self._held or self._late)

    def write(self, lines: bytes) -> None:
        """Write one or more lines, each with its newline; hold or drop what does not go now.

        A last line without newline is written as it is. Once a line was dropped, all are until the held ones are out,
        so that what comes out is in order; then `N lines dropped (stderr was not read)` tells of them.
        """
        self._notice_fork()
        if self._dead:
            return
        with self._lock:
            self._late.append(lines)
            self._work()

    def flush(self, timeout_s: float = 0) -> bool:
        """Try to write what is held, for at most timeout_s seconds. Returns whether nothing is held any more."""
        self._notice_fork()
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._work()
            left = deadline - time.monotonic()
            if not self.pending or left <= 0:
                return not self.pending
            time.sleep(
                min(left, _AGAIN)
            )  # poll() cannot be waited for: a full terminal calls itself writable

    def close(self) -> None:
        """Give the private descriptor back, if there is one. Held and later output is lost. Idempotent."""
        with self._lock:
            self._dead = True
            self._held.clear()
            if self._private is not None:
                os.close(self._private)
                self._private = None

    def _work(self) -> None:
        """Push, then take what came. The lock is held; a call from inside (a signal handler) leaves it to the outer."""
        if self._busy or self._dead:
            return
        self._busy = True
        try:
            self._push()
            while self._late:
                lines = self._late.pop(0)
                if self._dropped:
                    self._dropped += _count(lines)
                else:
                    self._held += lines
                    self._push()
                    self._trim()
        finally:
            self._busy = False

    def _push(self) -> None:
        while self._held or self._dropped:
            notice = b"" if self._held else self._notice()
            cut = self._held.rfind(b"\n", 0, _PIECE) + 1 or _PIECE
            piece = notice or bytes(self._held[:cut])
            try:
                if not self._poll.poll(0):
                    return
                size = os.write(self._target, piece)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # EPIPE, ENOSPC, EIO: a later write may succeed
                self._dropped += _count(self._held)
                self._held.clear()
                self._dead = (
                    error.errno == errno.EBADF
                )  # its number may soon belong to another file
                return
            self._torn = piece[size - 1] != 10
            if notice:
                self._dropped = 0
                self._held += notice[size:]
            else:
                del self._held[:size]

    def _trim(self) -> None:
        """Drop the lines beyond the limit. A single line that is longer is cut, and says so."""
        if len(self._held) <= self._limit:
            return
        cut = self._held.rfind(b"\n", 0, self._limit) + 1
        if cut:
            self._dropped = _count(self._held[cut:])
            del self._held[cut:]
        else:
            cut = self._limit - len(_CUT)
            while cut and self._held[cut] & 0xC0 == 0x80:  # not inside a character of UTF-8
                cut -= 1
            self._dropped = _count(self._held[cut:]) - 1
            self._held[cut:] = _CUT

    def _notice(self) -> bytes:
        start = "\n" if self._torn else ""
        return f"{start}{self._dropped} line{'s' * (self._dropped > 1)} dropped (stderr was not read)\n".encode()


def _count(lines: bytes | bytearray) -> int:
    return lines.count(b"\n") + (lines[-1:] not in b"\n")  # of nothing: 0


def _reopened(descriptor: int) -> int | None:
    """Open a pipe or terminal once more, non-blocking; None where that cannot be done, or must not: files, sockets."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
    try:
        if os.isatty(descriptor):
            return os.open(os.ttyname(descriptor), flags)
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # no /proc, another user's pipe, a pipe without reader, a closed descriptor
        pass
    return None
