"""Streams that a hub relays between a plugin and a caller of which one keeps no rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.hubs import entry, running, write_plugins_file

from concertino.orchestra import rpc_server
from concertino.orchestra.frames import encode_frame
from concertino.orchestra.hub import Hub
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse, StreamStart
from concertino.orchestra.rpc_interface import ForwardingConnection
from concertino.orchestra.streams import WINDOW_BYTES

# A plugin that writes its frames by hand.
UNUSUAL = """
import asyncio, sys
flags = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
from concertino.orchestra.plugin_pb2 import *
names = "id_last", "unknown_field", "other_id", "flood", "silent"
# Field 2, which PluginResponse does not have.
UNKNOWN = b"\\x12\\x01x"
def encode(**fields):
    return PluginResponse(**fields).SerializeToString()
def frames_of(start, id):
    chunk = encode(stream_chunk=StreamChunk(stream_id=start.stream_id, data=b"chunk"))
    end = encode(stream_end=StreamEnd(stream_id=start.stream_id, success=True, total_chunks=1))
    id = encode(request_id=id)
    if start.tool_name == "id_last":
        yield chunk + id
        yield end + id
    elif start.tool_name == "unknown_field":
        yield id + UNKNOWN + chunk
        yield id + UNKNOWN + end
    elif start.tool_name == "other_id":
        yield id + chunk + encode(request_id="other")
        yield id + end + encode(request_id="other")
    while start.tool_name == "flood":
        yield id + encode(stream_chunk=StreamChunk(data=bytes(10_000)))
async def serve(reader, writer):
    while size := await reader.read(4):
        request = PluginRequest.FromString(await reader.readexactly(int.from_bytes(size, "big")))
        kind = request.WhichOneof("request")
        if kind == "register":
            frames = [encode(register=RegistrationResult(accepted=True))]
        elif kind == "boot":
            frames = [encode(boot=BootResult(ready=True))]
        elif kind == "list_tools":
            tools = [ToolDefinition(name=name) for name in names]
            frames = [encode(list_tools=ListToolsResponse(tools=tools))]
        elif kind == "list_prompts":
            frames = [encode(list_prompts=ListPromptsResponse())]
        elif kind == "shutdown":
            frames = [encode(shutdown=ShutdownResult(clean=True))]
        elif kind == "health":
            frames = [encode(health=HealthResult(status=HealthResult.HEALTHY))]
        else:
            frames = ()
        id = encode(request_id=request.request_id)
        frames = (id + frame for frame in frames)
        if kind == "stream_start":
            frames = frames_of(request.stream_start, request.request_id)
        asyncio.create_task(send(writer, frames))
async def send(writer, frames):
    for frame in frames:
        writer.write(len(frame).to_bytes(4, "big") + frame)
        await writer.drain()
async def main():
    path = flags["--listen-addr"].removeprefix("unix:")
    async with await asyncio.start_unix_server(serve, path) as server:
        print("READY unix:" + path, file=sys.stderr, flush=True)
        await server.serve_forever()
asyncio.run(main())
"""
USUAL = """
from concertino import Plugin
plugin = Plugin('tools.plugin')
@plugin.tool
async def letters(text: str = "ab"):
    for letter in text:
        yield letter
