"""RequestQueue: lets the event loop do its other work between requests that block it.

NatsWorker (nats_worker.py) handles its requests through this queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

__all__ = ["ArrivedRequest", "RequestQueue"]

# If handlers have blocked one iteration of the event loop for SLOW_S seconds together, the worker
# becomes cautious for CAUTIOUS_S seconds: it acknowledges requests before it handles them. In each
# iteration, it handles requests for SLOW_S seconds, because responses that leave together cost the
# server and the caller less CPU time.
SLOW_S, CAUTIOUS_S = 0.01, 1.0


class ArrivedRequest(Struct, frozen=True):
    """A request that has arrived. deadline: when its time is over, by the loop's clock."""

    caller: str
    reply: str
    payload: bytes
    deadline: float


class RequestQueue:
    """Hands requests to the function that handles them, which may block the event loop.

    Handlers that compute for a while delay heartbeats, responses that are ready, and the acks of
    the requests behind them. So after slow handlers, requests wait in this queue, and the event
    loop does its other work in between.

    handle: begins to handle a request.
    acknowledge: sends the ack of a request that waits.
    """

    def __init__(
        self,
        handle: Callable[[ArrivedRequest], None],
        acknowledge: Callable[[ArrivedRequest], None],
    ) -> None:
        self._handle = handle
        self._acknowledge = acknowledge
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[ArrivedRequest] = deque()
        self._cautious_until = 0.0
        # When the first handler of this iteration of the event loop began; None before that.
        self._began: float | None = None

    def put(self, request: ArrivedRequest) -> None:
        """Handle a request, or acknowledge it and handle it later."""
        if not self._waiting and self._loop.time() >= self._cautious_until:
            self._run(request)
            return
        # The connection writes what was sent in the next iteration. So send the ack first, and
        # schedule the handler then, which may block the event loop.
        self._acknowledge(request)
        if not self._waiting:
            self._loop.call_soon(self._run_waiting)
        self._waiting.append(request)

    def _run_waiting(self) -> None:
        """Handle requests that wait, until they have blocked this iteration for SLOW_S seconds."""
        try:
            while self._waiting and (
                self._began is None or self._loop.time() - self._began < SLOW_S
            ):
                self._run(self._waiting.popleft())
        finally:
            # After the handlers, so that their responses leave before the next handler begins.
            if self._waiting:
                self._loop.call_soon(self._run_waiting)

    def _run(self, request: ArrivedRequest) -> None:
        began = self._began
        if began is None:
            began = self._began = self._loop.time()
            self._loop.call_soon(self._end_iteration)
        self._handle(request)
        end = self._loop.time()
        if end - began > SLOW_S:
            self._cautious_until = end + CAUTIOUS_S

    def _end_iteration(self) -> None:
        self._began = None
