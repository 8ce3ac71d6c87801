"""concertino over HTTP: `python concertino_http.py PORT`, or a target of `concertino serve`."""

import sys

from concertino import Server

server = Server("bench")


@server.tool
async def echo(text: str) -> str:
    return text


if __name__ == "__main__" and len(sys.argv) > 1:
    server.run(http=f"127.0.0.1:{sys.argv[1]}")
