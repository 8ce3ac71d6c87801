"""Measures memory, descriptors, threads and CPU time of a process group.

A whole group is measured, because a command such as `npx server` starts several processes. The
numbers come from /proc, which only Linux has. Elsewhere measure() returns None, and the checks that
need it are skipped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

PROC = Path("/proc")
# /proc tells CPU times in ticks. This is the number of ticks in a second.
TICKS = os.sysconf("SC_CLK_TCK")


class ProcessStats(Struct, frozen=True):
    """The resources of the processes of a group. Each number is the sum over all processes.

    pids: the ids of the processes.
    rss_bytes: the resident memory now.
    peak_bytes: the largest resident memory so far, measured for each process.
    descriptors: the number of open descriptors.
    threads: the number of threads.
    cpu_s: the CPU time since the processes were started, in seconds.
    """

    pids: frozenset[int]
    rss_bytes: int
    peak_bytes: int
    descriptors: int
    threads: int
    cpu_s: float


def measure(group: int) -> ProcessStats | None:
    """Measure the running processes in the process group with this id.

    Returns None without /proc. If no process of the group runs, all numbers are 0.
    """
    pids = find_group_pids(group)
    if pids is None:
        return None

    rss = peak = descriptors = threads = 0
    cpu = 0.0
    for pid in pids:
        try:
            status = (PROC / str(pid) / "status").read_text()
            fields = _read_stat(pid)
            descriptors += len(os.listdir(PROC / str(pid) / "fd"))  # noqa: PTH208
        except (OSError, ValueError):
            # The process ended in the meantime.
            continue
        rss += _parse_kib(status, "VmRSS:")
        peak += _parse_kib(status, "VmHWM:")
        # Thread count, and CPU time in user and in kernel mode: see _read_stat().
        threads += int(fields[17])
        cpu += (int(fields[11]) + int(fields[12])) / TICKS
    return ProcessStats(
        pids=frozenset(pids),
        rss_bytes=rss,
        peak_bytes=peak,
        descriptors=descriptors,
        threads=threads,
        cpu_s=cpu,
    )


def find_group_pids(group: int) -> list[int] | None:
    """Return the ids of the running processes of a group; None without /proc.

    Zombies do not run. Returns [] if no process of the group runs.
    """
    try:
        names = os.listdir(PROC)  # noqa: PTH208
    except OSError:
        return None

    pids: list[int] = []
    for name in names:
        if name.isdigit():
            try:
                fields = _read_stat(int(name))
            except (OSError, ValueError):
                continue
            # Z and X are the states of a process that has ended.
            if int(fields[2]) == group and fields[0] not in "ZX":
                pids.append(int(name))
    # Some systems have another /proc than Linux, without these files.
    if not pids and not (PROC / "self" / "stat").exists():
        return None
    return pids


def bytes_read(group: int) -> dict[int, int]:
    """Return process id -> how many bytes the process has read so far; {} without /proc.

    group: the id of the process group.
    """
    found: dict[int, int] = {}
    for pid in find_group_pids(group) or ():
        try:
            # The file begins with `rchar: NUMBER`.
            found[pid] = int((PROC / str(pid) / "io").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return found


def find_ancestors(pid: int, group: int) -> list[int]:
    """Return the ids of the parent of a process, of the parent's parent and so on.

    Only processes in the group with the id `group` are returned. The last one is the leader of the
    group, unless the leader has ended. Returns [] without /proc, or if the process has ended.
    """
    members = set(find_group_pids(group) or ())
    ancestors: list[int] = []
    try:
        while (pid := int(_read_stat(pid)[1])) in members:
            ancestors.append(pid)
    except (OSError, ValueError):
        pass
    return ancestors


def cpu_wait_s(group: int) -> float:
    """Return how long the check and a process group have been ready to run without a CPU.

    The result is in seconds, summed over all threads since their beginning; 0 without /proc. From a
    measured time, subtract the difference of two calls: a busy machine is not the server's fault.
    """
    # The second field of /proc/PID/task/TID/schedstat, in nanoseconds.
    total_ns = 0
    for pid in [os.getpid(), *(find_group_pids(group) or ())]:
        try:
            for task in (PROC / str(pid) / "task").iterdir():
                total_ns += int((task / "schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return total_ns / 1e9


class Stopwatch:
    """Measures how long a process group takes for something, from the creation of this object.

    The time that the check and the group have waited for a CPU (cpu_wait_s()) is not counted.

    group: the id of the process group.

    Attributes:
    began: time.monotonic() at the creation.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self._waited_before_s = cpu_wait_s(group)
        self.began = time.monotonic()

    def elapsed_s(self, until: float | None = None) -> float:
        """Return the seconds from the creation to `until`.

        All the time of waiting for a CPU, up to now, is subtracted.
        until: a value of time.monotonic(); None for now.
        """
        waited_s = cpu_wait_s(self._group) - self._waited_before_s
        if until is None:
            until = time.monotonic()
        return until - self.began - waited_s


def _read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one on, see proc_pid_stat(5).

    The indices used here: 0 is the state, 1 the parent, 2 the process group, 11 and 12 the CPU time
    in user and in kernel mode, and 17 the number of threads.
    """
    # The second field is the program's name in parentheses, which may hold spaces and parentheses.
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _parse_kib(status: str, name: str) -> int:
    """Return a size in /proc/PID/status, in bytes; 0 if the line `name` is missing."""
    _, found, rest = status.partition(name)
    return int(rest.split(None, 1)[0]) * 1024 if found else 0
