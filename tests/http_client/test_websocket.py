"""Clients of servers at ws: URLs: our server, and scripted servers of the package `websockets`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from http_service import HttpService, serving
from loops import on_a_loop
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve

from concertino import Client, Disconnected, Limits
from concertino.client import HttpParameters
from concertino.http_client import websocket
from concertino.proxy import Proxy

SERVER = Path(__file__).parent.parent / "http" / "server_for_http.py"
ERAS: list[Literal["modern", "legacy"]] = ["modern", "legacy"]


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER, "--websocket") as running:
        yield running


def url_of(service: HttpService) -> str:
    return service.url.replace("http:", "ws:")


@pytest.mark.parametrize("era", ERAS)
@on_a_loop
async def test_calls_progress_and_questions_in_both_eras(
    service: HttpService, era: Literal["modern", "legacy"]
) -> None:
    seen: list[float] = []

    def report(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    async def answer(*_: object) -> dict[str, Any]:
        return {"name": "Ada"}

    async with Client(url_of(service), era=era, elicit=answer) as client:
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        assert await client.call_tool("count", progress=report, into=str) == "counted"
        assert await client.call_tool("ask", into=str) == "hello Ada"
        calls = [client.call_tool("add", {"a": i, "b": 1}, into=int) for i in range(40)]
        assert await asyncio.gather(*calls) == list(range(1, 41))
        assert len(await client.call_tool("large", {"size": 1_000_000}, into=str)) == 1_000_000

    assert seen == [1, 2]


@on_a_loop
async def test_a_proxy_uses_one(service: HttpService) -> None:
    async with Client(Proxy(url_of(service))) as client:
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3


def test_the_commands_use_one(service: HttpService) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "concertino", "call", "add", "a=1", "b=2", "--", url_of(service)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout.strip()) == (0, "3"), ended.stderr


@on_a_loop
async def test_a_server_without_websockets_is_an_error_that_names_the_status() -> None:
    with (
        serving(SERVER) as service,
        pytest.raises(Disconnected, match="no WebSocket: HTTP 405 Method Not Allowed"),
    ):
        async with Client(url_of(service)):
            pass


@on_a_loop
async def test_a_token_is_sent_and_a_missing_one_is_named() -> None:
    verifier = SERVER.with_name("verifier_for_http.py")
    with serving(SERVER, "--websocket", "--auth", f"{verifier}:verify") as service:
        url = url_of(service)
        parameters = HttpParameters(url, {"Authorization": "Bearer good-ada"})
        async with Client(parameters) as client:
            assert await client.call_tool("whoami", into=str) == "good-ada"
        with pytest.raises(Disconnected, match="no WebSocket: HTTP 401 Unauthorized"):
            async with Client(HttpParameters(url, {"Authorization": "Bearer bad"})):
                pass


Script = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script, **options: Any) -> AsyncGenerator[tuple[str, WebSocketServer]]:
    """A server that does with each client what the script says."""
    async with serve(script, "127.0.0.1", 0, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/mcp?key=1", server


async def answer_discover(server: ServerConnection) -> None:
    """Answer the first request of a client of 2026-07-28."""
    request = json.loads(await server.recv())
    result = {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
    }
    await server.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))


@on_a_loop
async def test_a_server_that_pings_and_does_not_read_the_pongs_is_left() -> None:
    unread = asyncio.Event()

    async def script(server: ServerConnection) -> None:
        await answer_discover(server)
        server.transport.pause_reading()
        ping = b"\x89\x7d" + bytes(125)
        while not server.transport.is_closing():
            server.transport.write(1000 * ping)
            # Wait until the client has read nearly all of it.
            while server.transport.get_write_buffer_size() > len(ping):
                await asyncio.sleep(0)
        unread.set()

    async with scripted(script) as (url, _), Client(url) as client:
        with pytest.raises(Disconnected, match="does not read the pongs"):
            await asyncio.wait_for(client.call_tool("t"), 60)
        await asyncio.wait_for(unread.wait(), 60)


@on_a_loop
async def test_what_the_server_sees_of_the_client() -> None:
    seen: list[Any] = []

    async def script(server: ServerConnection) -> None:
        assert server.request is not None
        seen.append((server.request.path, server.subprotocol, server.protocol.extensions))
        await answer_discover(server)
        await server.wait_closed()
        seen.append(server.close_code)

    async with scripted(script, subprotocols=["mcp"], compression="deflate") as (url, _):
        async with Client(url):
            pass
        while len(seen) < 2:
            await asyncio.sleep(0.01)

    assert seen == [("/mcp?key=1", "mcp", []), 1000]


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (
            lambda server: server.close(1011, "no more"),
            "the other side has closed the WebSocket (1011: no more)",
        ),
        (
            lambda server: server.send(b"binary"),
            "this side has closed the WebSocket (1003: expected text",
        ),
        (lambda server: server.send("x" * 70_000), "this side has closed the WebSocket (1009"),
        (lambda server: server.transport.abort(), "the connection was lost"),
    ],
    ids=["closed", "binary", "too-large", "aborted"],
)
@on_a_loop
async def test_the_end_of_a_connection_says_why(
    end: Callable[[Any], Awaitable[None] | None], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(server: ServerConnection) -> None:
        await answer_discover(server)
        await server.recv()
        ending = end(server)
        if ending is not None:
            await ending
        await server.wait_closed()

    async with scripted(script) as (url, _):
        client = Client(url, limits=Limits(max_message_bytes=65_536))
        async with client:
            with pytest.raises(Disconnected):
                await client.call_tool("t")
        # The key in the URL is not logged.
        address = url.partition("?")[0]
        assert f"{address}: {text}" in caplog.text


@on_a_loop
async def test_a_server_that_answers_no_ping_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "SILENT_S", 0.05)
    given_up = asyncio.Event()

    async def script(server: ServerConnection) -> None:
        await answer_discover(server)
        await server.recv()
        server.transport.pause_reading()
        await given_up.wait()
        server.transport.abort()

    async with scripted(script, ping_interval=None) as (url, _):
        async with Client(url) as client:
            with pytest.raises(Disconnected):
                await client.call_tool("t")
        given_up.set()


@on_a_loop
async def test_a_server_that_is_silent_and_answers_pings_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "SILENT_S", 0.05)

    async def script(server: ServerConnection) -> None:
        await answer_discover(server)
        request = json.loads(await server.recv())
        await asyncio.sleep(0.5)
        result = {"resultType": "complete", "content": [{"type": "text", "text": "ok"}]}
        await server.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}))
        await server.wait_closed()

    async with scripted(script, ping_interval=None) as (url, _), Client(url) as client:
        assert await client.call_tool("t", into=str) == "ok"


@on_a_loop
async def test_something_else_than_http_is_an_error() -> None:
    async def serve_other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve_other, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Disconnected, match="no WebSocket"):
            async with Client(f"ws://127.0.0.1:{port}/mcp"):
                pass
