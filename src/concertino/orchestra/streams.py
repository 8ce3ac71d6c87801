"""Streams: requests with several responses, which are StreamChunks and at last a StreamEnd.

A receiver buffers at most WINDOW_BYTES of chunks. It states this limit in the request, and sends a
StreamCredit when it has processed chunks, so that a slow receiver slows the sender down. Go
programs know neither the limit nor credits, so chunks are sent to them as fast as they read.

    RpcClient.stream()  --StreamStart-->  RpcServer  -->  the handler of the request
    ReceivedStream      <--StreamChunk--  ChunkSender
                        --StreamCredit->
                        <--StreamEnd----  RpcServer

Source: the Orchestra plugin protocol, "Streaming".
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from math import inf
from typing import Any

from concertino.errors import ProtocolError
from concertino.orchestra.frames import MAX_FRAME_BYTES, FrameTooLarge
from concertino.orchestra.plugin_messages import (
    DecodeError,
    PluginRequest,
    PluginResponse,
    StreamChunk,
    StreamEnd,
    StreamStart,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.tool_calls import encode_text_result
from concertino.runtime.context import DONE
from concertino.runtime.pending import PendingOutcome

__all__ = [
    "CREDIT_BYTES",
    "WINDOW_BYTES",
    "ChunkSender",
    "CollectedStream",
    "ReceivedStream",
    "ResponseStream",
    "StreamRun",
    "end_response",
    "failed_end",
    "send_all",
    "start_of_call",
    "tool_call_of",
]

ResponseStream = AsyncGenerator[PluginResponse, None]
"""The responses of a stream: any number of stream_chunk, then one of another kind."""

# How many bytes of chunks a receiver buffers. Each chunk counts CHUNK_BYTES in addition to its
# size, so that the number of empty chunks is limited too.
WINDOW_BYTES = 256 * 1024
CHUNK_BYTES = 256
# A receiver sends a credit when it has processed this many bytes.
CREDIT_BYTES = WINDOW_BYTES // 2
# A receiver drops a stream whose sender ignores the window, as Go programs do, beyond this size. A
# sender may send the largest chunk while a single byte of the window is left.
MAX_HELD_BYTES = WINDOW_BYTES + MAX_FRAME_BYTES + CHUNK_BYTES
# A sender pauses while this many bytes are unread. It checks that every POLL_S.
MAX_UNREAD_BYTES = 2**20
POLL_S = 0.01
# The largest stream whose chunks become a result.
MAX_COLLECTED_BYTES = 8 * 2**20


def chunk_size(chunk: StreamChunk) -> int:
    """Return how many bytes of a window a chunk takes."""
    return len(chunk.data) + CHUNK_BYTES


class ChunkSender:
    """Sends the chunks of one stream, as fast as its receiver takes them. Create it on the loop.

    request: the stream_start. Its `window` is the number of bytes of chunks that the receiver
        buffers; 0 for no limit.
    write: sends a serialized response to the receiver.
    unread: returns how many bytes the receiver has not read.

    Attribute:
    count: how many chunks there were so far.
    """

    def __init__(
        self, request: PluginRequest, write: Callable[[bytes], None], unread: Callable[[], int]
    ) -> None:
        self.count = 0
        self._id = request.request_id
        self._start = request.stream_start
        self._left: float = self._start.window or inf
        self._write = write
        self._unread = unread
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # The responses that may not be sent yet, each with the bytes of the window that it takes.
        self._queue: deque[tuple[bytes, int]] = deque()
        # A future that is done when the queue is empty; None while it is.
        self._drained: asyncio.Future[None] | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, chunk: StreamChunk) -> Awaitable[None]:
        """Number a chunk, and send it or add it to the queue. After close(), drop it.

        A receiver without a window, such as a Go program, gets no chunks without data.
        On the event loop, await the result to wait until the chunk was sent. In a thread, this
        method itself blocks. Raises FrameTooLarge.
        """
        if threading.get_ident() != self._thread:
            asyncio.run_coroutine_threadsafe(self._send(chunk), self._loop).result()
            return DONE
        if self._is_closed or not (chunk.data or self._start.window):
            return DONE
        chunk.stream_id, chunk.sequence = self._start.stream_id, self.count
        payload = PluginResponse(request_id=self._id, stream_chunk=chunk).SerializeToString()
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLarge(len(payload))
        self.count += 1
        self._queue.append((payload, chunk_size(chunk)))
        self._flush()
        return self.drain()

    def drain(self) -> Awaitable[None]:
        """Wait until the queue is empty."""
        if not self._queue:
            return DONE
        self._drained = self._drained or self._loop.create_future()
        # Several tasks may wait, and the cancellation of one must not reach the others.
        return asyncio.shield(self._drained)

    def grant(self, size: int) -> None:
        """Allow this many more bytes."""
        self._left += max(0, size)
        self._flush()

    def close(self) -> None:
        """Drop the chunks in the queue, and those that are sent later."""
        self._is_closed = True
        self._queue.clear()
        self._flush()

    async def _send(self, chunk: StreamChunk) -> None:
        await self.send(chunk)

    def _flush(self) -> None:
        """Send the chunks that may be sent now. The last one may be larger than the window."""
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None
        while self._queue and self._left > 0:
            # Poll, since transports do not report when a peer without a window reads.
            if self._unread() > MAX_UNREAD_BYTES:
                self._poll = self._loop.call_later(POLL_S, self._flush)
                return
            payload, size = self._queue.popleft()
            self._left -= size
            self._write(payload)
        if not self._queue and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None


StreamRun = Callable[[ChunkSender], Awaitable[PluginResponse]]
"""Runs a stream: sends its chunks with the ChunkSender, and returns the last response."""


async def send_all(responses: ResponseStream, sender: ChunkSender) -> PluginResponse:
    """Send the chunks of a stream, and return its last response."""
    async with aclosing(responses):
        async for response in responses:
            if not response.HasField("stream_chunk"):
                return response
            await sender.send(response.stream_chunk)
    raise ProtocolError("a stream has ended without its last response")


class _Arrival(PendingOutcome, eq=False):
    """What take() waits for. The outcome is True when there is something to take."""

    _loop: asyncio.AbstractEventLoop

    def __await__(self) -> Generator[_Arrival, None, None]:
        if self.outcome is None:
            yield self
        outcome: Any = self.outcome
        if self.failed:
            try:
                raise outcome
            finally:
                # Break the reference cycle between the exception and its traceback.
                del self, outcome


class ReceivedStream:
    """A queue of the responses of a stream that have arrived. take() removes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Whether the last response has arrived.
        self._is_ended = False
        self._responses: deque[PluginResponse] = deque()
        self._held_bytes = 0
        self._error: BaseException | None = None
        # What the task that takes the responses waits for.
        self._arrival: _Arrival | None = None

    def add(self, payload: bytes | BaseException) -> None:
        """Add a serialized response, and run the task that waits for it before returning.

        Call this only from a callback of the event loop: a task cannot run inside another task.
        payload: an exception ends the stream, see fail().
        """
        if self._is_ended or self._error is not None:
            return
        if not isinstance(payload, bytes):
            self.fail(payload)
            return
        try:
            response = PluginResponse.FromString(payload)
        except DecodeError as exc:
            self.fail(ProtocolError(f"a response of the stream cannot be decoded: {exc}"))
            return
        if response.HasField("stream_chunk"):
            self._held_bytes += chunk_size(response.stream_chunk)
            if self._held_bytes > MAX_HELD_BYTES:
                message = f"more than {MAX_HELD_BYTES} bytes of the stream were not taken"
                self.fail(ProtocolError(message))
                return
        else:
            self._is_ended = True
        self._responses.append(response)

        arrival = self._arrival
        if arrival is not None and arrival.outcome is None:
            arrival.outcome = True
            if arrival.callback is not None:
                arrival.context.run(arrival.callback, arrival)

    def fail(self, exc: BaseException) -> None:
        """End the stream with an error, which take() raises after the responses before it.

        The task that takes the responses continues in the next iteration of the loop.
        """
        if self._is_ended or self._error is not None:
            return
        self._error = exc
        arrival = self._arrival
        if arrival is not None and arrival.outcome is None:
            arrival.outcome = True
            arrival.resume_soon()

    async def take(self) -> tuple[PluginResponse, int]:
        """Wait for the next response. Returns it, and the bytes of the window that it took.

        Raises the error that has ended the stream.
        """
        while not self._responses:
            if self._error is not None:
                raise self._error
            self._arrival = _Arrival(self._loop)
            await self._arrival
        response = self._responses.popleft()
        size = chunk_size(response.stream_chunk) if response.HasField("stream_chunk") else 0
        self._held_bytes -= size
        return response, size


