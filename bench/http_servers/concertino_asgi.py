"""concertino as an ASGI application under uvicorn: `python concertino_asgi.py PORT`."""

import sys

import uvicorn

from concertino import Server

server = Server("bench")


@server.tool
async def echo(text: str) -> str:
    return text


uvicorn.run(
    server.asgi(),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    loop="uvloop",
    http="httptools",
    log_level="critical",
    access_log=False,
)
