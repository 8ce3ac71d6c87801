"""limit_freed_memory(): lets glibc return the memory of large results to the system.

By default, threads allocate from heaps of their own, up to eight for each processor. Each heap
keeps freed memory of up to twice the size of the largest block that was freed so far: glibc raises
its limits with that size, unless they are set. ProcessBudget, which limits the memory for results
that clients have not read, does not count this memory. With 272 MiB of unread results of 5 MB of a
`def` tool, a process grew by 409 MiB, and by 283 with the settings below (soak/unread_results.py,
60 clients, Python 3.11; docs/decisions/0095).
"""

from __future__ import annotations

import os
from typing import Any

from concertino.jsonrpc.unread_results import ProcessBudget

__all__ = ["limit_freed_memory"]

# Parameters of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
# The number of heaps. Threads rarely compete for one, because most of them hold the interpreter's
# lock while they allocate.
ARENAS = 4
# A heap keeps at most this many bytes at its end.
TRIM_BYTES = 4096 * 1024
# Blocks of this size are returned as soon as they are freed. Messages of 1 MB are below it, because
# to get their memory from the system again takes longer than to write them.
MMAP_BYTES = 1280 * 1024
# This size is used in place of MMAP_BYTES while clients leave many results unread
# (ProcessBudget.has_pressure). Otherwise the holes between unread results would take a fifth of the
# memory of these results in addition: 345 MiB instead of 290 with results of 1 MB.
PRESSURE_MMAP_BYTES = 256 * 1024


def limit_freed_memory(budget: ProcessBudget) -> None:
    """Limit how much freed memory the process keeps from now on.

    This changes settings of the whole process, so only a program may call this function, and not a
    library. Must be called before threads are started. Does nothing if the C library is not glibc,
    or if environment variables such as MALLOC_ARENA_MAX contain such settings.
    budget: measures the results that clients have not read. While these take much memory, freed
        blocks of 256 KiB and more are returned to the system at once; otherwise only blocks of
        1.25 MiB and more.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        # Imported here, because some builds of Python lack it.
        import ctypes

        mallopt: Any = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):
        # There is no ctypes, or the C library has no mallopt().
        return

    mallopt(M_ARENA_MAX, ARENAS)
    mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)

    def on_pressure(has_pressure: bool) -> None:
        mallopt(M_MMAP_THRESHOLD, PRESSURE_MMAP_BYTES if has_pressure else MMAP_BYTES)

    budget.on_pressure = on_pressure
