"""McpUpdates: reports changes of an MCP server's resources to the hub of its plugin.

A hub starts plugins, and some of them offer an MCP server. Such a plugin (McpPlugin) has one
McpUpdates. MCP clients are not connected to the plugin: they subscribe to resources at a HubBackend
(hub_backend.py), usually in another process. Subscriptions and changes are passed on in three
steps:

1. Each HubBackend regularly publishes the URIs to which its clients have subscribed
   (client_events.py). If it stops doing so, for example because its process was killed, the plugin
   forgets these URIs after FORGET_S seconds.
2. The plugin subscribes to those of the URIs that its MCP server offers.
3. When the server reports a change, the plugin publishes an event in the same form as the hub's
   events for stored documents (hub_events.py). HubBackends send it to their clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from concertino.client.client import Client
from concertino.errors import ConcertinoError
from concertino.orchestra.client_events import FORGET_S, WATCHED_TOPIC
from concertino.orchestra.hub_events import STORAGE_TOPIC
from concertino.orchestra.mcp_sessions import list_or_nothing
from concertino.orchestra.plugin_events import Event, EventHandlers, publish_request
from concertino.orchestra.rpc_interface import RpcConnection
from concertino.orchestra.storage import RESOURCES
from concertino.schema.uri_template import UriTemplate

__all__ = ["McpUpdates"]

# The URIs of at most this many HubBackends are stored. The URIs of further HubBackends are ignored.
MAX_WATCHERS = 1024


class McpUpdates:
    """Reports the changes of one MCP server's resources. Use it on one event loop.

    name: the plugin's id.
    events: the plugin's event handlers. McpUpdates adds a handler for the topic WATCHED_TOPIC,
        under which HubBackends publish the URIs to which their clients have subscribed.
    find_client: returns the client of the MCP server. Raises RpcError while there is none.
    find_hub: returns the connection to the hub; None if there is none.
    """

    def __init__(
        self,
        name: str,
        events: EventHandlers,
        find_client: Callable[[], Client],
        find_hub: Callable[[], RpcConnection | None],
    ) -> None:
        self._name = name
        self._log = logging.getLogger(f"concertino.{name}")
        self._find_client = find_client
        self._find_hub = find_hub
        # Id of a HubBackend -> the URIs that the HubBackend has published last, and the time when
        # they expire, by the loop's clock.
        self._wanted: dict[str, tuple[frozenset[str], float]] = {}
        # The URIs to which the plugin has subscribed at its server.
        self._subscribed: frozenset[str] = frozenset()
        # Held while _subscribe() runs, so that the server gets the newest subscriptions last.
        self._lock = asyncio.Lock()
        # Calls _expire(); None while no URIs are stored.
        self._timer: asyncio.TimerHandle | None = None
        # The tasks that subscribe, and that report changes to the hub.
        self._tasks: set[asyncio.Task[None]] = set()
        events.add(WATCHED_TOPIC, {}, self._on_wanted)

    async def _on_wanted(self, event: Event) -> None:
        """Store the URIs in an event of a HubBackend, and subscribe to them.

        event: its payload contains `watcher`, the id of the HubBackend, and `uris`.
        """
        watcher, uris = str(event.payload.get("watcher")), event.payload.get("uris")
        if not isinstance(uris, list):
            return
        if watcher not in self._wanted and len(self._wanted) >= MAX_WATCHERS:
            return
        texts = frozenset(uri for uri in cast("list[object]", uris) if isinstance(uri, str))
        self._wanted[watcher] = texts, asyncio.get_running_loop().time() + FORGET_S
        # _expire() starts the timer. It also subscribes, but does not wait.
        if self._timer is None:
            self._expire()
        await self._subscribe()

    def _expire(self) -> None:
        """Forget the URIs that no HubBackend has published again in time.

        Schedules the next call of this method if any URIs are left.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._wanted = {
            id: (uris, until) for id, (uris, until) in self._wanted.items() if uris and until > now
        }
        self._timer = loop.call_later(FORGET_S, self._expire) if self._wanted else None
        self._start(self._subscribe())

    async def _subscribe(self) -> None:
        """Subscribe to exactly the stored URIs that the server offers."""
        async with self._lock:
            wanted = frozenset[str]().union(*(uris for uris, _ in self._wanted.values()))
            try:
                client = self._find_client()
                offered = await _find_offered(client, wanted) if wanted else wanted
                if offered != self._subscribed:
                    await client.watch(offered)
                    self._subscribed = offered
            except ConcertinoError as exc:
                self._log.warning("changes of resources are not reported: %s", exc)

    def on_update(self, uri: str) -> None:
        """Report to the hub, in the background, that a resource has changed.

        McpSessions calls this method when the MCP server has reported the change.
        uri: the URI of the resource.
        """
        if (hub := self._find_hub()) is not None:
            self._start(self._publish(hub, uri))

    async def _publish(self, hub: RpcConnection, uri: str) -> None:
        """Report to the hub that a resource has changed. A failure is logged, not raised."""
        payload = {"path": uri, "storage_type": RESOURCES}
        try:
            await hub.request(publish_request(STORAGE_TOPIC, payload, "written", self._name))
        except ConcertinoError as exc:
            self._log.warning("the change of %s was not reported: %s", uri, exc)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop reporting, and cancel the reports that are being sent."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _find_offered(client: Client, uris: frozenset[str]) -> frozenset[str]:
    """Return the URIs that are in a server's list of resources, or match one of its templates."""
    listed = {resource.uri for resource in await list_or_nothing(client.list_resources())}
    templates: list[UriTemplate] = []
    for template in await list_or_nothing(client.list_resource_templates()):
        # A server may offer a malformed template. It matches no URI.
        with suppress(ValueError):
            templates.append(UriTemplate(template.uri_template))
    return frozenset(
        uri
        for uri in uris
        if uri in listed or any(template.match(uri) is not None for template in templates)
    )
