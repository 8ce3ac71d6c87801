"""RpcServer: the side of an RPC connection that handles requests and sends their responses.

Hubs and plugins send each other requests. RpcServer has the code that does not depend on the
transport: limits, cancellations, and calling the handler of a hub or plugin. unix_link.py,
quic_listener.py and nats_worker.py create one RpcServer for each connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from functools import partial

from concertino.orchestra.frames import MAX_FRAME_BYTES, FrameTooLarge
from concertino.orchestra.message_peek import join_id, split_id
from concertino.orchestra.pending_response import PendingResponse
from concertino.orchestra.plugin_messages import (
    DecodeError,
    PluginRequest,
    PluginResponse,
)
from concertino.orchestra.rpc_interface import (
    Cancellable,
    RelayHandler,
    RemotePeer,
    RequestHandler,
    error_response,
)
from concertino.orchestra.streams import (
    ChunkSender,
    StreamRun,
    send_all,
)
from concertino.runtime.tasks import eager_task_runner

__all__ = ["RpcServer"]

log = logging.getLogger("concertino.orchestra")

# How many requests of one connection may be in progress. Additional requests get the error `busy`.
MAX_IN_FLIGHT = 1024
# If the requests in progress on one connection have more bytes together, reading pauses.
MAX_BYTES_IN_FLIGHT = 4 * MAX_FRAME_BYTES
# The limit for the total size of the responses that the peer has not read: the sum of the windows
# of MAX_IN_FLIGHT streams. A peer that reads does not reach it. Beyond the limit, chunks, and
# responses of more than LARGE_BYTES, are refused. A ChunkSender pauses much earlier, at the
# MAX_UNREAD_BYTES of streams.py.
MAX_UNREAD_BYTES = 256 * 2**20
# Smaller responses need no limit, because MAX_IN_FLIGHT limits their number.
LARGE_BYTES = 16 * 1024
# The kinds of requests that control a stream. They get no response.
STREAM_CONTROLS = ("stream_cancel", "stream_credit")


def _ignore_outcome(subject: None, value: object, error: BaseException | None) -> None:
    """Do nothing: RpcServer._run() sends the response and logs errors itself."""


class RpcServer:
    """Handles the requests of one connection. The connection calls receive() with each request.

    A *key* identifies a request on its connection: the request's id, or the number of its QUIC
    stream.

    handler: answers the requests that `relay` does not forward.
    peer: the process that sends the requests.
    respond: called as respond(key, payload, is_last) to send a response. `is_last` is True for the
        last response to a request, or the only one. The payload is None if a request, such as a
        StreamCancel, gets no response: the call then only ends the request's QUIC stream.
    hold: called with True to pause reading, and with False to resume it.
    unread: returns how many bytes of responses the peer has not read.
    relay: called first with each request, to forward it to another connection without decoding it.
        If it returns None, the handler answers the request. None if the handler answers all
        requests.
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
        # Runs a coroutine until it first waits. Returns a task for the rest; None if it has ended.
        self._run_eagerly = eager_task_runner(asyncio.get_running_loop(), _ignore_outcome)
        # The requests in progress, by key: the task of the handler, or for a relayed request the
        # object that the relay has returned, usually a PendingResponse.
        self._running: dict[Hashable, Cancellable] = {}
        # Id of a stream -> the key of its request, and the object to which the peer's credits are
        # granted: the sender of the chunks or, for a relayed stream, its pending response.
        self._windows: dict[str, tuple[Hashable, ChunkSender | PendingResponse]] = {}
        # The senders of the streams that are not relayed, by the keys of their requests.
        self._senders: dict[Hashable, ChunkSender] = {}
        # Total size of the requests in _running.
        self._bytes = 0
        # A future that is done when no request is in progress; None while drain() does not wait.
        self._idle: asyncio.Future[None] | None = None

    def receive_control(self, payload: bytes) -> None:
        """Handle a StreamCredit or StreamCancel. Ignores all other requests.

        payload: the serialized request.
        """
        try:
            request = PluginRequest.FromString(payload)
        except DecodeError as exc:
            log.warning("%s: a request cannot be decoded: %s", self.peer.address, exc)
            return
        if request.WhichOneof("request") in STREAM_CONTROLS:
            self._control_stream(request)

    def receive(self, payload: bytes, key: Hashable = None) -> None:
        """Begin to handle one serialized request. Its response is sent with `respond`.

        An invalid request gets an error response, and so does a request that arrives while
        MAX_IN_FLIGHT (1024) requests are in progress. A request with the id of a request in
        progress is logged and gets no response. Raises nothing.
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
        if kind in STREAM_CONTROLS:
            self._control_stream(request)
            # This request gets no response, but the QUIC stream on which it came must end.
            self._respond(key, None, True)
            return

        if key in self._running:
            # Send no error: the peer would take it for the response to the first request with this
            # id.
            log.warning(
                "%s: request id %r is in use already", self.peer.address, request.request_id
            )
            return
        if len(self._running) >= MAX_IN_FLIGHT:
            message = f"{MAX_IN_FLIGHT} requests are in progress, which is the limit"
            self._send_error(key, request.request_id, "busy", message)
            return

        size = len(payload)
        # Pause reading when this request exceeds the limit. _release() resumes it.
        if self._bytes <= MAX_BYTES_IN_FLIGHT < self._bytes + size:
            self._hold(True)
        self._bytes += size

        # Run the handler until it first waits. Most handlers never wait, and need no task.
        task = self._run_eagerly(self._run(key, request), None)
        if task is None:
            self._release(key, size)
        else:
            self._running[key] = task
            # Use a callback and not `finally` in _run(): a task that is cancelled before its first
            # step runs none of its code.
            task.add_done_callback(lambda _: self._release(key, size))

    def _control_stream(self, request: PluginRequest) -> None:
        """Handle a StreamCancel or StreamCredit. Does nothing if the stream has ended already."""
        if request.HasField("stream_credit"):
            credit = request.stream_credit
            if credit.stream_id in self._windows:
                self._windows[credit.stream_id][1].grant(credit.bytes)
            return
        id = request.stream_cancel.stream_id
        if id in self._windows:
            key = self._windows[id][0]
            self.cancel(key)
            # Cancelling the request does not end its QUIC stream, so end it without a response.
            self._respond(key, None, True)
        else:
            # On a Unix socket, a StreamCancel can cancel any request, by the request's id.
            self.cancel(id.encode())

    @property
    def in_progress(self) -> int:
        """The number of requests that were received and have no last response yet."""
        return len(self._running)

    def cancel(self, key: Hashable) -> None:
        """Cancel a request, because the peer has cancelled it. Ignores unknown keys."""
        running = self._running.get(key)
        if running is not None:
            # A tool in a thread may wait until a chunk is sent, and its task waits for the thread.
            # close() drops the chunk, so that the thread continues.
            if key in self._senders:
                self._senders[key].close()
            running.cancel()

    async def drain(self) -> None:
        """Wait until no request is in progress."""
        while self._running:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Cancel all requests. Call this when the connection has ended."""
        for key in list(self._running):
            self.cancel(key)

    # Requests that are relayed: forwarded to another connection as bytes

    def _try_relay(
        self,
        relay: RelayHandler,
        payload: bytes,
        key: Hashable,
    ) -> bool:
        """Offer a request to the relay. Returns whether the relay has taken the request.

        If not, receive() must handle the request, and report its errors.
        """
        message = split_id(payload)
        if message is None:
            return False
        id, body = message
        # An id that is not ASCII may be invalid UTF-8. receive() decodes it, and reports that.
        if not id.isascii():
            return False
        if key is None:
            key = id

        size = len(payload)
        running = self._running
        if (
            key in running
            or len(running) >= MAX_IN_FLIGHT
            or self._bytes + size > MAX_BYTES_IN_FLIGHT
        ):
            return False

        pending = relay(body, self.peer, partial(self._on_relay_response, key, id, size))
        if pending is None:
            return False
        self._bytes += size
        running[key] = pending
        if isinstance(pending, PendingResponse) and (stream := pending.stream):
            if stream in self._windows:
                pending.cancel()
                self._refuse_stream(key, id.decode(), stream)
            else:
                self._windows[stream] = key, pending
        return True

    def _on_relay_response(
        self,
        key: Hashable,
        id: bytes,
        size: int,
        body: bytes | None,
    ) -> None:
        """Send a response to a relayed request. After the last one, forget the request.

        key, id: the key and the id of the request.
        size: the size of the request in bytes.
        body: the response, serialized without its id; None if the request was cancelled.
        """
        pending = self._running.get(key)
        # The PendingResponse of a stream has no outcome until the last response of the stream has
        # arrived. Every other relayed request has only one response.
        is_last = not isinstance(pending, PendingResponse) or pending.outcome is not None
        try:
            if body is not None:
                payload = join_id(id, body)
                # A small last response fits into all limits, so save a function call.
                if len(payload) <= LARGE_BYTES and is_last:
                    self._respond(key, payload, True)
                elif not self._send_response(key, id, payload, is_last):
                    self.cancel(key)
        finally:
            if is_last:
                self._release(key, size)

    # Requests that the handler answers

    async def _run(self, key: Hashable, request: PluginRequest) -> None:
        """Run the handler for a request, and send its response."""
        id = request.request_id
        try:
            response = await self._handler(request, self.peer)
            if not isinstance(response, (bytes, PluginResponse)):
                run = response if callable(response) else partial(send_all, response)
                await self._send_stream(key, request, run)
                return
            id_bytes = id.encode()
            if isinstance(response, bytes):
                # join_id() is only for ids whose length fits in one byte.
                if len(id_bytes) < 0x80:
                    self._send_response(key, id_bytes, join_id(id_bytes, response))
                    return
                response = PluginResponse.FromString(response)
            response.request_id = id
            self._send_response(key, id_bytes, response.SerializeToString())
        except asyncio.CancelledError:
            # A request that was cancelled gets no response.
            pass
        except Exception:
            kind = request.WhichOneof("request")
            log.exception("%s: answering %s failed", self.peer.address, kind)
            message = "the request failed; the log of the process that handled it says why"
            self._send_error(key, id, "internal_error", message)

    async def _send_stream(self, key: Hashable, request: PluginRequest, run: StreamRun) -> None:
        """Run a stream, and send its responses.

        run: runs the tool. It gets a ChunkSender, which sends the chunks, and returns the last
            response.
        """
        start, id = request.stream_start, request.request_id
        if start.stream_id in self._windows:
            return self._refuse_stream(key, id, start.stream_id)

        sender = ChunkSender(
            request, lambda payload: self._respond(key, payload, False), self._unread
        )
        self._windows[start.stream_id] = key, sender
        self._senders[key] = sender
        try:
            response = await run(sender)
            await sender.drain()
            response.request_id = id
            self._send_response(key, id.encode(), response.SerializeToString())
        except FrameTooLarge as exc:
            self._send_error(key, id, "response_too_large", f"a chunk: {exc}")
        finally:
            sender.close()
            del self._windows[start.stream_id], self._senders[key]

    def _refuse_stream(self, key: Hashable, id: str, stream: str) -> None:
        """Send the error for a stream whose id belongs to another stream already."""
        message = f"the stream id {stream!r} is in use already"
        self._send_error(key, id, "invalid_request", message)

    def _send_response(
        self,
        key: Hashable,
        id: bytes,
        payload: bytes,
        is_last: bool = True,
    ) -> bool:
        """Send a response, or an error in its place if it is too large to send.

        id: the id of the request, which the payload contains already.
        Returns whether the response itself was sent.
        """
        if len(payload) > MAX_FRAME_BYTES:
            message = (
                f"the response has {len(payload)} bytes, and a frame at most {MAX_FRAME_BYTES}"
            )
            self._send_error(key, id.decode("utf-8", "replace"), "response_too_large", message)
            return False
        if (len(payload) > LARGE_BYTES or not is_last) and self._exceeds_unread_limit(len(payload)):
            consequence = "the request itself was carried out" if is_last else "it ends here"
            message = (
                f"the response of {len(payload)} bytes was dropped: {MAX_UNREAD_BYTES >> 20} MiB "
                f"are unread; {consequence}"
            )
            log.warning("%s: %s", self.peer.address, message)
            self._send_error(key, id.decode("utf-8", "replace"), "unread", message)
            return False
        self._respond(key, payload, is_last)
        return True

    def _exceeds_unread_limit(self, size: int) -> bool:
        """Return whether the peer would have too many unread bytes with `size` more bytes."""
        unread = self._unread()
        # If the peer has read nearly everything, a response of any size is sent.
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
        """Forget a request that has ended, and resume reading if that frees enough memory.

        size: the size of the request in bytes.
        """
        ended = self._running.pop(key, None)
        # Remove the window of a relayed stream, unless another stream has the same id: see
        # _try_relay(). For a stream that is not relayed, _send_stream() removes the window.
        if isinstance(ended, PendingResponse) and (key, ended) == self._windows.get(ended.stream):
            del self._windows[ended.stream]
        # receive() has paused reading when the sum exceeded the limit.
        before = self._bytes
        self._bytes = before - size
        if before > MAX_BYTES_IN_FLIGHT >= before - size:
            self._hold(False)
        if self._idle is not None and not self._running:
            self._idle.set_result(None)
            self._idle = None


def _guess_id(payload: bytes) -> str:
    """Return the id at the beginning of a request that cannot be decoded; "" if there is none."""
    # 0x0A is the tag of field 1, request_id. The next byte is the length of the id.
    if len(payload) > 2 and payload[0] == 0x0A and payload[1] < 0x80:
        return payload[2 : 2 + payload[1]].decode("utf-8", "replace")
    return ""
