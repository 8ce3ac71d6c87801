"""cluster_offers.py: hubs that call one another's plugins over a NATS server. All are real."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.hubs import (
    GREETER,
    SOMEBODY,
    WORKSHOP,
    call_tool,
    running,
    sdk,
    tools_of,
    until_tools,
    write_plugins_file,
)
from orchestra.nats_servers import NatsServerProcess
from orchestra.test_hub_streams import FLOOD, count_when_flood_stops
from orchestra.test_trace_context import PLUGIN, TRACE

from concertino.errors import Disconnected
from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.hub import Hub
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.nats_server import server_configuration
from concertino.orchestra.plugin_pb2 import (
    PluginRequest,
    PromptGetRequest,
    StorageReadRequest,
    StreamStart,
    ToolRequest,
)
from concertino.orchestra.streams import WINDOW_BYTES
from concertino.orchestra.structs import unpack

CALLER = """
@plugin.tool
async def caller(context: Context) -> str:
    return context.client.name

plugin.run()
"""
WORKSHOP_WITH_CALLER = WORKSHOP.replace("plugin.run()\n", CALLER)
HOLDING = """
import asyncio
from pathlib import Path
from concertino import Context, Plugin
plugin = Plugin("tools.workshop", version="1.0.0")

@plugin.tool
async def hold(context: Context) -> str:
    await context.progress(1, 2, "half")
    while not (Path(__file__).parent / "go").exists():
        await asyncio.sleep(0.02)
    return "done"

plugin.run()
"""

# An MCP server, whose plugin tells the hub of changes of its lists.
GROWING = """
from concertino import Context, Server
server = Server("growing")

@server.tool
async def grow(context: Context) -> str:
    @server.tool(name="grown")
    def grown() -> str:
        return "new"
    return "grown"

server.run()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServerProcess]:
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        process = NatsServerProcess(Path(folder))
        yield process
        process.stop()


