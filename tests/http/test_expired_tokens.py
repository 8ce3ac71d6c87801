"""Streams whose token expires while they are open. In this process, over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_service import INITIALIZE, call, modern, modern_headers
from loops import on_a_loop

from concertino import Context, Server
from concertino.backend import Host, Principal
from concertino.http import Authorization, HttpOptions, HttpServer, HttpTimeouts
from concertino.transports import listen_tcp

# How often expired tokens are looked for follows from the shortest limit: 10 ms here.
TIMEOUTS = HttpTimeouts(1000, 1000, 1000, 0.04, 1000, 1000)


def verify(token: str) -> Principal:
    """The principal of a token, which is `short` or `long`."""
    return Principal("ada", expires=time.time() + 0.2 if token == "short" else None)


def make_server(released: asyncio.Event) -> Server:
    server = Server("expiry")

    @server.tool
    async def wait(context: Context) -> str:
        await context.progress(1)
        await released.wait()
        return "released"

    @server.tool
    async def watch(context: Context) -> str:
        context.caller.hold_open()
        await context.caller.notify("example.com/news", {})
        await released.wait()
        return ""

    return server


class Requests:
    """Raw requests to a server, each on a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def send(
        self, method: str, token: str, message: Any = None, **headers: str
    ) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.writers.append(writer)
        body = b"" if message is None else json.dumps(message).encode()
        given = {
            "Host": "localhost",
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"{method} /mcp HTTP/1.1", *(f"{key}: {text}" for key, text in given.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return reader


@asynccontextmanager
async def running(released: asyncio.Event) -> AsyncGenerator[Requests]:
    listener = listen_tcp("127.0.0.1", 0)
    options = HttpOptions(timeouts=TIMEOUTS, authorization=Authorization((verify,)))
    async with Host(make_server(released)) as host:
        http = HttpServer(host, [listener], options)
        await http.start()
        requests = Requests(listener.socket.getsockname()[1])
        yield requests
        for writer in requests.writers:
            writer.close()
        host.drain()
        http.stop()
        await http.closed


async def open_session(requests: Requests) -> str:
    reader = await requests.send("POST", "long", INITIALIZE)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return next(
        line.partition(":")[2].strip()
        for line in head.split("\r\n")
        if line.lower().startswith("mcp-session-id:")
    )


@pytest.mark.requirement("AU-15", side="authorization")
@on_a_loop
async def test_the_stream_of_a_session_ends_and_a_new_token_opens_it_again() -> None:
    async with running(asyncio.Event()) as requests:
        session = await open_session(requests)

        reader = await requests.send("GET", "short", Mcp_Session_Id=session)
        # The response is complete, and the connection is closed.
        assert (await reader.read()).endswith(b"0\r\n\r\n")

        reader = await requests.send("GET", "long", Mcp_Session_Id=session)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for _ in range(30):
            # Comments: this stream goes on.
            await reader.readuntil(b":\r\n")


@pytest.mark.requirement("AU-15", side="authorization")
@on_a_loop
async def test_a_subscription_ends() -> None:
    async with running(asyncio.Event()) as requests:
        message = modern("subscriptions/listen", notifications={"toolsListChanged": True})

        reader = await requests.send("POST", "short", message, **modern_headers(message))

        response = await reader.read()
        assert b"notifications/subscriptions/acknowledged" in response
        assert response.endswith(b"0\r\n\r\n")


@pytest.mark.requirement("AU-15", side="authorization")
@pytest.mark.parametrize("is_session", [False, True])
@on_a_loop
async def test_a_call_that_is_held_open_as_a_subscription_ends(is_session: bool) -> None:
    async with running(asyncio.Event()) as requests:
        if is_session:
            message = call(1, "watch")
            headers = {"Mcp_Session_Id": await open_session(requests)}
        else:
            message = modern("tools/call", name="watch", arguments={})
            headers = modern_headers(message)

        reader = await requests.send("POST", "short", message, **headers)

        response = await reader.read()
        assert b"example.com/news" in response
        assert response.endswith(b"0\r\n\r\n")


@on_a_loop
async def test_a_call_that_has_begun_may_finish() -> None:
    released = asyncio.Event()
    async with running(released) as requests:
        message = modern("tools/call", name="wait", arguments={}, _meta={"progressToken": 1})
        reader = await requests.send("POST", "short", message, **modern_headers(message))
        for _ in range(30):
            # 1.2 s of comments, and the token was valid for 0.2 s.
            await reader.readuntil(b":\r\n")
        released.set()

        assert b"released" in await reader.readuntil(b"0\r\n\r\n")
