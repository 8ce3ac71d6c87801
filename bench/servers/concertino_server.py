"""concertino as its users write it: decorated functions, `run()`. Also what `concertino serve` is
started with.
"""

import asyncio

from concertino import Server

server = Server("bench")


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
    server.run()
