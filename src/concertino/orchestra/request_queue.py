"""RequestQueue: lets the event loop do its other work between requests that block it.

NatsWorker (nats_worker.py) handles its requests through this queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

__all__ = ["ArrivedRequest", "RequestQueue"]

# If a handler has blocked the event loop for SLOW_S seconds, the worker becomes cautious for
# CAUTIOUS_S seconds: it acknowledges requests before it handles them, and handles one request in
# each loop iteration.
SLOW_S, CAUTIOUS_S = 0.01, 1.0


class ArrivedRequest(Struct, frozen=True):
    """A request that has arrived. deadline: when its time is over, by the loop's clock."""

    caller: str
    reply: str
    payload: bytes
    deadline: float


class RequestQueue:
    """Hands requests to the function that handles them, which may block the event loop.

    A handler that computes for a while delays heartbeats, and the acks of the requests behind it.
    So after a slow handler, requests wait in this queue, and the event loop does its other work
    between two of them.

    handle: begins to handle a request.
    """

    def __init__(self, handle: Callable[[ArrivedRequest], None]) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[ArrivedRequest] = deque()
        self._cautious_until = 0.0

    def put(self, request: ArrivedRequest) -> bool:
        """Handle a request. Returns False if it waits, and should be acknowledged now."""
        if not self._waiting and self._loop.time() >= self._cautious_until:
            self._run(request)
            return True
        if not self._waiting:
            self._loop.call_soon(self._run_next)
        self._waiting.append(request)
        return False

    def _run_next(self) -> None:
        # Schedule the next call first, so that an error in one request does not stop the others.
        if len(self._waiting) > 1:
            self._loop.call_soon(self._run_next)
        self._run(self._waiting.popleft())

    def _run(self, request: ArrivedRequest) -> None:
        begin = self._loop.time()
        self._handle(request)
        end = self._loop.time()
        if end - begin > SLOW_S:
            self._cautious_until = end + CAUTIOUS_S
