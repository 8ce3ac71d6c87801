"""A proxy between a caller that sends JSON and a script that is its server, over memory pairs.

Every line that the caller gets is checked by the official schema of its revision (wire.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import wire
from client.scripted import ERAS, LEGACY, MODERN, Script

from concertino.backend import Host
from concertino.proxy import Proxy
from concertino.proxy.parked_calls import ParkedCalls
from concertino.transports.memory import MemoryConnection, memory_pair

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
INFO = {"name": "host", "version": "7"}


class Caller:
    """A client of the proxy that sends and gets messages as they are on the wire.

    capabilities: those that it declares. lines: what came, decoded; frames: the same as bytes.
    """

    def __init__(
        self, connection: MemoryConnection, revision: str, capabilities: Mapping[str, Any]
    ) -> None:
        self.connection = connection
        self.revision = revision
        self.capabilities = dict(capabilities)
        self.lines: list[dict[str, Any]] = []
        self.frames: list[bytes] = []
        self.over = False
        self.checked = True
        self._wire = wire.Conversation()
        self._last_id = 0
        self._changed = asyncio.Event()
        connection.open(self)

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            self.frames.append(frame)
            line = self._wire.on_received(frame) if self.checked else json.loads(frame)
            self.lines.append(line)
        self._changed.set()

    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_disconnect(self, exc: Exception) -> None: ...

    def on_eof(self) -> None:
        self.over = True
        self._changed.set()

    def send(self, message: Mapping[str, Any]) -> None:
        frame = json.dumps({"jsonrpc": "2.0", **message}).encode()
        if self.checked:
            self._wire.on_sent(frame)
        self.connection.write(frame, None)
        self.connection.flush()

    def ask(self, method: str, meta: Mapping[str, Any] | None = None, **params: Any) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        members = dict(meta or {})
        if self.revision == MODERN:
            members = {VERSION: MODERN, CAPABILITIES: self.capabilities, CLIENT: INFO} | members
        if members:
            params["_meta"] = members
        self.send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that came makes it true; on_a_loop() is the bound."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the requests and notifications of one method that came."""
        return [line for line in self.lines if line.get("method") == method]

    async def response(self, id: int) -> dict[str, Any]:
        """Return the response to a request."""

        def find() -> list[dict[str, Any]]:
            return [line for line in self.lines if "method" not in line and line.get("id") == id]

        await self.until(find)
        return find()[0]

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its response."""
        return await self.response(self.ask(method, **params))

    async def initialize(self) -> dict[str, Any]:
        """Do the handshake, if the revision has one. Returns the response to it."""
        if self.revision == MODERN:
            return await self.call("server/discover")
        id = self.ask(
            "initialize",
            protocolVersion=self.revision,
            capabilities=self.capabilities,
            clientInfo=INFO,
        )
        response = await self.response(id)
        self.send({"method": "notifications/initialized"})
        return response


@asynccontextmanager
async def proxied(
    handlers: Mapping[str, Any] | None = None,
    *,
    server: str = "legacy",
    caller: str = LEGACY,
    capabilities: Mapping[str, Any] | None = None,
    expiry_s: float = 600.0,
    most: int = 256,
    **options: Any,
) -> AsyncIterator[tuple[Caller, Script]]:
    """Provide a caller that has done its handshake, and the script behind the proxy.

    handlers: on top of those that the era has. server: legacy or modern. caller: its revision.
    expiry_s, most: of the calls that wait for their client. options: of the proxy.
    """
    near, far = memory_pair()
    script = Script(far, ERAS[server]() | dict(handlers or {}))
    parked = ParkedCalls(expiry_s, most)
    async with Host(Proxy(near, parked=parked, **options)) as host:
        ours, theirs = memory_pair()
        served = host.attach(theirs)
        client = Caller(ours, caller, capabilities or {})
        await client.initialize()
        yield client, script
        await ours.close(1)
        await served.closed
    assert script.over, "the connection to the server was not closed"
