"""ReconnectingLink: a connection to a hub that reconnects in the background.

A hub runs plugins and forwards requests to them. Bridges (bridge.py), which connect MCP clients to
a hub, and plugins (plugin_main.py) send requests to the hub over a ReconnectingLink. Health pings
detect a hub that does not respond. While the link is down, requests fail at once with the reason:
they do not wait for the next connection. No request is sent twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from concertino.errors import ConcertinoError, Disconnected, TimedOut
from concertino.orchestra.plugin_messages import HealthRequest, PluginRequest, PluginResponse
from concertino.orchestra.rpc_interface import CLOSED, TIMEOUT_S, RemotePeer, RpcConnection

__all__ = ["ReconnectingLink"]

log = logging.getLogger("concertino.orchestra")

# The pause between two health pings, and the time limit for the answer to one, in seconds.
HEALTH_S = 5.0
# The first and the longest pause between two attempts to connect, in seconds. The pause is doubled
# after each failed attempt, and up to a quarter of it is added at random.
FIRST_S, LAST_S = 0.1, 5.0


class ReconnectingLink:
    """An RpcConnection to one address that reconnects. Use it on one event loop.

        hub = ReconnectingLink(address, partial(open_link, address))
        hub.start()
        response = await hub.request(request)

    address: the address, for messages.
    open: connects, and returns the connection; usually a partial of open_link().
    on_connect: awaited with each new connection before requests use the connection, for example to
        register. If it raises an exception, the attempt to connect has failed.
    on_change: called with True when the link is up, and with False when it is down.
    health_s: the pause between two health pings, and the time limit for the answer to one, in
        seconds.

    Attributes:
    peer: the process at the other end of the latest connection. Before the first connection, it has
        only the address.
    end_reason: a future that is done after close(), and not yet when a connection is lost, because
        this object reconnects. Its result is the reason that was passed to close().
    reconnects: how many times the link has reconnected; -1 before the first connection.
    """

    def __init__(
        self,
        address: str,
        open: Callable[[], Awaitable[RpcConnection]],
        *,
        on_connect: Callable[[RpcConnection], Awaitable[None]] | None = None,
        on_change: Callable[[bool], None] | None = None,
        health_s: float = HEALTH_S,
    ) -> None:
        self.peer = RemotePeer(address)
        self.end_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.reconnects = -1
        self._open = open
        self._on_connect = on_connect
        self._on_change = on_change
        self._health_s = health_s
        # The current connection; None while the link is down.
        self._link: RpcConnection | None = None
        # Why the link is down.
        self._reason = "not connected yet"
        # Set while the link is up.
        self._up = asyncio.Event()
        # The task that connects, and connects again after each loss.
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the link is connected, so that requests can be sent."""
        return self._link is not None

    def start(self) -> None:
        """Begin to connect, in the background. A second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_up(self) -> None:
        """Wait until the link is up. Do not call this after close(): it would wait for ever."""
        await self._up.wait()

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request to the hub, and return the response, which has the request's id.

        Raises Disconnected if the link is down or the connection is lost, TimedOut after timeout_s,
        FrameTooLarge if the request is too long, and ProtocolError for an invalid response.
        """
        link = self._link
        if link is None:
            raise Disconnected(f"{self.peer.address}: {self._reason}; it is tried again")
        return await link.request(request, timeout_s)

    async def close(self, reason: str = CLOSED) -> None:
        """Close the connection, and do not reconnect.

        reason: the text of the Disconnected that pending and later requests raise.
        """
        self._reason = reason
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if not self.end_reason.done():
            self.end_reason.set_result(self._reason)

    async def _run(self) -> None:
        """Connect, wait for the end of the connection, and connect again, until cancelled."""
        pause = FIRST_S
        # The reason that was logged last. It is not logged again with every attempt.
        logged = ""
        while True:
            try:
                link = await self._connect()
            # Catch every exception, so that a bug does not silently end this task.
            except Exception as exc:
                self._set_reason(exc)
                if self._reason != logged:
                    logged = self._reason
                    trace = None if _is_expected(exc) else exc
                    log.warning(
                        "%s: %s; it is tried again", self.peer.address, logged, exc_info=trace
                    )
                await asyncio.sleep(pause * random.uniform(1.0, 1.25))
                pause = min(LAST_S, pause * 2)
                continue

            # The connection works, so the next outage begins with the short pause again.
            pause = FIRST_S
            self._set_link(link)
            try:
                self._reason = await self._wait_end(link)
            finally:
                self._set_link(None)
                await link.close(self._reason)
            logged = self._reason
            log.warning("%s: %s; connecting again", self.peer.address, logged)
            # A random pause, so that the peers of a hub do not reconnect at the same instant.
            await asyncio.sleep(pause * random.uniform(0.0, 1.0))

    async def _connect(self) -> RpcConnection:
        """Open a connection, and run on_connect."""
        link = await self._open()
        try:
            if self._on_connect is not None:
                await self._on_connect(link)
        except BaseException:
            await link.close()
            raise
        return link

    def _set_reason(self, exc: Exception) -> None:
        """Set the reason why the link is down, from the error of an attempt to connect."""
        text = str(exc) if _is_expected(exc) else f"{type(exc).__name__}: {exc}"
        # Remove the address at the beginning of the text, because messages of this class add it
        # again.
        self._reason = text.removeprefix(f"{self.peer.address}: ")

    def _set_link(self, link: RpcConnection | None) -> None:
        """Set the connection that requests use, and report the change.

        link: None when the link is down.
        """
        self._link = link
        if link is not None:
            self.peer = link.peer
            self.reconnects += 1
            self._up.set()
        else:
            self._up.clear()
        if self._on_change is not None:
            self._on_change(link is not None)

    async def _wait_end(self, link: RpcConnection) -> str:
        """Wait until the connection ends, or a health ping fails. Returns the reason."""
        while True:
            await asyncio.wait((link.end_reason,), timeout=self._health_s)
            if link.end_reason.done():
                return link.end_reason.result()
            try:
                await link.request(PluginRequest(health=HealthRequest()), self._health_s)
            except TimedOut:
                return f"no answer to a health ping within {self._health_s:g} s"
            except ConcertinoError as exc:
                return str(exc)


def _is_expected(exc: Exception) -> bool:
    """Return whether an exception is a failed connection, and not a bug."""
    return isinstance(exc, (ConcertinoError, OSError, ValueError))
