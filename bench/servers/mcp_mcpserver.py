"""The official Python SDK's high-level server, as its users write it."""

import asyncio

from mcp.server import MCPServer

server = MCPServer("bench")


@server.tool()
async def echo(text: str) -> str:
    return text


@server.tool()
def echo_def(text: str) -> str:
    return text


@server.tool()
async def sleep50() -> str:
    await asyncio.sleep(0.05)
    return "ok"


if __name__ == "__main__":
    server.run()
