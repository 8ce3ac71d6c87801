"""Tells a program that works from one that waits: nobody should wait for the second.

A program that starts computes, waits for a processor or a disk, or has a child that does. One that
sleeps for a while waits for something else, perhaps forever. How long a start takes says nothing:
on a loaded machine it takes ten times as long.
Source: proc(5), /proc/PID/task/TID/stat and children.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

__all__ = ["wait_until_idle", "watch_work"]

# Between two looks at the processes.
SAMPLE_S = 0.025
# How long to wait where there is no /proc.
UNKNOWN_S = 2.0
# Running, or waiting for a disk.
_BUSY_STATES = "RD"
_HAS_PROC = Path("/proc/self/task").is_dir()
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def wait_until_idle(pid: int, for_s: float) -> None:
    """Return when a process and its descendants have done nothing for some seconds, or are gone."""
    if not _HAS_PROC:
        await asyncio.sleep(max(for_s, UNKNOWN_S))
        return

    # Counted in looks and not in seconds: if this process itself has no time to look, it knows
    # nothing about others.
    looks_needed = round(for_s / SAMPLE_S)
    looks = 0
    last: int | None = None
    while looks < looks_needed:
        await asyncio.sleep(SAMPLE_S)
        work = _work_of(pid)
        looks = looks + 1 if not work.is_busy and work.ticks == last else 0
        last = work.ticks


async def watch_work(pid: int, on_look: Callable[[float], None]) -> None:
    """Call on_look(), until cancelled, with the processor time of a process and its descendants.

    Its argument is in seconds. Where there is no /proc, the time since the beginning is passed.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await asyncio.sleep(SAMPLE_S)
        on_look(_work_of(pid).ticks / _TICKS_PER_S if _HAS_PROC else loop.time() - began)


class _Work(Struct, frozen=True):
    """The ticks that a process and its descendants have used, and whether one is busy now."""

    ticks: int
    is_busy: bool


def _work_of(pid: int) -> _Work:
    ticks, is_busy = 0, False
    for task in _tasks(pid):
        try:
            # The command may contain spaces and parentheses.
            state, *fields = (task / "stat").read_text("latin-1").rpartition(") ")[2].split()
        # The thread has ended, which is work too.
        except (OSError, ValueError):
            is_busy = True
            continue
        is_busy = is_busy or state in _BUSY_STATES
        # utime and stime
        ticks += int(fields[10]) + int(fields[11])
    return _Work(ticks, is_busy)


def _tasks(pid: int) -> Iterator[Path]:
    """Return the folders of the threads of a process and of its descendants."""
    left = [pid]
    while left:
        try:
            tasks = list(Path(f"/proc/{left.pop()}/task").iterdir())
        except OSError:
            continue
        for task in tasks:
            yield task
            try:
                left += map(int, (task / "children").read_text().split())
            # It has ended, or the kernel does not list children.
            except OSError:
                pass
