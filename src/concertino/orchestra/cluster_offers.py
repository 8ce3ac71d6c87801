"""ClusterOffers: lets the other hubs of a NATS cluster call the plugins of this hub.

A hub starts plugins, programs with tools, and forwards requests to them. A plugin is offered while
it runs, if the plugins file allows it (`offer`). For the cluster, the hub is then a worker of the
plugin: a process that answers its calls (nats_listener.py). The hub passes the calls on to the
plugin's process. If several hubs offer the same plugin, NATS distributes the calls of the plugin
among these hubs.

The hub sends a call from another hub to its own plugin only, and never to a plugin of the cluster.
So hubs of a cluster cannot call each other in a cycle. Tools and prompts are offered. Storage is
not offered, because its documents are on one machine only.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.orchestra.hub_calls import CALL_S, ToolCalls, forward_request, plugin_id
from concertino.orchestra.message_peek import peek_tool_call
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.plugin_messages import (
    HealthResult,
    ListPromptsResponse,
    ListToolsResponse,
    PluginManifest,
    PluginRequest,
    PluginResponse,
)
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.rpc_interface import (
    Cancellable,
    RemotePeer,
    Respond,
    error_response,
)
from concertino.orchestra.streams import ResponseStream

__all__ = ["ClusterOffers"]

log = logging.getLogger("concertino.hub")


class ClusterOffers:
    """Offers the plugins of a hub to the other hubs of a cluster. Use it on one event loop.

    HubCluster (cluster_plugins.py) owns it, and calls update() after each change of a plugin.

    cluster: the connection to the NATS servers.
    """

    def __init__(self, cluster: NatsCluster) -> None:
        self._cluster = cluster
        # Plugin id -> its offer.
        self._offers: dict[str, _Offer] = {}
        # The tasks that check new offers and close old ones.
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, plugins: Iterable[PluginProcess]) -> None:
        """Offer exactly the plugins that run and have `offer` in the plugins file.

        If the tools of an offered plugin have changed, announce the change. Calls in progress of a
        plugin that is no longer offered still finish.
        plugins: all plugins of this hub.
        """
        running = {
            item.id: item for item in plugins if item.entry.offer and item.state == "running"
        }
        for id, offer in list(self._offers.items()):
            # A plugin that was removed and added again is a new object with the same id.
            if running.get(id) is not offer.plugin:
                # Calls in progress may run until their time limit.
                self._start(self._offers.pop(id).close(CALL_S))
        for id, plugin in running.items():
            offer = self._offers.get(id)
            if offer is None:
                offer = self._offers[id] = _Offer(self._cluster, plugin)
                self._start(offer.check())
            else:
                offer.announce_changes()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def withdraw(self) -> None:
        """Stop accepting calls of the offered plugins, because the hub is about to stop.

        Calls in progress go on. update() does not offer these plugins again.
        """
        # The offers stay in `_offers`, so that update() does not make new ones.
        for offer in self._offers.values():
            offer.leave()

    async def close(self) -> None:
        """End all offers. Calls in progress are cancelled."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for offer in self._offers.values():
            await offer.close(0.0)
        self._offers.clear()


class _Offer:
    """One plugin of this hub that is offered to the cluster.

    It is the ToolFinder of a ToolCalls (hub_calls.py), which forwards the calls that arrive.
    """

    def __init__(self, cluster: NatsCluster, plugin: PluginProcess) -> None:
        self.plugin = plugin
        self._calls = ToolCalls(self)
        self._features = plugin.features
        self._listener = NatsListener(
            cluster,
            plugin.id,
            answer=self._answer,
            relay=self._relay,
            manifest=_manifest(plugin),
        )

    async def check(self) -> None:
        """Log a warning if the NATS server does not let this hub answer calls of the plugin."""
        try:
            await self._listener.wait_accepted()
        except Disconnected as exc:
            log.warning(
                "%s is not offered to the cluster: %s; `concertino cluster permissions` with the "
                "plugins file writes the permissions that the server needs",
                self.plugin.id,
                exc,
            )

    def announce_changes(self) -> None:
        """Announce the plugin again if its tools or prompts have changed."""
        if self.plugin.features is not self._features:
            self._features = self.plugin.features
            # The changed tools may accept streams.
            self._calls.forget()
            self._listener.announce(_manifest(self.plugin))

    def leave(self) -> None:
        """Stop accepting calls. Calls in progress go on."""
        self._listener.leave()

    async def close(self, drain_s: float) -> None:
        """Stop accepting calls, wait up to drain_s seconds for pending calls, cancel the rest."""
        try:
            await self._listener.close(drain_s)
        finally:
            self._calls.cancel()

    async def find_tool(self, name: str, ai: str, peer: RemotePeer) -> PluginProcess:
        """Return this plugin for every call, because the hub that sends the call has chosen it."""
        return self.plugin

    def explain_missing_tool(self, name: str, ai: str) -> str:
        """Return a sentence that says that this plugin does not have the tool."""
        return f"{self.plugin.id} has no tool {name!r}"

    async def _answer(
        self, request: PluginRequest, peer: RemotePeer
    ) -> PluginResponse | ResponseStream:
        """Answer a request of another hub, or of a plugin of the cluster.

        This method is a RequestHandler (rpc_interface.py).
        """
        kind, id = request.WhichOneof("request") or "nothing", request.request_id
        # ToolCalls replaces the caller in a request by the name of the peer, if the peer has a
        # name. But a hub forwards requests of other callers, whose names must stay.
        caller = RemotePeer(peer.address) if _is_hub(peer) else peer
        if kind == "tool_call":
            return await self._calls.call(request, caller)
        if kind == "stream_start":
            return self._calls.stream(request.stream_start, caller, request.path)
        if kind == "prompt_get":
            name = request.prompt_get.prompt_name
            return await forward_request(self.plugin, "prompt", name, request, kind)
        if kind == "list_tools":
            return PluginResponse(list_tools=ListToolsResponse(tools=self.plugin.features.tools))
        if kind == "list_prompts":
            prompts = self.plugin.features.prompts
            return PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts))
        if kind == "health":
            return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))
        message = f"{self.plugin.id} is a plugin of another hub, which does not forward {kind}"
        return error_response(id, "unknown_request", message)

    def _relay(self, body: bytes, peer: RemotePeer, respond: Respond) -> Cancellable | None:
        """Forward a tool call of another hub as bytes.

        This method is a RelayHandler (rpc_interface.py).
        """
        # If the peer is a plugin, _answer() must check the caller in the request.
        if not _is_hub(peer) or peek_tool_call(body) is None:
            return None
        return self._calls.relay(self.plugin, body, respond)


def _is_hub(peer: RemotePeer) -> bool:
    return peer.name is not None and plugin_id(peer.name) == HUB


def _manifest(plugin: PluginProcess) -> bytes:
    """Return the serialized manifest that the hub announces for a plugin.

    It contains a digest of the lists of tools and prompts. When the digest changes, the other hubs
    fetch the lists again.
    """
    features = plugin.features
    own = features.manifest
    lists = hashlib.sha256()
    for definition in (*features.tools, *features.prompts):
        # Add the size before each definition, so that two different lists give different bytes.
        data = definition.SerializeToString()
        lists.update(b"%d:%b" % (len(data), data))
    return PluginManifest(
        id=plugin.id,
        version=own.version,
        language=own.language,
        description=own.description,
        provides_ai=plugin.provides_ai,
        lists=lists.hexdigest(),
    ).SerializeToString()
