"""Tools that keep notes, in whatever storage the hub has: they ask the hub, which asks the plugin that has it."""

from concertino import Plugin, ToolError
from concertino.orchestra.plugin_pb2 import (
    PluginRequest,
    PluginResponse,
    StorageReadRequest,
    StorageWriteRequest,
)

plugin = Plugin(
    "tools.notes", version="1.0.0", description="Keeps notes.", needs_storage=["markdown"]
)


async def ask(request: PluginRequest) -> PluginResponse:
    if plugin.hub is None:
        raise ToolError("there is no hub, and so no storage: concertino serve plugins.yaml")
    response = await plugin.hub.request(request, timeout_s=10)
    if response.HasField("tool_call"):  # the protocol's error answer, whatever was asked
        raise ToolError(response.tool_call.error_message)
    return response


@plugin.tool
async def keep(name: str, text: str) -> str:
    """Keep a note under a name, in place of the one that was there."""
    request = StorageWriteRequest(
        path=f"notes/{name}.md", content=text.encode(), expected_version=-1
    )
    written = (await ask(PluginRequest(storage_write=request))).storage_write
    if not written.success:
        raise ToolError(written.error)
    return f"kept {name}, version {written.new_version}"


@plugin.tool
async def recall(name: str) -> str:
    """Read the note of a name."""
    request = StorageReadRequest(path=f"notes/{name}.md")
    found = (await ask(PluginRequest(storage_read=request))).storage_read
    if found.HasField("failure"):
        raise ToolError(found.failure.message)
    return found.content.decode()


plugin.run()
