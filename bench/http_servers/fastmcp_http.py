"""FastMCP over HTTP: `python fastmcp_http.py PORT`."""

import sys

from fastmcp import FastMCP

server = FastMCP("bench")


@server.tool
async def echo(text: str) -> str:
    return text


server.run(
    transport="http",
    host="127.0.0.1",
    port=int(sys.argv[1]),
    show_banner=False,
    log_level="CRITICAL",
)
