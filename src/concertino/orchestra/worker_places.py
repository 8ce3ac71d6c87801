"""WorkerPlaces: how many requests a worker may have in progress, in all and for each caller.

A worker is a process that answers the requests to a plugin in a NATS cluster (nats_worker.py). It
calls its WorkerPlaces before it accepts a request. A worker has 1024 places, one for each request,
and 256 MiB for all requests together. A caller may have three times as many requests as there are
free places, and three times as many bytes as there are free bytes. So a single caller gets three
quarters of a worker, and one quarter stays free. Two callers get three sevenths each, and one
seventh stays free. There is always a place for another caller.
"""

from __future__ import annotations

from concertino.orchestra.nats_messages import BUSY, MAX_WHOLE_BYTES, SHARE

__all__ = ["WorkerPlaces"]

# How many requests a worker may have in progress. It refuses additional requests, and their callers
# try another worker.
MAX_IN_FLIGHT = 1024
# The largest total size of all requests in progress, in bytes. Large requests arrive in pieces, and
# count with their whole size from the first piece on. MAX_IN_FLIGHT requests that are not sent in
# pieces cannot exceed this limit.
MAX_BYTES_IN_FLIGHT = MAX_IN_FLIGHT * MAX_WHOLE_BYTES
# A caller may have at most this many times the number of free places, and of free bytes.
SHARE_OF_FREE = 3


class WorkerPlaces:
    """Counts the requests of a worker: those that were accepted and have no last response yet."""

    def __init__(self) -> None:
        # The number of all accepted requests, and their total size.
        self._count = 0
        self._bytes = 0
        # Caller -> the number of its requests, and their total size.
        self._by_caller: dict[str, tuple[int, int]] = {}

    def find_refusal(self, caller: str, size: int) -> str:
        """Return why a request must be refused; "" if there is a place for it.

        The reason is BUSY if the worker is full, and SHARE if the caller has used its own share.
        caller: the name of the caller.
        size: the size of the request in bytes.
        """
        free = MAX_IN_FLIGHT - self._count
        free_bytes = MAX_BYTES_IN_FLIGHT - self._bytes - size
        if free <= 0 or free_bytes < 0:
            return BUSY
        count, own_bytes = self._by_caller.get(caller, (0, 0))
        # The first request of a caller may exceed the caller's share.
        if count and (
            count >= SHARE_OF_FREE * free or own_bytes + size > SHARE_OF_FREE * free_bytes
        ):
            return SHARE
        return ""

    def take(self, caller: str, size: int) -> None:
        """Count a request that was accepted.

        caller, size: the arguments of find_refusal().
        """
        self._change(caller, 1, size)

    def release(self, caller: str, size: int) -> None:
        """Free the place of a request that has ended.

        caller, size: the arguments of take().
        """
        self._change(caller, -1, -size)

    def _change(self, caller: str, count: int, size: int) -> None:
        """Change the totals of all requests, and the totals of a caller.

        count, size: how many requests and bytes are added. They are negative if a request has
            ended.
        """
        self._count += count
        self._bytes += size
        before, before_bytes = self._by_caller.get(caller, (0, 0))
        if before + count:
            self._by_caller[caller] = before + count, before_bytes + size
        else:
            del self._by_caller[caller]
