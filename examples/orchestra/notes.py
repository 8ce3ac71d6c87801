"""Tools that store notes: they send requests to the hub, which asks a storage plugin."""

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
    """Send a request to the hub and return the response. Raises ToolError for an error."""
    if plugin.hub is None:
        raise ToolError("there is no hub, and so no storage: concertino serve plugins.yaml")
    response = await plugin.hub.request(request, timeout_s=10)
    # Every error response of the protocol has this form, whatever the request was.
    if response.HasField("tool_call"):
        raise ToolError(response.tool_call.error_message)
    return response


@plugin.tool
async def keep(name: str, text: str) -> str:
    """Store a note under a name. Replaces an existing note."""
    request = StorageWriteRequest(
        path=f"notes/{name}.md", content=text.encode(), expected_version=-1
    )
    written = (await ask(PluginRequest(storage_write=request))).storage_write
    if not written.success:
        raise ToolError(written.error)
    return f"kept {name}, version {written.new_version}"


@plugin.tool
async def recall(name: str) -> str:
    """Return the note with a name."""
    request = StorageReadRequest(path=f"notes/{name}.md")
    found = (await ask(PluginRequest(storage_read=request))).storage_read
    if found.HasField("failure"):
        raise ToolError(found.failure.message)
    return found.content.decode()


if __name__ == "__main__":
    plugin.run()
