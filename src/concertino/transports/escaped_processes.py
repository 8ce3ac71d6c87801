"""EscapedProcesses: finds and ends processes that have left the process group of a child.

Such processes are daemons, for example. They are found in two ways: by an environment variable with
a mark of the child, which processes inherit; and by their parents, as long as all of these run.
Processes of other users cannot be ended. Without /proc (on macOS) none are found.

A process that has cleared the variable and whose parent has ended is not found. Linux could report
it to a "subreaper", prctl(2), but this is a setting for the whole process of our user, which would
get the orphans of all its children and would have to reap them. A cgroup needs rights that few
users have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["STARTED_BY", "EscapedProcesses"]

log = logging.getLogger("concertino.process")

PROC = "/proc"
# The environment variable. Its value has one mark for each child of concertino among the ancestors
# of a process, the outermost first, separated by commas.
STARTED_BY = "CONCERTINO_STARTED_BY"
# How often to check whether the processes have ended. They are no children of this process, so no
# event reports their end.
CHECK_S = 0.01
# How long to wait for processes that are just being started. Their environment is empty; but
# another process may have an empty environment for ever.
SETTLE_S = 0.1
# The size of one read: larger than most files in /proc.
READ_BYTES = 2**16
# The flag of kernel threads, see include/linux/sched.h.
PF_KTHREAD = 0x00200000


class EscapedProcesses:
    """Finds and ends processes that one child has started, and that have left its process group.

    variable: the value of STARTED_BY in the environment of the child.
    """

    def __init__(self) -> None:
        mark = os.urandom(12).hex()
        above = os.environ.get(STARTED_BY)
        self.variable = f"{above},{mark}" if above else mark
        self._mark = mark.encode()
        # (process id, start time). With the time, a reused id is not mistaken for the process.
        self._descendants: set[tuple[int, int]] = set()

    def note_descendants(self, parent: int) -> None:
        """Remember all descendants of the child, since some may have cleared the variable.

        Call it while the child runs: when the parent of a process ends, it gets another parent.
        parent: the process id of the child, which is also the id of its group; here and below.
        """
        below: set[tuple[int, int]] = set()
        left = _children(parent)
        while left:
            pid = left.pop()
            stat = _stat(pid)
            if stat is not None and stat.is_live and (pid, stat.started_at) not in below:
                below.add((pid, stat.started_at))
                left += _children(pid)
        self._descendants = below

    async def end(
        self,
        parent: int,
        number: signal.Signals,
        within_s: float,
    ) -> bool:
        """Send a signal to all such processes, and wait up to within_s seconds for their end.

        Returns whether all have ended.
        """
        now = time.monotonic()
        until, settled_at = now + within_s, now + SETTLE_S
        while True:
            found, is_complete = self._find(parent)
            found = self._signal(found, parent, number)
            if not found and (is_complete or time.monotonic() >= settled_at):
                return True
            # When they have ended, look for more: they may have started others in the meantime.
            await asyncio.sleep(CHECK_S)
            while found := [pid for pid in found if (stat := _stat(pid)) and stat.is_live]:
                if time.monotonic() >= until:
                    return False
                await asyncio.sleep(CHECK_S)

    def kill(self, parent: int) -> None:
        """Kill all such processes, without waiting for their end. Blocks briefly."""
        settled_at = time.monotonic() + SETTLE_S
        is_complete = False
        while not is_complete and time.monotonic() < settled_at:
            found, is_complete = self._find(parent)
            self._signal(found, parent, signal.SIGKILL)
            if not is_complete:
                time.sleep(CHECK_S)

    def _find(self, parent: int) -> tuple[list[int], bool]:
        """Return the ids of all such processes, and whether the search was complete.

        It is not complete if a process is just being started, so that its environment cannot be
        read so far.
        """
        parent_stat = _stat(parent)
        started_at = 0 if parent_stat is None else parent_stat.started_at
        found: list[int] = []
        is_complete = True
        for pid, stat in _running():
            # A process that has started before the child is not one of its descendants. This test
            # comes first, because reading an environment takes time.
            if stat.group == parent or stat.started_at < started_at:
                continue
            environment = _environment(pid)
            is_marked = environment is not None and self._mark in environment
            if is_marked or (pid, stat.started_at) in self._descendants:
                found.append(pid)
            elif environment == b"":
                is_complete = False
        return found, is_complete

    def _signal(
        self,
        pids: list[int],
        parent: int,
        number: signal.Signals,
    ) -> list[int]:
        """Send a signal to processes. Returns those that have got it."""
        signalled: list[int] = []
        for pid in pids:
            text = "process %d (%s), started by process %d, has left its process group: %s"
            name = _name_of(pid)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                # A process of another user is found by its parents only. Forget it, so that this is
                # logged once.
                log.warning(text, pid, name, parent, "it belongs to another user and is not ended")
                self._descendants = {item for item in self._descendants if item[0] != pid}
            else:
                log.warning(text, pid, name, parent, number.name)
                signalled.append(pid)
        return signalled


class _Stat(NamedTuple):
    """The state of a process.

    is_live: whether it is neither a zombie nor a kernel thread.
    group: the id of its process group.
    started_at: its start time, in clock ticks since the boot.
    """

    is_live: bool
    group: int
    started_at: int


def _stat(pid: int) -> _Stat | None:
    """Return the state of a process; None if there is no such process. See proc(5)."""
    try:
        # Split after the last parenthesis: the name of the program, in parentheses, may itself
        # contain spaces and parentheses.
        fields = _read(f"{pid}/stat").rpartition(b")")[2].split(None, 20)
        is_live = fields[0] not in (b"Z", b"X") and not int(fields[6]) & PF_KTHREAD
        return _Stat(is_live, int(fields[2]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _children(pid: int) -> list[int]:
    """Return the ids of a process's children.

    Returns [] if there is no such process, or if the kernel does not list children.
    """
    try:
        threads = _names(f"{PROC}/{pid}/task")
    except OSError:
        return []
    children: list[int] = []
    for thread in threads:
        try:
            children += map(int, _read(f"{pid}/task/{thread}/children").split())
        except OSError:
            pass
    return children


def _running() -> Iterator[tuple[int, _Stat]]:
    """Yield the id and the state of every process that has not ended."""
    try:
        names = _names(PROC)
    except OSError:
        return
    for name in names:
        if name.isdecimal():
            stat = _stat(int(name))
            if stat is not None and stat.is_live:
                yield int(name), stat


def _environment(pid: int) -> bytes | None:
    """Return the environment of a process; None if it has ended or belongs to another user."""
    try:
        return _read(f"{pid}/environ")
    except OSError:
        return None


def _name_of(pid: int) -> str:
    try:
        return _read(f"{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return "?"


def _names(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _read(name: str) -> bytes:
    """Return the content of a file below /proc. Raises OSError.

    This takes a third of the time of Path.read_bytes(), which matters because closing a child reads
    a file of every process of the machine.
    """
    descriptor = os.open(f"{PROC}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while part := os.read(descriptor, READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
