"""Calls that a hub passes on as bytes, from a link to a plugin and back, with processes at the
other ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from loops import on_a_loop
from orchestra.hubs import entry, running, write_plugins_file

from concertino.orchestra.hub_calls import ToolCalls
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import (
    PluginRequest,
    PluginResponse,
    StreamStart,
    ToolRequest,
)
from concertino.orchestra.rpc_interface import ForwardingConnection
from concertino.orchestra.streams import WINDOW_BYTES, ResponseStream
from concertino.orchestra.structs import pack

ODD = """
import asyncio, sys
flags = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
from concertino.orchestra.plugin_pb2 import *
from concertino.orchestra.rpc_interface import error_response
async def serve(reader, writer):
    while size := await reader.read(4):
        request = PluginRequest.FromString(await reader.readexactly(int.from_bytes(size, "big")))
        kind, id = request.WhichOneof("request"), request.request_id
        if kind == "register":
            said = PluginResponse(register=RegistrationResult(accepted=True))
        elif kind == "boot":
            said = PluginResponse(boot=BootResult(ready=True))
        elif kind == "list_tools":
            names = "another", "garbage", "after"
            tools = [ToolDefinition(name=name) for name in names]
            said = PluginResponse(list_tools=ListToolsResponse(tools=tools))
        elif kind == "tool_call" and request.tool_call.tool_name == "after":
            said = PluginResponse(tool_call=ToolResponse(success=True))
        elif kind == "tool_call":
            said = PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))
        else:
            said = error_response("", "unknown_request", kind)
        said.request_id = id
        payload = said.SerializeToString()
        if kind == "tool_call" and request.tool_call.tool_name == "garbage":
            payload = PluginResponse(request_id=id).SerializeToString() + b"\\xa2\\x01\\x7f"
        if kind == "tool_call" and request.tool_call.tool_name == "after":
            payload += b"\\xc0\\x3e\\x01"  # field 1000, which is nobody's
        writer.write(len(payload).to_bytes(4, "big") + payload)
async def main():
    path = flags["--listen-addr"].removeprefix("unix:")
    async with await asyncio.start_unix_server(serve, path) as server:
        print("READY unix:" + path, file=sys.stderr, flush=True)
        await server.serve_forever()
asyncio.run(main())
"""


@on_a_loop
async def test_what_a_plugin_says_to_a_call_that_was_passed_on_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    tmp_path.chmod(0o700)
    address = f"unix:{tmp_path}/hub"
    async with running(
        write_plugins_file(tmp_path, entry("tools.odd", "./odd.py")),
        is_private=False,
        listen_addr=address,
    ):
        link = await open_link(address)
        another, garbage, after = [
            (
                await link.request(
                    PluginRequest(request_id="mine", tool_call=ToolRequest(tool_name=name))
                )
            )
            for name in ("another", "garbage", "after")
        ]
        await link.close()
    assert another.tool_call.error_code == "invalid_response"
    assert "answered tool_call with health" in another.tool_call.error_message
    assert garbage.tool_call.error_code == "routing_error"
    assert "cannot be decoded" in garbage.tool_call.error_message
    assert after.tool_call.success
    assert {each.request_id for each in (another, garbage, after)} == {"mine"}


class GoPlugin:
    """A Go plugin, whose response to a call is given by hand."""

    id = "tools.go"
    provides_ai = ()
    uses_quic = True
    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.in_flight = 0
        self.end: Callable[[bytes], object] | None = None

    def forward(
        self, body: bytes, timeout_s: float, callback: Callable[[bytes], object], stream: str = ""
    ) -> GoPlugin:
        self.in_flight += 1
        self.end = callback
        return self

    def end_forward(self) -> None:
        self.in_flight -= 1

    def cancel(self) -> None: ...


def test_a_malformed_response_that_mentions_a_missing_tool_ends_the_call() -> None:
    plugin, responses = GoPlugin(), []
    calls = ToolCalls(None)  # type: ignore[arg-type] # finds no plugin here
    calls.relay(plugin, b"", responses.append)  # type: ignore[arg-type]
    assert plugin.end is not None
    plugin.end(PluginResponse(request_id="1").SerializeToString() + b"\xa2\x01\x7ftool_not_found")
    [response] = map(PluginResponse.FromString, responses)
    assert response.tool_call.error_code == "routing_error"
    assert "cannot be decoded" in response.tool_call.error_message
    assert plugin.in_flight == 0


@on_a_loop
async def test_a_call_that_is_passed_on_is_cancelled_at_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio, pathlib\nfrom concertino import Plugin\nplugin = Plugin('tools.slow')\n"
        "@plugin.tool\nasync def sleep(path: str) -> str:\n"
        "    pathlib.Path(path + '.began').touch()\n"
        "    try:\n        await asyncio.Event().wait()\n"
        "    finally:\n        pathlib.Path(path + '.over').touch()\n"
        "plugin.run()\n"
    )
    tmp_path.chmod(0o700)
    address = f"unix:{tmp_path}/hub"
    async with running(
        write_plugins_file(tmp_path, entry("tools.slow", "./slow.py")),
        is_private=False,
        listen_addr=address,
    ):
        link = await open_link(address)
        arguments = pack({"path": f"{tmp_path}/call"}).struct
        request = PluginRequest(tool_call=ToolRequest(tool_name="sleep", arguments=arguments))
        asking = asyncio.create_task(link.request(request))
        await wait_for_file(tmp_path / "call.began")
        asking.cancel()
        await wait_for_file(tmp_path / "call.over")
        await link.close()


async def wait_for_file(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():  # another process makes it
            await asyncio.sleep(0.01)


STREAMING = """
import asyncio, os, pathlib
from concertino import Plugin
plugin = Plugin('tools.streaming')
@plugin.tool
async def letters(text: str):
    for letter in text:
        yield letter
