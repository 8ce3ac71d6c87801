"""concertino over HTTP: `python concertino_http.py PORT [--uvloop]`."""

import sys

from concertino import Server

server = Server("bench")


@server.tool
async def echo(text: str) -> str:
    return text


if __name__ == "__main__":
    server.run(http=f"127.0.0.1:{sys.argv[1]}")
