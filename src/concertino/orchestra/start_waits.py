"""StartWaits: how long a request to a hub waits for plugins that start.

A hub starts plugins, programs with tools, and forwards requests to them. While a plugin starts for
the first time, or a new process replaces its old one, it is not certain yet which plugin has a
tool. The Hub (hub.py) therefore finds the plugin for a request with StartWaits.

A plugin's FirstStart (first_start.py) is *over* when it has succeeded or failed. It is *settled*
when it is over, or when requests should no longer wait for it, for example because the plugin
sleeps. It is *late* when the plugin has used much processor time and is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from concertino.orchestra.hub_calls import HubPlugin
from concertino.orchestra.hub_peers import is_plugin
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.plugin_set import PluginSet
from concertino.orchestra.rpc_interface import RemotePeer

__all__ = ["StartWaits"]

# How long a request waits for plugins that start, in seconds.
START_S = 15.0


class StartWaits:
    """Makes the requests to one hub wait for plugins that start. Use it on one event loop.

    plugins: the plugins of the hub.

    Attribute:
    are_over: True if no request has to wait, because no plugin starts for the first time and no
        plugin's process is being replaced.
    """

    def __init__(self, plugins: PluginSet) -> None:
        self.are_over = not plugins.by_start
        self._plugins = plugins
        # A future that is done when the state of a plugin changes; None while no request waits for
        # a change.
        self._next_change: asyncio.Future[None] | None = None

    def on_change(self) -> None:
        """Make the waiting requests check again whether they must wait.

        The Hub calls this method whenever the state of a plugin has changed.
        """
        self.are_over = all(
            plugin.first_start.over.is_set() and not plugin.is_being_replaced
            for plugin in self._plugins.by_start
        )
        if self._next_change is not None:
            if not self._next_change.done():
                self._next_change.set_result(None)
            self._next_change = None

    async def find_provider(
        self, find: Callable[[], HubPlugin | None], peer: RemotePeer
    ) -> HubPlugin | None:
        """Return the plugin that provides a feature; None if no plugin provides it.

        First waits until it is certain which plugin provides the feature, and until this plugin has
        started, but at most 15 s.
        find: returns the plugin that provides the feature now; None if there is none. It is called
            again after each change of a plugin.
        peer: the sender of the request. The request of a plugin that is itself starting does not
            wait, because two plugins could wait for each other.
        """
        until = asyncio.get_running_loop().time() + START_S
        while self._is_awaited(plugin := find()):
            if self._is_starting(peer) or not await self._wait_change(until):
                break
        return plugin

    def _is_awaited(self, provider: HubPlugin | None) -> bool:
        """Return whether a request must wait before it is sent to the provider of a feature.

        True while the provider starts for the first time or its process is being replaced, and
        while another plugin that starts may become the provider.
        provider: the plugin that provides the feature now; None if there is none.
        """
        if provider is None:
            return not self.are_over
        # A plugin of the cluster has started, because the hub finds only plugins that run.
        if not isinstance(provider, PluginProcess):
            return False
        if provider.is_being_replaced or not provider.first_start.over.is_set():
            return True
        if not provider.uses_quic:
            return False
        # Of several plugins over QUIC that offer a feature, the last one in the file provides it
        # (routes.py). To wait longer than necessary does no harm, so AI providers do not matter.
        plugins = [*self._plugins.by_id.values()]
        later = plugins[plugins.index(provider) + 1 :]
        return any(
            plugin.uses_quic
            and not plugin.first_start.is_late
            and not plugin.first_start.settled.is_set()
            for plugin in later
        )

    async def wait_settled(self, peer: RemotePeer | None = None) -> None:
        """Wait until all first starts are settled, and then until no process is being replaced.

        Each of the two waits takes at most 15 s. A first start that is not settled after its wait
        counts as settled, so that later requests do not wait for it again.

        peer: the sender of the request; None if the hub itself waits. The request of a plugin that
            is itself starting does not wait, because two plugins could wait for each other.
        """
        if self.are_over:
            return
        if peer is not None and self._is_starting(peer):
            return
        waits = {
            asyncio.ensure_future(plugin.first_start.settled.wait()): plugin
            for plugin in self._plugins.by_start
            if not plugin.first_start.settled.is_set()
        }
        if waits:
            try:
                _, late = await asyncio.wait(waits, timeout=START_S)
            finally:
                for wait in waits:
                    wait.cancel()
            for wait in late:
                waits[wait].first_start.settle()
        until = asyncio.get_running_loop().time() + START_S
        while any(plugin.is_being_replaced for plugin in self._plugins.by_start):
            if not await self._wait_change(until):
                break

    async def _wait_change(self, until: float) -> bool:
        """Wait until the state of a plugin changes. Returns False if it does not change in time.

        until: the end of the wait, by the clock of the event loop.
        """
        loop = asyncio.get_running_loop()
        if self._next_change is None:
            self._next_change = loop.create_future()
        done, _ = await asyncio.wait((self._next_change,), timeout=max(0.0, until - loop.time()))
        return bool(done)

    def _is_starting(self, peer: RemotePeer) -> bool:
        """Return whether a peer is a plugin that starts for the first time or is being replaced."""
        return any(
            is_plugin(peer, plugin)
            for plugin in self._plugins.by_start
            if plugin.is_being_replaced or not plugin.first_start.over.is_set()
        )
