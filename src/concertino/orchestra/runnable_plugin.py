"""RunnablePlugin: the interface of a plugin for the code that runs its process.

A plugin is a program with tools, prompts or storage. A hub usually starts it and sends it requests.
Plugin (Python functions) and McpPlugin (an MCP server) implement the interface. plugin_main.py runs
such a plugin for a hub, and cluster_worker.py runs it for the hubs of a NATS cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from concertino.backend.interface import Notifier
from concertino.orchestra.plugin_messages import PluginManifest, PluginRequest
from concertino.orchestra.rpc_interface import RemotePeer, Responses, RpcConnection

__all__ = ["RunnablePlugin"]


class RunnablePlugin(Protocol):
    """A plugin whose process can be run.

    Attributes:
    hub: the connection to the hub; None if there is none. The code that runs the process sets it.
    on_end: a function that the plugin calls when the hub requests the end of the plugin. The code
        that runs the process sets it.
    name: the id of the plugin.

    The code that runs the process calls the methods:

    - start() before the hub can connect.
    - manifest() to register at the hub. It returns what the plugin provides and needs.
    - answer() for each request of the hub.
    - shut_down() at the end. It runs the plugin's shutdown functions, and returns whether all of
      them have succeeded.
    - close() last. It releases everything else.
    """

    hub: RpcConnection | None
    on_end: Callable[[], None]

    @property
    def name(self) -> str: ...
    def manifest(self) -> PluginManifest: ...
    def answer(self, request: PluginRequest, peer: RemotePeer) -> Awaitable[Responses]: ...
    async def start(self, outlet: Notifier) -> None: ...
    async def shut_down(self) -> bool: ...
    async def close(self) -> None: ...