@asynccontextmanager
async def hub_with(
    folder: Path, server: NatsServerProcess, *entries: Mapping[str, Any], **options: object
) -> AsyncIterator[Hub]:
    """A hub of the cluster, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    path = write_plugins_file(folder, *entries)
    async with running(path, **{"cluster": server.address, **options}) as hub:
        yield hub


@on_a_loop
async def test_a_tool_of_one_hub_s_plugin_is_called_through_another_hub(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    greeter = sdk(here, "tools.greeter", GREETER)
    async with hub_with(here, server, greeter), hub_with(there, server) as other:
        await until_tools(other, ["greet"])
        response = await call_tool(other, "greet", name="Ada")
        assert unpack(response.tool_call.result) == {"text": "Hello, Ada!"}


@on_a_loop
async def test_streams_prompts_and_callers_pass_between_hubs(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    workshop = sdk(here, "tools.workshop", WORKSHOP_WITH_CALLER)
    async with hub_with(here, server, workshop), hub_with(there, server) as other:
        await until_tools(other, ["caller", "count"])
        start = StreamStart(stream_id="1", tool_name="count", window=1 << 20)
        responses = [item async for item in other.stream(start, SOMEBODY)]
        assert [item.stream_chunk.data for item in responses[:-1]] == [b"half"]
        assert unpack(responses[-1].stream_end.result.result) == {"text": "done"}

        prompt = PromptGetRequest(prompt_name="ask", arguments={"topic": "a hub"})
        got = await other.answer(PluginRequest(prompt_get=prompt), SOMEBODY)
        assert got.prompt_get.messages[0].content.text == "What is a hub?"

        call = ToolRequest(tool_name="caller", caller_plugin="tools.asker")
        answered = await other.answer(PluginRequest(tool_call=call), SOMEBODY)
        assert unpack(answered.tool_call.result) == {"text": "tools.asker"}


@on_a_loop
async def test_a_caller_that_stops_reading_stops_a_plugin_of_another_hub(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    flood = sdk(here, "tools.flood", FLOOD)
    async with hub_with(here, server, flood), hub_with(there, server) as other:
        await until_tools(other, ["count", "flood"])
        start = StreamStart(stream_id="1", tool_name="flood", window=WINDOW_BYTES)
        responses = other.stream(start, SOMEBODY)
        await anext(responses)
        # Each hub is a receiver of its own.
        assert await count_when_flood_stops(other) < 3 * WINDOW_BYTES // 10_000
        await responses.aclose()
        while not (here / "closed").exists():
            await asyncio.sleep(0.01)


@on_a_loop
async def test_trace_context_passes_between_hubs(tmp_path: Path, server: NatsServerProcess) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    plugin = sdk(here, "tools.traced", PLUGIN)
    trace = {key: TRACE[key] for key in ("tracestate", "baggage")}
    call = {"tool_name": "trace", "trace_parent": TRACE["traceparent"], "trace": trace}
    async with hub_with(here, server, plugin), hub_with(there, server) as other:
        await until_tools(other, ["trace"])
        answered = await other.answer(PluginRequest(tool_call=ToolRequest(**call)), SOMEBODY)
        assert json.loads(unpack(answered.tool_call.result)["text"]) == TRACE
        start = StreamStart(stream_id="1", window=1 << 20, **call)
        [end] = [item async for item in other.stream(start, SOMEBODY)]
        assert json.loads(unpack(end.stream_end.result.result)["text"]) == TRACE
        prompt = PromptGetRequest(prompt_name="ask", trace=TRACE)
        got = await other.answer(PluginRequest(prompt_get=prompt), SOMEBODY)
        assert json.loads(got.prompt_get.messages[0].content.text) == TRACE


@on_a_loop
async def test_a_plugin_of_the_cluster_cannot_call_an_offered_one_in_another_s_name(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    async with hub_with(here, server, sdk(here, "tools.workshop", WORKSHOP_WITH_CALLER)):
        link = await open_link(server.address, name="tools.liar", expects="tools.workshop")
        call = ToolRequest(tool_name="caller", caller_plugin="tools.asker")
        answered = await link.request(PluginRequest(tool_call=call), 20)
        assert unpack(answered.tool_call.result) == {"text": "tools.liar"}
        await link.close()


@on_a_loop
async def test_a_new_tool_of_an_offered_plugin_reaches_other_hubs(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "growing.py").write_text(GROWING)
    command = [sys.executable, "growing.py"]
    growing = {"id": "tools.growing", "protocol": "mcp", "command": command, "enabled": True}
    async with hub_with(here, server, growing), hub_with(there, server) as other:
        await until_tools(other, ["grow"])
        await call_tool(other, "grow")
        await until_tools(other, ["grow", "grown"])


@on_a_loop
async def test_calls_go_to_the_other_hub_with_the_plugin_when_one_ends(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    one, two, there = tmp_path / "one", tmp_path / "two", tmp_path / "there"
    for folder in (one, two):
        folder.mkdir()
    greeters = [sdk(folder, "tools.greeter", GREETER) for folder in (one, two)]
    async with hub_with(two, server, greeters[1]), hub_with(there, server) as other:
        async with hub_with(one, server, greeters[0]):
            await until_tools(other, ["greet"])
        for _ in range(20):
            response = await call_tool(other, "greet", name="Bob")
            assert unpack(response.tool_call.result) == {"text": "Hello, Bob!"}


@on_a_loop
async def test_a_plugin_that_was_stopped_leaves_the_cluster(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    greeter = sdk(here, "tools.greeter", GREETER)
    async with hub_with(here, server, greeter) as hub, hub_with(there, server) as other:
        await until_tools(other, ["greet"])
        await hub.stop_plugin("tools.greeter")
        await until_tools(other, [])
        await hub.restart_plugin("tools.greeter")
        await until_tools(other, ["greet"])


@on_a_loop
async def test_a_call_of_another_hub_goes_on_after_its_plugin_was_removed(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    workshop = sdk(here, "tools.workshop", HOLDING)
    async with hub_with(here, server, workshop) as hub, hub_with(there, server) as other:
        await until_tools(other, ["hold"])
        start = StreamStart(stream_id="1", tool_name="hold", window=1 << 20)
        responses = other.stream(start, SOMEBODY)
        assert (await anext(responses)).stream_chunk.data == b"half"
        await hub.change_plugins([])
        await until_tools(other, [])
        (here / "go").touch()
        assert unpack((await anext(responses)).stream_end.result.result) == {"text": "done"}


@on_a_loop
async def test_a_hub_ends_although_a_call_of_another_hub_to_a_removed_plugin_does_not(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    workshop = sdk(here, "tools.workshop", HOLDING)
    async with hub_with(there, server) as other:
        async with hub_with(here, server, workshop) as hub:
            await until_tools(other, ["hold"])
            start = StreamStart(stream_id="1", tool_name="hold", window=1 << 20)
            responses = other.stream(start, SOMEBODY)
            assert (await anext(responses)).stream_chunk.data == b"half"
            await hub.change_plugins([])
            await until_tools(other, [])
        assert not (await anext(responses)).stream_end.success


@on_a_loop
async def test_storage_and_plugins_with_offer_false_stay_at_their_hub(
    tmp_path: Path, server: NatsServerProcess
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    store = {"id": "storage.files", "binary": "concertino", "enabled": True, "socket": True}
    entries = [
        sdk(here, "tools.greeter", GREETER),
        sdk(here, "tools.workshop", WORKSHOP_WITH_CALLER, offer=False),
        {**store, "args": ["plugin", "markdown", "--workspace=."]},
    ]
    async with hub_with(here, server, *entries), hub_with(there, server) as other:
        await until_tools(other, ["greet"])
        read = PluginRequest(storage_read=StorageReadRequest(path="notes/a.md"))
        response = await other.answer(read, SOMEBODY)
        assert response.storage_read.failure.code == "storage_not_found"


# With the permissions of a real server


@asynccontextmanager
async def guarded(folder: Path, offered: list[str]) -> AsyncIterator[tuple[str, Certificates]]:
    certificates = Certificates(folder / "certs")
    create_authority(certificates)
    names = ["tools.greeter", "tools.b"]
    text = server_configuration(names, certificates, folder / "store", -1, offered)
    # The line `listen` is that of NatsServerProcess.
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("listen:"))
    process = NatsServerProcess(folder, settings)
    try:
        yield process.address.replace("nats://", "tls://"), certificates
    finally:
        process.stop()


@on_a_loop
async def test_the_written_permissions_are_enough(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    async with guarded(tmp_path, ["tools.greeter"]) as (address, certificates):
        options = {"cluster": address, "certs_dir": certificates.crt("ca").parent}
        path = write_plugins_file(here, sdk(here, "tools.greeter", GREETER))
        async with running(path, **options), running(write_plugins_file(there), **options) as other:
            await until_tools(other, ["greet"])
            response = await call_tool(other, "greet", name="Ada")
            assert unpack(response.tool_call.result) == {"text": "Hello, Ada!"}
            # In pieces both ways, so that every kind of message is sent.
            long = "x" * 500_000
            response = await call_tool(other, "greet", name=long)
            assert unpack(response.tool_call.result) == {"text": f"Hello, {long}!"}


@on_a_loop
async def test_a_hub_may_not_answer_for_a_plugin_that_it_does_not_offer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path, ["tools.greeter"]) as (address, certificates):

        async def answer(*_: object) -> None:
            raise AssertionError("no request may arrive")

        with pytest.MonkeyPatch.context() as patch:
            # The hub's certificate, and the name of a plugin.
            patch.setattr("concertino.orchestra.nats_cluster.nats_user", lambda _: "orchestrator")
            with pytest.raises(Disconnected, match="Permissions Violation"):
                await listen_for_links(address, answer, certificates=certificates, name="tools.b")  # type: ignore[arg-type]


@on_a_loop
async def test_a_server_that_refuses_an_offer_is_logged_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    async with guarded(tmp_path, []) as (address, certificates):
        options = {"cluster": address, "certs_dir": certificates.crt("ca").parent}
        path = write_plugins_file(here, sdk(here, "tools.greeter", GREETER))
        warned = asyncio.Event()

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "is not offered to the cluster" in record.getMessage():
                    assert "`concertino cluster permissions`" in record.getMessage()
                    loop.call_soon_threadsafe(warned.set)

        loop = asyncio.get_running_loop()
        handler = Handler()
        logging.getLogger("concertino.hub").addHandler(handler)
        try:
            async with running(path, **options) as hub:
                await asyncio.wait_for(warned.wait(), 60)
                # Its own clients have the plugin all the same.
                assert await tools_of(hub) == ["greet"]
        finally:
            logging.getLogger("concertino.hub").removeHandler(handler)
