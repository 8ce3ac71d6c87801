"""Streams: requests with several responses, which are StreamChunks and at last a StreamEnd.

A caller can call any tool as a stream, to get the tool's progress as chunks. The caller, the
receiver of the chunks, buffers at most WINDOW_BYTES of them. It states this limit, the window, in
the request. When the receiver has processed chunks, it sends a StreamCredit, which allows the
sender to send as many bytes more. So a slow receiver slows the sender down. Go programs have
neither windows nor credits, so chunks are sent to them as fast as they read.

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
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing
from math import inf
from typing import Any

from concertino.backend.interface import DONE
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
from concertino.runtime.pending import PendingOutcome

__all__ = [
    "CREDIT_BYTES",
    "WINDOW_BYTES",
    "ChunkSender",
    "CollectedStream",
    "ReceivedStream",
    "ResponseStream",
    "StreamRun",
    "call_of_stream",
    "end_response",
    "failed_end",
    "send_all",
    "stream_of_call",
]

ResponseStream = AsyncGenerator[PluginResponse, None]
"""The responses of a stream: any number with a stream_chunk, then one of another kind."""

# How many bytes of chunks a receiver buffers. Each chunk counts CHUNK_BYTES in addition to its
# size, so that the number of empty chunks is limited, too.
WINDOW_BYTES = 256 * 1024
CHUNK_BYTES = 256
# A receiver sends a credit when it has processed this many bytes.
CREDIT_BYTES = WINDOW_BYTES // 2
# If a sender ignores the window, as Go programs do, the receiver ends the stream with an error when
# it has buffered more bytes than this. The limit is larger than the window, because a sender may
# send the largest chunk while a single byte of the window is left.
MAX_HELD_BYTES = WINDOW_BYTES + MAX_FRAME_BYTES + CHUNK_BYTES
# A sender pauses while the receiver has not read more than this many bytes. This limits the output
# to a receiver without a window.
MAX_UNREAD_BYTES = 2**20
# The time between two checks whether the receiver has read, in seconds.
POLL_S = 0.01
# The largest stream whose chunks are collected into one result, in bytes.
MAX_COLLECTED_BYTES = 8 * 2**20


def chunk_size(chunk: StreamChunk) -> int:
    """Return how many bytes of the receiver's window a chunk takes."""
    return len(chunk.data) + CHUNK_BYTES


