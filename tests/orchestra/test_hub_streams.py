"""Streams through a hub: generator tools of plugins, and plugins that work as Go programs do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.bridges import make_certificates
from orchestra.hubs import SOMEBODY, call_tool, raw, running, sdk, write_plugins_file

from concertino import Client, ToolError
from concertino.orchestra.embedded_hub import EmbeddedHub
from concertino.orchestra.hub import Hub
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import PluginRequest, StreamStart, ToolRequest
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.streams import WINDOW_BYTES
from concertino.orchestra.structs import pack, unpack

COUNTER = """
from collections.abc import AsyncIterator, Iterator
from concertino import Context, Plugin, ToolError
plugin = Plugin("tools.counter")
@plugin.tool
async def count(to: int) -> AsyncIterator[str]:
    "Count."
    for number in range(to):
        yield f"number {number}"
@plugin.tool
def count_in_thread(to: int) -> Iterator[int]:
    "Count in a thread."
    yield from range(to)
@plugin.tool
async def work(context: Context) -> int:
    "Report progress and return a number."
    await context.progress(1, 4, "begun")
    await context.progress(3, 4)
    return 42
@plugin.tool
async def fail(context: Context) -> int:
    "Report progress and fail."
    await context.progress(1, None, "begun")
    raise ToolError("PAPER", "no more paper")
@plugin.tool
def add(a: int, b: int) -> int:
    return a + b
plugin.run()
"""
# A Go program lists tools that can only be called as streams, and knows no stream of other tools.
# The codes and texts are those of its SDK.
LIKE_GO = """
tools += ["tail", "echo"]
easy = answer
async def chunks(start):
    for number in range(3):
        yield PluginResponse(stream_chunk=StreamChunk(
            stream_id=start.stream_id, data=b"line %d\\n" % number,
            content_type="application/octet-stream", sequence=number))
    yield PluginResponse(stream_end=StreamEnd(
        stream_id=start.stream_id, success=True, total_chunks=3))
async def missing(start):
    yield PluginResponse(stream_end=StreamEnd(
        stream_id=start.stream_id, error_code="tool_not_found",
        error_message=f'streaming tool "{start.tool_name}" not found'))
async def answer(request, peer):
    if request.HasField("stream_start"):
        start = request.stream_start
        return chunks(start) if start.tool_name == "tail" else missing(start)
    if request.HasField("tool_call") and request.tool_call.tool_name == "tail":
        return error_response("", "tool_not_found", 'tool "tail" not found')
    return await easy(request, peer)
"""
Progress = tuple[float, float | None, str | None]


@on_a_loop
async def test_progress_of_a_plugins_tools_reaches_the_client_with_the_result(folder: Path) -> None:
    path = write_plugins_file(folder, sdk(folder, "tools.counter", COUNTER))
    heard: list[Progress] = []

    def on_progress(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total, message))

    async with Client(EmbeddedHub(read_plugins(path))) as client:
        result = await client.call_tool("count", {"to": 3}, progress=on_progress)
        assert "number 0" in result.text
        assert "number 2" in result.text
        # A client gets the newest of the messages that come too fast.
        assert heard[-1] == (3, None, "number 2")

        heard.clear()
        result = await client.call_tool("count_in_thread", {"to": 5}, progress=on_progress)
        assert heard[-1] == (5, None, "4")

        heard.clear()
        assert await client.call_tool("work", into=int, progress=on_progress) == 42
        assert heard[-1] == (3, 4, None)

        with pytest.raises(ToolError) as failed:
            await client.call_tool("fail", into=int, progress=on_progress)
        assert json.loads(str(failed.value)) == {"error": "no more paper", "code": "PAPER"}
        # Without a wish for progress, the call is an ordinary one.
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3


@on_a_loop
async def test_a_cancelled_stream_is_cancelled_in_the_plugin(folder: Path) -> None:
    endless = """
