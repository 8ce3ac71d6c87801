"""What a process group holds: memory, descriptors, processor time, and how long it had to wait for a processor.

Read from /proc, so on Linux alone: elsewhere `take()` gives None and what depends on it is not checked. A group, not a process:
`npx server` is three processes of which the last is the server.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

__all__ = ["ProcessStats", "members", "queued_s", "take"]

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


class ProcessStats(Struct, frozen=True):
    """Sums over all processes of a group. Sizes in bytes; peak_bytes: the sum of what each held at most; cpu_s: used so far."""

    pids: frozenset[int]
    rss_bytes: int
    peak_bytes: int
    descriptors: int
    threads: int
    cpu_s: float


def take(group: int) -> ProcessStats | None:
    """Count a process group now; None where there is no /proc."""
    pids = members(group)
    if pids is None:
        return None
    rss = peak = descriptors = threads = 0
    cpu = 0.0
    for pid in pids:
        try:
            status = (PROC / str(pid) / "status").read_text()
            fields = _fields(pid)
            descriptors += len(os.listdir(PROC / str(pid) / "fd"))  # noqa: PTH208  # names, not paths
        except (OSError, ValueError):
            continue  # it ended meanwhile
        rss += _kib(status, "VmRSS:")
        peak += _kib(status, "VmHWM:")
        threads += int(fields[17])
        cpu += (int(fields[11]) + int(fields[12])) / TICKS
    return ProcessStats(frozenset(pids), rss, peak, descriptors, threads, cpu)


def members(group: int) -> list[int] | None:
    """The processes of a group that still run (zombies do not); None where there is no /proc."""
    try:
        names = os.listdir(PROC)  # noqa: PTH208
    except OSError:
        return None
    found: list[int] = []
    for name in names:
        if name.isdigit():
            try:
                fields = _fields(int(name))
            except (OSError, ValueError):
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(name))
    return found if found or (PROC / "self" / "stat").exists() else None


def queued_s(group: int) -> float:
    """Seconds for which this process and the group's wanted a processor and got none: a busy machine's fault, not the server's."""
    pids = [os.getpid(), *(members(group) or ())]
    total = 0
    for pid in pids:
        try:
            for task in (PROC / str(pid) / "task").iterdir():
                total += int((task / "schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return total / 1e9


def _fields(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on: the second may hold blanks."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _kib(status: str, name: str) -> int:
    _, found, rest = status.partition(name)
    return int(rest.split(None, 1)[0]) * 1024 if found else 0
