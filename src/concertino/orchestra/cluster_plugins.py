"""A hub in a NATS cluster: HubCluster, and the plugins that it finds there.

A hub starts plugins, programs with tools, and forwards requests to them. In a cluster, a hub also
forwards requests to plugins that other hubs or users have started. A worker is a process that
answers the calls of such a plugin (nats_listener.py). A worker announces itself with the manifest
of its plugin, which says what the plugin provides and needs: when it connects, when it leaves, and
when a hub requests announcements. A hub requests them every DISCOVER_S seconds, and forgets workers
that do not answer. For the hub, a plugin exists while the plugin has workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from concertino.errors import ConcertinoError, Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.nats.protocol import NatsMessage
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.cluster_offers import ClusterOffers
from concertino.orchestra.nats_cluster import open_cluster
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.nats_messages import (
    announcement_subject,
    discovery_subject,
    last_name,
    plugin_of,
)
from concertino.orchestra.pending_response import PendingResponse, ResponseCallback
from concertino.orchestra.plugin_messages import (
    DecodeError,
    ListPromptsRequest,
    ListToolsRequest,
    PluginManifest,
    PluginRequest,
    PluginResponse,
)
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.routes import PluginFeatures
from concertino.orchestra.rpc_interface import TIMEOUT_S, RelayHandler, RequestHandler
from concertino.orchestra.streams import ResponseStream

__all__ = ["ClusterPlugin", "HubCluster", "PluginDiscovery"]

log = logging.getLogger("concertino.hub")

# All times in seconds.
# The time between two requests for announcements.
DISCOVER_S = 2.0
# A worker that was silent for this time is forgotten.
FORGET_S = 5.0
# How long open() waits for the announcements of workers that already run.
FIRST_DISCOVERY_S = 0.25
# The time between two checks of retire() whether calls are in progress.
DRAIN_POLL_S = 0.1
# The time limit for fetching one list of a plugin.
LIST_S = 10.0
# How many plugins of the cluster a hub stores, and how many workers of each plugin. Announcements
# of additional plugins and workers are ignored.
MAX_PLUGINS = 1024
MAX_WORKERS = 4096
# How many different manifests of the workers of one plugin a hub stores. Each may have almost 1
# MiB. A worker with an additional manifest gets calls, but the lists of tools are not fetched for
# it.
MAX_MANIFESTS = 16


class HubCluster:
    """Connects a hub to a NATS cluster: finds the plugins there, and offers the hub's own plugins.

    The Hub owns it, and calls open() and close().

    address: the NATS servers of the cluster, such as `tls://a,b,c` or `nats://HOST:PORT`.
    certificates: the certificates of the hub; required for an address with `tls://`.
    own: returns the hub's own plugins, as id -> plugin.
    on_change: called when a plugin joins or leaves the cluster, or changes its tools or prompts.
    """

    def __init__(
        self,
        address: str,
        certificates: Certificates,
        own: Callable[[], Mapping[str, PluginProcess]],
        on_change: Callable[[], None],
    ) -> None:
        self._address = address
        self._certificates = certificates
        self._own = own
        self._on_change = on_change
        self._cluster: NatsCluster | None = None
        self._listener: NatsListener | None = None
        self._plugins: PluginDiscovery | None = None
        self._offers: ClusterOffers | None = None

    @property
    def plugins(self) -> Sequence[ClusterPlugin]:
        """The plugins of the cluster, sorted by id."""
        if self._plugins is None:
            return ()
        return [plugin for _, plugin in sorted(self._plugins.by_id.items())]

    async def open(self, answer: RequestHandler, relay: RelayHandler) -> NatsCluster:
        """Connect, begin to answer requests to the hub, and find plugins.

        answer: handles each request that `relay` does not forward.
        relay: called first with each request, to forward it without decoding it.
        Returns the NatsCluster, which owns the connection.
        Raises the exceptions of open_cluster(), such as Disconnected if no server can be reached.
        Call close() after an error, too.
        """
        self._cluster = await open_cluster(self._address, HUB, self._certificates)
        log.info("this hub is %s/%s in the cluster", HUB, self._cluster.id)
        self._listener = NatsListener(self._cluster, HUB, answer, relay)
        await self._listener.wait_accepted()
        self._offers = ClusterOffers(self._cluster)
        self._plugins = PluginDiscovery(
            self._cluster, lambda id: id in self._own(), self._on_change
        )
        await self._plugins.open()
        return self._cluster

    def offer_plugins(self) -> None:
        """Offer the hub's own plugins to the other hubs of the cluster.

        A plugin is offered if it runs now, and its entry in the plugins file allows it (`offer`).
        Earlier offers of other plugins end. Call this after each change of a plugin.
        """
        if self._offers is not None:
            self._offers.update(self._own().values())

    def withdraw(self) -> None:
        """Stop accepting calls of the hub's own plugins, because the hub is about to stop.

        Calls in progress go on. The hub still answers the requests of other plugins to the hub.
        """
        if self._offers is not None:
            self._offers.withdraw()

    async def close(self) -> None:
        """Leave the cluster. Calls in progress are cancelled."""
        offers, self._offers = self._offers, None
        if offers is not None:
            await offers.close()
        if self._plugins is not None:
            await self._plugins.close()
        if self._listener is not None:
            await self._listener.close()
        if self._cluster is not None:
            await self._cluster.close()


class ClusterPlugin:
    """A plugin whose workers are other processes of the cluster.

    It implements HubPlugin (hub_calls.py), the interface by which a hub sends requests to plugins.

    cluster: the connection to the NATS servers.

    Attributes:
    id: the plugin's id.
    features: the tools, prompts and types of storage that the plugin offers.
    workers: worker id -> the time of the worker's last announcement, by the clock of the event
        loop.
    manifests: worker id -> the serialized manifest that the worker has announced, for each worker
        whose manifest was used for `features`. Workers of one plugin may have different manifests,
        for example because they run different versions.
    """

    # For HubPlugin and PluginProvider (routes.py): workers are never a Go plugin, and the hub's own
    # plugins have precedence.
    uses_quic = False
    is_local = False

    def __init__(self, cluster: NatsCluster, id: str) -> None:
        self.id = id
        self.features = PluginFeatures(PluginManifest(id=id))
        self.workers: dict[str, float] = {}
        self.manifests: dict[str, bytes] = {}
        self._link = NatsLink(cluster, HUB, id)

    @property
    def address(self) -> str:
        """The address of the plugin in the cluster, for logs and error messages."""
        return self._link.peer.address

    @property
    def provides_ai(self) -> Sequence[str]:
        """The names of the AI providers to which the plugin gives access."""
        return list(self.features.manifest.provides_ai)

    async def fetch(self, manifest: bytes) -> None:
        """Set `features` from a manifest, and from the lists of tools and prompts.

        Requests the lists from the plugin. Any of its workers may answer.
        manifest: the serialized manifest that a worker has just announced.
        Raises ConcertinoError if no worker answers.
        """
        parsed = PluginManifest.FromString(manifest)
        tools = await self._link.request(PluginRequest(list_tools=ListToolsRequest()), LIST_S)
        prompts = await self._link.request(PluginRequest(list_prompts=ListPromptsRequest()), LIST_S)
        manifests = map(PluginManifest.FromString, {manifest, *self.manifests.values()})
        self.features = PluginFeatures(
            manifest=parsed,
            tools=tools.list_tools.tools,
            prompts=prompts.list_prompts.prompts,
            # A hub that offers the plugin names no storage, because documents are on one machine
            # only. Another worker may name some.
            storage=frozenset(name for item in manifests for name in item.provides_storage),
        )

    def add_manifest(self, worker: str, manifest: bytes) -> bool:
        """Store a worker's manifest. Returns whether fetch() must be called with the manifest.

        fetch() must be called if the worker has changed its manifest, or if the worker is new and
        no other worker has the same manifest. At most 16 different manifests are stored: for
        another one, this method stores nothing and returns False.
        worker: the id of the worker.
        manifest: the serialized manifest.
        """
        before = self.manifests.get(worker)
        if before == manifest:
            return False
        # Manifest -> the same manifest: workers with equal manifests share one copy.
        copies = {item: item for item in self.manifests.values()}
        is_known = manifest in copies
        if not is_known and len(copies) >= MAX_MANIFESTS:
            return False
        self.manifests[worker] = copies.get(manifest, manifest)
        return before is not None or not is_known

    def forget_manifest(self, worker: str) -> None:
        """Forget the manifest of a worker that has left.

        If no other worker has the same manifest, `features` may contain tools and prompts that only
        this worker had. This method then forgets all manifests, so that add_manifest() returns True
        for the next announcement, and `features` is fetched again.
        worker: the id of the worker.
        """
        manifest = self.manifests.pop(worker, None)
        if manifest not in self.manifests.values():
            self.manifests.clear()

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        """Send a request to one of the workers, and return the response.

        Raises TimedOut after timeout_s, and Disconnected if the worker is lost.
        """
        return await self._link.request(request, timeout_s)

    def forward(
        self, body: bytes, timeout_s: float, callback: ResponseCallback, stream: str = ""
    ) -> PendingResponse | None:
        """Send a serialized tool call or stream_start to one of the workers.

        body: the PluginRequest, serialized without its id.
        timeout_s: the time limit of the call or of the whole stream.
        callback: called with each response, serialized with its id, or with an exception.
        stream: the id of the stream in a stream_start; "" for a tool call.
        Returns the pending response; None if the request cannot be sent now.
        """
        try:
            return self._link.forward(body, timeout_s, callback, stream)
        except ConcertinoError:
            return None

    def stream(self, request: PluginRequest, timeout_s: float) -> ResponseStream:
        """Call a tool of one of the workers as a stream, and yield the responses.

        request: contains a stream_start. This method replaces its request id and stream id.
        timeout_s: the time limit of the whole stream.
        Raises TimedOut after timeout_s, and Disconnected if the worker is lost.
        """
        return self._link.stream(request, timeout_s)

    def end_forward(self) -> None:
        """Do nothing. The hub counts only the calls of its own plugins."""

    async def retire(self) -> None:
        """Wait until the calls in progress have ended, and then close the connection to the plugin.

        Call this when all workers have left. A worker that leaves still finishes its calls.
        """
        try:
            # Poll, because this is rare. The link fails the calls of workers that are lost.
            while self._link.in_progress:  # noqa: ASYNC110
                await asyncio.sleep(DRAIN_POLL_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel the calls in progress. Their callers get the error that the plugin has left."""
        await self._link.close("the plugin has left the cluster")