import asyncio, pathlib
from collections.abc import AsyncIterator
from concertino import Plugin
plugin = Plugin("tools.endless")
@plugin.tool
async def run_forever(mark: str) -> AsyncIterator[str]:
    try:
        yield "begun"
        await asyncio.Event().wait()
    finally:
        pathlib.Path(mark).touch()
plugin.run()
"""
    path = write_plugins_file(folder, sdk(folder, "tools.endless", endless))
    mark = folder / "closed"
    begun = asyncio.Event()
    async with Client(EmbeddedHub(read_plugins(path))) as client:
        call = asyncio.ensure_future(
            client.call_tool("run_forever", {"mark": str(mark)}, progress=lambda *_: begun.set())
        )
        async with asyncio.timeout(20):
            await begun.wait()
            call.cancel()
            await asyncio.wait((call,))
            while not mark.exists():
                await asyncio.sleep(0.005)


@on_a_loop
async def test_tools_of_go_programs_that_are_only_streams_can_be_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A Go program would use QUIC. The hub looks for such tools of programs over QUIC only.
    monkeypatch.setattr(PluginProcess, "uses_quic", True)
    path = write_plugins_file(folder, raw(folder, "tools.log", LIKE_GO))
    async with running(path) as hub:
        result = (await call_tool(hub, "tail")).tool_call.result
        assert unpack(result, None) == {"text": "line 0\nline 1\nline 2\n"}
        assert (await call_tool(hub, "nothing")).tool_call.error_code == "tool_not_found"

        start = StreamStart(stream_id="s", tool_name="tail")
        responses = [response async for response in hub.stream(start, SOMEBODY)]
        assert [item.stream_chunk.data for item in responses[:-1]] == [
            b"line 0\n",
            b"line 1\n",
            b"line 2\n",
        ]
        assert {item.stream_chunk.stream_id for item in responses[:-1]} == {"s"}
        assert responses[-1].stream_end.success

        # A tool without a stream is called once, as usual, and its response is the end.
        for _ in range(2):
            arguments = pack({"a": 1}).struct
            start = StreamStart(stream_id="s", tool_name="echo", arguments=arguments, window=1)
            [end] = [response async for response in hub.stream(start, SOMEBODY)]
            assert unpack(end.stream_end.result.result, None) == {"a": 1}

        [end] = [
            response
            async for response in hub.stream(
                StreamStart(stream_id="s", tool_name="missing"), SOMEBODY
            )
        ]
        assert end.stream_end.error_code == "tool_not_found"
        assert end.stream_end.error_message == "no plugin has the tool 'missing'"


@on_a_loop
async def test_a_tool_of_a_go_program_without_a_stream_has_its_result_if_progress_is_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PluginProcess, "uses_quic", True)
    path = write_plugins_file(folder, raw(folder, "tools.log", LIKE_GO))
    heard: list[str | None] = []
    async with Client(EmbeddedHub(read_plugins(path))) as client:
        for _ in range(2):
            result = await client.call_tool("echo", {"text": "hi"}, progress=lambda *_: None)
            assert result.text == "hi"
        result = await client.call_tool(
            "tail", progress=lambda done, total, message: heard.append(message)
        )
        assert result.text == "line 0\nline 1\nline 2\n"
        assert heard[-1] == "line 2\n"


# A tool that is only a stream, and has no end. It notes when it is cancelled.
DRIP = """
tools.append("drip")
easy = answer
async def drip(start):
    try:
        say("begun")
        while True:
            yield PluginResponse(stream_chunk=StreamChunk(stream_id=start.stream_id, data=b"."))
            await asyncio.sleep(0.01)
    finally:
        open(__file__ + ".closed", "w").close()
async def answer(request, peer):
    if request.HasField("stream_start"):
        open(__file__ + ".begun", "w").close()
        return drip(request.stream_start)
    if request.HasField("tool_call"):
        return error_response("", "tool_not_found", 'tool "drip" not found')
    return await easy(request, peer)
