"""wait_until_idle(), watch_work(): observe whether a program that is starting works or sleeps.

While plugins start, requests to a hub wait for a plugin that is still working, but not for a plugin
that sleeps, because it may sleep forever. The time since the start does not distinguish the two: on
a loaded machine, a start takes ten times as long. So the hub observes the processor time of the
plugin's process and its descendants.
Source: proc(5), /proc/PID/task/TID/stat and children.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

__all__ = ["wait_until_idle", "watch_work"]

# The time between two samples, in seconds. A sample reads the processor time of the processes, and
# whether they run now.
SAMPLE_S = 0.025
# A program is idle if it works in at most this part of the samples. Even a program that waits wakes
# up now and then, for example for its timers.
MAX_ACTIVE = 0.1
# On systems without /proc, every process counts as idle after this time, in seconds.
UNKNOWN_S = 2.0
# The states of threads that run (R) or wait for a disk (D).
_BUSY_STATES = "RD"
_HAS_PROC = Path("/proc/self/task").is_dir()
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def wait_until_idle(pid: int, for_s: float) -> None:
    """Wait until a process and its descendants have been idle for `for_s` seconds.

    They are idle if they work in at most one tenth of this time (MAX_ACTIVE). Processes that have
    ended are idle. On systems without /proc, waits for `for_s`, but at least 2 seconds.
    pid: the id of the process.
    """
    if not _HAS_PROC:
        await asyncio.sleep(max(for_s, UNKNOWN_S))
        return

    # Count samples, not seconds: on a loaded machine, both this process and the observed one may
    # get no processor time for a while.
    count = round(for_s / SAMPLE_S)
    were_active: deque[bool] = deque(maxlen=count)
    last_ticks: int | None = None
    while len(were_active) < count or sum(were_active) > MAX_ACTIVE * count:
        await asyncio.sleep(SAMPLE_S)
        work = _work_of(pid)
        were_active.append(work.is_busy or work.ticks != last_ticks)
        last_ticks = work.ticks


async def watch_work(pid: int, on_sample: Callable[[float], None]) -> None:
    """Report the processor time of a process and its descendants every 25 ms, until cancelled.

    pid: the id of the process.
    on_sample: called with the processor time that the processes have used so far, in seconds. On
        systems without /proc, called with the time since the beginning of this function.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await asyncio.sleep(SAMPLE_S)
        on_sample(_work_of(pid).ticks / _TICKS_PER_S if _HAS_PROC else loop.time() - began)


class _Work(Struct, frozen=True):
    """The processor time of a process and its descendants.

    ticks: the processor time used so far, in clock ticks.
    is_busy: whether one of their threads runs, waits for a disk, or has just ended.
    """

    ticks: int
    is_busy: bool


def _work_of(pid: int) -> _Work:
    """Return the processor time of a process and its descendants, and whether they work now."""
    ticks, is_busy = 0, False
    for task in _tasks(pid):
        try:
            # The format is `PID (COMMAND) STATE ...`; COMMAND may contain spaces and parentheses.
            state, *fields = (task / "stat").read_text("latin-1").rpartition(") ")[2].split()
        except (OSError, ValueError):
            # The thread has ended after _tasks() has listed it, so it has just worked.
            is_busy = True
            continue
        is_busy = is_busy or state in _BUSY_STATES
        # These fields are utime and stime: the time in user mode, and in the kernel.
        ticks += int(fields[10]) + int(fields[11])
    return _Work(ticks, is_busy)


def _tasks(pid: int) -> Iterator[Path]:
    """Yield the /proc directory of each thread of a process and of its descendants."""
    pids = [pid]
    while pids:
        try:
            tasks = list(Path(f"/proc/{pids.pop()}/task").iterdir())
        except OSError:
            # The process has ended.
            continue
        for task in tasks:
            yield task
            try:
                pids += map(int, (task / "children").read_text().split())
            except OSError:
                # The thread has ended, or the kernel does not list children.
                pass
