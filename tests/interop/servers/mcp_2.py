"""A server of the official Python SDK, 2.x."""

import asyncio
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("two")


class Name(BaseModel):
    name: str


@server.tool()
async def add(a: int, b: int) -> int:
    return a + b


async def who() -> Elicit[Name]:
    return Elicit("Who are you?", Name)


@server.tool()
async def greet(name: Annotated[Name, Resolve(who)]) -> str:
    return f"accept {name.name}"


@server.tool()
async def slow(context: Context) -> str:
    for step in range(3):
        await context.report_progress(step + 1, 3, f"step {step + 1}")
    return "done"


@server.tool()
async def sleep() -> str:
    await asyncio.sleep(60)
    return "never"


@server.tool()
async def fail() -> str:
    raise ValueError("on purpose")


@server.resource("note://{name}")
def note(name: str) -> str:
    return f"about {name}"


@server.prompt()
def review(code: str) -> str:
    return f"Review {code}"


if __name__ == "__main__":
    server.run()
