"""EmbeddedHub: an MCP server with a hub in the same process, for `concertino serve plugins.yaml`.

A hub starts plugins, programs with tools, and forwards calls to them. Each MCP client that starts
such a server has its own hub and its own plugins. The hub accepts connections from its plugins
only, so several such servers can run at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from functools import partial
from typing import Any

from concertino.backend.interface import Notifier
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.hub_control import HubControl
from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse
from concertino.orchestra.plugins_file import PluginsFile
from concertino.orchestra.plugins_reload import POLL_S, PluginsReload
from concertino.orchestra.rpc_interface import RemotePeer
from concertino.orchestra.streams import ResponseStream
from concertino.runtime import entry

__all__ = ["EmbeddedHub"]

log = logging.getLogger("concertino.hub")

# Time for plugins to end by themselves, in seconds. It is short because the process exits soon
# after its client has gone (runtime/process.py).
STOP_S = 0.8
THIS_PROCESS = RemotePeer("this process")


class EmbeddedHub(HubBackend):
    """A Backend that runs a hub in this process. The hub starts the plugins of a plugins file.

        server = EmbeddedHub(read_plugins("plugins.yaml"))

    file: the content of the plugins file. Changes of the file are applied while the hub runs
        (plugins_reload.py).
    trust: whether changes of the file are applied without the user's approval.
    poll_s: the time between two checks of the file for changes, in seconds.

    Attribute:
    cluster: the address of the NATS cluster that the hub joins; None for the address in the file.
        Set it before start().
    """

    def __init__(self, file: PluginsFile, *, trust: bool = False, poll_s: float = POLL_S) -> None:
        # No function to forward serialized calls is needed, because there is no connection to the
        # hub: `send` calls the hub directly.
        super().__init__(self._ask_hub, stream=self._stream_from_hub)
        self.cluster: str | None = None
        self._file = file
        self._make_reload = partial(PluginsReload, file=file, trust=trust, poll_s=poll_s)
        self._reload: PluginsReload | None = None
        self._hub: Hub | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._control: HubControl | None = None

    async def start(self, outlet: Notifier) -> None:
        """Begin to start the plugins, without waiting for them: each call waits for its plugin.

        outlet: passes notifications on to the MCP clients.
        Raises OSError, ValueError or CertificateError if the hub cannot listen, and Disconnected if
        the hub cannot reach its cluster. The hub is then stopped, so close() need not be called.
        """
        await super().start(outlet)
        # The notes are the warnings about the file, and the plugins that are not enabled.
        self._file.log_notes(log)
        self._hub = Hub(self._file, is_private=True, cluster=self.cluster, stop_s=STOP_S)
        # refresh() notifies the clients only of lists that have changed since a client got them.
        self._hub.on_change = lambda _: self._run(self.refresh())
        await self._hub.launch()
        self._run(self._hub.settle())
        self._reload = self._make_reload(self._hub)
        self._reload.open()
        # `concertino hub` can show and control the hub if the whole process is this server, as in
        # `concertino serve`. It cannot do so if the hub is a part of another Python program.
        if entry.is_program():
            self._control = HubControl(self._hub)
            await self._control.open(os.environ)

    async def close(self) -> None:
        """Stop the hub and its plugins, and wait for their end."""
        await super().close()
        for task in self._tasks:
            task.cancel()
        if self._control is not None:
            await self._control.close()
        if self._reload is not None:
            await self._reload.close()
        hub, self._hub = self._hub, None
        if hub is not None:
            # Ending plugins changes the lists, but no client needs to know that any more.
            hub.on_change = None
            await hub.stop()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_hub(self, request: PluginRequest, timeout_s: float) -> PluginResponse:
        assert self._hub is not None, "the server answers no calls before start() has returned"
        # timeout_s is not needed: the hub limits the time of each call itself.
        return await self._hub.answer(request, THIS_PROCESS)

    def _stream_from_hub(self, request: PluginRequest, timeout_s: float) -> ResponseStream:
        assert self._hub is not None, "the server answers no calls before start() has returned"
        return self._hub.stream(request.stream_start, THIS_PROCESS, request.path)
