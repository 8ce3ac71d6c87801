"""The server of the tests over HTTP."""

from __future__ import annotations

import asyncio
import sys

from concertino import Accepted, Context, Server

server = Server("http-tests", version="1.2")
# Set by `release`; `wait` waits for it.
released = asyncio.Event()


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def count(context: Context) -> str:
    for step in (1, 2):
        await context.progress(step, 2)
    return "counted"


@server.tool
async def wait(context: Context) -> str:
    print("waiting", file=sys.stderr, flush=True)
    try:
        await context.progress(1)
        await released.wait()
    except asyncio.CancelledError:
        print("wait was cancelled", file=sys.stderr, flush=True)
        raise
    released.clear()
    return "released"


@server.tool
async def watch(context: Context, count: int) -> str:
    """Send notifications, and then none for ever."""
    context.caller.hold_open()
    try:
        for number in range(count):
            await context.caller.notify("example.com/news", {"number": number})
        await asyncio.Event().wait()
    finally:
        print("watch has ended", file=sys.stderr, flush=True)
    return ""


@server.tool
async def release() -> str:
    released.set()
    return "ok"


@server.tool
async def large(size: int) -> str:
    return "x" * size


@server.tool
async def ask(context: Context) -> str:
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    answer = await context.elicit("Your name?", form, key="name")
    return f"hello {answer.content['name']}" if isinstance(answer, Accepted) else "declined"


@server.tool
async def grow() -> str:
    @server.tool(name="grown")
    async def grown() -> str:
        return "new"

    return "grown"


@server.tool
async def whoami(context: Context) -> str:
    principal = context.principal
    return "" if principal is None else f"{principal.issuer}{principal.subject}"


@server.resource("text://note")
async def note() -> str:
    return "a note"


if __name__ == "__main__":
    server.run()
