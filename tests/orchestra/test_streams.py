"""streams.py and the streams of rpc_client.py and rpc_server.py: several responses to a request,
over each transport.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from math import inf
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.linked import TRANSPORTS, Place, echo, health

from concertino.errors import Disconnected, ProtocolError, TimedOut
from concertino.orchestra import rpc_client, streams
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.orchestra.plugin_pb2 import (
    HealthResult,
    PluginRequest,
    PluginResponse,
    StreamCancel,
    StreamChunk,
    StreamEnd,
    StreamStart,
)
from concertino.orchestra.rpc_interface import RemotePeer, RpcConnection
from concertino.orchestra.streams import (
    WINDOW_BYTES,
    ChunkSender,
    ReceivedStream,
    ResponseStream,
    StreamRun,
)


@pytest.fixture(params=TRANSPORTS)
def place(request: pytest.FixtureRequest, folder: Path, certificates: Certificates) -> Place:
    return Place(request.param, folder, certificates)


def chunk(number: int, size: int = 1) -> PluginResponse:
    return PluginResponse(stream_chunk=StreamChunk(data=b"x" * size, sequence=number))


class Streaming:
    """Answers a stream_start with chunks and an end, and counts what it could send.

    count: how many chunks. size: how large each of them is.
    """

    def __init__(self, count: int, size: int = 1) -> None:
        self.count = count
        self.size = size
        self.sent = 0
        self.closed = asyncio.Event()
        self.starts: list[StreamStart] = []

    async def __call__(
        self, request: PluginRequest, peer: RemotePeer
    ) -> PluginResponse | ResponseStream:
        if request.HasField("stream_start"):
            self.starts.append(request.stream_start)
            return self._responses()
        return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))

    async def _responses(self) -> ResponseStream:
        try:
            for number in range(self.count):
                yield chunk(number, self.size)
                self.sent += 1
            yield PluginResponse(stream_end=StreamEnd(success=True, total_chunks=self.count))
        finally:
            self.closed.set()


def start(link: RpcConnection, timeout_s: float = 30.0) -> ResponseStream:
    request = PluginRequest(stream_start=StreamStart(tool_name="count"))
    return link.stream(request, timeout_s)  # type: ignore[attr-defined]


@on_a_loop
async def test_the_responses_of_a_stream_arrive_in_order_and_end_with_its_end(place: Place) -> None:
    async with place.open_link_to(Streaming(300, 100)) as link:
        responses = [response async for response in start(link)]
        assert [item.stream_chunk.sequence for item in responses[:-1]] == list(range(300))
        assert responses[-1].stream_end.total_chunks == 300
        # The connection goes on.
        assert (await link.request(health())).HasField("health")


@on_a_loop
async def test_a_stream_without_chunks_has_an_end(place: Place) -> None:
    async with place.open_link_to(Streaming(0)) as link:
        [end] = [response async for response in start(link)]
        assert end.stream_end.success


@on_a_loop
async def test_a_receiver_that_takes_nothing_stops_its_sender_and_nobody_else(place: Place) -> None:
    sending = Streaming(64, 64 * 1024)
    async with place.open_link_to(sending) as link, aclosing(start(link)) as slow:
        await anext(slow)
        # Requests on the same connection are answered; so is another stream, to its end.
        async with asyncio.timeout(20):
            while True:
                before = sending.sent
                for _ in range(20):
                    assert (await link.request(health())).HasField("health")
                if sending.sent == before:
                    break
        # The window, one chunk that was taken, and the last one that was allowed to start.
        assert sending.sent <= WINDOW_BYTES // sending.size + 2
        rest = [response async for response in slow]
        assert len(rest) == 64
        assert sending.sent == 64


@on_a_loop
async def test_a_stream_that_nobody_wants_any_more_is_closed_at_its_sender(place: Place) -> None:
    sending = Streaming(10_000, 10_000)
    async with place.open_link_to(sending) as link:
        async with aclosing(start(link)) as responses:
            await anext(responses)
        async with asyncio.timeout(20):
            await sending.closed.wait()
        assert sending.sent < 10_000
        assert (await link.request(health())).HasField("health")


@pytest.mark.parametrize("connection_ends", [False, True])
@on_a_loop
async def test_a_tool_in_a_thread_ends_with_its_stream_although_nobody_reads_its_chunks(
    place: Place, connection_ends: bool
) -> None:
    is_cancelled, closed = threading.Event(), asyncio.Event()

    def send_until_cancelled(sender: ChunkSender) -> None:
        while not is_cancelled.is_set():
            sender.send(StreamChunk(data=b"x" * 64 * 1024))

    async def run(sender: ChunkSender) -> PluginResponse:
        # Like the runtime, which ends a cancelled call only when its thread has ended.
        work = asyncio.ensure_future(asyncio.to_thread(send_until_cancelled, sender))
        try:
            await asyncio.shield(work)
        finally:
            is_cancelled.set()
            await work
            closed.set()
        raise AssertionError

    async def answer(request: PluginRequest, peer: RemotePeer) -> StreamRun:
        return run

    async with place.open_link_to(answer) as link:
        async with aclosing(start(link)) as responses:
            await anext(responses)
            if connection_ends:
                await link.close()
        async with asyncio.timeout(20):
            await closed.wait()


@on_a_loop
async def test_a_stream_over_its_time_limit_fails_and_is_closed_at_its_sender(place: Place) -> None:
    closed = asyncio.Event()

    async def silent() -> ResponseStream:
        try:
            yield chunk(0)
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def answer(request: PluginRequest, peer: RemotePeer) -> ResponseStream:
        return silent()

    async with place.open_link_to(answer) as link:
        with pytest.raises(TimedOut, match=r"no response to stream_start within 0\.05 s"):
            async for _ in start(link, 0.05):
                pass
        async with asyncio.timeout(20):
            await closed.wait()


@on_a_loop
async def test_a_stream_ends_with_its_connection(place: Place) -> None:
    sending = Streaming(10_000, 10_000)
    async with place.open_link_to(sending) as link, aclosing(start(link)) as responses:
        await anext(responses)
        await link.close()
        with pytest.raises(Disconnected):
            async for _ in responses:
                pass
        async with asyncio.timeout(20):
            await sending.closed.wait()
        with pytest.raises(Disconnected):
            await anext(start(link))


@on_a_loop
async def test_an_error_in_the_middle_of_a_stream_is_its_last_response(place: Place) -> None:
    async def broken() -> ResponseStream:
        yield chunk(0)
        raise ValueError("no more")

    async def answer(request: PluginRequest, peer: RemotePeer) -> ResponseStream:
        return broken()

    async with place.open_link_to(answer) as link:
        first, last = [response async for response in start(link)]
        assert first.HasField("stream_chunk")
        assert last.tool_call.error_code == "internal_error"


@on_a_loop
async def test_a_chunk_that_is_too_large_for_a_frame_ends_its_stream_with_an_error(
    place: Place,
) -> None:
    sending = Streaming(2, 16 * 2**20)
    async with place.open_link_to(sending) as link:
        [last] = [response async for response in start(link)]
        assert last.tool_call.error_code == "response_too_large"
        assert sending.closed.is_set()


@on_a_loop
async def test_a_chunk_that_is_too_large_with_its_content_type_ends_its_stream_alone(
    place: Place,
) -> None:
    async def large() -> ResponseStream:
        data, content_type = bytes(MAX_FRAME_BYTES - 4096), "t" * 4096
        yield PluginResponse(stream_chunk=StreamChunk(data=data, content_type=content_type))

    async def answer(request: PluginRequest, peer: RemotePeer) -> PluginResponse | ResponseStream:
        return large() if request.HasField("stream_start") else await echo(request, peer)

    async with place.open_link_to(answer) as link:
        [last] = [response async for response in start(link)]
        assert last.tool_call.error_code == "response_too_large"
        assert (await link.request(health())).HasField("health")


@on_a_loop
async def test_a_receiver_holds_a_window_and_the_largest_chunk_after_it() -> None:
    received = ReceivedStream(asyncio.get_running_loop())
    # A sender sends a chunk of any size while a byte of the window is left. Each chunk takes 256
    # bytes in addition to its data.
    sizes = WINDOW_BYTES - 256 - 1, MAX_FRAME_BYTES - 20
    for size in sizes:
        received.add(chunk(0, size).SerializeToString())
    assert [len((await received.take())[0].stream_chunk.data) for _ in sizes] == [*sizes]


@on_a_loop
async def test_a_sender_that_ignores_the_window_is_cut_off_at_a_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_HELD_BYTES", 100_000)

    # A StreamStart without a window, as of a Go program.
    monkeypatch.setattr(rpc_client, "WINDOW_BYTES", 0)
    sending = Streaming(10_000, 1000)
    async with place.open_link_to(sending) as link, aclosing(start(link)) as responses:
        await anext(responses)
        async with asyncio.timeout(20):
            while sending.sent < 10_000:
                await link.request(health())
        # The response comes after the chunks, which wait in the stream.
        await link.request(health())
        with pytest.raises(ProtocolError, match="more than 100000 bytes of the stream"):
            async for _ in responses:
                pass
    async with asyncio.timeout(20):
        await sending.closed.wait()


@on_a_loop
async def test_a_stream_cancel_on_a_stream_of_its_own_ends_a_stream(place: Place) -> None:
    """Go programs cancel so; the id of their stream is not that of their request."""
    sending = Streaming(10_000, 10_000)
    async with place.open_link_to(sending) as link, aclosing(start(link)) as responses:
        await anext(responses)
        [begun] = sending.starts
        cancel = PluginRequest(stream_cancel=StreamCancel(stream_id=begun.stream_id))
        link._send_request(cancel.SerializeToString(), b"", inf)  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            await sending.closed.wait()


def test_a_start_and_a_call_name_the_same_tool() -> None:
    start = StreamStart(
        stream_id="s", tool_name="t", arguments=b"", caller_plugin="c", session_id="i", provider="p"
    )
    request = streams.call_of_stream(start, ["hub"])
    call = request.tool_call
    assert request.path == ["hub"]
    assert (call.tool_name, call.caller_plugin, call.session_id, call.provider) == (
        "t",
        "c",
        "i",
        "p",
    )
    assert call.HasField("arguments")
    assert not call.HasField("arguments_json")
    start.stream_id = ""
    start.window = WINDOW_BYTES
    expected = PluginRequest(stream_start=start, path=["other"])
    assert streams.stream_of_call(call, ["other"]) == expected
