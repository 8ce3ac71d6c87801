"""ParkedCalls: holds calls that wait for a client's answer to a question of the server.

When a server of an older revision asks something during a call, a client of 2026-07-28 gets the
question in an `input_required` result. The call is then *parked*: it goes on at the server, but no
request of the client waits for it, until the client sends the request again with its answer.
"""

from __future__ import annotations

import asyncio
import os

from msgspec import Raw

from concertino.backend.interface import Call, Context
from concertino.errors import BUSY, ConcertinoError, RpcError, invalid_params
from concertino.protocol.call import InputRequired
from concertino.protocol.seal import LIFETIME_S
from concertino.proxy.failures import failure_text, missing_capability, to_rpc_error
from concertino.proxy.forwarded_call import SuspendableCall
from concertino.proxy.input_required import ParkedState, make_parked_questions

__all__ = ["ParkedCalls", "await_result_or_questions", "resume_parked"]

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


async def await_result_or_questions(
    name: str, parked: ParkedCalls, call: SuspendableCall
) -> Raw | InputRequired:
    """Return the result of a call; or park the call, and return its questions for the client.

    name: the name of the server, for errors.
    parked: the parked calls of the proxy.
    Raises RpcError with the server's error.
    """
    try:
        if await call.wait_for_result_or_question():
            return _take_result(name, call)
    except ConcertinoError as exc:
        # No revision is passed, so to_rpc_error() translates the code of the server's error:
        # server and client speak different revisions.
        raise to_rpc_error(name, exc) from None
    handle = parked.park(call)
    return make_parked_questions(call.questions, handle)


async def resume_parked(
    name: str, parked: ParkedCalls, state: ParkedState, call: Call, context: Context
) -> Raw | InputRequired:
    """Continue a parked call: pass the client's answers to the server, and wait for its result.

    name: the name of the server, for errors.
    parked: the parked calls of the proxy.
    state: the state in the client's request, which identifies the parked call.
    call, context: the client's request that contains the answers, and its Context.
    Returns the server's result, or its next questions for the client. Raises RpcError with the
    server's error, and if the call has expired or belongs to another user.
    """
    session = context.caller.session
    principal = b"" if session is None else session.principal
    suspended = parked.take(state.handle, principal)
    # The server may have sent its result while the client was asked.
    suspended.resume(context, call.answers)
    return await await_result_or_questions(name, parked, suspended)


def _take_result(name: str, call: SuspendableCall) -> Raw:
    """Return the result of a call that has ended, or raise its error.

    If the call has failed, and requests of the server were refused because the client has not
    declared a capability, that is probably the reason. Then raises MissingCapability, so that the
    client learns what it lacks.
    """
    lacked = call.undeclared
    if not lacked:
        return call.server_result.result()
    try:
        result = call.server_result.result()
    except RpcError as exc:
        raise missing_capability(name, lacked, exc.message) from None
    # A tool may also report its failure in a result with `isError`.
    if (text := failure_text(result)) is not None:
        raise missing_capability(name, lacked, text)
    return result
