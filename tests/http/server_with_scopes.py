"""A server whose tools, prompts and resources need scopes, and that tells who calls."""

from __future__ import annotations

import asyncio

from concertino import Accepted, Context, Server
from concertino.errors import InsufficientScope

server = Server("scopes")


@server.tool
async def whoami(context: Context) -> list[str]:
    principal = context.principal
    assert principal is not None
    return [principal.subject, principal.client, *sorted(principal.scopes or ())]


@server.tool(scopes={"write"})
async def change(text: str) -> str:
    return f"changed {text}"


@server.tool(scopes={"write", "admin"})
async def destroy() -> str:
    return "destroyed"


@server.tool
async def open_file(path: str, context: Context) -> str:
    principal = context.principal
    needed = {f"files:{path}"}
    if principal is not None and principal.lacks(needed):
        raise InsufficientScope(needed)
    return f"opened {path}"


@server.tool
async def ask(context: Context) -> str:
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    answer = await context.elicit("Your name?", form, key="name")
    return f"hello {answer.content['name']}" if isinstance(answer, Accepted) else "declined"


@server.tool
async def wait() -> str:
    await asyncio.Event().wait()
    return ""


@server.prompt(scopes={"write"})
async def draft() -> str:
    return "Write a draft."


@server.resource("note://public")
async def public() -> str:
    return "public"


@server.resource("note://secret", scopes={"admin"})
async def secret() -> str:
    return "secret"


@server.resource("page://{name}", scopes={"admin"})
async def page(name: str) -> str:
    return name


if __name__ == "__main__":
    server.run()
