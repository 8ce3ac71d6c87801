"""RpcClient: the side of an RPC connection that sends requests and receives their responses.

A hub starts plugins, programs with tools, and forwards requests between them; a bridge connects MCP
clients to a hub. Hubs send requests to plugins, and plugins and bridges send requests to hubs. All
of them use the interfaces in rpc_interface.py.

RpcClient has the code that does not depend on the transport: ids, time limits, and the match of
responses to requests. There is one derived class for each transport: UnixLink (unix_link.py),
QuicLink (quic_link.py) and NatsLink (nats_link.py).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Hashable
from math import inf

from concertino.errors import Disconnected, ProtocolError, TimedOut
from concertino.orchestra.frames import MAX_FRAME_BYTES, FrameTooLarge
from concertino.orchestra.message_peek import is_chunk, is_stream_end, join_id
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_messages import (
    DecodeError,
    EncodeError,
    PluginRequest,
    PluginResponse,
    StreamCredit,
)
from concertino.orchestra.rpc_interface import (
    TIMEOUT_S,
    RemotePeer,
)
from concertino.orchestra.streams import (
    CREDIT_BYTES,
    WINDOW_BYTES,
    ReceivedStream,
    ResponseStream,
)

__all__ = ["RpcClient", "new_request_id"]

# The largest number of bytes in a StreamCredit, whose field has 64 bits.
MAX_CREDIT_BYTES = 2**63 - 1

# Request ids are UUIDs of version 7: 48 bits of time in milliseconds, 26 random bits that are
# constant in this process, and a 48-bit counter that starts at a random value of 40 bits, so that
# it does not overflow.
_random = int.from_bytes(os.urandom(4), "big")
_process_part = f"-7{_random & 0xFFF:03x}-{0x8000 | _random >> 12 & 0x3FFF:04x}-"
_counter = int.from_bytes(os.urandom(5), "big")
# The time in the latest id, and its text, which is formatted only once a millisecond.
_millisecond = 0
_prefix = ""


def new_request_id() -> str:
    """Return a new request id: a UUID of version 7 (RFC 9562), ascending within this process."""
    global _counter, _millisecond, _prefix
    _counter += 1
    now = time.time_ns() // 1_000_000
    if now > _millisecond:
        _millisecond = now
        digits = now.to_bytes(6, "big").hex()
        _prefix = digits[:8] + "-" + digits[8:] + _process_part
    return _prefix + _counter.to_bytes(6, "big").hex()


class RpcClient:
    """The base class of connections that send requests. It matches responses to requests.

    There is a derived class for each transport. It implements _send_request() and _send_cancel(),
    and calls _on_response(), _fail_request(), _set_backpressure() and _end_connection().

    A *key* identifies a request on the connection. _send_request() chooses the key: the id of the
    request, or over QUIC a number.

    Attributes:
    peer: the process at the other end.
    loop: the event loop on which the object was created.
    end_reason: a future that is done when the connection has ended; its result says why.
    """

    def __init__(self, peer: RemotePeer) -> None:
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.end_reason: asyncio.Future[str] = self.loop.create_future()
        # Key of a request -> what waits for its response.
        self._pending: dict[Hashable, PendingResponse] = {}
        # One timer for the time limits of all requests. It fires at the earliest deadline, or
        # before it, if the request with the earliest deadline has ended.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        # None while the transport accepts output. Otherwise an event that is set when the transport
        # accepts output again.
        self._writable: asyncio.Event | None = None
        # Credits that wait until the transport accepts output: key of the request and id of the
        # stream -> the sum of the bytes.
        self._credits: dict[tuple[Hashable, str], int] = {}

    # Methods that derived classes implement or call

    def _send_request(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        """Send a serialized request, or buffer it.

        payload: the request, with its id.
        id: the id of the request; empty for a request that gets no response.
        deadline: when the request's time limit ends, by the loop's clock.
        Returns the key of the request. The derived class passes the key to _on_response() with the
        response.
        """
        raise NotImplementedError

    def _send_cancel(self, key: Hashable, stream: str = "") -> None:
        """Notify the peer that the response to a request is no longer needed.

        stream: the id of the stream; "" for a request with one response.
        """
        raise NotImplementedError

    def _on_first_chunk(self) -> None:
        """Send the output that the first chunk of a stream has caused, before later chunks.

        Does nothing here. A transport that buffers output overrides this method, because a user
        waits for the first chunk. The next chunks of a fast tool, which are often read together
        with it, would delay it by 65 us in a hub and a bridge (bench/orchestra_bridge.py).
        """

    def _set_backpressure(self, is_full: bool) -> None:
        """Pause requests and credits, or resume them.

        is_full: whether the transport's output buffer is full.
        """
        if is_full:
            self._writable = self._writable or asyncio.Event()
        elif self._writable is not None:
            self._writable.set()
            self._writable = None
            credits, self._credits = self._credits, {}
            for (key, stream), size in credits.items():
                self.send_credit(key, stream, size)

    def _on_response(self, key: Hashable, payload: bytes) -> None:
        """Pass a response or chunk to its request. Drops it if no request with this key waits."""
        pending = self._pending.get(key)
        if pending is None:
            return
        # If is_chunk() is False, the peer may have written the fields in another order. So replace
        # the payload by one with the fields in the usual order, and look again.
        if pending.stream and (is_chunk(payload) or is_chunk(payload := _encode_again(payload))):
            pending.pass_on(payload)
            if not pending.has_chunk:
                pending.has_chunk = True
                self._on_first_chunk()
        else:
            del self._pending[key]
            pending.resolve(payload)

    def _fail_request(self, key: Hashable, exc: Exception) -> None:
        """Make one pending request raise an exception. Does nothing if no request has this key."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.fail(exc)

    def is_pending(self, key: Hashable) -> bool:
        """Return whether the request with this key is still waiting for its last response."""
        return key in self._pending

    def _end_connection(self, reason: str) -> None:
        """Fail all pending requests, and refuse new ones. Later calls do nothing."""
        if self.end_reason.done():
            return
        self.end_reason.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()

        failed, self._pending = self._pending, {}
        for pending in failed.values():
            pending.fail(Disconnected(f"{self.peer.address}: {reason}"))

    @property
    def in_progress(self) -> int:
        """The number of requests and streams whose last response has not arrived yet."""
        return len(self._pending)

    # Requests

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request and return its response, which may be an error response.

        request: its request_id may be any text: the request is sent with a new id, and the response
            gets the id of `request`.
        timeout_s: the time limit, in seconds. When the limit is reached or this task is cancelled,
            the peer gets a cancellation.
        Raises TimedOut after timeout_s, Disconnected when the connection ends or has ended,
        FrameTooLarge for a request that is too long, and ProtocolError for an invalid response.
        """
        # The caller's id need not be unique, so send the request with a new id.
        callers_id, id = request.request_id, new_request_id()
        request.request_id = id
        try:
            payload = request.SerializeToString()
        except EncodeError as exc:
            raise ProtocolError(f"the request cannot be encoded: {exc}") from None
        finally:
            request.request_id = callers_id

        kind = request.WhichOneof("request") or "request"
        if self._writable is not None:
            timeout_s = await self._wait_writable(kind, timeout_s)
        payload = await self._start_request(payload, id.encode(), kind, timeout_s)

        try:
            response = PluginResponse.FromString(payload)
        except DecodeError as exc:
            raise ProtocolError(
                f"{self.peer.address}: the response cannot be decoded: {exc}"
            ) from None
        response.request_id = callers_id
        return response

    def forward(
        self,
        body: bytes,
        timeout_s: float,
        callback: ResponseCallback | None = None,
        stream: str = "",
    ) -> PendingResponse | None:
        """Send a serialized tool call or stream_start, and return its pending response.

        See ForwardingConnection.forward() in rpc_interface.py. Returns None while the output buffer
        is full: use request() then, which waits.
        """
        if self._writable is not None:
            return None
        id = new_request_id().encode()
        kind = "stream_start" if stream else "tool_call"
        return self._start_request(join_id(id, body), id, kind, timeout_s, callback, stream)

    def _start_request(
        self,
        payload: bytes,
        id: bytes,
        kind: str,
        timeout_s: float,
        callback: ResponseCallback | None = None,
        stream: str = "",
    ) -> PendingResponse:
        """Send a serialized request, and return its pending response.

        payload: the request, with its id.
        kind: the kind of request, for error messages.
        callback: called with each response; None if the caller awaits the pending response.
        stream: the id of the stream; "" for a request with one response.
        Raises the exceptions of _send_checked().
        """
        deadline = self.loop.time() + timeout_s
        key = self._send_checked(payload, id, deadline)
        # Keyword arguments would take longer.
        pending = PendingResponse(self.loop, self, kind, timeout_s, deadline, key, callback, stream)
        self._pending[key] = pending
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return pending

    def _send_checked(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        """Send a serialized request, and return the key of its pending response.

        Raises Disconnected if the connection has ended, and FrameTooLarge for a request that is too
        long.
        """
        if self.end_reason.done():
            raise Disconnected(f"{self.peer.address}: {self.end_reason.result()}")
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLarge(len(payload))
        return self._send_request(payload, id, deadline)

    def forget(self, key: Hashable) -> None:
        """Drop a pending request, and send the peer a cancellation.

        key: the key of the request. Nothing happens if no request with this key is pending.
        """
        pending = self._pending.pop(key, None)
        if pending is not None and not self.end_reason.done():
            self._send_cancel(key, pending.stream)

    # Time limits

    def _set_timer(self, when: float) -> None:
        """Set the timer to a time, in place of the time that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(when, self._on_timer)
        self._timer_at = when

    def _on_timer(self) -> None:
        """Fail the requests whose deadline has passed, and wait for the next deadline."""
        self._timer = None
        self._timer_at = inf
        now = self.loop.time()
        for pending in [item for item in self._pending.values() if item.deadline <= now]:
            pending.fail(self._timeout_error(pending.kind, pending.timeout_s))
            # The peer need not answer any more.
            self.forget(pending.key)
        if self._pending:
            self._set_timer(min(pending.deadline for pending in self._pending.values()))

    def _timeout_error(self, kind: str, timeout_s: float) -> TimedOut:
        """Return the error for a request that got no response within its time limit."""
        return TimedOut(f"{self.peer.address}: no response to {kind} within {timeout_s:g} s")

    async def _wait_writable(self, kind: str, timeout_s: float) -> float:
        """Wait until the transport accepts output again. Returns the time that is left, in seconds.

        kind: the kind of request that waits, for the error message.
        Raises TimedOut after timeout_s.
        """
        deadline = self.loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                while self._writable is not None:
                    await self._writable.wait()
        except TimeoutError:
            raise self._timeout_error(kind, timeout_s) from None
        return deadline - self.loop.time()

    # Streams

    async def stream(self, request: PluginRequest, timeout_s: float) -> ResponseStream:
        """Send a stream_start, and yield its responses: the chunks, then the last response.

        The peer sends at most WINDOW_BYTES (256 KiB) of chunks that the caller has not taken yet.
        If the caller closes the generator before the last response, the peer gets a cancellation.
        request: contains the stream_start. This method replaces its request id and stream id.
        timeout_s: the time limit of the whole stream.
        Raises the same exceptions as request().
        """
        # The stream has the same id as its request.
        id = new_request_id()
        request.request_id = id
        request.stream_start.stream_id = id
        request.stream_start.window = WINDOW_BYTES
        payload = request.SerializeToString()
        if self._writable is not None:
            timeout_s = await self._wait_writable("stream_start", timeout_s)
        received = ReceivedStream(self.loop)
        pending = self._start_request(
            payload, id.encode(), "stream_start", timeout_s, received.add, id
        )
        # The size of all responses that the caller has taken since the last credit.
        taken = 0
        is_last = False
        try:
            while not is_last:
                response, size = await received.take()
                taken += size
                # Send a credit, which allows the peer to send `taken` more bytes.
                if taken >= CREDIT_BYTES and pending.outcome is None:
                    pending.grant(taken)
                    taken = 0
                is_last = not response.HasField("stream_chunk")
                yield response
        finally:
            # This does nothing if the last response has arrived.
            pending.cancel()

    def send_credit(self, key: Hashable, stream: str, size: int) -> None:
        """Allow the peer to send `size` more bytes of a stream's chunks.

        While the output buffer is full, the credit is stored and sent later.
        key: the key of the request that opened the stream.
        stream: the id of the stream.
        """
        if self._writable is not None:
            before = self._credits.get((key, stream), 0)
            self._credits[key, stream] = min(before + max(0, size), MAX_CREDIT_BYTES)
            return
        credit = PluginRequest(stream_credit=StreamCredit(stream_id=stream, bytes=size))
        self._send_request(credit.SerializeToString(), b"", inf)


def _encode_again(payload: bytes) -> bytes:
    """Return a response of a stream with its fields in the usual order, without unknown fields.

    Returns the payload itself if it cannot be decoded.
    """
    # is_stream_end() recognizes only a stream_end whose fields are in the usual order already
    # (message_peek.py).
    if is_stream_end(payload):
        return payload
    try:
        response = PluginResponse.FromString(payload)
    except DecodeError:
        return payload
    response.DiscardUnknownFields()
    return response.SerializeToString()
