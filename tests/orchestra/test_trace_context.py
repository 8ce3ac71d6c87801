"""trace_context.py: trace context reaches plugins and MCP servers on every way through a hub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Raw
from orchestra.bridges import make_certificates
from orchestra.hubs import SOURCES, running, sdk, write_plugins_file

from concertino import Client, ServerParameters
from concertino.guards import Telemetry
from concertino.orchestra.embedded_hub import EmbeddedHub
from concertino.orchestra.plugin_messages import PluginRequest, StorageReadRequest, ToolRequest
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.trace_context import read_trace, trace_of

# The examples of W3C Trace Context, sections 3.2.2 and 3.3.1, and of W3C Baggage.
TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "userId=Am%C3%A9lie,serverNode=DF%2028",
}
TRACED = """
import json
from concertino import Context, {kind}
traced = {kind}("tools.traced")

def trace_of(context: Context) -> str:
    keys = "traceparent", "tracestate", "baggage"
    return json.dumps({{key: context.meta[key] for key in keys if key in context.meta}})

@traced.tool
async def trace(context: Context) -> str:
    return trace_of(context)

@traced.prompt
async def ask(context: Context) -> str:
    return trace_of(context)
"""
PLUGIN = TRACED.format(kind="Plugin") + "\ntraced.run()\n"
SERVER = (
    TRACED.format(kind="Server")
    + """
@traced.resource("trace://here")
async def here(context: Context) -> str:
    return trace_of(context)

traced.run()
"""
)


def plugins_file(folder: Path, way: str) -> Path:
    """A plugins file with one plugin, whose tool and prompt say what trace context they get."""
    if way == "mcp":
        (folder / "traced.py").write_text(SERVER)
        command = [sys.executable, "traced.py"]
        mcp = {"id": "tools.traced", "protocol": "mcp", "command": command, "enabled": True}
        return write_plugins_file(folder, mcp)
    traced = sdk(folder, "tools.traced", PLUGIN, socket=way == "unix")
    certificates = make_certificates(folder)
    return write_plugins_file(folder, traced, certs_dir=str(certificates.folder))


async def traces(client: Client, meta: dict[str, Any]) -> list[dict[str, str]]:
    """What a call, a call as a stream and a prompt get."""
    texts = [
        (await client.call_tool("trace", meta=meta, progress=progress)).text
        for progress in (None, lambda *_: None)
    ]
    prompt = await client.request("prompts/get", {"name": "ask"}, meta=meta)
    return [json.loads(text) for text in (*texts, prompt["messages"][0]["content"]["text"])]


@pytest.mark.parametrize("way", ["unix", "quic", "mcp"])
@on_a_loop
async def test_trace_context_reaches_plugins(folder: Path, way: str) -> None:
    path = plugins_file(folder, way)
    async with Client(EmbeddedHub(read_plugins(path))) as client:
        assert await traces(client, TRACE) == [TRACE] * 3
        some = {"tracestate": TRACE["tracestate"], "traceparent": 5, "baggage": "x" * 8193}
        assert await traces(client, some) == [{"tracestate": TRACE["tracestate"]}] * 3
        if way == "mcp":
            read = await client.request("resources/read", {"uri": "trace://here"}, meta=TRACE)
            assert json.loads(read["contents"][0]["text"]) == TRACE


@on_a_loop
async def test_it_passes_a_bridge_in_another_process(folder: Path) -> None:
    path = plugins_file(folder, "unix")
    address = f"unix:{folder / 'hub.sock'}"
    async with running(path, is_private=False, listen_addr=address):
        bridge = [sys.executable, "-m", "concertino", "bridge", f"--orchestrator-addr={address}"]
        parameters = ServerParameters(bridge[0], bridge[1:], env={"PYTHONPATH": SOURCES})
        async with Client(parameters) as client:
            assert await traces(client, TRACE) == [TRACE] * 3


@on_a_loop
async def test_plugins_are_told_the_span_of_the_hub(folder: Path) -> None:
    sdk_trace = pytest.importorskip("opentelemetry.sdk.trace")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    spans = memory.InMemorySpanExporter()
    provider = sdk_trace.TracerProvider()
    provider.add_span_processor(sdk_trace.export.SimpleSpanProcessor(spans))
    hub = EmbeddedHub(read_plugins(plugins_file(folder, "unix")))
    async with Client(Telemetry(hub, tracer_provider=provider)) as client:
        for meta in (TRACE, {}):
            found = await traces(client, meta)
            reported = [item for item in spans.get_finished_spans() if item.name != "tools/list"]
            spans.clear()
            for trace, span in zip(found, reported, strict=True):
                context = span.context
                ids = f"{context.trace_id:032x}-{context.span_id:016x}"
                parent = f"00-{ids}-{context.trace_flags:02x}"
                assert trace == {**meta, "traceparent": parent}
                assert meta == {} or context.trace_id == int(TRACE["traceparent"][3:35], 16)


def test_values_that_are_no_texts_or_too_long_are_left_out() -> None:
    assert read_trace({"traceparent": Raw(b"5"), "baggage": Raw(b'"a=b"')}) == {"baggage": "a=b"}
    assert read_trace({"tracestate": Raw(b'""'), "x": Raw(b'"y"')}) == {}
    assert read_trace({"baggage": Raw(b'"%s"' % (b"x" * 8193))}) == {}


def test_a_plugin_cannot_add_other_keys_to_the_meta_of_requests() -> None:
    others = {"orchestra/path": "x", "io.modelcontextprotocol/logLevel": "debug"}
    read = StorageReadRequest(path="notes://1", trace={**TRACE, **others})
    assert trace_of(PluginRequest(storage_read=read)) == TRACE
    call = ToolRequest(tool_name="add", trace_parent="00-1", trace={**others, "baggage": "a=b"})
    assert trace_of(PluginRequest(tool_call=call)) == {"traceparent": "00-1", "baggage": "a=b"}
