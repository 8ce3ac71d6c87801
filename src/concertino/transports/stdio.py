"""StdioConnection: a Connection over stdin and stdout of this process, for a server.

take_over() reserves stdin and stdout for the protocol. It duplicates the descriptors 0 and 1 for
the protocol. Afterwards descriptor 0 reads from /dev/null, and descriptor 1 writes to stderr, so
print(), native code and child processes cannot read or write protocol messages. sys.stdout and
sys.stderr are replaced with writers to stderr that never block, and sys.stdin with a stream that
refuses to read, so input() fails at once. None of this is undone, so the caller must also end the
process (runtime/shutdown.py).

A forked child closes its copies of the descriptors at once. A server whose parent process has
ended, and that gets no more input, ends by itself.
Spec: 2026-07-28 basic/transports/stdio.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from concertino.jsonrpc.limits import Limits
from concertino.logs.stderr_redirect import StderrRedirect, adopt_handlers
from concertino.logs.writer import BoundedWriter
from concertino.transports.pipe import PipeConnection

if TYPE_CHECKING:
    from concertino.transports.connection import Receiver

__all__ = ["StdioConnection", "StdioDescriptors", "bounded_stderr", "take_over"]

log = logging.getLogger("concertino.stdio")

# A server whose parent has ended shuts down after this many seconds without input, unless the
# environment variable CONCERTINO_ORPHAN is "stay".
ORPHAN_S = 5.0
# The errors of a write to a pipe, a socket or a terminal whose reader has ended.
_READER_GONE = frozenset(
    (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN, errno.EIO)
)


class StdioDescriptors:
    """The file descriptors for the protocol, in place of 0 and 1. Made by take_over().

    Making one redirects stdin, stdout and stderr of the process, as take_over() describes.

    reading, writing: the descriptors.
    writer: writes log lines, and the output of print(), to stderr without blocking.
    """

    def __init__(self) -> None:
        # If stdout is closed, responses have nowhere to go. Writing to this descriptor fails, so
        # that the server ends with the error, as it does when stdout cannot be written.
        open_missing(stdout_flags=os.O_RDONLY)
        streams = (sys.stdout, sys.stderr)
        self.reading = _duplicate(0)
        self.writing = _duplicate(1)

        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

        # Write the text that was printed before. It goes to stderr, because descriptor 1 is stderr
        # now.
        for stream in streams:
            if stream is not None:
                stream.flush()
        self.writer = BoundedWriter(2)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(ReservedStdin()), encoding="utf-8")
        sys.stdout = StderrRedirect(self.writer, "<stdout>", report=log.warning)
        sys.stderr = StderrRedirect(self.writer)
        adopt_handlers(streams, sys.stderr)


class ReservedStdin(io.RawIOBase):
    """The bytes of sys.stdin in a server: reading raises EOFError, which says what to do then."""

    # An empty text would be misleading: a tool that reads a line would go on without an answer.
    # docs/decisions/0054-reads-of-stdin-fail.md has the alternatives.
    def readinto(self, _: object, /) -> NoReturn:
        """Raise EOFError. All other methods that read call this one."""
        raise EOFError(_STDIN_ADVICE)

    def readable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return 0, which is /dev/null now, for child processes that are given sys.stdin."""
        return 0


_STDIN_ADVICE = (
    "stdin carries the protocol, so input() gets no answer in a server; to ask the user, write "
    "`await context.elicit(...)` in an `async def` tool, or make the answer a parameter of the tool"
)


