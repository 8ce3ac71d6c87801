"""WarmProgram: a target of a Client whose program is started before it is needed.

`concertino dev` uses it: a process that has imported everything but the user's file waits, and the
first request makes it load the file.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence

from concertino.client.targets import OpenTarget
from concertino.jsonrpc.limits import Limits
from concertino.transports.process import ChildProcess, ShutdownTimeouts, spawn
from concertino.transports.process_table import read_process_state

__all__ = ["WarmProgram"]

# The next process is started this many seconds after the waiting one was taken, so that it does not
# slow down the server that is loading.
NEXT_AFTER_S = 0.2


class WarmProgram:
    """A target of a Client whose open() uses a process that was started in advance.

    The first open() starts a process itself. NEXT_AFTER_S after each open(), another process is
    started, which waits for the next open(). The program must wait for its first input before it
    reads anything that may change, such as the user's file.
    name: the name of the server.
    command: the program and its arguments.
    environment: all environment variables of the program; it inherits none.
    ladder: the time limits for ending a process.
    """

    can_reopen = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        ladder: ShutdownTimeouts,
    ) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._ladder = ladder
        # The process that was started in advance.
        self._waiting: ChildProcess | None = None
        # Receives the stderr of this process.
        self._stderr = _StderrReceiver()
        # The timer that starts the next process in advance.
        self._timer: asyncio.TimerHandle | None = None
        self._limits = Limits()

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        """Return the waiting process, or a new one if there is none.

        limits: the limits of the connection. A process that waits already has the limits of the
            open() before, and those given now hold for processes that are started from now on.
        stderr: called with each chunk that the returned process writes to stderr from now on; None
            to drop it.
        Raises SpawnError if a new process cannot be started.
        """
        self._limits = limits
        child, self._waiting = self._waiting, None
        if child is not None and not _is_running(child):
            await child.close(0)
            child = None
        if child is None:
            child = self._spawn()
        self._stderr.receive = stderr
        # For the process that is started next.
        self._stderr = _StderrReceiver()
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(NEXT_AFTER_S, self._prepare)
        return OpenTarget(child, child)

    async def close(self) -> None:
        """End the waiting process, and start no more. Processes from open() are not ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting is not None:
            await self._waiting.close(0)
            self._waiting = None

    def _prepare(self) -> None:
        if self._waiting is None:
            self._waiting = self._spawn()

    def _spawn(self) -> ChildProcess:
        return spawn(
            self._command,
            env=self._environment,
            inherit=(),
            stderr=self._stderr,
            limits=self._limits,
            ladder=self._ladder,
        )


class _StderrReceiver:
    """Passes the stderr of one process on. Its output is dropped until open() returns it."""

    def __init__(self) -> None:
        # Set when the process is used.
        self.receive: Callable[[bytes], object] | None = None

    def __call__(self, chunk: bytes) -> None:
        if self.receive is not None:
            self.receive(chunk)


def _is_running(child: ChildProcess) -> bool:
    """Return whether a process runs. Without /proc that is not known, and True is returned."""
    # On Linux, a process without an entry in /proc has ended.
    state = read_process_state(child.pid)
    return state.is_live if state is not None else sys.platform != "linux"
