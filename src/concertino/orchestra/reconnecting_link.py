"""A link that comes back: connected in the background, watched by health pings, and connected again when it was lost.

While it is down, requests fail at once and say why; they are never kept for later and never sent twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from concertino.errors import ConcertinoError, Disconnected, TimedOut
from concertino.orchestra.link import CLOSED, TIMEOUT_S, RemotePeer, RpcConnection
from concertino.orchestra.plugin_pb2 import HealthRequest, PluginRequest, PluginResponse

__all__ = ["ReconnectingLink"]

log = logging.getLogger("concertino.orchestra")

HEALTH_S = 5.0  # between two pings, and for one to be answered
FIRST_S, LAST_S = (
    0.1,
    5.0,
)  # between two attempts; doubled each time, and up to a quarter more by chance


class ReconnectingLink:
    """A Link to one address that is connected again whenever it is lost. Made and used on one event loop.

    open: connects; as a rule a partial of links.connect. entered: called with each new link before requests may use it, to
    register; what it raises counts as a failed attempt. changed: told whether the link is up, whenever that changes.
    Next: start().
    """

    def __init__(
        self,
        address: str,
        open: Callable[[], Awaitable[RpcConnection]],
        *,
        entered: Callable[[RpcConnection], Awaitable[None]] | None = None,
        changed: Callable[[bool], None] | None = None,
        health_s: float = HEALTH_S,
    ) -> None:
        self.peer = RemotePeer(address)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.reconnects = -1  # how often it came back; -1: it was never up
        self._open = open
        self._entered = entered
        self._changed = changed
        self._health_s = health_s
        self._link: RpcConnection | None = None
        self._why = "not connected yet"
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether requests are sent now."""
        return self._link is not None

    def start(self) -> None:
        """Begin to connect, in the background."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._stand())

    async def up(self) -> None:
        """Wait until the link is up."""
        await self._up.wait()

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """As Link.request. Raises Disconnected at once while the link is down."""
        link = self._link
        if link is None:
            raise Disconnected(f"{self.peer.address}: {self._why}; it is tried again")
        return await link.request(request, timeout_s)

    async def close(self, why: str = CLOSED) -> None:
        """End the link, and try no more."""
        self._why = why
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if not self.lost.done():
            self.lost.set_result(self._why)

    async def _stand(self) -> None:
        pause = FIRST_S
        said = ""
        while True:
            try:
                link = await self._open()
                try:
                    if self._entered is not None:
                        await self._entered(link)
                except BaseException:
                    await link.close()
                    raise
            except Exception as why:  # whatever it is: a link that is tried no more, in silence, is the worst of all
                is_known = isinstance(why, (ConcertinoError, OSError, ValueError))
                self._why = str(why) if is_known else f"{type(why).__name__}: {why}"
                self._why = self._why.removeprefix(
                    f"{self.peer.address}: "
                )  # what a link says begins with it, too
                if self._why != said:  # once, and not with every attempt
                    said = self._why
                    trace = None if is_known else why
                    log.warning(
                        "%s: %s; it is tried again", self.peer.address, self._why, exc_info=trace
                    )
                await asyncio.sleep(pause * random.uniform(1.0, 1.25))
                pause = min(LAST_S, pause * 2)
                continue
            pause = FIRST_S
            self._set(link)
            try:
                self._why = await self._watch(link)
            finally:
                self._set(None)
                await link.close(self._why)
            said = self._why
            log.warning("%s: %s; connecting again", self.peer.address, said)
            await asyncio.sleep(
                pause * random.uniform(0.0, 1.0)
            )  # not all of a hub's peers in the same instant

    def _set(self, link: RpcConnection | None) -> None:
        self._link = link
        if link is not None:
            self.peer = link.peer
            self.reconnects += 1
            self._up.set()
        else:
            self._up.clear()
        if self._changed is not None:
            self._changed(link is not None)

    async def _watch(self, link: RpcConnection) -> str:
        """Wait until the link is lost, or does not answer any more. Returns why."""
        while True:
            await asyncio.wait((link.lost,), timeout=self._health_s)
            if link.lost.done():
                return link.lost.result()
            try:
                await link.request(PluginRequest(health=HealthRequest()), self._health_s)
            except TimedOut:
                return f"no answer to a health ping within {self._health_s:g} s"
            except ConcertinoError as why:
                return str(why)
