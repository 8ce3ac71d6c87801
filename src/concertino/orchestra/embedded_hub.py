"""Serving: a hub and MCP in one process, which is what `concertino serve plugins.yaml` serves.

The hub listens for its own plugins only, so any number of these can run beside each other.
"""

from __future__ import annotations

import logging

from concertino.backend.interface import Notifier
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.link import PluginRequest, PluginResponse, RemotePeer
from concertino.orchestra.plugins_file import PluginsFile

__all__ = ["EmbeddedHub"]

log = logging.getLogger("concertino.hub")

START_S = 15.0  # that calls wait for plugins at the start; who is later tells by list_changed
STOP_S = 0.8  # the process leaves soon after its client: see runtime/process.py
HERE = RemotePeer("this process")


class EmbeddedHub(HubBackend):
    """A Backend over a hub of its own. file: its plugins."""

    def __init__(self, file: PluginsFile) -> None:
        super().__init__(self._ask_hub)
        self._file = file
        self._hub: Hub | None = None

    async def start(self, outlet: Notifier) -> None:
        """Start the plugins. Raises OSError and CertificateError when the hub cannot listen."""
        await super().start(outlet)
        for warning in self._file.warnings:
            log.warning("%s", warning)
        self._hub = Hub(self._file, is_private=True, stop_s=STOP_S)
        self._hub.on_change = self.report_change
        await self._hub.start(START_S)

    async def close(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.stop()

    async def _ask_hub(self, request: PluginRequest, timeout_s: float) -> PluginResponse:
        assert self._hub is not None, "calls wait until start() has returned"
        return await self._hub.answer(request, HERE)  # which has a time limit itself