plugin.run()
"""


@asynccontextmanager
async def hub_of(folder: Path, code: str) -> AsyncIterator[tuple[Hub, str]]:
    """Run a hub with one plugin. Yields it, and its address."""
    (folder / "plugin.py").write_text(code)
    folder.chmod(0o700)
    address = f"unix:{folder}/hub"
    file = write_plugins_file(folder, entry("tools.plugin", "./plugin.py"))
    async with running(file, is_private=False, listen_addr=address) as hub:
        yield hub, address


class Responses:
    """Sends a stream_start as bytes, and takes the responses."""

    def __init__(self, link: ForwardingConnection, body: bytes, stream: str) -> None:
        self._queue: asyncio.Queue[bytes | BaseException] = asyncio.Queue()
        pending = link.forward(body, 60, self._queue.put_nowait, stream)
        assert pending is not None
        self.id = str(pending.key, "ascii")  # type: ignore[arg-type]

    async def take(self) -> PluginResponse:
        outcome = await self._queue.get()
        assert isinstance(outcome, bytes), outcome
        return PluginResponse.FromString(outcome)


def start(tool: str, stream: str = "s") -> bytes:
    begin = StreamStart(stream_id=stream, tool_name=tool, window=WINDOW_BYTES)
    return PluginRequest(stream_start=begin).SerializeToString()


@pytest.mark.parametrize("tool", ["id_last", "unknown_field", "other_id"])
@on_a_loop
async def test_responses_that_are_written_in_an_unusual_way_reach_the_caller(
    tmp_path: Path, tool: str
) -> None:
    async with hub_of(tmp_path, UNUSUAL) as (hub, address), asyncio.timeout(20):
        link = await open_link(address)
        responses = Responses(link, start(tool), "s")
        chunk, end = await responses.take(), await responses.take()
        assert chunk.stream_chunk.data == b"chunk"
        assert end.stream_end.success
        assert {chunk.request_id, end.request_id} == {responses.id}
        assert link.in_progress == hub.plugins["tools.plugin"].calls == 0
        await link.close()


@on_a_loop
async def test_a_link_takes_responses_that_are_written_in_an_unusual_way(tmp_path: Path) -> None:
    async with hub_of(tmp_path, UNUSUAL) as (hub, _), asyncio.timeout(20):
        link = await open_link(hub.plugins["tools.plugin"].address)
        for tool in ("id_last", "unknown_field", "other_id"):
            request = PluginRequest(stream_start=StreamStart(tool_name=tool))
            chunk, end = [response async for response in link.stream(request, 60)]
            assert chunk.stream_chunk.data == b"chunk"
            assert end.stream_end.success
        await link.close()


@on_a_loop
async def test_a_plugin_that_ignores_the_window_is_cut_off_if_its_caller_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "MAX_UNREAD_BYTES", 2**20)
    async with hub_of(tmp_path, UNUSUAL) as (hub, address), asyncio.timeout(20):
        _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        try:
            writer.write(encode_frame(start("flood")))
            plugin = hub.plugins["tools.plugin"]
            while not plugin.record.calls:
                await asyncio.sleep(0)
            while plugin.calls:
                await asyncio.sleep(0)
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        pytest.param(start("letters", ""), "", id="no stream id"),
        pytest.param(
            start("letters") + PluginRequest(request_id="mine").SerializeToString(),
            "s",
            id="two ids",
        ),
    ],
)
@on_a_loop
async def test_an_unusual_request_for_a_stream_gets_all_its_responses(
    tmp_path: Path, body: bytes, stream: str
) -> None:
    async with hub_of(tmp_path, USUAL) as (hub, address), asyncio.timeout(20):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        kinds: list[str | None] = []
        try:
            writer.write(encode_frame(body))
            while "stream_end" not in kinds:
                size = int.from_bytes(await reader.readexactly(4), "big")
                response = PluginResponse.FromString(await reader.readexactly(size))
                kinds.append(response.WhichOneof("response"))
        finally:
            writer.close()
        assert kinds == ["stream_chunk", "stream_chunk", "stream_end"]
        assert hub.plugins["tools.plugin"].calls == 0


@on_a_loop
async def test_the_id_of_a_stream_is_refused_for_another_one_whatever_its_plugin_does(
    folder: Path,
) -> None:
    async with hub_of(folder, UNUSUAL) as (hub, address), asyncio.timeout(20):
        link = await open_link(address)
        Responses(link, start("silent", "same"), "same")
        refused = await Responses(link, start("flood", "same"), "same").take()
        assert refused.tool_call.error_message == "the stream id 'same' is in use already"
        # The plugin runs the first stream alone. The cancellation takes another iteration.
        while hub.plugins["tools.plugin"].calls != 1:
            await asyncio.sleep(0)
        assert link.in_progress == 1
        await link.close()


@on_a_loop
async def test_credits_for_a_plugin_that_does_not_read_are_added_up(folder: Path) -> None:
    count, stream = 5000, "s" * 1000
    reading = asyncio.Event()
    credits: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        while sum(credits) < count:
            size = int.from_bytes(await reader.readexactly(4), "big")
            request = PluginRequest.FromString(await reader.readexactly(size))
            credits.append(request.stream_credit.bytes)
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / "plugin"), asyncio.timeout(20):
        link = await open_link(f"unix:{folder}/plugin")
        pending = link.forward(start("tool", stream), 60, lambda _: None, stream)
        assert pending is not None
        for _ in range(count):
            pending.grant(1)
        reading.set()
        await link.end_reason
        await link.close()
    assert sum(credits) == count
    # A credit takes a KiB. The link holds about a MiB, and the socket less than that.
    assert len(credits) < 2000
