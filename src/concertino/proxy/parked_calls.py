"""ParkedCalls: calls to older servers that wait for an answer of a client of 2026-07-28.

A client of 2026-07-28 gets a question in an `input_required` result. The call to the server is then
parked (kept running) until the client sends the request again, with its answer.
"""

from __future__ import annotations

import asyncio
import os

from concertino.errors import BUSY, RpcError, invalid_params
from concertino.protocol.seal import LIFETIME_S
from concertino.proxy.forwarded_call import SuspendableCall

__all__ = ["ParkedCalls"]

# As many random bytes as nobody can guess.
HANDLE_BYTES = 16
# The default of `most`.
MAX_PARKED = 256


class ParkedCalls:
    """The calls of one proxy that wait for an answer of their client: random handle -> call.

    The client gets the handle inside a `requestState`, which is signed and bound to the caller, and
    sends it back with the answer.
    expiry_s: the time that a call waits, in seconds; then it is cancelled at the server.
    most: the largest number of waiting calls.
    """

    def __init__(self, expiry_s: float = LIFETIME_S, most: int = MAX_PARKED) -> None:
        self._expiry_s = expiry_s
        self._most = most
        self._calls: dict[bytes, tuple[SuspendableCall, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def park(self, call: SuspendableCall) -> bytes:
        """Keep a call until its client sends the answers, and return the handle of the call.

        If too many calls wait already, cancels the call and raises RpcError.
        """
        if len(self._calls) >= self._most:
            call.work.cancel()
            text = f"busy: {self._most} calls wait for answers of their clients"
            raise RpcError(BUSY, text, {"maxParked": self._most})
        handle = os.urandom(HANDLE_BYTES)
        timer = asyncio.get_running_loop().call_later(self._expiry_s, self._expire, handle)
        self._calls[handle] = call, timer
        return handle

    def take(self, handle: bytes, principal: bytes) -> SuspendableCall:
        """Remove the call with a handle and return it.

        principal: the identity of the user who sends the answers.
        Raises RpcError if there is no such call, or if it belongs to another user.
        """
        call, timer = self._calls.get(handle, (None, None))
        if call is None or timer is None or call.principal != principal:
            raise invalid_params("requestState: the call has ended, or waited too long")
        del self._calls[handle]
        timer.cancel()
        return call

    def cancel(self, calls: frozenset[SuspendableCall] | None = None) -> None:
        """Cancel these calls at their server; by default all calls."""
        for handle, (call, timer) in list(self._calls.items()):
            if calls is None or call in calls:
                timer.cancel()
                del self._calls[handle]
                call.work.cancel()

    def _expire(self, handle: bytes) -> None:
        call, _ = self._calls.pop(handle)
        call.work.cancel()
