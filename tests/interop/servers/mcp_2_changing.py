"""A server of the official Python SDK, 2.x, that says what changes to those who subscribe, and ends
their subscriptions.
"""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("changing")


@server.resource("note://{name}")
def note(name: str) -> str:
    return f"about {name}"


@server.tool()
async def touch(uri: str, context: Context) -> str:
    await context.notify_resource_updated(uri)
    return "touched"


@server.tool()
async def grow(context: Context) -> str:
    await context.notify_tools_changed()
    return "grown"


@server.tool()
async def hang_up() -> str:
    """End every subscription."""
    listening = server._lowlevel_server._request_handlers["subscriptions/listen"].handler
    count = len(listening._streams)
    listening.close()
    return str(count)


if __name__ == "__main__":
    server.run()
