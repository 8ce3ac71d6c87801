"""RequestQueue: lets the event loop do other work between requests that block the loop.

A NatsWorker (nats_worker.py), which answers the requests to a plugin in a NATS cluster, puts each
request that it receives into this queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from msgspec import Struct

__all__ = ["ArrivedRequest", "RequestQueue"]

# If handlers have blocked one iteration of the event loop for SLOW_S seconds together, the queue is
# cautious for CAUTIOUS_S seconds: it acknowledges new requests at once, and handles them in later
# iterations of the loop, for up to SLOW_S seconds in each. If it handled only one request in each,
# responses would not be sent together, which would cost the NATS server and the caller CPU time.
SLOW_S, CAUTIOUS_S = 0.01, 1.0


class ArrivedRequest(Struct, frozen=True):
    """A request that has arrived at a worker.

    caller: the id of the plugin that has sent the request; for a hub, its name and the id of its
        process, such as `orchestrator/1f2e3d4c` (nats_messages.peer_key()).
    reply: the NATS subject to which the acknowledgement and the responses are sent.
    payload: the serialized PluginRequest.
    deadline: when the request's time limit ends, by the clock of the event loop.
    """

    caller: str
    reply: str
    payload: bytes
    deadline: float


class RequestQueue:
    """Passes requests to a handler, and lets the event loop do other work between slow requests.

    A handler that computes for a while blocks the event loop. It delays heartbeats, responses that
    are ready, and the acknowledgements (acks) of later requests. So when handlers have blocked the
    loop for 10 ms, the requests of the next second wait in this queue, and the event loop does
    other work between them.

    handle: called with each request, to begin to handle it. It may block the event loop.
    acknowledge: called with each request that must wait, to send its ack.
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
        # Until this time, by the clock of the event loop, all requests wait in the queue first.
        self._cautious_until = 0.0
        # When the first handler of this iteration of the event loop began; None before that.
        self._began: float | None = None

    def put(self, request: ArrivedRequest) -> None:
        """Handle a request, or acknowledge it and handle it later."""
        if not self._waiting and self._loop.time() >= self._cautious_until:
            self._run(request)
            return
        # The connection writes the ack in the next iteration of the loop. So acknowledge before
        # scheduling the handler, which may block that iteration.
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
            # Schedule the rest after these handlers, so that their responses leave before the next
            # handler begins.
            if self._waiting:
                self._loop.call_soon(self._run_waiting)

    def _run(self, request: ArrivedRequest) -> None:
        """Handle one request, and become cautious if this iteration was blocked for too long."""
        began = self._began
        if began is None:
            began = self._began = self._loop.time()
            self._loop.call_soon(self._end_iteration)
        self._handle(request)
        end = self._loop.time()
        if end - began > SLOW_S:
            self._cautious_until = end + CAUTIOUS_S

    def _end_iteration(self) -> None:
        """Forget the time, because an iteration of the event loop has ended."""
        self._began = None
