"""Hub: starts the plugins of a plugins file, and forwards requests to them.

    hub = Hub(read_plugins("plugins.yaml"))
    await hub.start()
    response = await hub.answer(request, peer)   # or connect to hub.addresses and send the request
    await hub.stop()

While the plugins start for the first time, a request waits for the plugin that it needs. Later, a
call to a plugin that does not run fails at once. The hub never runs a call twice. Arguments and
results are forwarded as bytes, without decoding them. plugin_process.py supervises each plugin, and
routes.py decides which plugin gets which request.
Source: the Orchestra plugin protocol, "Orchestrator" and "Gaps"; plugin.proto has its messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from concertino.logs.redact import redactor
from concertino.orchestra.certificates import Certificates, default_folder
from concertino.orchestra.cluster_plugins import HubCluster
from concertino.orchestra.hub_calls import HubPlugin, ToolCalls, forward_request, plugin_id
from concertino.orchestra.hub_events import HubEvents
from concertino.orchestra.hub_listeners import HubListeners
from concertino.orchestra.hub_peers import is_plugin, registration_problem
from concertino.orchestra.list_changes import ListChanges, ListName
from concertino.orchestra.mcp_resources import answer_from_plugins
from concertino.orchestra.message_peek import is_stream_start, peek_tool_call
from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugin_messages import (
    DecodeError,
    HealthResult,
    ListEventsResponse,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    RegistrationResult,
    StreamStart,
)
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.plugin_set import PluginSet
from concertino.orchestra.plugins_file import LISTEN, PluginsFile
from concertino.orchestra.routes import Routes, build_routes
from concertino.orchestra.rpc_interface import Cancellable, RemotePeer, Respond, error_response
from concertino.orchestra.start_waits import StartWaits
from concertino.orchestra.storage import DEFAULT_STORAGE, RESOURCES
from concertino.orchestra.streams import WINDOW_BYTES, ResponseStream

__all__ = ["Hub"]

log = logging.getLogger("concertino.hub")

# The default of Hub's parameter stop_s, in seconds.
STOP_S = 5.0
# If no plugin has a tool, the error names at most so many plugins that do not run.
MAX_NAMED = 5
# The following are kinds of requests. The kind of a PluginRequest is the name of the only field of
# the oneof `request` (plugin.proto) that is set.
#
# Requests for lists. They wait until each plugin has started, has failed to start, uses no
# processor time, or has taken so long that requests no longer wait for the plugin
# (FirstStart.settled).
LIST_REQUESTS = ("list_tools", "list_prompts", "list_events", "storage_list")
EVENT_REQUESTS = ("publish", "subscribe", "unsubscribe", "list_events")
# Requests that one plugin answers, apart from tool calls.
PROVIDER_REQUESTS = ("prompt_get", "storage_read", "storage_write", "storage_delete")


class Hub:
    """Runs the plugins of a file, and answers requests at one address. Use it on one event loop.

        hub = Hub(read_plugins("plugins.yaml"))
        await hub.start()
        ...
        await hub.stop()

    file: the content of a plugins file. The hub starts the plugins that are `enabled` in the file.
    listen_addr: the address at which bridges and other programs reach the hub: HOST:PORT for QUIC,
        or unix:PATH. None for the address in the file; without one, localhost:50100.
    certs_dir: the directory of certificates for QUIC and the cluster. None for the directory in the
        file; without one, ~/.orchestra/certs.
    is_private: listen only for the hub's own plugins, and not at listen_addr.
    cluster: the address of a NATS cluster (nats_cluster.py). The hub also forwards requests to the
        plugins that it finds there, and offers its own plugins to the other hubs of the cluster.
        None for the address in the file; without one, the hub joins no cluster.
    stop_s: how long all plugins together may take to end by themselves, in seconds. The processes
        that are still running then are killed, which takes at most stop_s more.

    Attributes:
    on_change: called with "tools" or "prompts" when the hub's list of tools or prompts has changed;
        None if nobody needs to know.
    withheld: plugin id -> reason, for each plugin whose new or changed entry the hub does not use
        yet, for example because the user has not approved the entry. PluginsReload sets it.
    """

    def __init__(
        self,
        file: PluginsFile,
        *,
        listen_addr: str | None = None,
        certs_dir: str | os.PathLike[str] | None = None,
        is_private: bool = False,
        cluster: str | None = None,
        stop_s: float = STOP_S,
    ) -> None:
        self.on_change: Callable[[ListName], None] | None = None
        self.withheld: Mapping[str, str] = {}
        certificates = Certificates(certs_dir or file.certs_dir or default_folder())
        # Overrides the directory of certificates in the entries of bridges to other hubs; None
        # overrides nothing. The user's approval is for the entries in the file, so _adapt() changes
        # only copies.
        self._certs_dir = str(certificates.folder) if certs_dir else None
        cluster = cluster or file.cluster
        self._cluster: HubCluster | None = None
        if cluster is not None:
            self._cluster = HubCluster(
                cluster, certificates, lambda: self.plugins, self._on_plugin_change
            )
        self._listeners = HubListeners(
            certificates,
            None if is_private else listen_addr or file.listen_addr or LISTEN,
        )
        self._routes: Routes[HubPlugin] | None = None
        # The current messages about names that several plugins offer; each is logged once.
        self._logged_conflicts: set[str] = set()
        self._calls = ToolCalls(self)
        self._events = HubEvents()
        self._list_changes = ListChanges(self._serialize_lists, self._report_change)

        self._plugins = PluginSet(self._adapt(file.enabled), stop_s, self._on_plugin_change)
        self._waits = StartWaits(self._plugins)

    @property
    def plugins(self) -> Mapping[str, PluginProcess]:
        """The plugins by id, in the order of the file."""
        return self._plugins.by_id

    @property
    def addresses(self) -> list[str]:
        """The addresses where the hub listens, without the private socket of its own plugins.

        Empty before start() or launch().
        """
        return self._listeners.addresses

    async def start(self) -> None:
        """Listen, start the plugins, and wait until each has started or failed to start.

        A plugin that has failed to start is started again in the background. Raises the same errors
        as launch().
        """
        await self.launch()
        await asyncio.gather(*(plugin.first_start.over.wait() for plugin in self._plugins.by_start))
        await self.settle()

    async def launch(self) -> None:
        """Listen, and begin to start the plugins without waiting for them.

        From now on the hub answers requests. A request waits for the plugin that it needs.
        Raises OSError, ValueError, CertificateError, Disconnected and ImportError when the hub
        cannot listen or cannot reach the cluster. The hub is then stopped, so stop() need not be
        called.
        """
        needs_network = any(not plugin.entry.socket for plugin in self._plugins.by_start)
        try:
            environment = await self._listeners.open(self.handle, self.relay, needs_network)
            # From now on, this hub shares its events with the other hubs of the cluster.
            if self._cluster is not None:
                await self._events.join(await self._cluster.open(self.handle, self.relay))
        except BaseException:
            await self.stop()
            raise
        self._plugins.start(environment)

    async def settle(self) -> None:
        """Wait until each plugin has started or failed to start, and log how many plugins run.

        Waits at most 15 seconds. Does not wait for a plugin that uses no processor time, because it
        may be waiting for something that never happens. The log line names the plugins that are
        still starting.
        """
        await self._waits.wait_settled()
        plugins = self.plugins.values()
        starting = [plugin.id for plugin in plugins if plugin.state in ("waiting", "starting")]
        rest = f"; still starting: {', '.join(starting)}" if starting else ""
        log.info("%d of %d plugins run%s", self._count_running(), len(plugins), rest)

    async def stop(self) -> None:
        """End all plugins, and stop listening. A plugin ends before the plugins it depends on.

        The plugins have stop_s seconds to end by themselves. Then their processes are killed, which
        takes at most stop_s more.
        """
        # First make the other hubs of the cluster send no more calls. Close the connections last,
        # because a plugin may still call other plugins while it ends.
        if self._cluster is not None:
            self._cluster.withdraw()
        await self._plugins.stop()
        self._list_changes.cancel()
        self._calls.cancel()
        await self._events.close()
        if self._cluster is not None:
            await self._cluster.close()
        await self._listeners.close()

    async def change_plugins(self, entries: Sequence[PluginEntry]) -> None:
        """Start, replace and end plugins, so that the hub has exactly the plugins of these entries.

        entries: what the plugins file says about each plugin. Plugins are compared by their ids:
            - A new plugin is started.
            - A plugin that has no entry any more ends after its calls.
            - A plugin whose entry has changed is replaced. Its new process gets all calls as soon
              as it has started, and the old process ends after its calls.
            - All other plugins run on.
        Returns when the replaced plugins have started or failed to start.
        Raises ValueError, and changes nothing, if a dependency is missing or dependencies form a
        cycle. Raises OSError, ValueError or CertificateError if the hub gets its first plugin over
        QUIC and cannot listen over QUIC.
        """
        before = set(self.plugins)
        environment = await self._listeners.environment_for(
            self.handle, self.relay, any(not entry.socket for entry in entries)
        )
        await self._plugins.change(self._adapt(entries), environment)
        # End the subscriptions of the plugins that were removed.
        self._events.forget(before - set(self.plugins))

    def _adapt(self, entries: Sequence[PluginEntry]) -> Sequence[PluginEntry]:
        """Return the entries, with the directory of certificates that was passed to Hub().

        Only the entries of bridges to other hubs change. If no directory was passed, no entry does.
        """
        return [entry.with_certs_dir(self._certs_dir) for entry in entries]

    async def restart_plugin(self, id: str) -> None:
        """End a plugin's process, and start the program again.

        The old process gets stop_s seconds for its calls in progress. Returns when the new process
        has started or failed, or has taken 15 seconds: see `plugins[id].state`.
        id: a key of `plugins`; KeyError for any other id.
        """
        await self._plugins.restart_plugin(id)

    async def stop_plugin(self, id: str) -> None:
        """End a plugin, and wait for its end. Only restart_plugin() starts it again.

        id: a key of `plugins`; KeyError for any other id.
        """
        await self._plugins.stop_plugin(id)

    def kill(self) -> None:
        """Kill every plugin's process group immediately, when there is no time for stop()."""
        self._listeners.remove_folder()
        self._plugins.kill()

    @property
    def routes(self) -> Routes[HubPlugin]:
        """The current routes, which say which plugin gets the requests for which tool or prompt.

        After a change of a plugin, the first use of this property builds the routes again, and logs
        new conflicts between plugins, such as two tools with one name.
        """
        if self._routes is None:
            # Plugins of this hub come before plugins of the cluster, so that calls stay on this
            # machine.
            others = self._cluster.plugins if self._cluster is not None else ()
            remote = [plugin for plugin in others if plugin.id not in self.plugins]
            self._routes = build_routes([*self.plugins.values(), *remote])
            conflicts, replacements = self._routes.conflicts, self._routes.replacements
            for level, messages in ((logging.ERROR, conflicts), (logging.WARNING, replacements)):
                for message in messages:
                    if message not in self._logged_conflicts:
                        log.log(level, "%s", message)
            self._logged_conflicts = {*conflicts, *replacements}
        return self._routes

    def _count_running(self) -> int:
        """Return how many plugins are running."""
        return sum(plugin.state == "running" for plugin in self.plugins.values())

    # Requests

    async def handle(
        self, request: PluginRequest, peer: RemotePeer
    ) -> PluginResponse | ResponseStream:
        """Answer a request of any kind. The hub's listeners call this method.

        peer: the plugin, bridge or other program that has sent the request.
        Returns the response; for a stream_start, an async generator of the responses.
        """
        if request.HasField("stream_start"):
            return self.stream(request.stream_start, peer, request.path)
        return await self.answer(request, peer)

    async def answer(self, request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        """Answer a request of any kind but stream_start.

        peer: the plugin, bridge or other program that has sent the request.
        Returns an error response if the request fails.
        """
        kind = request.WhichOneof("request") or "nothing"
        # For a tool call, find_tool() checks the files.
        if kind in LIST_REQUESTS or kind in PROVIDER_REQUESTS:
            await self._replace_changed_plugins()
        return await self._answer(request, kind, peer)

    async def _replace_changed_plugins(self) -> None:
        """Begin to replace the plugins whose watched files have changed.

        Called before a request is answered, so that the request waits for the changed program.
        """
        if self._plugins.has_watches:
            await self._plugins.check_saves()

    async def _answer(self, request: PluginRequest, kind: str, peer: RemotePeer) -> PluginResponse:
        """Answer a request. kind: the field that is set in the request, or "nothing"."""
        if kind == "tool_call":
            return await self._calls.call(request, peer)
        if kind in LIST_REQUESTS:
            await self._waits.wait_settled(peer)
        if kind == "list_tools":
            return self.routes.tool_list
        if kind == "list_prompts":
            return self.routes.prompt_list
        if kind == "prompt_get":
            name = request.prompt_get.prompt_name
            plugin = await self._waits.find_provider(lambda: self.routes.prompts.get(name), peer)
            return await forward_request(plugin, "prompt", name, request, kind)
        if kind.startswith("storage_"):
            name = getattr(request, kind).storage_type or DEFAULT_STORAGE
            # Several plugins may provide the resources of MCP servers. Each other type of storage
            # has one provider.
            if name == RESOURCES:
                return await self._answer_resources(request, kind, peer)
            plugin = self.routes.storage.get(name)
            # While plugins start, the provider may not be known yet, so wait for it. For requests
            # for lists, wait_settled() has waited for all plugins.
            if kind not in LIST_REQUESTS and not self._waits.are_over:
                plugin = await self._waits.find_provider(
                    lambda: self.routes.storage.get(name), peer
                )
            response = await forward_request(plugin, "storage", name, request, kind)
            self._events.on_storage(request, kind, response)
            return response
        if kind == "register":
            return self._register(request.register, peer)
        if kind == "health":
            return PluginResponse(health=self._health())
        if kind in EVENT_REQUESTS:
            return await self._answer_event(request, kind, peer)
        return error_response(
            request.request_id, "unknown_request", f"the hub does not answer {kind}"
        )

    def _manifests(self) -> list[PluginManifest]:
        """Return the manifests of the hub's own plugins, and of those in the cluster."""
        others = self._cluster.plugins if self._cluster is not None else ()
        return [plugin.features.manifest for plugin in [*self.plugins.values(), *others]]

    async def _answer_event(
        self, request: PluginRequest, kind: str, peer: RemotePeer
    ) -> PluginResponse:
        """Answer a request about events. kind: one of EVENT_REQUESTS."""
        if kind == "list_events":
            topics = self._events.topics(self._manifests())
            return PluginResponse(list_events=ListEventsResponse(topics=topics))
        plugin = next((item for item in self.plugins.values() if is_plugin(peer, item)), None)
        if kind == "subscribe":
            return self._events.subscribe(plugin, request.subscribe)
        if kind == "unsubscribe":
            return self._events.unsubscribe(plugin, request.unsubscribe.subscription_id)
        # The source of an event is the verified sender of the request: a plugin of this hub, or the
        # name in the peer's certificate. If the sender is neither, the name in the request counts.
        if plugin is not None:
            source = plugin.id
        elif peer.name is not None:
            source = plugin_id(peer.name)
        else:
            source = request.publish.source_plugin or "unknown"
        return await self._events.publish(request.publish, source)

    async def _answer_resources(
        self, request: PluginRequest, kind: str, peer: RemotePeer
    ) -> PluginResponse:
        """Answer a storage request for the resources of MCP servers, from all their plugins."""
        await self._waits.wait_settled(peer)
        plugins = [
            partial(forward_request, plugin, "storage", RESOURCES, request, kind)
            for plugin in self.routes.resources
        ]
        return await answer_from_plugins(request, plugins)

    def stream(
        self, start: StreamStart, peer: RemotePeer, path: Sequence[str] = ()
    ) -> ResponseStream:
        """Answer a stream_start. Yields the responses.

        start: the request. With the field `subscribe` it subscribes to events: the responses are
            chunks with events, without end. Otherwise it calls a tool: the hub forwards it to the
            tool's plugin, and the last response is a stream_end.
        peer: the plugin, bridge or other program that has sent the request.
        path: the bridges through which the request has come from other hubs (request_path.py).
        """
        if start.HasField("subscribe"):
            return self._stream_events(start, peer)
        return self._calls.stream(start, peer, path)

    async def _stream_events(self, start: StreamStart, peer: RemotePeer) -> ResponseStream:
        """Yield the events of a subscription as stream_chunk responses, without end.

        If the subscription is not valid, yields only a stream_end with the error.
        """
        if start.subscribe.positions:
            # A subscriber that requests positions in the event log gets an error for a topic that
            # no plugin declares. A plugin that is still starting may declare the topic.
            await self._waits.wait_settled(peer)
        events = self._events.stream(start.stream_id, start.subscribe, self._manifests())
        async with aclosing(events) as responses:
            async for response in responses:
                yield response

    async def find_tool(self, name: str, ai: str, peer: RemotePeer) -> HubPlugin | None:
        """Return the plugin that has a tool, after waiting for its start; None if no plugin has it.

        name: the name of the tool.
        ai: the AI provider that the call names; empty for none.
        peer: the sender of the call. If the sender is a plugin that is itself starting, the call
            does not wait. Otherwise, two plugins could wait for each other.
        """
        await self._replace_changed_plugins()
        if self._waits.are_over:
            return self.routes.find_tool(name, ai)
        plugin = await self._waits.find_provider(lambda: self.routes.find_tool(name, ai), peer)
        if plugin is not None and plugin.provides_ai and ai not in plugin.provides_ai:
            # The plugin gives access to another AI provider than the call names. A plugin that is
            # still starting may give access to the provider in the call.
            await self._waits.wait_settled(peer)
            plugin = self.routes.find_tool(name, ai)
        return plugin

    def explain_missing_tool(self, name: str, ai: str) -> str:
        """Return a sentence that says why no plugin has a tool.

        The sentence also names plugins that have never run, because one of them may have the tool.
        name: the name of the tool.
        ai: the AI provider that the call names; empty for none.
        """
        text = self.routes.explain_missing_tool(name, ai)
        reasons = {
            plugin.id: plugin.reason
            for plugin in self.plugins.values()
            if not plugin.first_start.has_run.is_set()
        }
        for id, reason in self.withheld.items():
            if id not in self.plugins:
                reasons[id] = reason
        if not reasons:
            return text
        texts = [f"{id} ({reason})" for id, reason in list(reasons.items())[:MAX_NAMED]]
        if len(reasons) > MAX_NAMED:
            texts.append(f"and {len(reasons) - MAX_NAMED} more")
        return f"{text}; these plugins do not run: {redactor().text(', '.join(texts))}"

    def relay(
        self,
        body: bytes,
        peer: RemotePeer,
        respond: Respond,
    ) -> Cancellable | None:
        """Forward a tool call or stream to its plugin, and the responses back, as bytes.

        The hub's listeners call this method first for each request, because it is faster than
        handle(): it starts no task, and decodes almost nothing.
        body: the request, serialized without its id.
        respond: sends a response to the peer.
        Returns an object that cancels the call. Returns None, and does nothing, if handle() must
        handle the request:

        - The request is no tool call or stream.
        - Its fields are in an unusual order (message_peek.py).
        - It names another caller than the peer's certificate.
        - The plugin cannot get the request now.
        """
        if is_stream_start(body):
            return self._relay_stream(body, peer, respond)
        call = peek_tool_call(body)
        if call is None:
            return None
        tool_name, caller = call
        if peer.name is not None and caller != plugin_id(peer.name):
            return None
        plugin = self._find_relay_plugin(tool_name)
        return None if plugin is None else self._calls.relay(plugin, body, respond)

    def _relay_stream(self, body: bytes, peer: RemotePeer, respond: Respond) -> Cancellable | None:
        """Forward a stream_start and its responses as bytes, if all conditions below hold.

        - The peer and the plugin use Unix sockets. Both are then programs of this package, while a
          Go plugin may refuse to stream a tool.
        - The request has a `window` of at most WINDOW_BYTES. A plugin sends so many bytes of chunks
          before the peer has read them, and the hub may have to hold them.
        - The request has a stream id, and no field that only handle() reads.

        body: the request, serialized without its id.
        respond: sends a response to the peer.
        Returns an object that cancels the stream; None if handle() must handle the request.
        """
        # A peer with a name is connected over QUIC or a NATS cluster, not over a Unix socket.
        if peer.name is not None:
            return None
        try:
            request = PluginRequest.FromString(body)
        except DecodeError:
            return None
        start = request.stream_start
        if not start.stream_id or not 0 < start.window <= WINDOW_BYTES:
            return None
        # A request id in the body would win over the id that this hub puts before the body, because
        # the last value of a Protobuf field counts.
        if request.request_id:
            return None
        # Only handle() reads these fields.
        if request.path or start.provider or start.HasField("subscribe"):
            return None
        plugin = self._find_relay_plugin(start.tool_name)
        if not isinstance(plugin, PluginProcess) or plugin.uses_quic:
            return None
        return self._calls.relay_stream(plugin, body, start.stream_id, respond)

    def _find_relay_plugin(self, tool: str) -> HubPlugin | None:
        """Return the plugin to which relay() may forward calls of a tool.

        Returns None if no plugin has the tool, and while a call may have to wait for a plugin.
        """
        # Watched files of plugins must be checked before the call, as find_tool() does.
        if not self._waits.are_over or self._plugins.has_watches:
            return None
        # Reading the attribute is faster than the property, which is only needed after a change.
        return (self._routes or self.routes).tools.get(tool)

    def _register(self, manifest: PluginManifest, peer: RemotePeer) -> PluginResponse:
        """Answer a request to register a plugin, and use the manifest if the hub accepts it."""
        reason = registration_problem(manifest.id, peer, self.plugins)
        if reason:
            log.warning("%s, pid %s: registration refused: %s", peer.address, peer.pid, reason)
            return PluginResponse(register=RegistrationResult(reject_reason=reason))

        plugin = self.plugins.get(manifest.id)
        if plugin is not None:
            plugin.on_register(manifest)
            self._events.on_register(plugin, manifest)
        return PluginResponse(register=RegistrationResult(accepted=True))

    def _health(self) -> HealthResult:
        """Return the hub's health: HEALTHY if every plugin runs, else DEGRADED, with details."""
        plugins = self.plugins.values()
        running = self._count_running()
        return HealthResult(
            status=HealthResult.HEALTHY if running == len(plugins) else HealthResult.DEGRADED,
            message=f"{running} of {len(plugins)} plugins run",
            details={
                plugin.id: f"{plugin.state}: {plugin.reason}" if plugin.reason else plugin.state
                for plugin in plugins
            },
        )

    # Changes

    def _on_plugin_change(self) -> None:
        """Handle a change of a plugin's state, tools or prompts, for PluginSet and HubCluster."""
        self._routes = None
        # Forget which tools refuse streams.
        self._calls.forget()
        # Send the events that wait for a plugin.
        self._events.on_plugin_change()
        if self._cluster is not None:
            self._cluster.offer_plugins()
        # Wake the requests that wait for the plugin.
        self._waits.on_change()
        self._list_changes.compare_soon()

    def _report_change(self, name: ListName) -> None:
        """Call on_change, if there is one."""
        if self.on_change is not None:
            self.on_change(name)

    def _serialize_lists(self) -> tuple[bytes, bytes]:
        """Return the current lists of tools and of prompts as bytes. ListChanges compares them."""
        routes = self.routes
        return (
            routes.tool_list.list_tools.SerializeToString(),
            routes.prompt_list.list_prompts.SerializeToString(),
        )
