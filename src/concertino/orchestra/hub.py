"""Hub: plugins behind one address. It starts those of a plugins file, and passes requests on to whom they are for.

    hub = Hub(read_plugins("plugins.yaml"))
    await hub.start()
    response = await hub.answer(request, peer)      # as whoever connects to hub.addresses gets it
    await hub.stop()

Requests and responses are passed on as they are; Structs in them stay bytes. A call whose plugin is not there fails at once and is
never sent a second time. One plugin's life is hosted.py's, and who answers for what is routes.py's.
Source: the Orchestra plugin protocol, "Orchestrator" and "Gaps".
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from google.protobuf.message import DecodeError

from concertino.errors import ConcertinoError, Disconnected, TimedOut
from concertino.orchestra.authority import ensure
from concertino.orchestra.certificates import Certificates, default_folder
from concertino.orchestra.link import LinkListener, RemotePeer, Respond, listen_for_links, refusal
from concertino.orchestra.message_peek import is_of_a_tool, peek_tool_call, split_id
from concertino.orchestra.pending_response import PendingResponse
from concertino.orchestra.plugin_pb2 import (
    HealthResult,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    RegistrationResult,
)
from concertino.orchestra.plugin_process import HubEnvironment, PluginProcess
from concertino.orchestra.plugins_file import HUB, LISTEN, PluginsFile
from concertino.orchestra.routes import Routes, routes_of
from concertino.orchestra.stores import DEFAULT
from concertino.transports.process import ShutdownTimeouts

__all__ = ["Hub"]

log = logging.getLogger("concertino.hub")

CALL_S = 600.0  # for a call to be answered: the longest that anybody waits for a plugin
STOP_S = (
    5.0  # for plugins to end by themselves, once they are asked to; as long again for ending them
)
TELL_S = 0.05  # how long changes of lists are gathered before somebody is told
PREFIX = "orchestra-"  # of the folders for sockets
INSIDE = "hub.sock"  # in it: where the plugins with a socket reach the hub
LEFT_S = 60.0  # how old such a folder is at least that a hub is taken to have left
Changed = Literal["tools", "prompts"]


class Hub:
    """See above. Made and used on one event loop.

    listen_addr, certs_dir: instead of those of the file. is_private: listen for the plugins of the file only, and not at
    listen_addr. stop_s: for plugins to end by themselves, and as long again for ending them. addresses: where the hub listens, once
    it has started. plugins: by id, in the order of the file. changed: called when the list of tools or prompts is no longer what it
    was.
    """

    def __init__(
        self,
        file: PluginsFile,
        *,
        listen_addr: str | None = None,
        certs_dir: str | os.PathLike[str] | None = None,
        is_private: bool = False,
        stop_s: float = STOP_S,
    ) -> None:
        self.plugins: dict[str, PluginProcess] = {}
        self.addresses: list[str] = []
        self.on_change: Callable[[Changed], None] | None = None
        self._certificates = Certificates(certs_dir or file.certs_dir or default_folder())
        self._listen_addr = listen_addr or file.listen_addr or LISTEN
        self._is_private = is_private
        self._stop_s = stop_s
        self._listenings: list[LinkListener] = []
        self._folder: Path | None = None
        self._routes: Routes[PluginProcess] | None = None
        self._shown = b"", b""  # the lists as they were when somebody was told last
        self._said: set[str] = set()
        self._telling: asyncio.TimerHandle | None = None
        entries = {entry.id: entry for entry in file.enabled}
        left = list(entries)
        while left:  # dependencies first; read_plugins() has refused circles
            id = next(
                id for id in left if all(other in self.plugins for other in entries[id].depends_on)
            )
            left.remove(id)
            needs = [self.plugins[other] for other in entries[id].depends_on]
            self.plugins[id] = PluginProcess(
                entries[id], len(self.plugins), needs, self._is_changed, _ladder(stop_s)
            )
        self._ordered = list(self.plugins.values())  # whoever is depended on comes before
        self.plugins = {id: self.plugins[id] for id in entries}

    async def start(self, within_s: float | None = None) -> None:
        """Listen, start the plugins, and wait until each runs or its first attempt has failed; it goes on to be tried.

        within_s: wait so long at most. Raises OSError, ValueError and CertificateError when the hub cannot listen; then nothing
        is left behind.
        """
        try:
            ground = await self._listen()
        except BaseException:
            await self.stop()
            raise
        for plugin in self.plugins.values():
            plugin.start(ground)
        if self.plugins:
            settled = [
                asyncio.ensure_future(plugin.settled.wait()) for plugin in self.plugins.values()
            ]
            try:
                await asyncio.wait(settled, timeout=within_s)
            finally:
                for task in settled:
                    task.cancel()
        running = sum(plugin.state == "running" for plugin in self.plugins.values())
        log.info("%d of %d plugins run", running, len(self.plugins))

    async def stop(self) -> None:
        """End the plugins, those first that others do not depend on, and listen no more.

        It takes as long as the plugins do, and at most twice stop_s.
        """
        until = asyncio.get_running_loop().time() + self._stop_s
        stops: dict[str, asyncio.Task[None]] = {}
        for plugin in reversed(self._ordered):
            before = [stops[each.id] for each in self._ordered if plugin in each.dependencies]
            stops[plugin.id] = asyncio.get_running_loop().create_task(plugin.stop(until, before))
        for id, ended in zip(
            stops, await asyncio.gather(*stops.values(), return_exceptions=True), strict=True
        ):
            if isinstance(ended, BaseException):
                log.error("%s could not be ended", id, exc_info=ended)
        if self._telling is not None:
            self._telling.cancel()
        await asyncio.gather(*(each.close() for each in self._listenings))
        self._listenings = []
        self._forget_folder()

    def _forget_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """End every plugin's process group now. For whoever cannot wait for stop()."""
        self._forget_folder()
        for plugin in self.plugins.values():
            if plugin.pid is not None:
                try:
                    os.killpg(plugin.pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    @property
    def routes(self) -> Routes[PluginProcess]:
        """Who answers for what, now."""
        if self._routes is None:
            self._routes = routes_of(list(self.plugins.values()))
            for text in self._routes.refused:
                if text not in self._said:
                    log.error("%s", text)
            self._said = set(self._routes.refused)
        return self._routes

    # Answers

    async def answer(self, request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        """Answer a request of a plugin, a bridge, or whoever else may connect."""
        kind = request.WhichOneof("request") or "nothing"
        if kind == "tool_call":
            name = request.tool_call.tool_name
            if peer.name is not None:
                request.tool_call.caller_plugin = _plugin_of(peer.name)
            return await self._passed_on(self.routes.tools.get(name), "tool", name, request, kind)
        if kind == "list_tools":
            return self.routes.tool_list
        if kind == "list_prompts":
            return self.routes.prompt_list
        if kind == "prompt_get":
            name = request.prompt_get.prompt_name
            return await self._passed_on(
                self.routes.prompts.get(name), "prompt", name, request, kind
            )
        if kind.startswith("storage_"):
            name = getattr(request, kind).storage_type or DEFAULT
            return await self._passed_on(
                self.routes.storage.get(name), "storage", name, request, kind
            )
        if kind == "register":
            return self._register(request.register, peer)
        if kind == "health":
            return PluginResponse(health=self._health())
        return refusal(request.request_id, "unknown_request", f"the hub does not answer {kind}")

    async def _passed_on(
        self, plugin: PluginProcess | None, what: str, name: str, request: PluginRequest, kind: str
    ) -> PluginResponse:
        id = request.request_id
        if plugin is None:
            return refusal(id, f"{what}_not_found", f"no plugin has the {what} {name!r}")
        try:
            response = await plugin.request(request, CALL_S)
        except ConcertinoError as why:
            return _unanswered(id, plugin, why)
        return _checked(id, plugin, response, kind)

    def pass_on(self, body: bytes, peer: RemotePeer, respond: Respond) -> PendingResponse | None:
        """A links.Relay: calls of tools go to their plugins, and come back, as bytes, without a task.

        A request that names another caller than the certificate does, and what cannot be passed on, is for answer().
        """
        call = peek_tool_call(body)
        if call is None or (peer.name is not None and call[1] != _plugin_of(peer.name)):
            return None
        plugin = (self._routes or self.routes).tools.get(call[0])
        return (
            None
            if plugin is None
            else plugin.pass_on(body, CALL_S, partial(_pass_back, plugin, respond))
        )

    def _register(self, manifest: PluginManifest, peer: RemotePeer) -> PluginResponse:
        plugin = self.plugins.get(manifest.id)
        if plugin is None:
            reason = (
                ""
                if peer.speaks_for(manifest.id)
                else f"this peer may not call itself {manifest.id!r}"
            )
            for each in self.plugins.values():
                if peer.pid is not None and _is_of(peer, each):
                    reason = f"the hub started this process as {each.id}, not as {manifest.id}"
        elif peer.name is not None:
            reason = (
                ""
                if peer.speaks_for(manifest.id)
                else f"the certificate is of {peer.name}, not of {manifest.id}"
            )
        else:
            reason = (
                ""
                if _is_of(peer, plugin)
                else f"this process is not one that the hub started as {manifest.id}"
            )
        if reason:
            log.warning("%s, pid %s: registration refused: %s", peer.address, peer.pid, reason)
            return PluginResponse(register=RegistrationResult(reject_reason=reason))
        if plugin is not None:
            plugin.registered(manifest)
        return PluginResponse(register=RegistrationResult(accepted=True))

    def _health(self) -> HealthResult:
        """HEALTHY if every plugin runs. details: the state of each."""
        plugins = self.plugins.values()
        well = all(plugin.state == "running" for plugin in plugins)
        running = sum(plugin.state == "running" for plugin in plugins)
        return HealthResult(
            status=HealthResult.HEALTHY if well else HealthResult.DEGRADED,
            message=f"{running} of {len(plugins)} plugins run",
            details={
                plugin.id: f"{plugin.state}: {plugin.why}" if plugin.why else plugin.state
                for plugin in plugins
            },
        )

    # Inside

    async def _listen(self) -> HubEnvironment:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        inside = await listen_for_links(
            f"unix:{self._folder / INSIDE}", self.answer, relay=self.pass_on
        )
        self._listenings.append(inside)
        network = ""
        address = self._listen_addr
        if not self._is_private:
            network = await self._listen_at(address)
        if any(not plugin.entry.socket for plugin in self.plugins.values()) and (
            not network or network.startswith("unix:")
        ):
            network = await self._listen_at("localhost:0")
        self.addresses = [each.address for each in self._listenings[1:]]
        starts = asyncio.Semaphore(
            max(4, 2 * (os.cpu_count() or 1))
        )  # all at once would keep each other from READY in time
        return HubEnvironment(self._folder, inside.address, network, self._certificates, starts)

    async def _listen_at(self, address: str) -> str:
        if address.startswith("unix:"):
            listening = await listen_for_links(address, self.answer, relay=self.pass_on)
        else:
            ensure(self._certificates, HUB)
            listening = await listen_for_links(
                address, self.answer, certificates=self._certificates, name=HUB, relay=self.pass_on
            )
        self._listenings.append(listening)
        return listening.address

    def _is_changed(self) -> None:
        self._routes = None
        if self._telling is None:  # also without anybody to tell: that names collide is logged
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        before, self._shown = self._shown, self._lists()
        if self.on_change is not None:
            for what, old, new in zip(("tools", "prompts"), before, self._shown, strict=True):
                if old != new:
                    self.on_change(what)

    def _lists(self) -> tuple[bytes, bytes]:
        routes = self.routes
        return (
            routes.tool_list.list_tools.SerializeToString(),
            routes.prompt_list.list_prompts.SerializeToString(),
        )


def _plugin_of(name: str) -> str:
    """Whose certificate has this name."""
    return name.removesuffix("-client")


def _pass_back(plugin: PluginProcess, respond: Respond, outcome: bytes | BaseException) -> None:
    plugin.passed_back()
    if isinstance(outcome, asyncio.CancelledError):
        return respond(None)
    if isinstance(outcome, bytes):
        message = split_id(outcome)
        if message is not None and is_of_a_tool(message[1]):
            return respond(message[1])
        try:
            response = _checked("", plugin, PluginResponse.FromString(outcome), "tool_call")
            response.request_id = ""
        except DecodeError as why:
            response = refusal(
                "", "routing_error", f"{plugin.id}: the response cannot be decoded: {why}"
            )
    else:
        response = _unanswered("", plugin, outcome)
    return respond(response.SerializeToString())


def _unanswered(id: str, plugin: PluginProcess, why: BaseException) -> PluginResponse:
    code = "routing_error"
    if isinstance(why, Disconnected):
        code = "plugin_unavailable"
    elif isinstance(why, TimedOut):
        code = "timeout"
    return refusal(id, code, f"{plugin.id}: {str(why).removeprefix(f'{plugin.address}: ')}")


def _checked(id: str, plugin: PluginProcess, response: PluginResponse, kind: str) -> PluginResponse:
    """The response, or a refusal instead of one that is of another kind than the request."""
    answered = response.WhichOneof("response")
    if answered in (kind, "tool_call"):  # the latter says what went wrong, whatever was asked
        return response
    log.warning("%s answered %s with %s", plugin.id, kind, answered or "nothing")
    return refusal(
        id, "invalid_response", f"{plugin.id} answered {kind} with {answered or 'nothing'}"
    )


def _sweep() -> None:
    """Remove what hubs that were killed have left: folders of this user with a socket at which nobody listens any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}????????"):
        try:
            status = folder.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < LEFT_S:
                continue
            with socket.socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                sock.connect(str(folder / INSIDE))
        except ConnectionRefusedError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # busy, or not a hub's
            continue


def _ladder(within_s: float) -> ShutdownTimeouts:
    return ShutdownTimeouts(
        stdin_closed_s=0.2 * within_s, terminated_s=0.4 * within_s, killed_s=0.4 * within_s
    )


def _is_of(peer: RemotePeer, plugin: PluginProcess) -> bool:
    """Whether a process that connected over a Unix socket belongs to the plugin: it is in its process group."""
    if peer.pid is None:
        return peer.speaks_for(plugin.id)
    try:
        return os.getpgid(peer.pid) == plugin.pid
    except ProcessLookupError:
        return False
