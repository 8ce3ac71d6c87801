"""A server of ours in an application of FastAPI, as docs/how-to/http.md shows it."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from server_for_http import server
from starlette.routing import Route

mcp = server.asgi("/mcp")
app = FastAPI(lifespan=mcp.lifespan)
app.router.routes.append(Route("/mcp", mcp))


@app.get("/hello", response_class=PlainTextResponse)
async def hello() -> str:
    return "hello"
