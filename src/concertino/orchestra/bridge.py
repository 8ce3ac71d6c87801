"""Bridge: MCP on this side, a hub on the other, reached over a link that comes back.

The opening is answered here; everything else asks the hub. While the hub is not there calls fail at once with -32603, and it is
tried again. The plugin protocol has no word for a changed list, so the lists that the client was given are looked at every few
seconds.
Source: the Orchestra plugin protocol, "transport.stdio".
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial

from concertino.backend.interface import Notifier
from concertino.errors import RpcError
from concertino.orchestra.authority import ensure
from concertino.orchestra.certificates import Certificates, default_folder
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.link import (
    DirectLink,
    PluginRequest,
    PluginResponse,
    RpcConnection,
    checked_orchestrator,
    open_link,
)
from concertino.orchestra.pending_response import PendingResponse
from concertino.orchestra.reconnecting_link import ReconnectingLink

__all__ = ["NAME", "Bridge", "prepare_bridge"]

log = logging.getLogger("concertino.orchestra")

NAME = "transport.stdio-client"  # of its certificate
FIRST_S = 2.0  # for the first attempt to connect; calls wait so long at the start
LOOK_S = 5.0  # between two looks at the lists


class Bridge(HubBackend):
    """A Backend that asks the hub at an address.

    address: HOST:PORT for QUIC, which needs certificates, or unix:PATH. connected: told the address, each time that the hub is
    reached. Nothing is raised when it is not there: it is tried again for as long as this lives.
    """

    def __init__(
        self,
        address: str,
        certificates: Certificates | None = None,
        *,
        connected: Callable[[str], None] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__(self._over_the_link, self._pass_on_over_the_link)
        self.address = address
        self._open = partial(
            open_link, address, certificates=certificates, name=NAME, expects="orchestrator"
        )
        self._connected = connected
        self._look_s = look_s
        self._hub: ReconnectingLink
        self._link: DirectLink  # the last that there was
        self._tried: asyncio.Event
        self._again: asyncio.Event  # the hub is reached: the lists may be other ones
        self._looking: asyncio.Task[None]

    async def start(self, outlet: Notifier) -> None:
        await super().start(outlet)
        self._tried, self._again = asyncio.Event(), asyncio.Event()
        self._hub = ReconnectingLink(self.address, self._attempt, changed=self._changed)
        self._hub.start()
        self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            await asyncio.wait_for(self._tried.wait(), FIRST_S)
        except TimeoutError:
            log.warning("%s: no answer yet; it is tried again", self.address)

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.wait((self._looking,))
        await self._hub.close()

    def _over_the_link(self, request: PluginRequest, timeout_s: float) -> Awaitable[PluginResponse]:
        return self._hub.request(request, timeout_s)

    def _pass_on_over_the_link(self, request: bytes, timeout_s: float) -> PendingResponse | None:
        return self._link.pass_on(request, timeout_s) if self._hub.is_up else None

    async def _attempt(self) -> RpcConnection:
        try:
            self._link = link = await self._open()
        except BaseException:
            self._tried.set()
            raise
        return link

    def _changed(self, up: bool) -> None:
        if up:
            self._tried.set()
            self._again.set()
            if self._connected is not None:
                self._connected(self.address)

    async def _look(self) -> None:
        """Look at the lists when the hub is reached, and every few seconds while it is."""
        while True:
            try:
                await asyncio.wait_for(self._again.wait(), self._look_s)
            except TimeoutError:
                pass
            self._again.clear()
            if not self._hub.is_up:
                continue
            try:
                await self.refresh()
            except RpcError as why:
                log.debug("the lists could not be looked at: %s", why)


def prepare_bridge(
    address: str, folder: str | os.PathLike[str] | None = None
) -> Certificates | None:
    """What a Bridge to this address needs beside it: None for a Unix socket, else the certificates of a folder.

    The bridge's own is issued if there is none and the authority's key is there, and looked at. folder: upstream's unless given.
    Raises ValueError for an address that is none, CertificateError.
    """
    if checked_orchestrator(address).startswith("unix:"):
        return None
    certificates = Certificates(folder or default_folder())
    ensure(certificates, NAME)
    certificates.identity(NAME)
    return certificates
