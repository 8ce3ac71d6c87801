"""stdin and stdout as a Connection that nothing else in the process can disturb.

The protocol gets descriptors of its own. Afterwards descriptor 0 reads /dev/null and descriptor 1
goes to stderr, so that native code and child processes cannot touch the protocol stream; sys.stdout
and sys.stderr become writers to stderr that never block. A forked child loses its copies at once,
and a server whose parent is gone ends by itself. Nothing is restored, so the caller of take_over()
must also end the process (runtime/shutdown.py).
Spec: 2026-07-28 basic/transports/stdio; policies: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from concertino.jsonrpc.limits import Limits
from concertino.logs.stderr_redirect import StderrRedirect, adopt_handlers
from concertino.logs.writer import BoundedWriter
from concertino.transports.pipe import PipeConnection

if TYPE_CHECKING:
    from concertino.transports.connection import Receiver

log = logging.getLogger("concertino.stdio")
__all__ = ["StdioConnection", "StdioDescriptors", "bounded_stderr", "take_over"]

# Seconds without input after which a server whose parent has ended shuts down: nobody uses it.
ORPHAN_S = 5.0


# What a write reports when its reader has ended: a pipe, a socket, a terminal.
_READER_GONE = frozenset(
    (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EIO)
)


class StdioDescriptors:
    """The stdin and stdout of this process as two private descriptors. Made by take_over().

    reading, writing: the descriptors. writer: writes everything else to stderr.
    """

    def __init__(self) -> None:
        open_missing()
        streams = (sys.stdout, sys.stderr)
        self.reading = _duplicate(0)
        self.writing = _duplicate(1)

        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

        # Text that was printed before now goes to stderr instead of the protocol stream.
        for stream in streams:
            if stream is not None:
                stream.flush()
        self.writer = BoundedWriter(2)
        sys.stdout = StderrRedirect(self.writer, "<stdout>", report=log.warning)
        sys.stderr = StderrRedirect(self.writer)
        adopt_handlers(streams, sys.stderr)


def open_missing() -> None:
    """Open /dev/null as descriptors 0, 1 and 2 where they are closed.

    Otherwise the next open() would get their numbers, and print() would write to that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)


def take_over() -> StdioDescriptors:
    """Reserve stdin and stdout for the protocol. Call it once, as early as possible."""
    return StdioDescriptors()


def bounded_stderr() -> BoundedWriter:
    """Replace sys.stderr by a writer that never blocks, and return that writer.

    Call it once, before opening sockets: it also makes sure that no socket gets the number of
    stdin, stdout or stderr.
    """
    open_missing()
    original = sys.stderr
    # None if stderr was closed at the start.
    if original is not None:  # pyright: ignore[reportUnnecessaryComparison]
        original.flush()
    writer = BoundedWriter(2)
    sys.stderr = StderrRedirect(writer)
    adopt_handlers((original,), sys.stderr)
    return writer


class StdioConnection(PipeConnection):
    """The Connection to the parent process.

    reading: the descriptor that is read, for a thread that watches for its end. ending: called,
    once or more, when no more input will be read. has_failed: stdout could not be written, although
    its reader is not gone: the disk is full, for example.
    """

    def __init__(
        self,
        descriptors: StdioDescriptors,
        limits: Limits,
    ) -> None:
        facts: dict[str, object] = {"transport": "stdio", "parent": os.getppid()}
        if os.isatty(descriptors.reading):
            facts["terminal"] = True
        super().__init__(descriptors.reading, descriptors.writing, limits, facts)
        self.reading = self._in
        self.ending: Callable[[], object] = _do_nothing
        self.has_failed = False
        self._ignores_parent = os.environ.get("CONCERTINO_ORPHAN") == "stay"
        self._parent_fd = -1
        self._timer: asyncio.TimerHandle | None = None
        os.register_at_fork(after_in_child=self._on_fork)

    def open(self, receiver: Receiver) -> None:
        super().open(receiver)

        # A parent id of 1 or less means init, or a parent in another PID namespace, which cannot
        # be watched.
        parent = os.getppid()
        if self._ignores_parent or parent <= 1:
            return

        try:
            self._parent_fd = os.pidfd_open(parent)
            self._loop.add_reader(self._parent_fd, self._on_parent_exit)
        except (AttributeError, OSError):
            # This is not Linux, or an old kernel, or the parent is already gone.
            self._timer = self._loop.call_later(ORPHAN_S, self._check_parent, parent)

    async def close(self, within_s: float) -> None:
        self._unwatch_parent()
        if self._timer is not None:
            self._timer.cancel()
        await super().close(within_s)

    def _stop_reading(self) -> None:
        super()._stop_reading()
        self.ending()

    def _on_write_error(self, exc: OSError) -> None:
        if exc.errno not in _READER_GONE and not isinstance(exc, BrokenPipeError):
            self.has_failed = True
            log.error("stdout cannot be written: %s", exc.strerror)
        super()._on_write_error(exc)

    # The parent process

    def _check_parent(self, parent: int) -> None:
        if os.getppid() != parent:
            self._on_parent_exit()
        else:
            self._timer = self._loop.call_later(ORPHAN_S, self._check_parent, parent)

    def _on_parent_exit(self) -> None:
        """Wait for silence on stdin, since another process may still write to it."""
        self._unwatch_parent()
        self._input.has_read = False
        self._timer = self._loop.call_later(ORPHAN_S, self._check_silence)

    def _check_silence(self) -> None:
        if self._input.has_read:
            self._on_parent_exit()
        elif self._receiver is not None:
            self._stop_reading()
            self._receiver.on_eof()

    def _unwatch_parent(self) -> None:
        if self._parent_fd >= 0:
            self._loop.remove_reader(self._parent_fd)
            os.close(self._parent_fd)
            self._parent_fd = -1

    def _on_fork(self) -> None:
        if self._receiver is None:
            return
        self.disown()
        # Runs only if the child returns to the event loop, where it must not go on.
        self._loop.call_soon(os._exit, 0)


def _do_nothing() -> None:
    pass


def _duplicate(descriptor: int) -> int:
    """Duplicate a descriptor with close-on-exec, numbered 10 or higher.

    Programs expect the low numbers for themselves.
    """
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
