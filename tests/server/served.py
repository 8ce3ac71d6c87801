"""A Server with a client of one revision, over a memory pair; every line is validated against the
schemas of its revision.
"""

from __future__ import annotations

from typing import Any

import pytest
import wire

from concertino import RpcError, Server
from concertino.backend import Host
from concertino.transports import connect, memory_pair
from concertino.transports.trace import trace_connection

__all__ = ["META", "Served"]

META = {
    "io.modelcontextprotocol/protocolVersion": wire.MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Served:
    """heard: notifications, in order, as (method, params). opened: the answer to initialize, or to
    server/discover.
    """

    def __init__(self, server: Server, version: str = "2025-11-25") -> None:
        self._host = Host(server)
        self._version = version
        self._onlooker = wire.Conversation()
        self._violations: list[wire.Violation] = []
        self.heard: list[tuple[str, Any]] = []
        self.opened: Any

    async def __aenter__(self) -> Served:
        await self._host.__aenter__()
        ours, theirs = memory_pair()
        self._host.attach(trace_connection(theirs, self._see))
        self._caller = connect(ours, lambda method, params: self.heard.append((method, params)))
        if self._version == wire.MODERN:
            self.opened = await self.ask("server/discover")
        else:
            opening = {
                "protocolVersion": self._version,
                "capabilities": {},
                "clientInfo": {"name": "c", "version": "1"},
            }
            self.opened = await self.ask("initialize", **opening)
            self._caller.notify("notifications/initialized")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._caller.aclose()
        await self._host.__aexit__(*error)
        assert not self._violations

    def _see(self, direction: str, frame: str) -> None:
        try:
            (self._onlooker.on_sent if direction == "<-" else self._onlooker.on_received)(
                frame.encode()
            )
        except wire.Violation as why:
            self._violations.append(why)

    async def ask(self, method: str, /, **params: Any) -> Any:
        if self._version == wire.MODERN:
            params["_meta"] = META
        return await self._caller.request(method, params)

    async def refused(self, method: str, /, **params: Any) -> RpcError:
        with pytest.raises(RpcError) as error:
            await self.ask(method, **params)
        return error.value

    async def invalid(self, method: str, /, **params: Any) -> str:
        """The details of params that do not fit."""
        error = await self.refused(method, **params)
        assert (error.code, error.message) == (-32602, "Invalid params")
        return error.data["details"]

    async def all_pages(self, method: str, name: str) -> list[Any]:
        """Every item of a list, page by page."""
        found: list[Any] = []
        params: dict[str, Any] = {}
        while True:
            page = await self.ask(method, **params)
            found += page[name]
            if "nextCursor" not in page:
                return found
            params = {"cursor": page["nextCursor"]}

    async def pause(self) -> None:
        """Until what was said before has arrived."""
        for _ in range(2):
            await self.ask("tools/list")
