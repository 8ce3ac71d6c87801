"""A server of FastMCP."""

import asyncio

from fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP("fast")


class Name(BaseModel):
    name: str


@server.tool()
async def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def greet(context: Context) -> str:
    answer = await context.elicit("Who are you?", response_type=Name)
    return f"{answer.action} {answer.data.name if answer.action == 'accept' else ''}".strip()


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
