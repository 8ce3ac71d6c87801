"""The official Python SDK over HTTP: `python mcp_http.py PORT [--json]`."""

import sys

from mcp.server import MCPServer

server = MCPServer("bench", log_level="CRITICAL")


@server.tool()
async def echo(text: str) -> str:
    return text


server.run(
    "streamable-http",
    host="127.0.0.1",
    port=int(sys.argv[1]),
    json_response="--json" in sys.argv,
)
