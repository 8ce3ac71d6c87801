"""A server and its client over each transport with a URL, on the event loops of asyncio and uvloop.

The transports of uvloop are no subclasses of those of asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import uvloop
from loops import on_a_loop
from tls_certificates import write_certificate

from concertino import Accepted, Client, Context, Server
from concertino.backend import Host
from concertino.http.options import HttpOptions
from concertino.http.server import HttpServer
from concertino.http.tls import Tls
from concertino.transports import listen_tcp

ERAS: list[Literal["modern", "legacy"]] = ["modern", "legacy"]
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def make_server(cancelled: asyncio.Event) -> Server:
    server = Server("loops", version="1")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def ask(context: Context) -> str:
        await context.progress(1, 2)
        answer = await context.elicit("Your name?", FORM, key="name")
        return f"hello {answer.content['name']}" if isinstance(answer, Accepted) else "declined"

    @server.tool
    async def wait(context: Context) -> str:
        try:
            await context.progress(1)
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    return server


async def talk(url: str, era: Literal["modern", "legacy"], cancelled: asyncio.Event) -> None:
    is_waiting = asyncio.Event()

    def answer(*_: object) -> dict[str, Any]:
        return {"name": "Ada"}

    async with Client(url, era=era, elicit=answer) as client:
        texts = [str(number) for number in range(20)] + ["x" * 1_000_000]
        calls = (client.call_tool("echo", {"text": text}, into=str) for text in texts)
        assert await asyncio.gather(*calls) == texts
        assert await client.call_tool("ask", into=str) == "hello Ada"

        call = asyncio.create_task(
            client.call_tool("wait", progress=lambda *_: is_waiting.set(), into=str)
        )
        await is_waiting.wait()
        call.cancel()
        await cancelled.wait()


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss"])
@pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@on_a_loop
async def test_a_client_uses_a_server(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate, key = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = Tls(str(certificate), str(key)) if scheme in ("https", "wss") else None
    cancelled = asyncio.Event()
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]

    async with Host(make_server(cancelled)) as host:
        http = HttpServer(host, [listener], HttpOptions(tls=tls, websocket=True))
        await http.start()
        for era in ERAS:
            cancelled.clear()
            await talk(f"{scheme}://localhost:{port}/mcp", era, cancelled)
        host.drain()
        http.stop()
        await http.closed
