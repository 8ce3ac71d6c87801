"""PendingResponse: the future response to a request on an RPC connection.

Hubs, plugins and bridges send each other requests. RpcClient (rpc_client.py) creates a
PendingResponse for each request. It is faster than an asyncio.Future, because it can call a
function with the response as soon as the response is read, without a task. For a stream, which is a
request with many responses, it calls the function with each response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable
from typing import Any, Protocol

from concertino.runtime.pending import PendingOutcome

__all__ = ["PendingResponse", "RequestSender", "ResponseCallback"]

# Called with the serialized response, or with the exception that ended the request.
ResponseCallback = Callable[[bytes | BaseException], object]


class RequestSender(Protocol):
    """The connection on which a request was sent. RpcClient implements it."""

    def forget(self, key: Hashable) -> None:
        """Forget a request whose response is no longer needed, and send the peer a cancellation.

        key: identifies the request on the connection.
        """
        ...

    def send_credit(self, key: Hashable, stream: str, size: int) -> None:
        """Allow the peer to send `size` more bytes of a stream's chunks (flow control, streams.py).

        key: identifies the request that opened the stream.
        stream: the id of the stream.
        """
        ...


class PendingResponse(PendingOutcome, eq=False):
    """The outcome of a request: the bytes of its response, or an exception.

    There are two ways to get the outcome:

    - One task awaits this object. `await` returns the bytes or raises the exception.
    - This object calls the function on_outcome.

    RpcClient sets the outcome with resolve() or fail().

    sender: the connection. Its forget() is called when the request is cancelled.
    kind: the kind of request, such as "tool_call", for error messages.
    timeout_s: the request's time limit, in seconds.
    deadline: when the time limit ends, by loop.time().
    key: identifies the request on the connection: its id or, over QUIC, a number.
    on_outcome: called with the response, or with the exception. For a stream, also called with each
        chunk. None if a task awaits this object.
    stream: the id of the stream; "" for a request with one response. A stream needs on_outcome.
    has_chunk: whether a chunk of the stream has arrived.
    """

    # The base class resumes the task that awaits this object. It has the fields `outcome`, `failed`
    # (the outcome is an exception), `callback` (resumes the task) and `context` (of the task). It
    # declares _loop as keyword-only: as a positional argument, _loop takes 50 ns less.
    _loop: asyncio.AbstractEventLoop
    sender: RequestSender
    kind: str
    timeout_s: float
    deadline: float
    key: Hashable = None
    on_outcome: ResponseCallback | None = None
    stream: str = ""
    has_chunk: bool = False

    def grant(self, size: int) -> None:
        """Allow the peer to send `size` more bytes of this stream's chunks."""
        self.sender.send_credit(self.key, self.stream, size)

    def resolve(self, payload: bytes) -> None:
        """Set the response, and run the waiting task or on_outcome before returning.

        Does nothing if there is an outcome already. Call this only from a callback of the event
        loop, and not from a task, because the waiting task cannot run inside another task.
        """
        if self.outcome is not None:
            return
        self.outcome = payload
        self.pass_on(payload)

    def pass_on(self, payload: bytes) -> None:
        """Call on_outcome with the bytes of a response. Without on_outcome, run the waiting task.

        RpcClient calls this method for each chunk of a stream, which does not end the request, and
        resolve() for the last response, after it has set the outcome.
        """
        if self.on_outcome is not None:
            try:
                self.on_outcome(payload)
            # An exception of on_outcome must not affect the other responses of the same read.
            except Exception as exc:
                message = f"the response to {self.kind} could not be passed on"
                self._loop.call_exception_handler({"message": message, "exception": exc})
        elif self.callback is not None:
            self.context.run(self.callback, self)

    def fail(self, exc: BaseException) -> None:
        """Set an exception as the outcome. The waiting task resumes in the next loop iteration."""
        if self.outcome is None:
            self.failed = True
            self.outcome = exc
            self.resume_soon()

    def resume_soon(self) -> None:
        # Like a waiting task, on_outcome runs in the next iteration of the loop.
        if self.on_outcome is not None:
            self._loop.call_soon(self.on_outcome, self.outcome)
        else:
            super().resume_soon()

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait, and send the peer a cancellation of the request.

        Returns False if there is an outcome already.
        """
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self.sender.forget(self.key)
        return is_cancelled

    def __await__(self) -> Generator[PendingResponse, None, bytes]:
        # asyncio.Task resumes this generator when `callback` is called.
        if self.outcome is None:
            yield self
        outcome: Any = self.outcome
        if not self.failed:
            return outcome
        try:
            raise outcome
        finally:
            # Break the reference cycle between the exception and its traceback.
            del self, outcome