class PluginDiscovery:
    """Finds the plugins of a cluster. Create it on an event loop, then call open().

    cluster: the connection to the NATS servers.
    is_own: called with the id of a plugin. Returns whether the hub runs this plugin itself; then
        the workers of the plugin in the cluster are ignored.
    on_change: called when a plugin joins or leaves the cluster, or changes its tools or prompts.

    Attribute:
    by_id: id -> plugin, for the plugins that have workers and whose lists of tools and prompts were
        fetched.
    """

    def __init__(
        self,
        cluster: NatsCluster,
        is_own: Callable[[str], bool],
        on_change: Callable[[], None],
    ) -> None:
        self.by_id: dict[str, ClusterPlugin] = {}
        self._cluster = cluster
        self._is_own = is_own
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        # Id -> plugin, for all plugins that have workers, even if their lists were not fetched yet.
        self._plugins: dict[str, ClusterPlugin] = {}
        # Plugin id -> the task that fetches its lists.
        self._fetches: dict[str, asyncio.Task[None]] = {}
        # The tasks that close plugins without workers.
        self._closings: set[asyncio.Task[None]] = set()
        # Calls _discover() next.
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Begin to find plugins. Wait 0.25 s for the announcements of running workers.

        Then wait until the lists of their plugins have been fetched, at most 10 s.
        """
        self._cluster.on_connect.append(self._subscribe)
        self._subscribe(self._cluster.connection)
        self._discover()
        await asyncio.sleep(FIRST_DISCOVERY_S)
        if self._fetches:
            await asyncio.wait(list(self._fetches.values()), timeout=LIST_S)

    async def close(self) -> None:
        """Stop looking for plugins, and cancel the calls in progress."""
        if self._timer is not None:
            self._timer.cancel()
        with suppress(ValueError):
            self._cluster.on_connect.remove(self._subscribe)
        tasks = [*self._fetches.values(), *self._closings]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for plugin in self._plugins.values():
            await plugin.close()

    def _subscribe(self, connection: NatsConnection) -> None:
        """Subscribe to all announcements. Called for each new connection to the cluster."""
        connection.subscribe(announcement_subject("*", "*"), self._on_announcement)

    def _discover(self) -> None:
        """Request announcements of all workers, and forget workers that have been silent.

        Schedules the next call of this method.
        """
        self._timer = self._loop.call_later(DISCOVER_S, self._discover)
        with suppress(Disconnected):
            self._cluster.connection.publish(discovery_subject(HUB), b"")
        # Without a connection, no announcement arrives from workers that run. Forget none of them.
        if not self._cluster.is_up:
            return
        now = self._loop.time()
        for plugin in list(self._plugins.values()):
            silent = [id for id, last in plugin.workers.items() if now - last > FORGET_S]
            for worker in silent:
                self._remove_worker(plugin, worker)

    def _on_announcement(self, message: NatsMessage) -> None:
        """Handle an announcement: record its worker, and fetch the plugin's lists if needed."""
        id, worker = plugin_of(message.subject), last_name(message.subject)
        plugin = self._plugins.get(id)
        # An announcement with headers says that the worker leaves.
        if message.headers:
            if plugin is not None:
                self._remove_worker(plugin, worker)
            return
        if self._is_own(id):
            return
        # Workers announce the same manifest every DISCOVER_S seconds: do not decode it again.
        is_stored = plugin is not None and plugin.manifests.get(worker) == message.payload
        if not is_stored and not _is_manifest_of(id, message.payload):
            return
        if plugin is None:
            if len(self._plugins) >= MAX_PLUGINS:
                return
            plugin = self._plugins[id] = ClusterPlugin(self._cluster, id)
        if worker not in plugin.workers:
            if len(plugin.workers) >= MAX_WORKERS:
                return
            log.info("%s: worker %s is in the cluster", id, worker)
        plugin.workers[worker] = self._loop.time()
        # While the lists are being fetched, do nothing: the worker will announce itself again.
        if id not in self._fetches and plugin.add_manifest(worker, message.payload):
            task = self._loop.create_task(self._fetch(plugin, message.payload))
            self._fetches[id] = task
            task.add_done_callback(lambda _: self._fetches.pop(id, None))

    async def _fetch(self, plugin: ClusterPlugin, manifest: bytes) -> None:
        """Fetch the lists of a plugin, and offer it to the hub. A failure is logged."""
        try:
            await plugin.fetch(manifest)
        except ConcertinoError as exc:
            # Forget this manifest, so that its next announcement makes the hub fetch the lists
            # again.
            for worker in [id for id, item in plugin.manifests.items() if item == manifest]:
                del plugin.manifests[worker]
            log.warning("%s: its tools could not be listed: %s", plugin.id, exc)
            return
        if plugin.workers:
            self.by_id[plugin.id] = plugin
            self._on_change()

    def _remove_worker(self, plugin: ClusterPlugin, worker: str) -> None:
        """Forget a worker, and its plugin if this was the last worker."""
        if plugin.workers.pop(worker, None) is None:
            return
        log.info("%s: worker %s has left the cluster", plugin.id, worker)
        plugin.forget_manifest(worker)
        if plugin.workers:
            return
        del self._plugins[plugin.id]
        if self.by_id.pop(plugin.id, None) is not None:
            self._on_change()
        task = self._loop.create_task(plugin.retire())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


def _is_manifest_of(id: str, payload: bytes) -> bool:
    """Return whether an announcement contains the manifest of the plugin that its subject names.

    id: the id of the plugin in the subject.
    payload: the payload of the announcement.
    """
    # Without this check, a plugin could make JetStream publish an answer to the subject of another
    # plugin's announcements (nats_permissions.py).
    try:
        return PluginManifest.FromString(payload).id == id
    except DecodeError:
        return False
