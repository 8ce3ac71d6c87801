"""Calls that wait for their clients' answers between two requests (2026-07-28)."""

from __future__ import annotations

import asyncio
import os

from concertino.errors import BUSY, RpcError, invalid_params
from concertino.protocol.seal import LIFETIME_S
from concertino.proxy.forwarded_call import SuspendableCall

__all__ = ["ParkedCalls"]

HANDLE_BYTES = 16
MAX_PARKED = 256


class ParkedCalls:
    """The suspended calls of one proxy, by random handles.

    A handle travels in the sealed state of the client's request, which is bound to the caller.
    expiry_s: how long a call waits; then it is cancelled at the server. most: how many may wait.
    """

    def __init__(self, expiry_s: float = LIFETIME_S, most: int = MAX_PARKED) -> None:
        self._expiry_s = expiry_s
        self._most = most
        self._calls: dict[bytes, tuple[SuspendableCall, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def park(self, call: SuspendableCall) -> bytes:
        """Keep a call and return its handle.

        If there are too many, cancels the call and raises RpcError.
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
        """Return a call whose client is back, and forget it.

        Raises RpcError if there is none, or it is of another user.
        """
        call, timer = self._calls.get(handle, (None, None))
        if call is None or timer is None or call.principal != principal:
            raise invalid_params("requestState: the call has ended, or waited too long")
        del self._calls[handle]
        timer.cancel()
        return call

    def cancel(self, calls: frozenset[SuspendableCall] | None = None) -> None:
        """Cancel these calls at their server; by default all."""
        for handle, (call, timer) in list(self._calls.items()):
            if calls is None or call in calls:
                timer.cancel()
                del self._calls[handle]
                call.work.cancel()

    def _expire(self, handle: bytes) -> None:
        call, _ = self._calls.pop(handle)
        call.work.cancel()
