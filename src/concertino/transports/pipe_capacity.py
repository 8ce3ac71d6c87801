"""PipeCapacities: prepares a connection for long messages, by larger pipes and memory to reuse.

A pipe holds 64 KiB unless a process sets another capacity. A message of 1 MB then takes 16 writes
and as many reads, between which the two processes wait for each other. In a pipe of 1 MiB, it takes
one write.

The pipes of one user may have 64 MiB in all (fs.pipe-user-pages-soft). Beyond that, new pipes hold
only 8 KiB. Therefore this process enlarges few pipes, and only those that carry long messages.
Source: pipe(7), "Pipe capacity"; fcntl(2), F_SETPIPE_SZ.
"""

from __future__ import annotations

import fcntl
import sys
from functools import cache

__all__ = ["MAX_ENLARGED", "PipeCapacities"]

# The capacity of an enlarged pipe. Larger ones need a privilege (fs.pipe-max-size).
LARGE_BYTES = 2**20
# At most this many pipes of the process are enlarged at the same time.
MAX_ENLARGED = 16
# glibc keeps twice as much freed memory, see _keep_freed_memory().
KEPT_BYTES = 2**22


@cache
def _keep_freed_memory() -> None:
    """Let glibc keep up to 8 MiB of freed memory. Called before the first long message.

    Without glibc, this function has no effect.
    """
    # Otherwise glibc returns the memory of each long message to the system and gets it again for
    # the next one, page by page: a proxied result of 1 MB took 700 page faults and 2.3 ms more CPU
    # time (Python 3.11). glibc raises its thresholds when a block of that size is freed, see
    # mallopt(3). Nothing is written to this block, so it takes no memory.
    bytes(KEPT_BYTES)


class PipeCapacities:
    """Enlarges the pipes of one connection, up to MAX_ENLARGED pipes of the whole process."""

    __slots__ = ("_descriptors",)

    # How many descriptors of the process are enlarged now, or could not be enlarged.
    _count = 0

    def __init__(self) -> None:
        # The descriptors of this connection that enlarge() has been called for.
        self._descriptors: set[int] = set()

    def enlarge(self, descriptor: int) -> None:
        """Prepare for long messages: enlarge a pipe, and let glibc keep the memory of messages.

        Does not enlarge it if that was tried before, if the descriptor is no pipe, if the system
        does not allow a larger pipe, or if too many pipes are enlarged.
        """
        _keep_freed_memory()
        if descriptor in self._descriptors or PipeCapacities._count >= MAX_ENLARGED:
            return
        self._descriptors.add(descriptor)
        PipeCapacities._count += 1
        if sys.platform == "linux":
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, LARGE_BYTES)
            except OSError:
                # EBADF: a socket or a file. EPERM: the pipes of the user have too much memory.
                pass

    def release(self) -> None:
        """Remove the pipes of this connection from the count, because they are being closed."""
        PipeCapacities._count -= len(self._descriptors)
        self._descriptors.clear()
