"""WarmProgram: a target of a Client, whose server program is started before the Client needs it.

`concertino dev` uses it. Its waiting processes have imported everything but the user's file. The
first request to such a process makes it load the file.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from concertino.client.targets import OpenTarget
from concertino.jsonrpc.limits import Limits
from concertino.transports.process import ChildProcess, ShutdownTimeouts, spawn
from concertino.transports.process_table import read_process_state

__all__ = ["WarmProgram"]

# The next process is started this many seconds after a waiting one was taken, so that it does not
# slow down the server that is loading.
NEXT_AFTER_S = 0.2
# How many processes wait. With a single one, a file that is saved twice within half a second would
# find no waiting process the second time, and the next answer would take 380 to 620 ms.
SPARES = 2


class WarmProgram:
    """A target of a Client, with processes of its server program that were started in advance.

    open() returns a waiting process. If none waits, as at the first call, it starts one. Soon after
    each open(), more processes are started, until two wait. The program must wait for its first
    input before it reads anything that may change, such as the user's file.

    name: the name of the server.
    command: the program and its arguments.
    environment: all environment variables of the program; it inherits none.
    ladder: the time limits for ending a process.
    """

    # For Proxy (TargetLocation): open() may be called again.
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
        # The processes that were started in advance, the oldest first, each with the object that
        # receives its stderr.
        self._waiting: deque[tuple[ChildProcess, _StderrReceiver]] = deque()
        # The timer that starts the next process in advance.
        self._timer: asyncio.TimerHandle | None = None
        self._limits = Limits()

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        """Return the process that has waited longest, or a new one if there is none.

        limits: the limits of processes that are started from now on. A returned process that has
            waited keeps the limits that were valid when it was started.
        stderr: called with each chunk that the returned process writes to stderr from now on; None
            to drop it.
        Raises SpawnError if a new process cannot be started.
        """
        self._limits = limits
        found = None
        while self._waiting and found is None:
            child, receiver = self._waiting.popleft()
            if _is_running(child):
                found = child, receiver
            else:
                await child.close(within_s=0)
        child, receiver = found or self._spawn()
        receiver.receive = stderr
        self._schedule()
        # The connection runs over the stdin and stdout of the process, so one object is both.
        return OpenTarget(connection=child, child=child)

    async def close(self) -> None:
        """End the waiting processes, and start no more. Processes from open() are not ended."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            child, _ = self._waiting.popleft()
            # Nothing was sent to this process, so do not wait until it has read its input.
            await child.close(within_s=0)

    def _schedule(self) -> None:
        """Start another process in advance after 0.2 s."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(NEXT_AFTER_S, self._prepare)

    def _prepare(self) -> None:
        """Start one more waiting process and schedule the next, until two wait."""
        if len(self._waiting) < SPARES:
            self._waiting.append(self._spawn())
            self._schedule()

    def _spawn(self) -> tuple[ChildProcess, _StderrReceiver]:
        receiver = _StderrReceiver()
        child = spawn(
            self._command,
            env=self._environment,
            inherit=(),
            stderr=receiver,
            limits=self._limits,
            ladder=self._ladder,
        )
        return child, receiver


class _StderrReceiver:
    """Passes the stderr of one process on. Drops the output until open() returns the process."""

    def __init__(self) -> None:
        # open() sets this to its argument `stderr`.
        self.receive: Callable[[bytes], object] | None = None

    def __call__(self, chunk: bytes) -> None:
        if self.receive is not None:
            self.receive(chunk)


def _is_running(child: ChildProcess) -> bool:
    """Return whether a process runs. Returns True on systems without /proc, which do not tell."""
    state = read_process_state(child.pid)
    # No entry in /proc means on Linux that the process has ended, and nothing on other systems.
    return state.is_live if state is not None else sys.platform != "linux"
