"""Processes that a child started and that have left its process group, such as daemons.

They are found by an environment variable with a mark of the child, which processes inherit; and by
their parents, as long as all of these run. Those of other users cannot be ended. Without /proc none
are found.

Not found is a process that has cleared the variable and whose parent has ended. Linux tells of it
only a subreaper, prctl(2): that is a setting of the whole process of our user, which would get the
orphans of all its children, and would have to reap them. A cgroup needs rights that few users have.
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
# The marks of all children above a process, the outermost first, separated by commas.
STARTED_BY = "CONCERTINO_STARTED_BY"
# How often to look whether they have ended: no event reports the end of other processes' children.
CHECK_S = 0.01
# How long to wait for processes that are just being started. One with an empty environment looks
# like that for ever.
SETTLE_S = 0.1
# Larger than most files there, so that the second read finds the end.
READ_BYTES = 2**16
# A flag of kernel threads, see include/linux/sched.h.
PF_KTHREAD = 0x00200000


class EscapedProcesses:
    """Finds and ends what a child started and what has left its process group.

    variable: the value of STARTED_BY for the child.
    """

    def __init__(self) -> None:
        mark = os.urandom(12).hex()
        above = os.environ.get(STARTED_BY)
        self.variable = f"{above},{mark}" if above else mark
        self._mark = mark.encode()
        # Process ids with the start of each, so that a reused id is not taken for it.
        self._descendants: set[tuple[int, int]] = set()

    def note_descendants(self, parent: int) -> None:
        """Remember who is below the child now. Some of them may have cleared the variable.

        Call it while the child runs: a process whose parent ends gets another one.
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
        """Send a signal to all of them and wait. Returns True if none is left within that time.

        parent: the child's process id, which is also that of its group.
        """
        now = time.monotonic()
        until, settled_at = now + within_s, now + SETTLE_S
        while True:
            found, is_complete = self._find(parent)
            found = self._signal(found, parent, number)
            if not found and (is_complete or time.monotonic() >= settled_at):
                return True
            # When they have ended, look again: they may have started others meanwhile.
            await asyncio.sleep(CHECK_S)
            while found := [pid for pid in found if (stat := _stat(pid)) and stat.is_live]:
                if time.monotonic() >= until:
                    return False
                await asyncio.sleep(CHECK_S)

    def kill(self, parent: int) -> None:
        """Kill all of them, without waiting for their end. Blocks briefly."""
        settled_at = time.monotonic() + SETTLE_S
        is_complete = False
        while not is_complete and time.monotonic() < settled_at:
            found, is_complete = self._find(parent)
            self._signal(found, parent, signal.SIGKILL)
            if not is_complete:
                time.sleep(CHECK_S)

    def _find(self, parent: int) -> tuple[list[int], bool]:
        """Return their process ids: they have the mark, and a group other than the parent's.

        The second value is False if a process is just being started, so that its environment
        cannot be read yet.
        """
        parent_stat = _stat(parent)
        started_at = 0 if parent_stat is None else parent_stat.started_at
        found: list[int] = []
        is_complete = True
        for pid, stat in _running():
            # Comparing the start first spares reading most environments.
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
        """Send a signal to processes, and return those that may be sent one."""
        signalled: list[int] = []
        for pid in pids:
            text = "process %d (%s), started by process %d, has left its process group: %s"
            name = _name_of(pid)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            except PermissionError:
                # Those are found by their parents only. Report it once.
                log.warning(text, pid, name, parent, "it belongs to another user and is not ended")
                self._descendants = {item for item in self._descendants if item[0] != pid}
            else:
                log.warning(text, pid, name, parent, number.name)
                signalled.append(pid)
        return signalled


class _Stat(NamedTuple):
    """is_live: it is neither a zombie nor a kernel thread. started_at: ticks since the boot."""

    is_live: bool
    group: int
    started_at: int


def _stat(pid: int) -> _Stat | None:
    """Return what the kernel says about a process; None if it is gone. See proc(5)."""
    try:
        # The name of the program, in parentheses, may contain blanks and parentheses.
        fields = _read(f"{pid}/stat").rpartition(b")")[2].split(None, 20)
        is_live = fields[0] not in (b"Z", b"X") and not int(fields[6]) & PF_KTHREAD
        return _Stat(is_live, int(fields[2]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _children(pid: int) -> list[int]:
    """Return the children of a process; none if it is gone, or the kernel does not list them."""
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
    """Yield every process that has not ended."""
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

    A third of the time of a Path: a close reads a file of every process of the machine.
    """
    descriptor = os.open(f"{PROC}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while part := os.read(descriptor, READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
