"""A server of the official Python SDK, 2.x, that asks its client as before 2026-07-28."""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("asking")


class Name(BaseModel):
    name: str


@server.tool()
async def greet(context: Context) -> str:
    answer = await context.elicit("Who are you?", Name)
    return f"{answer.action} {answer.data.name if answer.action == 'accept' else ''}".rstrip()


if __name__ == "__main__":
    server.run()
