"""A server of ours in an application of Starlette, as docs/how-to/http.md shows it."""

from __future__ import annotations

from server_for_http import server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


mcp = server.asgi("/mcp")
app = Starlette(routes=[Route("/mcp", mcp), Route("/hello", hello)], lifespan=mcp.lifespan)
