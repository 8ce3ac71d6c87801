"""Enlarges the pipes of connections that carry long messages.

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

__all__ = ["MAX_ENLARGED", "PipeCapacities"]

# The capacity of an enlarged pipe. Larger ones need a privilege (fs.pipe-max-size).
LARGE_BYTES = 2**20
# At most this many pipes of the process are enlarged at the same time.
MAX_ENLARGED = 16


class PipeCapacities:
    """Enlarges the pipes of one connection, within the limit of the process."""

    __slots__ = ("_descriptors",)

    # How many pipes of the process are enlarged now.
    _count = 0

    def __init__(self) -> None:
        self._descriptors: set[int] = set()

    def enlarge(self, descriptor: int) -> None:
        """Enlarge a pipe, unless that was tried before.

        Does nothing if the descriptor is no pipe, if the system does not allow it, or if too many
        pipes are enlarged.
        """
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