class ChunkSender:
    """Sends the chunks of one stream, as fast as the receiver takes them.

    RpcServer creates a ChunkSender for each stream_start. The handler of the request calls send()
    with each chunk, on the event loop or in another thread.

    request: the stream_start. Its `window` is the number of bytes of chunks that the receiver
        buffers; 0 for no limit.
    write: sends a serialized response to the receiver.
    unread: returns how many bytes that were written the receiver has not read yet.

    Attribute:
    count: how many chunks send() has accepted so far.
    """

    def __init__(
        self, request: PluginRequest, write: Callable[[bytes], None], unread: Callable[[], int]
    ) -> None:
        self.count = 0
        self._id = request.request_id
        self._start = request.stream_start
        # How many bytes of the receiver's window are free. It may become negative, because a chunk
        # of any size may be sent while a single byte is free.
        self._window_left: float = self._start.window or inf
        self._write = write
        self._unread = unread
        self._loop = asyncio.get_running_loop()
        # The thread of the loop. A tool that is not `async def` calls send() in another thread.
        self._thread = threading.get_ident()
        # The chunks that may not be sent yet: the serialized response, and how many bytes of the
        # window it takes.
        self._queue: deque[tuple[bytes, int]] = deque()
        # A future that is done when the queue is empty; None while no task waits for that.
        self._drained: asyncio.Future[None] | None = None
        # Calls _flush() again while the receiver has not read enough.
        self._poll_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, chunk: StreamChunk) -> Awaitable[None]:
        """Send a chunk, or add it to the queue if the receiver has no room for the chunk.

        On the event loop, await the result to wait until the chunk was sent. In another thread,
        this method itself blocks until the chunk was sent. The chunk is dropped after close(), or
        if it has no data and the receiver is a Go program, which cannot use such a chunk.

        chunk: this method sets its stream_id and sequence number.
        Raises FrameTooLarge if the chunk is too large.
        """
        if threading.get_ident() != self._thread:
            asyncio.run_coroutine_threadsafe(self._send(chunk), self._loop).result()
            # An awaitable that is done already.
            return DONE
        # Only Go programs have no window.
        if self._is_closed or (not chunk.data and not self._start.window):
            return DONE
        chunk.stream_id, chunk.sequence = self._start.stream_id, self.count
        payload = PluginResponse(request_id=self._id, stream_chunk=chunk).SerializeToString()
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLarge(len(payload))
        self.count += 1
        size = chunk_size(chunk)
        # Fast path: the receiver has room for the chunk, and no earlier chunk waits.
        if not self._queue and self._window_left > 0 and self._unread() <= MAX_UNREAD_BYTES:
            self._window_left -= size
            self._write(payload)
            return DONE
        self._queue.append((payload, size))
        self._flush()
        return self.drain()

    def drain(self) -> Awaitable[None]:
        """Return an awaitable that is done when the queue is empty."""
        if not self._queue:
            return DONE
        self._drained = self._drained or self._loop.create_future()
        # Several tasks may wait, and the cancellation of one must not reach the other tasks.
        return asyncio.shield(self._drained)

    def grant(self, size: int) -> None:
        """Handle a credit: the receiver accepts `size` more bytes of chunks."""
        self._window_left += max(0, size)
        self._flush()

    def close(self) -> None:
        """Drop the chunks in the queue, and all chunks that are passed to send() later.

        The waits for send() and drain() end.
        """
        self._is_closed = True
        self._queue.clear()
        # With an empty queue, _flush() ends the waits.
        self._flush()

    async def _send(self, chunk: StreamChunk) -> None:
        """Call send() on the loop. run_coroutine_threadsafe() needs a coroutine."""
        await self.send(chunk)

    def _flush(self) -> None:
        """Send the chunks that may be sent now."""
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        while self._queue and self._window_left > 0:
            # Poll, because transports do not report when a receiver has read.
            if self._unread() > MAX_UNREAD_BYTES:
                self._poll_timer = self._loop.call_later(POLL_S, self._flush)
                return
            payload, size = self._queue.popleft()
            self._window_left -= size
            self._write(payload)
        if not self._queue and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None


StreamRun = Callable[[ChunkSender], Awaitable[PluginResponse]]
"""A function that runs a tool as a stream: it sends the chunks, and returns the last response."""


async def send_all(responses: ResponseStream, sender: ChunkSender) -> PluginResponse:
    """Forward the chunks of a stream from one connection to another. Returns the last response.

    responses: the stream that the hub receives from a plugin. It is closed at the end.
    sender: sends the chunks to the caller of the tool.
    Raises ProtocolError if the stream ends without its last response.
    """
    async with aclosing(responses):
        async for response in responses:
            if not response.HasField("stream_chunk"):
                return response
            await sender.send(response.stream_chunk)
    raise ProtocolError("a stream has ended without its last response")


