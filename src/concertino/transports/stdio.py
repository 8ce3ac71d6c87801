"""stdin and stdout as a Connection that nothing else in the process can disturb.

The protocol gets descriptors of its own. Descriptor 0 then reads /dev/null and descriptor 1 goes to stderr, so that native code and
children cannot touch the wire; sys.stdout and sys.stderr become writers to stderr that never block. A forked child loses its copies
at once, and an orphan ends by itself. Nothing is put back: what takes over ends the process (runtime/process.py).
Spec: 2026-07-28 basic/transports/stdio; policies: docs/architecture.md.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
from collections.abc import Callable, Mapping

from concertino.jsonrpc.limits import Limits
from concertino.logs.stderr_redirect import StderrRedirect, adopt_handlers
from concertino.logs.writer import BoundedWriter
from concertino.transports.connection import Receiver
from concertino.transports.pipe import PipeConnection

log = logging.getLogger("concertino.stdio")
__all__ = ["StdioConnection", "StdioDescriptors", "open_missing", "take_over"]

ORPHAN_S = 5.0  # parent gone and nothing read for this long: nobody is there any more


class StdioDescriptors:
    """The process's own stdin and stdout, as two private descriptors. Made by take_over()."""

    def __init__(self) -> None:
        open_missing()
        streams = (sys.stdout, sys.stderr)
        self.reading = _private(0)
        self.writing = _private(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        for stream in streams:
            if stream is not None:
                stream.flush()  # what was printed before now: to stderr, not to the wire
        self.writer = BoundedWriter(2)
        sys.stdout = StderrRedirect(self.writer, "<stdout>", report=log.warning)
        sys.stderr = StderrRedirect(self.writer)
        adopt_handlers(streams, sys.stderr)


def open_missing() -> None:
    """Give 0, 1 and 2 something if they were closed at start, or the next open() takes their numbers, and a print goes there."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one


def take_over() -> StdioDescriptors:
    """Take stdin and stdout away from everything but the protocol. Call it as early as possible, once."""
    return StdioDescriptors()


class StdioConnection(PipeConnection):
    """The connection to whoever started this process."""

    def __init__(
        self, taken: StdioDescriptors, limits: Limits, environment: Mapping[str, str] = os.environ
    ) -> None:
        super().__init__(
            taken.reading, taken.writing, limits, {"transport": "stdio", "parent": os.getppid()}
        )
        self.reading = self._in  # for whoever watches its end from a thread
        self.ending: Callable[[], object] = (
            _nothing  # called, once or more, when nothing will be read any more
        )
        self._stays = environment.get("CONCERTINO_ORPHAN") == "stay"
        self._parent = -1
        self._timer: asyncio.TimerHandle | None = None
        os.register_at_fork(after_in_child=self._forked)

    def open(self, to: Receiver) -> None:
        super().open(to)
        parent = os.getppid()
        if (
            self._stays or parent <= 1
        ):  # started by init, or in another PID namespace: there is nobody to watch
            return
        try:
            self._parent = os.pidfd_open(parent)
            self._loop.add_reader(self._parent, self._orphaned)
        except (AttributeError, OSError):  # not Linux, an old kernel, or gone already
            self._timer = self._loop.call_later(ORPHAN_S, self._look_for_parent, parent)

    async def close(self, within_s: float) -> None:
        self._forget_parent()
        if self._timer is not None:
            self._timer.cancel()
        await super().close(within_s)

    def _stop_reading(self) -> None:
        super()._stop_reading()
        self.ending()

    def _look_for_parent(self, parent: int) -> None:
        if os.getppid() != parent:
            self._orphaned()
        else:
            self._timer = self._loop.call_later(ORPHAN_S, self._look_for_parent, parent)

    def _orphaned(self) -> None:
        """The parent is gone. Whoever else holds our stdin may still speak; silence means that nobody does."""
        self._forget_parent()
        self._read = False
        self._timer = self._loop.call_later(ORPHAN_S, self._silent)

    def _silent(self) -> None:
        if self._read:
            self._orphaned()
        elif self._to is not None:
            self._stop_reading()
            self._to.on_eof()

    def _forget_parent(self) -> None:
        if self._parent >= 0:
            self._loop.remove_reader(self._parent)
            os.close(self._parent)
            self._parent = -1

    def _forked(self) -> None:
        if self._to is None:
            return
        self.disown()
        self._loop.call_soon(
            os._exit, 0
        )  # only if the child comes back into the loop: it has no business there


def _nothing() -> None:
    pass


def _private(descriptor: int) -> int:
    """A duplicate that children do not inherit, above the numbers that programs expect to be theirs."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
