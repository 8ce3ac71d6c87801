"""Both ends of a link in one process, over each transport, for tests that must hold over any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestra.nats_servers import shared_nats_server

from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.plugin_pb2 import (
    HealthRequest,
    HealthResult,
    PluginRequest,
    PluginResponse,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.rpc_interface import (
    RemotePeer,
    RequestHandler,
    RpcConnection,
    RpcListener,
)

# Where a link is one connection, which ends with either side; and where it is not.
CONNECTIONS = ("unix", "quic")
TRANSPORTS = (*CONNECTIONS, "nats")


class Place:
    """Where to listen, and how to connect there, over one transport."""

    def __init__(self, transport: str, folder: Path, certificates: Certificates) -> None:
        self.transport = transport
        self.folder = folder
        self.certificates = certificates
        self._count = 0

    async def listening(self, answer: RequestHandler, address: str = "") -> RpcListener:
        self._count += 1
        if self.transport == "nats":
            return await listen_for_links(
                address or shared_nats_server().address, answer, name="orchestrator"
            )
        if self.transport == "unix":
            return await listen_for_links(address or f"unix:{self.folder}/{self._count}", answer)
        return await listen_for_links(
            address or "127.0.0.1:0", answer, certificates=self.certificates, name="orchestrator"
        )

    async def connect_to(self, listening: RpcListener) -> RpcConnection:
        return await open_link(
            listening.address, certificates=self.certificates, name="tools.greeter-client"
        )

    @asynccontextmanager
    async def open_link_to(self, answer: RequestHandler) -> AsyncIterator[RpcConnection]:
        listening = await self.listening(answer)
        link = await self.connect_to(listening)
        try:
            yield link
        finally:
            await link.close()
            await listening.close()


def call(name: str = "echo", arguments: bytes = b"") -> PluginRequest:
    return PluginRequest(
        request_id="mine", tool_call=ToolRequest(tool_name=name, arguments=arguments)
    )


def health() -> PluginRequest:
    return PluginRequest(health=HealthRequest())


async def echo(request: PluginRequest, peer: object) -> PluginResponse:
    """Gives the arguments back; says that it is well."""
    if request.HasField("tool_call"):
        return PluginResponse(
            tool_call=ToolResponse(success=True, result=request.tool_call.arguments)
        )
    return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))


class Recording:
    """Answers as echo does, and keeps what it was asked, and by whom."""

    def __init__(self) -> None:
        self.requests: list[PluginRequest] = []
        self.peers: list[RemotePeer] = []

    async def __call__(self, request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        self.requests.append(request)
        self.peers.append(peer)
        return await echo(request, peer)


class Holding:
    """Answers when it is let; counts who began and who was cancelled."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.running = 0
        self.idle = asyncio.Event()  # set while no call is running
        self.idle.set()

    async def __call__(self, request: PluginRequest, peer: object) -> PluginResponse:
        if request.HasField("health"):
            return await echo(request, peer)
        self.running += 1
        self.idle.clear()
        self.began.release()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()
        return await echo(request, peer)