class _Arrival(PendingOutcome, eq=False):
    """An awaitable for the next response of a ReceivedStream. Its outcome becomes True on arrival.

    It takes less time than an asyncio.Future, and can resume the waiting task at once. When a task
    awaits this object, asyncio stores the callback that runs the task in `callback`, and the task's
    contextvars in `context` (PendingOutcome in runtime/pending.py).
    """

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
    """A queue for the responses of one stream, between the connection and RpcClient.stream().

    The connection calls add() with each response. RpcClient.stream() calls take().
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Whether the last response has arrived.
        self._is_ended = False
        # The responses that take() has not returned yet.
        self._responses: deque[PluginResponse] = deque()
        # How many bytes of the window their chunks use.
        self._held_bytes = 0
        # The error that ends the stream after these responses; None if there is none.
        self._error: BaseException | None = None
        # The awaitable of the latest wait of take(); None before the first wait.
        self._arrival: _Arrival | None = None

    def add(self, payload: bytes | BaseException) -> None:
        """Add a serialized response. If a task waits in take(), run the task before returning.

        The stream ends with a ProtocolError if the response cannot be decoded, or if more than
        MAX_HELD_BYTES of chunks wait for take(). After the end, this method does nothing.

        Call this only from a callback of the event loop and not from a task, because the waiting
        task cannot run inside another task.
        payload: the response; or an exception, which ends the stream as fail() does.
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
            # Run the task that waits in take() now.
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
        """Wait for the next response. Returns (response, how many bytes of the window it takes).

        The number is 0 for the last response. If an error has ended the stream, raises the error
        after all responses were returned.
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
    """Collects the chunks of a stream, for a caller that needs one result.

    Call add() with each chunk, and end() with the last response. If the tool is in a program of
    this package, the last response contains the result. A Go program sends the result in the
    chunks: the data of all chunks together is the text of the result.
    """

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._size = 0
        self._count = 0

    def add(self, chunk: StreamChunk) -> tuple[float, float | None, str | None]:
        """Add a chunk, and return the progress that it reports: (done, total, message).

        done: a number; the number of chunks so far if the chunk has no number.
        total: the value that `done` has at the end; None if the chunk does not say.
        message: the data of the chunk as text; None if it has no data.
        Raises ProtocolError if the collected chunks are too large for a result.
        """
        self._count += 1
        message = chunk.data.decode("utf-8", "replace") or None
        total = chunk.total if chunk.HasField("total") else None
        if chunk.HasField("progress"):
            # Only programs made with this package send progress. They send the result at the end of
            # the stream, so the chunks need not be collected.
            return chunk.progress, total, message
        self._data.append(chunk.data)
        self._size += len(chunk.data)
        if self._size > MAX_COLLECTED_BYTES:
            raise ProtocolError(f"the stream has more than {MAX_COLLECTED_BYTES} bytes")
        return self._count, total, message

    def end(self, end: StreamEnd) -> ToolResponse:
        """Return the result of the tool.

        end: the last response of the stream.
        """
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

    stream: the id of the stream.
    count: how many chunks were sent.
    result: the result of the tool, or its error.
    has_result: whether the response contains the whole result; False for Go programs, which do not
        read the result. The response then has only the success or the error.
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
    """Return the last response of a stream that has failed.

    stream: the id of the stream.
    code, message: the error, for programs and for users.
    count: how many chunks were sent.
    """
    result = ToolResponse(error_code=code, error_message=message)
    return end_response(stream, count, result, has_result=False)


# The fields that a StreamStart has in common with a ToolRequest, apart from the arguments.
_CALL_FIELDS = ("tool_name", "caller_plugin", "trace_parent", "provider", "session_id")


def stream_of_call(call: ToolRequest, path: Iterable[str]) -> PluginRequest:
    """Return a stream_start that calls the same tool as `call`, with the same arguments.

    The stream has the window WINDOW_BYTES. It has no id yet: the connection sets the id.
    path: the bridges through which the call has come from other hubs (request_path.py).
    """
    request = PluginRequest()
    # Filling in the message inside the request takes half the time of copying one into it.
    _copy_call(call, request.stream_start)
    request.stream_start.window = WINDOW_BYTES
    request.path.extend(path)
    return request


def call_of_stream(start: StreamStart, path: Iterable[str]) -> PluginRequest:
    """Return a tool_call that calls the same tool as `start`, with the same arguments.

    path: the bridges through which the call has come from other hubs (request_path.py).
    """
    request = PluginRequest()
    _copy_call(start, request.tool_call)
    request.path.extend(path)
    return request


def _copy_call(source: ToolRequest | StreamStart, target: ToolRequest | StreamStart) -> None:
    """Copy the fields that both kinds of calls have."""
    for name in _CALL_FIELDS:
        setattr(target, name, getattr(source, name))
    target.trace.update(source.trace)
    if source.HasField("arguments"):
        target.arguments = source.arguments
    if source.HasField("arguments_json"):
        target.arguments_json = source.arguments_json
