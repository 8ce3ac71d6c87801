"""FastMCP, as its users write it, without its banner (which may look for updates over the
network).
"""

import asyncio

from fastmcp import FastMCP

server = FastMCP("bench")


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
def echo_def(text: str) -> str:
    return text


@server.tool
async def sleep50() -> str:
    await asyncio.sleep(0.05)
    return "ok"


if __name__ == "__main__":
    server.run(show_banner=False)
