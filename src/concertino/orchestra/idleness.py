"""Tells a program that works from one that waits: nobody should wait for the second.

A program that starts computes, waits for a processor or a disk, or has a child that does. One that
sleeps for a while waits for something else, perhaps forever. How long a start takes says nothing:
on a loaded machine it takes ten times as long.
Source: proc(5), /proc/PID/task/TID/stat and children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

__all__ = ["wait_until_idle"]

# Between two looks at the processes.
SAMPLE_S = 0.025
# How long to wait where there is no /proc.
UNKNOWN_S = 2.0
# Running, or waiting for a disk.
_BUSY_STATES = "RD"
_HAS_PROC = Path("/proc/self/task").is_dir()


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
        used = _processor_time(pid)
        looks = looks + 1 if used is not None and used == last else 0
        last = used


def _processor_time(pid: int) -> int | None:
    """Return the ticks that a process and its descendants have used; None if one is busy now."""
    used = 0
    for task in _tasks(pid):
        try:
            # The command may contain spaces and parentheses.
            state, *fields = (task / "stat").read_text("latin-1").rpartition(") ")[2].split()
        # The thread has ended, which is work too.
        except (OSError, ValueError):
            return None
        if state in _BUSY_STATES:
            return None
        # utime and stime
        used += int(fields[10]) + int(fields[11])
    return used


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
