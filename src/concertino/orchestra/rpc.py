"""RpcClient and RpcServer: the parts of RPC connections that do not depend on the transport.

RpcClient, on the side that opened a connection, sends requests and waits for their responses.
RpcServer, on the side that accepted it, runs handlers and sends responses. The transports are in
unix_link.py, quic_link.py and quic_listener.py. The interfaces for users are in rpc_interface.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from functools import partial
from math import inf

from concertino.errors import Disconnected, ProtocolError, TimedOut
from concertino.orchestra.frames import MAX_FRAME_BYTES, FrameTooLarge
from concertino.orchestra.message_peek import is_chunk, join_id, split_id
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_messages import (
    DecodeError,
    EncodeError,
    PluginRequest,
    PluginResponse,
    StreamChunk,
    StreamCredit,
)
from concertino.orchestra.rpc_interface import (
    TIMEOUT_S,
    Cancellable,
    RelayHandler,
    RemotePeer,
    RequestHandler,
    error_response,
)
from concertino.orchestra.streams import (
    CREDIT_BYTES,
    WINDOW_BYTES,
    ChunkSender,
    ReceivedStream,
    ResponseStream,
    StreamRun,
    send_all,
)
from concertino.runtime.tasks import eager_task_runner

__all__ = ["RpcClient", "RpcServer", "new_request_id"]

log = logging.getLogger("concertino.orchestra")

# Concurrent requests of one connection; one more gets the error `busy`.
MAX_IN_FLIGHT = 1024
# Total size of the requests in progress on one connection. Above it, reading pauses.
MAX_BYTES_IN_FLIGHT = 4 * MAX_FRAME_BYTES
# Total size of the responses that the peer has not read; a peer that reads does not reach it.
# Responses of up to LARGE_BYTES are not counted, because MAX_IN_FLIGHT limits their number.
MAX_UNREAD_BYTES = 256 * 2**20
LARGE_BYTES = 16 * 1024


# Request ids are UUIDs of version 7: 48 bits of time in milliseconds, 26 random bits that are
# constant in this process, and a 48-bit counter that starts at a random value.
_random = int.from_bytes(os.urandom(4), "big")
_process_part = f"-7{_random & 0xFFF:03x}-{0x8000 | _random >> 12 & 0x3FFF:04x}-"
_counter = int.from_bytes(os.urandom(5), "big")
# The time in the last id, and the first part of the id, which is formatted once a millisecond.
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


def _guess_id(payload: bytes) -> str:
    """Return the id at the beginning of a request that cannot be decoded; "" if there is none."""
    # 0x0A is the tag of field 1, request_id. The length follows.
    if len(payload) > 2 and payload[0] == 0x0A and payload[1] < 0x80:
        return payload[2 : 2 + payload[1]].decode("utf-8", "replace")
    return ""


# The side of a connection that sends requests


class RpcClient:
    """The base class of connections that send requests. It matches responses to requests.

    A derived class for each transport implements _send_request() and _send_cancel(), and calls
    _set_backpressure(), _on_response(), _fail_request() and _end_connection().
    """

    def __init__(self, peer: RemotePeer) -> None:
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.end_reason: asyncio.Future[str] = self.loop.create_future()
        self._pending: dict[Hashable, PendingResponse] = {}
        # One timer for the time limits of all requests. It fires at the first deadline or earlier.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        # None while the transport accepts output. Otherwise an event that is set when the transport
        # accepts output again.
        self._writable: asyncio.Event | None = None

    # For the transport

    def _send_request(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        """Send a serialized request.

        deadline: when its time is over, by the loop's clock.
        Returns a key for the request, which _on_response() gets with the response.
        """
        raise NotImplementedError

    def _send_cancel(self, key: Hashable, stream: str = "") -> None:
        """Notify the peer that the response to a request is no longer needed.

        stream: the id of the stream; "" for a request with one response.
        """
        raise NotImplementedError

    def _set_backpressure(self, is_full: bool) -> None:
        """Pause requests if the transport's output buffer is full, otherwise resume them."""
        if is_full:
            self._writable = self._writable or asyncio.Event()
        elif self._writable is not None:
            self._writable.set()
            self._writable = None

    def _on_response(self, key: Hashable, payload: bytes) -> None:
        """Deliver a response. A response that is late, or has an unknown key, is dropped."""
        pending = self._pending.get(key)
        if pending is None:
            return
        if pending.stream and is_chunk(payload):
            pending.pass_on(payload)
        else:
            del self._pending[key]
            pending.resolve(payload)

    def _fail_request(self, key: Hashable, exc: Exception) -> None:
        """Fail one pending request."""
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.fail(exc)

    def is_pending(self, key: Hashable) -> bool:
        """Return whether the last response to a request has not arrived yet."""
        return key in self._pending

    def _end_connection(self, reason: str) -> None:
        """Fail all pending requests, and refuse new ones. Later calls do nothing."""
        if self.end_reason.done():
            return
        self.end_reason.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()

        left, self._pending = self._pending, {}
        for pending in left.values():
            pending.fail(Disconnected(f"{self.peer.address}: {reason}"))

    @property
    def in_progress(self) -> int:
        """The number of requests and streams that were not answered yet."""
        return len(self._pending)

    # Requests

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request and return its response. See RpcConnection.request()."""
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
        """Forward a serialized tool call. See ForwardingConnection.forward()."""
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

        kind: the kind of request, for error messages.
        stream: the id of the stream; "" for a request with one response.
        Raises Disconnected, FrameTooLarge.
        """
        deadline = self.loop.time() + timeout_s
        key = self._send_checked(payload, id, deadline)
        pending = PendingResponse(self.loop, self, kind, timeout_s, deadline, key, callback, stream)
        self._pending[key] = pending
        if deadline < self._timer_at:
            self._set_timer(deadline)
        return pending

    def _send_checked(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        """Send a serialized request if the connection is open.

        Raises Disconnected, FrameTooLarge.
        """
        if self.end_reason.done():
            raise Disconnected(f"{self.peer.address}: {self.end_reason.result()}")
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLarge(len(payload))
        return self._send_request(payload, id, deadline)

    def forget(self, key: Hashable) -> None:
        """Drop a pending request and send a cancellation for it."""
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
            self.forget(pending.key)
        if self._pending:
            self._set_timer(min(pending.deadline for pending in self._pending.values()))

    def _timeout_error(self, kind: str, timeout_s: float) -> TimedOut:
        """Return the error for a request without a response in time. kind: the kind of request."""
        return TimedOut(f"{self.peer.address}: no response to {kind} within {timeout_s:g} s")

    async def _wait_writable(self, kind: str, timeout_s: float) -> float:
        """Wait until the transport accepts output again. Returns the seconds left of timeout_s."""
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
        """Send a stream_start, and yield its responses. See ForwardingConnection.stream()."""
        id = request.stream_start.stream_id = request.request_id = new_request_id()
        request.stream_start.window = WINDOW_BYTES
        payload = request.SerializeToString()
        if self._writable is not None:
            timeout_s = await self._wait_writable("stream_start", timeout_s)
        received = ReceivedStream(self.loop)
        pending = self._start_request(
            payload, id.encode(), "stream_start", timeout_s, received.add, id
        )
        taken = 0
        is_last = False
        try:
            while not is_last:
                response, size = await received.take()
                taken += size
                if taken >= CREDIT_BYTES and pending.outcome is None:
                    pending.grant(taken)
                    taken = 0
                is_last = not response.HasField("stream_chunk")
                yield response
        finally:
            pending.cancel()

    def send_credit(self, key: Hashable, stream: str, size: int) -> None:
        """Allow the peer to send so many more bytes of chunks."""
        credit = PluginRequest(stream_credit=StreamCredit(stream_id=stream, bytes=size))
        self._send_request(credit.SerializeToString(), b"", inf)


# The side of a connection that answers


def _ignore_outcome(subject: None, value: object, error: BaseException | None) -> None:
    """Do nothing: RpcServer._run() sends the response and logs errors itself."""


class RpcServer:
    """Handles the requests of one connection.

    A key identifies a request on its connection: the request's id, or the number of its stream.

    handler: answers the requests that are not relayed.
    peer: the side that sends the requests.
    respond: called as respond(key, payload, is_last) to send a response. The payload is None for a
        request that gets no response, because it was cancelled. is_last: whether no other response
        follows.
    hold: called with True to pause reading, and with False to resume it.
    unread: returns how many bytes of responses the peer has not read.
    relay: forwards requests to another connection; None to forward none.
    """

    def __init__(
        self,
        handler: RequestHandler,
        peer: RemotePeer,
        respond: Callable[[Hashable, bytes | None, bool], None],
        hold: Callable[[bool], None],
        unread: Callable[[], int],
        relay: RelayHandler | None = None,
    ) -> None:
        self.peer = peer
        self._unread = unread
        self._handler = handler
        self._relay = relay
        self._respond = respond
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._start = eager_task_runner(self._loop, _ignore_outcome)
        self._tasks: dict[Hashable, Cancellable] = {}
        # By stream id: the key of the request, and what gets the credits of the receiver, which is
        # the request itself if it is relayed.
        self._windows: dict[str, tuple[Hashable, ChunkSender | PendingResponse]] = {}
        # Total size of the requests in _tasks.
        self._bytes = 0
        # A future that is done when no request is in progress; None while drain() does not wait.
        self._idle: asyncio.Future[None] | None = None

    def receive(self, payload: bytes, key: Hashable = None) -> None:
        """Begin to handle one serialized request.

        key: the key of the request; None to use its id, as bytes.
        """
        if self._relay is not None and self._try_relay(self._relay, payload, key):
            return

        try:
            request = PluginRequest.FromString(payload)
        except DecodeError as exc:
            log.warning("%s: a request cannot be decoded: %s", self.peer.address, exc)
            id = _guess_id(payload)
            message = f"the request cannot be decoded: {exc}"
            self._send_error(id.encode() if key is None else key, id, "invalid_request", message)
            return

        if key is None:
            key = request.request_id.encode()
        kind = request.WhichOneof("request")
        if kind in ("stream_cancel", "stream_credit"):
            self._control_stream(request)
            self._respond(key, None, True)
            return

        if key in self._tasks:
            # No error is sent, because the peer would take it for the response to the first
            # request with this id.
            log.warning(
                "%s: request id %r is in use already", self.peer.address, request.request_id
            )
            return
        if len(self._tasks) >= MAX_IN_FLIGHT:
            message = f"{MAX_IN_FLIGHT} requests are in progress, which is the limit"
            self._send_error(key, request.request_id, "busy", message)
            return

        size = len(payload)
        if self._bytes <= MAX_BYTES_IN_FLIGHT < self._bytes + size:
            self._hold(True)
        self._bytes += size

        # Run the handler until it first waits. Most handlers never wait; then there is no task.
        task = self._start(self._run(key, request), None)
        if task is None:
            self._release(key, size)
        else:
            self._tasks[key] = task
            # Use a callback and not `finally` in _run(): a task that is cancelled before its first
            # step runs none of its code.
            task.add_done_callback(lambda _: self._release(key, size))

    def _control_stream(self, request: PluginRequest) -> None:
        """Handle a StreamCancel or StreamCredit. Unknown streams are ignored: they have ended."""
        if request.HasField("stream_credit"):
            credit = request.stream_credit
            if credit.stream_id in self._windows:
                self._windows[credit.stream_id][1].grant(credit.bytes)
            return
        id = request.stream_cancel.stream_id
        if id in self._windows:
            key = self._windows[id][0]
            self.cancel(key)
            # End the QUIC stream, which the cancelled request does not.
            self._respond(key, None, True)
        else:
            # On a Unix socket a StreamCancel cancels any request, by the request's id.
            self.cancel(id.encode())

    @property
    def in_progress(self) -> int:
        """The number of requests in progress."""
        return len(self._tasks)

    def cancel(self, key: Hashable) -> None:
        """Cancel a request, as the peer has asked. Unknown keys are ignored."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def drain(self) -> None:
        """Wait until no request is in progress."""
        while self._tasks:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Cancel all requests. Call this when the connection has ended."""
        for task in list(self._tasks.values()):
            task.cancel()

    # Requests that are forwarded to another connection

    def _try_relay(
        self,
        relay: RelayHandler,
        payload: bytes,
        key: Hashable,
    ) -> bool:
        """Offer a request to the relay. Returns whether the relay has taken it."""
        message = split_id(payload)
        if message is None:
            return False
        id, body = message
        # Let receive() decode other ids, which may be invalid UTF-8.
        if not id.isascii():
            return False
        if key is None:
            key = id

        size = len(payload)
        tasks = self._tasks
        if key in tasks or len(tasks) >= MAX_IN_FLIGHT or self._bytes + size > MAX_BYTES_IN_FLIGHT:
            return False

        pending = relay(body, self.peer, partial(self._on_relay_response, key, id, size))
        if pending is None:
            return False
        if isinstance(pending, PendingResponse) and pending.stream:
            self._windows[pending.stream] = key, pending
        self._bytes += size
        tasks[key] = pending
        return True

    def _on_relay_response(
        self,
        key: Hashable,
        id: bytes,
        size: int,
        body: bytes | None,
    ) -> None:
        """Send a response to a relayed request. body: None if the request was cancelled."""
        is_last = body is None or not is_chunk(body)
        try:
            if body is not None:
                payload = join_id(id, body)
                if len(payload) <= LARGE_BYTES:
                    self._respond(key, payload, is_last)
                elif not self._send_response(key, id, payload, is_last):
                    self.cancel(key)
        finally:
            if is_last:
                self._release(key, size)

    # Requests that are handled here

    async def _run(self, key: Hashable, request: PluginRequest) -> None:
        """Run the handler for a request, and send its response."""
        id = request.request_id
        try:
            response = await self._handler(request, self.peer)
            id_bytes = id.encode()
            if isinstance(response, AsyncGenerator):
                response = partial(send_all, response)
            if callable(response):
                await self._send_stream(key, request, response)
                return
            if isinstance(response, bytes):
                if len(id_bytes) < 0x80:
                    self._send_response(key, id_bytes, join_id(id_bytes, response))
                    return
                response = PluginResponse.FromString(response)
            response.request_id = id
            self._send_response(key, id_bytes, response.SerializeToString())
        except asyncio.CancelledError:
            pass
        except Exception:
            kind = request.WhichOneof("request")
            log.exception("%s: answering %s failed", self.peer.address, kind)
            message = "the request failed; the log of the process that handled it says why"
            self._send_error(key, id, "internal_error", message)

    async def _send_stream(self, key: Hashable, request: PluginRequest, run: StreamRun) -> None:
        """Run a stream, and send its responses."""
        start, id = request.stream_start, request.request_id
        if start.stream_id in self._windows:
            message = f"the stream id {start.stream_id!r} is in use already"
            return self._send_error(key, id, "invalid_request", message)

        def write(chunk: StreamChunk) -> None:
            response = PluginResponse(request_id=id, stream_chunk=chunk)
            self._respond(key, response.SerializeToString(), False)

        sender = ChunkSender(start, write, self._unread)
        self._windows[start.stream_id] = key, sender
        try:
            response = await run(sender)
            await sender.drain()
            response.request_id = id
            self._send_response(key, id.encode(), response.SerializeToString())
        except FrameTooLarge as exc:
            self._send_error(key, id, "response_too_large", f"a chunk: {exc}")
        finally:
            sender.close()
            del self._windows[start.stream_id]

    def _send_response(
        self,
        key: Hashable,
        id: bytes,
        payload: bytes,
        is_last: bool = True,
    ) -> bool:
        """Send a response with its id, or an error if it is too large to send.

        Returns whether the response was sent.
        """
        if len(payload) > MAX_FRAME_BYTES:
            message = (
                f"the response has {len(payload)} bytes, and a frame at most {MAX_FRAME_BYTES}"
            )
            self._send_error(key, id.decode("utf-8", "replace"), "response_too_large", message)
            return False
        if len(payload) > LARGE_BYTES and self._is_unread(len(payload)):
            message = (
                f"the response of {len(payload)} bytes was dropped: {MAX_UNREAD_BYTES >> 20} MiB "
                "are unread; the request itself was carried out"
            )
            log.warning("%s: %s", self.peer.address, message)
            self._send_error(key, id.decode("utf-8", "replace"), "unread", message)
            return False
        self._respond(key, payload, is_last)
        return True

    def _is_unread(self, size: int) -> bool:
        """Return whether the peer would have too many bytes to read after `size` more bytes."""
        unread = self._unread()
        # A single response is always sent, however long.
        return unread > LARGE_BYTES and unread + size > MAX_UNREAD_BYTES

    def _send_error(
        self,
        key: Hashable,
        id: str,
        code: str,
        message: str,
    ) -> None:
        """Send an error response. id: the id of the request."""
        self._respond(key, error_response(id, code, message).SerializeToString(), True)

    def _release(self, key: Hashable, size: int) -> None:
        """Count a request as finished. size: the request's size in bytes."""
        task = self._tasks.pop(key, None)
        if isinstance(task, PendingResponse):
            self._windows.pop(task.stream, None)
        before = self._bytes
        self._bytes = before - size
        if before > MAX_BYTES_IN_FLIGHT >= before - size:
            self._hold(False)
        if self._idle is not None and not self._tasks:
            self._idle.set_result(None)
            self._idle = None
