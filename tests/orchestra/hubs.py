"""Hubs in this process over plugins that are processes: good ones written with the SDK, and bad
ones by hand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

import concertino
from concertino.orchestra.hub import Hub
from concertino.orchestra.plugin_pb2 import (
    ListToolsRequest,
    PluginRequest,
    PluginResponse,
    StorageReadRequest,
    StorageWriteRequest,
    ToolRequest,
)
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.rpc_interface import RemotePeer
from concertino.orchestra.structs import pack

SOURCES = str(Path(concertino.__file__).parents[1])
SOMEBODY = RemotePeer("unix:/test", None, os.getpid(), os.geteuid())
GREETER = """
from concertino import Plugin
plugin = Plugin("tools.greeter", version="1.2.0")
@plugin.tool
def greet(name: str) -> str:
    "Greet somebody."
    return f"Hello, {name}!"
plugin.run()
"""
WORKSHOP = """
from concertino import Context, Plugin
plugin = Plugin("tools.workshop", version="1.0.0")

@plugin.tool
async def count(context: Context) -> str:
    await context.progress(1, 2, "half")
    return "done"

@plugin.prompt
def ask(topic: str) -> str:
    return f"What is {topic}?"

plugin.run()
"""
# What a plugin is to the hub, without the SDK: each test gives `answers`, and what happens around
# them.
RAW = """
import asyncio, os, signal, sys, time
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.rpc_interface import error_response
from concertino.orchestra.plugin_pb2 import *
flags = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
address, hub = flags["--listen-addr"], flags["--orchestrator-addr"]
def say(line):
    os.write(2, line.encode() + b"\\n")
tools = []
async def answer(request, peer):
    kind = request.WhichOneof("request")
    if kind == "register":
        return PluginResponse(register=RegistrationResult(accepted=True))
    if kind == "boot":
        return PluginResponse(boot=BootResult(ready=True))
    if kind == "list_tools":
        definitions = [ToolDefinition(name=name) for name in tools]
        return PluginResponse(list_tools=ListToolsResponse(tools=definitions))
    if kind == "health":
        return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))
    if kind == "tool_call":
        result = request.tool_call.arguments
        return PluginResponse(tool_call=ToolResponse(success=True, result=result))
    return error_response("", "unknown_request", kind)
async def main():
    await listen_for_links(address, answer)
    say("READY " + address)
    await asyncio.Event().wait()
"""


def entry(id: str, binary: str, **members: Any) -> dict[str, Any]:
    """An entry of a plugins file; the plugin imports this concertino."""
    environment = {"PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1", **members.pop("env", {})}
    return {
        "id": id,
        "binary": binary,
        "enabled": True,
        "socket": True,
        "env": environment,
        **members,
    }


def write_plugins_file(folder: Path, *entries: Mapping[str, Any], **members: Any) -> Path:
    """A plugins file in a folder."""
    path = folder / "plugins.yaml"
    path.write_text(
        yaml.safe_dump({**members, "plugins": [dict(each) for each in entries]}, sort_keys=False)
    )
    return path


def raw(folder: Path, id: str, body: str = "", **members: Any) -> dict[str, Any]:
    """A plugin by hand, and its entry. body: Python after RAW and before it runs."""
    name = f"{id.replace('.', '_')}.py"
    (folder / name).write_text(f"{RAW}\n{body}\nasyncio.run(main())\n")
    return entry(id, name, **members)


def sdk(folder: Path, id: str, code: str, **members: Any) -> dict[str, Any]:
    """A plugin with the SDK, and its entry."""
    name = f"{id.replace('.', '_')}.py"
    (folder / name).write_text(code)
    return entry(id, name, **members)


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[Hub]:
    """A hub of a plugins file that has started, and listens for its plugins only unless told
    otherwise.
    """
    hub = Hub(read_plugins(path), **{"is_private": True, **options})
    try:
        await hub.start()
        yield hub
    finally:
        await hub.stop()


async def call_tool(hub: Hub, tool: str, **arguments: Any) -> PluginResponse:
    request = PluginRequest(
        request_id="1", tool_call=ToolRequest(tool_name=tool, arguments=pack(arguments).struct)
    )
    return await hub.answer(request, SOMEBODY)


async def store(hub: Hub, path: str, content: bytes, kind: str = "") -> PluginResponse:
    request = StorageWriteRequest(
        path=path, content=content, expected_version=-1, storage_type=kind
    )
    return await hub.answer(PluginRequest(storage_write=request), SOMEBODY)


async def read(hub: Hub, path: str, kind: str = "") -> PluginResponse:
    return await hub.answer(
        PluginRequest(storage_read=StorageReadRequest(path=path, storage_type=kind)), SOMEBODY
    )


async def until(hub: Hub, id: str, state: str) -> None:
    """Wait until a plugin is in a state: looked at again with each change that the hub is
    told of.
    """
    plugin = hub.plugins[id]
    changed = asyncio.Event()
    before = plugin._on_change

    def told() -> None:
        before()
        changed.set()

    plugin._on_change = told
    try:
        while plugin.state != state:
            changed.clear()
            await changed.wait()
    finally:
        plugin._on_change = before


async def tools_of(hub: Hub) -> list[str]:
    response = await hub.answer(PluginRequest(list_tools=ListToolsRequest()), SOMEBODY)
    return [tool.name for tool in response.list_tools.tools]


async def until_tools(hub: Hub, expected: list[str]) -> None:
    """Wait until a hub has exactly these tools, in this order."""
    changed = asyncio.Event()
    hub.on_change = lambda _: changed.set()
    while await tools_of(hub) != expected:
        changed.clear()
        await asyncio.wait_for(changed.wait(), 60)


def is_gone(pid: int) -> bool:
    """Whether there is no such process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()
