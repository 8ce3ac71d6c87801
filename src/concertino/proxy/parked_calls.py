"""ParkedCalls: calls to servers of older revisions that wait for a client of 2026-07-28.

When such a server asks something during a call, the client gets the question in an `input_required`
result. The call is then *parked*: it goes on at the server, but no request of the client waits for
it, until the client sends the request again with its answer.
"""

from __future__ import annotations

import asyncio
import os

from concertino.errors import BUSY, RpcError, invalid_params
from concertino.protocol.seal import LIFETIME_S
from concertino.proxy.forwarded_call import SuspendableCall

__all__ = ["ParkedCalls"]

# The number of random bytes in a handle. With this number, nobody can guess a handle.
HANDLE_BYTES = 16
# The default of `most`.
MAX_PARKED = 256


class ParkedCalls:
    """The calls of one proxy that wait for an answer of their client.

    Each call has a random handle. The client gets the handle inside a `requestState`, which is
    encrypted and bound to the caller, and sends it back with the answer.
    expiry_s: how long a call waits, in seconds; then it is cancelled at the server.
    most: how many calls may wait at the same time.
    """

    def __init__(self, expiry_s: float = LIFETIME_S, most: int = MAX_PARKED) -> None:
        self._expiry_s = expiry_s
        self._most = most
        self._calls: dict[bytes, tuple[SuspendableCall, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def park(self, call: SuspendableCall) -> bytes:
        """Keep a call until its client sends the answers, and return the handle of the call.

        call: the call, which goes on at the server.
        If `most` calls wait already, cancels this call at its server and raises RpcError.
        """
        if len(self._calls) >= self._most:
            call.server_result.cancel()
            text = f"busy: {self._most} calls wait for answers of their clients"
            raise RpcError(BUSY, text, {"maxParked": self._most})
        handle = os.urandom(HANDLE_BYTES)
        timer = asyncio.get_running_loop().call_later(self._expiry_s, self._expire, handle)
        self._calls[handle] = call, timer
        return handle

    def take(self, handle: bytes, principal: bytes) -> SuspendableCall:
        """Remove a call and return it, because its client has sent answers.

        handle: the handle that park() has returned for the call.
        principal: the identity of the user who sends the answers.
        Raises RpcError if the call has expired, if there is no such call, or if it belongs to
        another user.
        """
        call, timer = self._calls.get(handle, (None, None))
        if call is None or timer is None or call.principal != principal:
            # The text is the same for all reasons, so that nobody learns about calls of others.
            raise invalid_params("requestState: the call has ended, or waited too long")
        del self._calls[handle]
        timer.cancel()
        return call

    def cancel(self, calls: frozenset[SuspendableCall] | None = None) -> None:
        """Cancel waiting calls at their server.

        calls: the calls to cancel, as far as they wait; None to cancel all waiting calls.
        """
        for handle, (call, timer) in list(self._calls.items()):
            if calls is None or call in calls:
                timer.cancel()
                del self._calls[handle]
                call.server_result.cancel()

    def _expire(self, handle: bytes) -> None:
        call, _ = self._calls.pop(handle)
        call.server_result.cancel()