def open_missing(*, stdout_flags: int = os.O_RDWR) -> None:
    """Open /dev/null for each of the descriptors 0, 1 and 2 that is closed.

    Otherwise the next file or socket that is opened would get one of these numbers, and print()
    could write to it.
    stdout_flags: the flags of os.open() for /dev/null in place of stdout. With os.O_RDONLY, every
        write to stdout fails.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() returns the lowest number that is free, which is this one.
            os.open(os.devnull, stdout_flags if descriptor == 1 else os.O_RDWR)


def take_over() -> StdioDescriptors:
    """Reserve stdin and stdout for the protocol, and return the descriptors to use for it.

    Afterwards:

    - print(), native code and child processes that write to stdout write to stderr.
    - input() raises EOFError, and child processes read /dev/null as stdin.
    - Writing to sys.stdout and sys.stderr never blocks.

    None of this can be undone. Must be called once, as early as possible.
    """
    return StdioDescriptors()


def bounded_stderr() -> BoundedWriter:
    """Replace sys.stderr with a writer that never blocks, and return the writer.

    Servers that listen at sockets call this once, before they open sockets. It also makes sure that
    no socket gets the number of stdin, stdout or stderr.
    """
    open_missing()
    original = sys.stderr
    # sys.stderr is None if stderr was closed when the process started.
    if original is not None:  # pyright: ignore[reportUnnecessaryComparison]
        original.flush()
    writer = BoundedWriter(2)
    sys.stderr = StderrRedirect(writer)
    adopt_handlers((original,), sys.stderr)
    return writer


class StdioConnection(PipeConnection):
    """The Connection of a server to its client, over stdin and stdout.

    Attributes:
    reading: the descriptor of the input; ShutdownWatchdog needs it to notice the end of the input.
    writing: the descriptor of the output.
    on_input_end: a function that is called when no more input will be read, possibly several times.
        The owner may set it; at first it does nothing.
    has_failed: whether stdout could not be written although it has a reader, for example because a
        disk is full.
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
        self.reading = self._reading_fd
        self.writing = self._writing_fd
        self.on_input_end: Callable[[], object] = _do_nothing
        self.has_failed = False
        self._ignores_parent = os.environ.get("CONCERTINO_ORPHAN") == "stay"
        # The pidfd of the parent process; -1 if there is none.
        self._parent_fd = -1
        # The timer of the next look at the parent or, after its end, at the input.
        self._timer: asyncio.TimerHandle | None = None
        os.register_at_fork(after_in_child=self._on_fork)

    def open(self, receiver: Receiver) -> None:
        super().open(receiver)

        # A parent id of 1 means init, and 0 a parent in another PID namespace. Neither can be
        # watched.
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
        self.on_input_end()

    def _on_write_error(self, exc: OSError) -> None:
        if exc.errno not in _READER_GONE and not isinstance(exc, BrokenPipeError):
            self.has_failed = True
            log.error("stdout cannot be written: %s", exc.strerror)
        super()._on_write_error(exc)

    # The parent process

    def _check_parent(self, parent: int) -> None:
        """Check regularly whether the parent has ended. Used where there are no pidfds."""
        if os.getppid() != parent:
            self._on_parent_exit()
        else:
            self._timer = self._loop.call_later(ORPHAN_S, self._check_parent, parent)

    def _on_parent_exit(self) -> None:
        """End the connection when no input has arrived for ORPHAN_S seconds.

        Called when the parent process has ended. Another process may still write to stdin.
        """
        self._unwatch_parent()
        self._input.has_read = False
        self._timer = self._loop.call_later(ORPHAN_S, self._check_silence)

    def _check_silence(self) -> None:
        """End the connection if no input has arrived for ORPHAN_S seconds; else wait again."""
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
        """Close the descriptors in a forked child, and end the child if it runs the event loop."""
        # Without a receiver, the connection is not open yet, or its descriptors are closed already.
        if self._receiver is None:
            return
        self.disown()
        # The event loop belongs to the parent process. If the forked child ever returns to it, the
        # child's own work is done, so end it there without an error.
        self._loop.call_soon(os._exit, 0)


def _do_nothing() -> None:
    pass


def _duplicate(descriptor: int) -> int:
    """Return a duplicate of a descriptor that child processes do not inherit.

    Its number is at least 10, because some programs assume that lower numbers are free.
    """
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
