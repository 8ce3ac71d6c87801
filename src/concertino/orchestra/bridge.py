"""Bridge: a Backend that forwards MCP calls to a hub in another process.

A hub runs plugins, programs with tools. While the hub cannot be reached, calls fail at once with
the error code -32603, and the bridge keeps trying to reconnect.

A hub does not tell the bridge that a list has changed: the plugin protocol has no such
notification. After a client has requested the list of tools or prompts, the bridge therefore
fetches the list again every REFRESH_S seconds, and notifies the clients of a change.
Source: the Orchestra plugin protocol, "transport.stdio".
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from concertino.backend.interface import Notifier, SupportsEarlyOpening
from concertino.errors import RpcError
from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import HUB, Certificates, default_folder
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.link import check_hub_address, open_link
from concertino.orchestra.pending_response import PendingResponse
from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse
from concertino.orchestra.reconnecting_link import ReconnectingLink
from concertino.orchestra.rpc_interface import ForwardingConnection, RpcConnection
from concertino.orchestra.streams import ResponseStream

__all__ = ["NAME", "Bridge", "prepare_bridge"]

log = logging.getLogger("concertino.orchestra")

# The name of the bridge's certificate.
NAME = "transport.stdio-client"
# How long start() waits for the first attempt to connect, in seconds.
FIRST_S = 2.0
# The time between two fetches of the lists, in seconds.
REFRESH_S = 5.0


class Bridge(HubBackend):
    """A Backend that forwards calls to the hub at an address.

        address = "localhost:50100"
        bridge = Bridge(address, prepare_bridge(address))

    address: HOST:PORT for QUIC, unix:PATH, or nats://HOST or tls://HOST for a NATS cluster.
    certificates: the result of prepare_bridge() for this address; None for a Unix socket.
    connected: called with the address each time that the bridge has connected to the hub.
    """

    def __init__(
        self,
        address: str,
        certificates: Certificates | None = None,
        *,
        connected: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(self._ask_over_link, self._forward_over_link, self._stream_over_link)
        self.address = address
        self._open = partial(open_link, address, certificates=certificates, name=NAME, expects=HUB)
        self._connected = connected
        # start() sets the following attributes. close() must not be called without it.
        self._reconnecting: ReconnectingLink
        # The current connection to the hub; while the hub is down, the last one.
        self._connection: ForwardingConnection
        # Set when the first attempt to connect has succeeded or failed.
        self._first_attempt: asyncio.Event
        # Set after each connect, to fetch the lists at once: while the hub was down, they may have
        # changed.
        self._refresh_now: asyncio.Event
        self._refresh_task: asyncio.Task[None]

    async def start(self, outlet: Notifier) -> None:
        """Begin to connect, and wait up to two seconds for the first attempt.

        outlet: passes notifications on to the MCP clients.
        Does not raise if the hub cannot be reached: the bridge keeps trying.
        """
        await super().start(outlet)
        # The server can answer `initialize` now, because nothing below can fail.
        if isinstance(outlet, SupportsEarlyOpening):
            outlet.open_early()
        self._first_attempt, self._refresh_now = asyncio.Event(), asyncio.Event()
        self._reconnecting = ReconnectingLink(
            self.address, self._connect, on_change=self._on_link_change
        )
        self._reconnecting.start()
        self._refresh_task = asyncio.get_running_loop().create_task(self._refresh_lists())
        try:
            # wait_for() of Python 3.11 ignores a cancellation that comes with the event.
            async with asyncio.timeout(FIRST_S):
                await self._first_attempt.wait()
        except TimeoutError:
            log.warning("%s: the hub does not answer yet; trying again", self.address)

    async def close(self) -> None:
        """Stop receiving events, stop fetching lists, and disconnect from the hub."""
        await super().close()
        self._refresh_task.cancel()
        await asyncio.wait((self._refresh_task,))
        await self._reconnecting.close()

    # The functions with which HubBackend sends requests. While the hub is down, the functions for
    # forward and stream return None. HubBackend then calls _ask_over_link(), which raises
    # Disconnected with the reason.

    def _ask_over_link(self, request: PluginRequest, timeout_s: float) -> Awaitable[PluginResponse]:
        return self._reconnecting.request(request, timeout_s)

    def _forward_over_link(self, request: bytes, timeout_s: float) -> PendingResponse | None:
        return self._connection.forward(request, timeout_s) if self._reconnecting.is_up else None

    def _stream_over_link(self, request: PluginRequest, timeout_s: float) -> ResponseStream | None:
        return self._connection.stream(request, timeout_s) if self._reconnecting.is_up else None

    async def _connect(self) -> RpcConnection:
        """Connect to the hub. ReconnectingLink calls this method for each attempt."""
        try:
            self._connection = connection = await self._open()
        except BaseException:
            self._first_attempt.set()
            raise
        return connection

    def _on_link_change(self, is_up: bool) -> None:
        """After a connect, end the wait of start(), and let _refresh_lists() fetch the lists."""
        if is_up:
            self._first_attempt.set()
            self._refresh_now.set()
            if self._connected is not None:
                self._connected(self.address)

    async def _refresh_lists(self) -> None:
        """Fetch the lists that a client has requested, after each connect and every REFRESH_S."""
        while True:
            # Not wait_for(), see start().
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._refresh_now.wait()
            self._refresh_now.clear()
            if not self._reconnecting.is_up:
                continue
            try:
                await self.refresh()
            except RpcError as exc:
                log.debug("the lists could not be fetched: %s", exc)


def prepare_bridge(
    address: str, folder: str | os.PathLike[str] | None = None
) -> Certificates | None:
    """Return the certificates that a Bridge to this address needs; None for a Unix socket.

    If `folder` has the key of the certificate authority, issues the certificate of the bridge if it
    is missing, and renews it if it expires soon or has expired.
    address: HOST:PORT for QUIC, unix:PATH, or nats://HOST or tls://HOST for a NATS cluster.
    folder: the directory of certificates; None for ~/.orchestra/certs.
    Raises ValueError for a malformed address, and CertificateError if the bridge has no valid
    certificate after that.
    """
    if check_hub_address(address).startswith("unix:"):
        return None
    certificates = Certificates(folder or default_folder())
    ensure_certificate(certificates, NAME)
    # Check the certificate now, so that a problem is reported before the bridge starts.
    certificates.identity(NAME)
    return certificates
