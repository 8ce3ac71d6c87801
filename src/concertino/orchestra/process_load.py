"""read_loads(): measures the memory and the processor time of process groups.

A hub starts each plugin in its own process group. `concertino hub ps` shows their load.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from msgspec import Struct

from concertino.transports.process_table import live_processes, read_cpu_s, read_memory

__all__ = ["ProcessLoad", "read_loads"]

# The time over which the use of the processor is measured, in seconds.
INTERVAL_S = 0.5


class ProcessLoad(Struct, frozen=True):
    """The load of a process group.

    memory_bytes: the resident memory of all its processes.
    cpu_percent: the processor time of all its processes, in per cent of one core.
    """

    memory_bytes: int
    cpu_percent: float


def read_loads(groups: Collection[int], interval_s: float = INTERVAL_S) -> dict[int, ProcessLoad]:
    """Measure process groups for interval_s seconds: return group id -> load.

    This blocks the thread, so do not call it on an event loop.
    groups: the ids of the process groups. Groups that have ended are not in the result. On systems
        without /proc, the result is empty.
    """
    if not groups:
        return {}
    began, before = time.monotonic(), _read_cpu(groups)
    time.sleep(interval_s)
    elapsed_s = time.monotonic() - began
    loads: dict[int, ProcessLoad] = {}
    for group, now in _read_cpu(groups).items():
        # A process that was started after the first measurement is not in `earlier`: it had used
        # 0 s then.
        earlier = before.get(group, {})
        used_s = sum(max(0.0, cpu_s - earlier.get(pid, 0.0)) for pid, cpu_s in now.items())
        loads[group] = ProcessLoad(sum(map(read_memory, now)), 100 * used_s / elapsed_s)
    return loads


def _read_cpu(groups: Collection[int]) -> dict[int, dict[int, float]]:
    """Return group -> process id -> the processor time that the process has used, in seconds."""
    used: dict[int, dict[int, float]] = {}
    for pid, state in live_processes():
        if state.group in groups:
            used.setdefault(state.group, {})[pid] = read_cpu_s(pid)
    return used
