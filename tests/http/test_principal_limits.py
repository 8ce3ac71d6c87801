"""Limits of a principal, whatever the number of its connections: in this process, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_service import INITIALIZE, modern
from loops import on_a_loop

from concertino import Server
from concertino.backend import Host, Principal
from concertino.http import Authorization, HttpOptions, HttpServer, PrincipalLimits
from concertino.transports import listen_tcp

WAIT_S = 30.0


class Rig:
    def __init__(self, http: HttpServer, port: int, entered: asyncio.Semaphore) -> None:
        self.http = http
        self.port = port
        self.entered = entered
        self.writers: list[asyncio.StreamWriter] = []

    async def send(
        self, token: str, message: dict[str, Any], *headers: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request on a connection of its own."""
        import json

        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        body = json.dumps(message)
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json",
                 f"Authorization: Bearer {token}", *headers, f"Content-Length: {len(body)}", "",
                 body]  # fmt: skip
        writer.write("\r\n".join(lines).encode())
        return reader, writer

    async def status(self, token: str, message: dict[str, Any], *headers: str) -> int:
        reader, _ = await self.send(token, message, *headers)
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        assert (b"Retry-After:" in head) is (status == 429)
        return status


@asynccontextmanager
async def running(limits: PrincipalLimits) -> AsyncIterator[Rig]:
    server, entered = Server("limits", version="1"), asyncio.Semaphore(0)

    @server.tool
    async def wait(text: str = "") -> str:
        entered.release()
        await asyncio.Event().wait()
        return ""

    @server.tool
    async def echo(text: str) -> str:
        return text

    listener = listen_tcp("127.0.0.1", 0)
    authorization = Authorization((lambda token: Principal(token, "client"),))
    options = HttpOptions(authorization=authorization, principal_limits=limits)
    async with Host(server) as host:
        http = HttpServer(host, [listener], options)
        await http.start()
        rig = Rig(http, listener.socket.getsockname()[1], entered)
        try:
            yield rig
        finally:
            for writer in rig.writers:
                writer.transport.abort()
            host.drain()
            http.stop()
            async with asyncio.timeout(WAIT_S):
                await http.closed


def tool(name: str, **arguments: str) -> tuple[Any, ...]:
    message = modern("tools/call", name=name, arguments=arguments)
    return (message, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call",
            f"Mcp-Name: {name}")  # fmt: skip


@pytest.mark.requirement("AU-14", side="authorization")
@on_a_loop
async def test_requests_under_way() -> None:
    async with running(PrincipalLimits(max_requests=3)) as rig:
        for _ in range(3):
            await rig.send("ann", *tool("wait"))
            await rig.entered.acquire()

        assert await rig.status("ann", *tool("echo", text="x")) == 429
        # Others are not held back, and a call that has ended makes room.
        assert await rig.status("bob", *tool("echo", text="x")) == 200
        rig.writers[0].transport.abort()
        while await rig.status("ann", *tool("echo", text="x")) == 429:
            await asyncio.sleep(0)


@pytest.mark.requirement("AU-14", side="authorization")
@on_a_loop
async def test_bytes_under_way() -> None:
    async with running(PrincipalLimits(max_request_bytes=1000)) as rig:
        # One request may be larger than that: max_message_bytes is for those.
        await rig.send("ann", *tool("wait", text="x" * 2000))
        await rig.entered.acquire()
        assert await rig.status("ann", *tool("echo", text="x")) == 429
        assert await rig.status("bob", *tool("echo", text="x" * 500)) == 200


@pytest.mark.requirement("AU-14", side="authorization")
@on_a_loop
async def test_the_rate() -> None:
    async with running(PrincipalLimits(rate="2/1000")) as rig:
        statuses = [await rig.status("ann", *tool("echo", text="x")) for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        assert await rig.status("bob", *tool("echo", text="x")) == 200


@pytest.mark.requirement("AU-14", side="authorization")
@on_a_loop
async def test_sessions() -> None:
    async with running(PrincipalLimits(max_sessions=2)) as rig:
        sessions = rig.http._sessions._sessions  # pyright: ignore[reportPrivateUsage]
        assert await rig.status("bob", INITIALIZE) == 200
        for _ in range(5):
            assert await rig.status("ann", INITIALIZE) == 200
        owners = [session.caller.identity for session in sessions.values()]
        assert sorted(map(owners.count, set(owners))) == [1, 2]


def test_limits_are_positive() -> None:
    for limits in ({"max_requests": 0}, {"max_sessions": -1}, {"max_request_bytes": 0}):
        with pytest.raises(ValueError, match="expected a positive number"):
            PrincipalLimits(**limits)
    with pytest.raises(ValueError, match="rate"):
        PrincipalLimits(rate="often")