"""


@on_a_loop
async def test_a_relayed_call_that_became_a_stream_is_cancelled_in_the_plugin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PluginProcess, "uses_quic", True)
    path = write_plugins_file(folder, raw(folder, "tools.drip", DRIP))
    options = {"is_private": False, "listen_addr": f"unix:{folder}/hub"}
    async with running(path, **options) as hub:
        link = await open_link(hub.addresses[0])
        call = PluginRequest(tool_call=ToolRequest(tool_name="drip", arguments=b""))
        calling = asyncio.ensure_future(link.request(call, 60.0))
        async with asyncio.timeout(60):
            while not (folder / "tools_drip.py.begun").exists():
                await asyncio.sleep(0.01)
            calling.cancel()
            await asyncio.wait((calling,))
            while not (folder / "tools_drip.py.closed").exists():
                await asyncio.sleep(0.01)
        await link.close()


FLOOD = """
import pathlib
from concertino import Context, Plugin
plugin = Plugin("tools.flood")
here = pathlib.Path(__file__).parent
sent = 0
@plugin.tool
async def flood(context: Context) -> str:
    global sent
    try:
        while True:
            await context.progress(sent, None, "x" * 10_000)
            sent += 1
    finally:
        (here / "closed").touch()
@plugin.tool
async def count() -> int:
    return sent
plugin.run()
"""


async def count_when_flood_stops(hub: Hub) -> int:
    """Return how many chunks of 10 kB the tool `flood` has sent when it sends no more.

    Calls of another tool of the plugin are answered meanwhile.
    """
    counts = [-1, 0]
    while counts[-1] != counts[-2]:
        for _ in range(20):
            result = (await call_tool(hub, "count")).tool_call
        counts.append(unpack(result.result)["data"])
    return counts[-1]


@pytest.mark.parametrize("end", ["cancelled", "lost"])
@pytest.mark.parametrize("way", ["unix", "quic"])
@on_a_loop
async def test_a_caller_that_stops_reading_stops_the_plugin_behind_its_hub_and_nobody_else(
    folder: Path, way: str, end: str
) -> None:
    flood = sdk(folder, "tools.flood", FLOOD, socket=way == "unix")
    path = write_plugins_file(folder, flood, certs_dir=str(make_certificates(folder).folder))
    address = f"unix:{folder / 'hub.sock'}"
    async with running(path, is_private=False, listen_addr=address) as hub:
        link = await open_link(address)
        start = StreamStart(stream_id="1", tool_name="flood", window=WINDOW_BYTES)
        responses = link.stream(PluginRequest(stream_start=start), 60)
        await anext(responses)
        # Two windows over QUIC, where the hub is a receiver of its own, and what is on its way.
        assert await count_when_flood_stops(hub) < 3 * WINDOW_BYTES // 10_000
        if end == "cancelled":
            await responses.aclose()
        await link.close()
        while not (folder / "closed").exists():
            await asyncio.sleep(0.01)
        await responses.aclose()
        assert (await call_tool(hub, "count")).tool_call.success


TRACED = """
from concertino import Context, Plugin
plugin = Plugin("tools.traced")
@plugin.tool
async def trace(context: Context) -> str:
    return context.meta.get("traceparent", "none")
plugin.run()
"""


@on_a_loop
async def test_the_trace_context_of_a_call_reaches_the_plugin_also_as_a_stream(
    folder: Path,
) -> None:
    path = write_plugins_file(folder, sdk(folder, "tools.traced", TRACED))
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with Client(EmbeddedHub(read_plugins(path))) as client:
        for progress in (None, lambda *_: None):
            result = await client.call_tool("trace", meta=trace, progress=progress)
            assert result.text == trace["traceparent"]
            result = await client.call_tool("trace", meta={"traceparent": 5}, progress=progress)
            assert result.text == "none"