class CollectedStream:
    """The chunks of a stream, which become the text of a result if its end has no result."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._size = 0
        self._count = 0

    def add(self, chunk: StreamChunk) -> tuple[float, float | None, str | None]:
        """Add a chunk. Returns the progress that it reports: done, total and message.

        Raises ProtocolError if the stream is too large for a result.
        """
        self._count += 1
        message = chunk.data.decode("utf-8", "replace") or None
        total = chunk.total if chunk.HasField("total") else None
        if chunk.HasField("progress"):
            # Only peers made with this package send progress. They send the result at the end of
            # the stream, so the chunks are not collected.
            return chunk.progress, total, message
        self._data.append(chunk.data)
        self._size += len(chunk.data)
        if self._size > MAX_COLLECTED_BYTES:
            raise ProtocolError(f"the stream has more than {MAX_COLLECTED_BYTES} bytes")
        return self._count, total, message

    def end(self, end: StreamEnd) -> ToolResponse:
        """Return the response of the tool. end: the last response of the stream."""
        if end.HasField("result"):
            return end.result
        if not end.success:
            return ToolResponse(error_code=end.error_code, error_message=end.error_message)
        text = b"".join(self._data).decode("utf-8", "replace")
        return PluginResponse.FromString(encode_text_result(text)).tool_call


def end_response(
    stream: str, count: int, result: ToolResponse, *, has_result: bool
) -> PluginResponse:
    """Return the last response of a stream.

    stream: its id. count: how many chunks were sent.
    result: the response of the tool.
    has_result: whether to send the result too, which Go programs do not read.
    """
    return PluginResponse(
        stream_end=StreamEnd(
            stream_id=stream,
            success=result.success,
            error_code=result.error_code,
            error_message=result.error_message,
            total_chunks=count,
            result=result if has_result else None,
        )
    )


def failed_end(stream: str, code: str, message: str, count: int = 0) -> PluginResponse:
    """Return the last response of a stream that has failed."""
    result = ToolResponse(error_code=code, error_message=message)
    return end_response(stream, count, result, has_result=False)


# The fields that a StreamStart has in common with a ToolRequest, apart from the arguments.
_TEXTS = ("tool_name", "caller_plugin", "trace_parent", "provider", "session_id")


def start_of_call(call: ToolRequest) -> StreamStart:
    """Return a StreamStart that calls the same tool as a ToolRequest of this process."""
    start = StreamStart(window=WINDOW_BYTES)
    _copy_call(call, start)
    return start


def tool_call_of(start: StreamStart) -> ToolRequest:
    """Return the ToolRequest that calls the same tool as a StreamStart."""
    call = ToolRequest()
    _copy_call(start, call)
    return call


def _copy_call(source: ToolRequest | StreamStart, target: ToolRequest | StreamStart) -> None:
    """Copy the fields that both kinds of calls have."""
    for name in _TEXTS:
        setattr(target, name, getattr(source, name))
    if source.HasField("arguments"):
        target.arguments = source.arguments
    if source.HasField("arguments_json"):
        target.arguments_json = source.arguments_json
