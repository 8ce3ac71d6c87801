"""ExitWatch notices the end of a child process; live_members() lists its process group.

On Linux they use pidfd, waitid and /proc. On other systems, such as macOS, a thread waits for the
child, and sending signal 0 shows whether the group has members. No system reuses the id of a group
that has members.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable

from concertino.transports.process_table import PROC, live_processes

__all__ = ["ExitWatch", "live_members"]


class ExitWatch:
    """Notices the end of a child process.

    On Linux the child stays a zombie until close() is called. Until then its process id is not
    reused.
    popen: the child.
    on_exit: called once, on the event loop, when the child has ended.

    Attributes:
    status: the exit code, or minus the number of the signal that has ended the child; None while it
        runs.
    ended: an event that is set together with `status`.
    """

    def __init__(self, popen: subprocess.Popen[bytes], on_exit: Callable[[], object]) -> None:
        self.status: int | None = None
        self.ended = asyncio.Event()
        self._popen = popen
        self._on_exit = on_exit
        # The pidfd of the child; -1 if there is none.
        self._pidfd = -1

    def start(self) -> None:
        """Start to watch, on the running loop."""
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
            self._loop.add_reader(self._pidfd, self.check)
        except (AttributeError, OSError):
            # This is not Linux, or an old kernel.
            thread = threading.Thread(target=self._wait, name="concertino-child", daemon=True)
            thread.start()

    def _wait(self) -> None:
        """Wait for the exit in a thread."""
        try:
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        except (AttributeError, ChildProcessError):
            # AttributeError means that Python on macOS has no waitid, which it has since 3.13.
            # ChildProcessError means that other code has reaped the child.
            self._popen.wait()
        try:
            self._loop.call_soon_threadsafe(self.check)
        except RuntimeError:
            # The loop is closed.
            pass

    def check(self) -> None:
        """Check whether the child has ended. If it has, set `status` and call on_exit."""
        if self.status is not None or (status := self._poll_status()) is None:
            return
        self.status = status
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self.ended.set()
        self._on_exit()

    def _poll_status(self) -> int | None:
        """Return the child's status, without reaping the child; None while it runs.

        If this program ignores SIGCHLD, the system reaps the child and its status is lost. In that
        case 0 is returned, as Popen does.
        """
        try:
            result = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except (AttributeError, ChildProcessError):
            # There is no os.waitid(), or the child was reaped already.
            return self._popen.poll()
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def close(self) -> None:
        """Stop watching, and reap the child if it has ended."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self.status is not None:
            self._popen.wait()


def live_members(group: int) -> list[int]:
    """Return the ids of the processes in a process group that have not ended.

    Zombies are left out, because they have ended. On a system without /proc, the id of the group is
    returned if it has any members.
    """
    if not os.path.exists(f"{PROC}/self/stat"):
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            # The group is empty; macOS reports PermissionError for a group of zombies.
            return []
        return [group]

    return [pid for pid, state in live_processes() if state.group == group]