@plugin.tool
async def blocks(count: int, path: str):
    try:
        for number in range(count):
            pathlib.Path(path).write_text(str(number + 1))
            yield "x" * 65536
            await asyncio.sleep(0)
    finally:
        pathlib.Path(path + '.over').touch()
@plugin.tool
async def die():
    yield "last words"
    await asyncio.sleep(0)
    os._exit(3)
plugin.run()
"""


@asynccontextmanager
async def link_to_streams(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ForwardingConnection]:
    """Yield a connection to a hub that relays each stream, and decodes none."""

    async def decode(*_: object) -> ResponseStream:
        raise AssertionError("the stream was not relayed")
        yield PluginResponse()

    monkeypatch.setattr(ToolCalls, "stream", decode)
    (folder / "streaming.py").write_text(STREAMING)
    folder.chmod(0o700)
    address = f"unix:{folder}/hub"
    file = write_plugins_file(folder, entry("tools.streaming", "./streaming.py"))
    async with running(file, is_private=False, listen_addr=address):
        link = await open_link(address)
        yield link
        await link.close()


def stream(link: ForwardingConnection, tool: str, **arguments: object) -> ResponseStream:
    start = StreamStart(tool_name=tool, arguments=pack(arguments).struct)
    return link.stream(PluginRequest(stream_start=start), 60)


@on_a_loop
async def test_a_stream_between_sockets_is_passed_on_as_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with link_to_streams(tmp_path, monkeypatch) as link:
        *chunks, end = [item async for item in stream(link, "letters", text="abc")]
    assert [item.stream_chunk.data for item in chunks] == [b"a", b"b", b"c"]
    assert [item.stream_chunk.sequence for item in chunks] == [0, 1, 2]
    assert {item.request_id for item in (*chunks, end)} == {end.stream_end.stream_id}
    assert end.stream_end.success
    assert end.stream_end.total_chunks == 3


@on_a_loop
async def test_a_receiver_that_takes_nothing_pauses_a_stream_that_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, count = tmp_path / "blocks", 100
    async with link_to_streams(tmp_path, monkeypatch) as link:
        responses = stream(link, "blocks", count=count, path=str(path))
        await anext(responses)
        # Stop when the number of blocks has not changed during 50 calls of another tool.
        before = None
        while before != (before := path.read_text()):
            for _ in range(50):
                call = ToolRequest(tool_name="letters", arguments=pack({"text": "a"}).struct)
                assert (await link.request(PluginRequest(tool_call=call))).tool_call.success
        assert int(before) <= WINDOW_BYTES // 65536 + 2
        *rest, end = [item async for item in responses]
    assert len(rest) == count - 1
    assert end.stream_end.total_chunks == count


@on_a_loop
async def test_a_stream_that_is_passed_on_is_cancelled_at_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "blocks"
    async with link_to_streams(tmp_path, monkeypatch) as link:
        async with aclosing(stream(link, "blocks", count=1000, path=str(path))) as responses:
            await anext(responses)
        await wait_for_file(tmp_path / "blocks.over")
        assert int(path.read_text()) < 1000


@on_a_loop
async def test_a_second_stream_with_the_same_id_is_refused_and_takes_no_credits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = pack({"count": 8, "path": f"{tmp_path}/blocks"}).struct
    start = StreamStart(
        stream_id="same", tool_name="blocks", arguments=arguments, window=WINDOW_BYTES
    )
    body = PluginRequest(stream_start=start).SerializeToString()
    first: asyncio.Queue[PluginResponse] = asyncio.Queue()
    second: asyncio.Queue[PluginResponse] = asyncio.Queue()

    def put_into(queue: asyncio.Queue[PluginResponse]) -> Callable[[bytes | BaseException], None]:
        return lambda outcome: queue.put_nowait(PluginResponse.FromString(bytes(outcome)))  # type: ignore[arg-type]

    async with link_to_streams(tmp_path, monkeypatch) as link, asyncio.timeout(60):
        stream = link.forward(body, 60, put_into(first), "same")
        assert stream is not None
        assert (await first.get()).HasField("stream_chunk")
        assert link.forward(body, 60, put_into(second), "same") is not None
        refused = await second.get()
        assert refused.tool_call.error_message == "the stream id 'same' is in use already"
        stream.grant(8 * WINDOW_BYTES)
        while (response := await first.get()).HasField("stream_chunk"):
            pass
        assert response.stream_end.total_chunks == 8


@on_a_loop
async def test_a_stream_that_is_passed_on_fails_with_its_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with link_to_streams(tmp_path, monkeypatch) as link:
        chunk, end = [item async for item in stream(link, "die")]
    assert chunk.stream_chunk.data == b"last words"
    assert end.tool_call.error_code == "plugin_unavailable"
