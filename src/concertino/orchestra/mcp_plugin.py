"""McpPlugin: an MCP server, in any language, as a plugin of a hub (`protocol: mcp`).

A hub starts plugins, programs with tools, and forwards requests to them. For each entry with
`protocol: mcp` in the plugins file, the hub starts `concertino plugin mcp`, which runs an
McpPlugin. The McpPlugin starts the MCP server, or connects to it. A Proxy between them applies the
limits in the entry (guards), and gives each caller its own process of the server if the entry says
so (`isolation`).

The plugin offers the server's tools and prompts as its own. The plugin protocol has no resources,
but it has stored documents: the server's resources appear at the hub as documents of the storage
type RESOURCES (mcp_resources.py). When a list of the server changes, the plugin registers at the
hub again, and the hub fetches the lists.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping

from concertino.backend.interface import Context, Notifier
from concertino.client.request_handlers import Sample
from concertino.errors import ConcertinoError
from concertino.orchestra.hub_events import STORAGE_TOPIC
from concertino.orchestra.mcp_entry import FILE, SERVER
from concertino.orchestra.mcp_resources import answer_from_server
from concertino.orchestra.mcp_sessions import McpSessions, list_or_nothing
from concertino.orchestra.mcp_updates import McpUpdates
from concertino.orchestra.plugin_events import EventHandlers
from concertino.orchestra.plugin_hooks import LifecycleHooks
from concertino.orchestra.plugin_messages import (
    HealthResult,
    ListToolsRequest,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    ToolRequest,
)
from concertino.orchestra.plugin_requests import PluginRequests
from concertino.orchestra.plugin_sampling import MODEL_TOOLS, decode_sample_result, sample_at_hub
from concertino.orchestra.rpc_interface import RemotePeer, Responses, RpcConnection
from concertino.orchestra.storage import RESOURCES
from concertino.proxy.expansion import Expander
from concertino.proxy.file_server import FileServer
from concertino.proxy.server_file import parse_server_file
from concertino.proxy.server_launch import expand_entry
from concertino.proxy.value_reader import InvalidServerFile
from concertino.runtime.threads import Threads
from concertino.types.client_requests import CreateMessageResult, Sampling
from concertino.types.results import Implementation

__all__ = ["McpPlugin"]


class McpPlugin:
    """A plugin that offers the features of an MCP server. plugin_main.py runs it.

    name: the plugin's id.

    Attributes:
    hub: the connection to the hub; None if there is none. plugin_main.py sets it.
    on_end: called without arguments when the hub requests the end of the plugin. plugin_main.py
        sets it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.hub: RpcConnection | None = None
        self.on_end: Callable[[], None] = _do_nothing
        # The names of the server's prompts.
        self._prompts: frozenset[str] = frozenset()
        # EventHandlers and PluginRequests require Threads. They are not used, because all functions
        # of this plugin are `async def`.
        self._threads = Threads(1)
        self._events = EventHandlers(name, self._threads.run)
        # McpUpdates gets functions, because `_sessions` does not exist yet: McpSessions needs
        # McpUpdates in turn.
        self._updates = McpUpdates(
            name, self._events, lambda: self._sessions.main, lambda: self.hub
        )
        self._sessions = McpSessions(
            name, self._on_change, self._updates.on_update, self._find_model
        )
        hooks = LifecycleHooks(logging.getLogger(f"concertino.{name}"))
        hooks.boot.append(self._boot)
        self._requests = PluginRequests(
            name=name,
            backend=self._sessions,
            has_tool=_has_tool,
            prompt_names=lambda: self._prompts,
            # answer() of this class answers the requests for storage.
            storages={},
            in_thread=self._threads.run,
            hooks=hooks,
            events=self._events,
            on_shutdown=lambda: self.on_end(),
            hub=lambda: self.hub,
        )
        # The task that registers again after a change; None before the first change.
        self._registering: asyncio.Task[None] | None = None
        # Whether the server is being started.
        self._is_booting = False
        # Whether a list has changed since the last registration began.
        self._has_changed = False

    async def _boot(self, config: Mapping[str, str]) -> None:
        """Start the server that the hub's configuration describes (mcp_entry.py).

        Raises ConcertinoError if the configuration has no valid server, or the server does not
        start.
        """
        if SERVER not in config:
            raise ConcertinoError(
                "expected an MCP server in the configuration; a hub sends it, for an entry with "
                "`protocol: mcp` in plugins.yaml"
            )
        self._is_booting = True
        try:
            await self._start_server(config)
        finally:
            self._is_booting = False

    async def _start_server(self, config: Mapping[str, str]) -> None:
        file = parse_server_file(config[SERVER].encode(), config.get(FILE, ""))
        [entry] = file.servers
        try:
            # An entry of a plugins file has no inputs and no file with variables.
            expander = Expander(file, os.environ, inputs={})
            launch = expand_entry(entry, file, expander, env_file={})
        except InvalidServerFile as exc:
            # The error is `FILE:LINE:COLUMN: SERVER.KEY: PROBLEM`. The place is in the JSON that
            # the hub has sent. Leave it out with the name of the server, because the user has
            # written the plugins file, not this JSON.
            raise ConcertinoError(str(exc).partition(f": {entry.name}.")[2]) from None
        await self._sessions.open(FileServer(self.name, launch, entry.options))
        await self._learn_prompts()

    async def _explain_boot(self) -> PluginResponse:
        """Answer a health request during the boot: say what the boot waits for."""
        health = HealthResult(status=HealthResult.DEGRADED, message=self._sessions.describe_delay())
        return PluginResponse(health=health)

    async def _find_model(self) -> Sample | None:
        """Return a function that answers the server's sampling requests with a model.

        The function calls a tool of an AI provider, another plugin of the hub. Returns None if the
        hub has no AI provider.
        """
        hub = self.hub
        if hub is None:
            return None
        response = await hub.request(PluginRequest(list_tools=ListToolsRequest()))
        if not any(tool.name in MODEL_TOOLS for tool in response.list_tools.tools):
            return None

        async def sample(request: Sampling, server: Implementation) -> CreateMessageResult:
            answer = await sample_at_hub(hub, request, ToolRequest(), self.name)
            return decode_sample_result(answer)

        return sample

    async def _learn_prompts(self) -> None:
        """Fetch the names of the server's prompts."""
        prompts = await list_or_nothing(self._sessions.main.list_prompts())
        self._prompts = frozenset(prompt.name for prompt in prompts)

    def _on_change(self, name: str) -> None:
        """Register at the hub again, because a list of the server has changed.

        name: the list: "tools", "prompts" or "resources".
        """
        self._has_changed = True
        if self._registering is None or self._registering.done():
            self._registering = asyncio.get_running_loop().create_task(self._register_again())

    async def _register_again(self) -> None:
        """Send the manifest to the hub again. The hub then fetches the lists."""
        # If a list changes while a registration is in progress, register once more: the hub may
        # have fetched the lists before the change.
        while self._has_changed and (hub := self.hub) is not None:
            self._has_changed = False
            try:
                await self._learn_prompts()
                await hub.request(PluginRequest(register=self.manifest()))
            except ConcertinoError as exc:
                log = logging.getLogger(f"concertino.{self.name}")
                log.warning("the hub does not know the changed lists yet: %s", exc)

    # RunnablePlugin

    def manifest(self) -> PluginManifest:
        """Return the manifest, which the plugin sends to the hub to register.

        It does not name the tools and prompts, because the hub fetches their lists.
        """
        return PluginManifest(
            id=self.name,
            language="mcp",
            provides_storage=[RESOURCES],
            provides_events=[STORAGE_TOPIC],
            needs_events=self._events.topics(),
            subscriptions=self._events.subscriptions(),
        )

    def answer(self, request: PluginRequest, peer: RemotePeer) -> Awaitable[Responses]:
        """Answer one request of the hub. This method is a RequestHandler (rpc_interface.py).

        peer: the hub; not used.
        """
        kind = request.WhichOneof("request") or ""
        if kind == "health" and self._is_booting:
            return self._explain_boot()
        if kind.startswith("storage_"):
            return answer_from_server(request, self._sessions)
        handler = self._requests.handlers.get(kind)
        return self._requests.refuse(request) if handler is None else handler(request)

    async def start(self, outlet: Notifier) -> None:
        """Do nothing: the server is started when the hub has sent its configuration (_boot())."""

    async def shut_down(self) -> bool:
        """Return True for success: this plugin has no shutdown functions that could fail."""
        return True

    async def close(self) -> None:
        """End the server."""
        if self._registering is not None:
            self._registering.cancel()
        await self._updates.close()
        await self._sessions.close()


def _has_tool(name: str, context: Context) -> bool:
    """Return True for each name: the server itself refuses a tool that it does not have."""
    return True


def _do_nothing() -> None:
    pass
