"""HubControl: lets `concertino hub` see and manage the plugins of a running hub.

A hub starts plugins, programs with tools, and forwards requests to them. HubControl listens at a
Unix socket in a directory that only this user can enter. The client, the command `concertino hub`,
finds the socket in this directory. It sends a ControlRequest as one line of JSON, and gets a
ControlAnswer as JSON. The name of the socket contains the id, the start time and the pid namespace
of the hub's process, so that the client recognizes sockets of killed hubs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.json import Decoder, decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.excerpts import shorten
from concertino.logs.redact import redactor
from concertino.orchestra.hub import Hub
from concertino.proxy.process_sockets import (
    is_old,
    listen_in_first,
    remove_stale_sockets,
    status_folders,
)
from concertino.transports.listeners import Listener
from concertino.transports.sockets import credentials, is_trusted

__all__ = [
    "ControlAnswer",
    "ControlRequest",
    "HubControl",
    "PluginStatus",
    "ask_hub",
    "find_hubs",
]

LOGGER = "concertino.hub"
log = logging.getLogger(LOGGER)

FOLDER = "hubs"
# How many of the latest log lines are kept for each plugin, and the longest line in characters.
MAX_LINES, MAX_LINE = 200, 1000
# The largest request and the largest answer, in bytes.
MAX_REQUEST, MAX_ANSWER = 2**16, 2**22
# Time limits in seconds.
# For the hub to receive a request.
REQUEST_S = 5.0
# For the client to wait for the answer to "ps" and "logs", which the hub has at once.
QUICK_S = 5.0
# For the client to wait for the answer to "restart" and "stop", which end a plugin first.
CHANGE_S = 60.0

Command = Literal["ps", "restart", "stop", "logs"]


class ControlRequest(Struct, frozen=True):
    """A request that `concertino hub` sends to a hub.

    command: what the hub must do:
        - "ps": return the state of one or all plugins.
        - "restart": restart one plugin.
        - "stop": stop one plugin.
        - "logs": return the latest log lines of one plugin.
    plugin: the id of the plugin; with "ps", "" for all plugins.
    """

    command: Command
    plugin: str = ""


class PluginStatus(Struct, frozen=True):
    """The state of a plugin, as `concertino hub` shows it.

    state: one of the states of a PluginProcess (plugin_process.py), such as "running" or
        "backing-off" (the hub starts the plugin again after a pause). "withheld" for a plugin that
        the hub has not started yet, for example because the user has not approved its entry in the
        plugins file.
    pid: the id of the plugin's process; 0 while no process runs.
    calls: how many calls are in progress.
    restarts: how many times the hub has started the plugin again.
    tools: how many tools the plugin has.
    reason: why the plugin does not run. If it runs, why a change of its entry in the plugins file
        is not applied yet; empty if there is no such change.
    calls_total: how many calls the plugin has got since the start of the hub.
    health: the problem in the plugin's answer to the last health ping, such as "DEGRADED the disk
        is full"; empty if the plugin is healthy.
    last_error: why the plugin has failed last, even if it runs again; empty if it has not failed.
    last_error_s: how many seconds ago this failure was; without meaning if last_error is empty.
    failed_change: why the changed code or entry of the plugin does not start, while its old process
        still runs; empty if there is no such change.
    """

    id: str
    state: str
    pid: int = 0
    calls: int = 0
    restarts: int = 0
    tools: int = 0
    reason: str = ""
    calls_total: int = 0
    health: str = ""
    last_error: str = ""
    last_error_s: float = 0.0
    failed_change: str = ""


class ControlAnswer(Struct, frozen=True):
    """The answer of a hub to a ControlRequest.

    pid: the id of the hub's process.
    plugins: the requested plugins, as they are after the command; empty for "logs".
    lines: the log lines, the oldest first; empty for all commands but "logs".
    error: why the request failed; "" if it succeeded.
    """

    pid: int
    plugins: tuple[PluginStatus, ...] = ()
    lines: tuple[str, ...] = ()
    error: str = ""


_decode_request = Decoder(ControlRequest).decode


class _LogTails(logging.Handler):
    """A handler of the hub's logger that keeps the latest lines of each plugin.

    plugins: returns the ids of the plugins.
    """

    def __init__(self, plugins: Callable[[], Container[str]]) -> None:
        super().__init__()
        self._plugins = plugins
        self._lines: dict[str, deque[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        # Each plugin has its own logger, with its id after the name of the hub's logger.
        id = record.name.removeprefix(f"{LOGGER}.")
        plugins = self._plugins()
        if id not in plugins:
            return
        if id not in self._lines:
            # Drop the lines of plugins that were removed from the file.
            for other in [other for other in self._lines if other not in plugins]:
                del self._lines[other]
        text = f"[{record.levelname}] {redactor().text(record.getMessage())}"
        lines = self._lines.setdefault(id, deque(maxlen=MAX_LINES))
        lines.append(shorten(text, MAX_LINE))

    def read(self, id: str) -> tuple[str, ...]:
        """Return the lines of a plugin, the oldest first."""
        return tuple(self._lines.get(id, ()))


class HubControl:
    """Answers `concertino hub` at a Unix socket, and carries out its commands.

    Call open() on the hub's event loop, and close() at the end.

    hub: the hub whose plugins are shown and managed.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None
        self._tails = _LogTails(lambda: hub.plugins)
        # Only one restart or stop runs at a time: two restarts of one plugin would start it twice.
        self._lock = asyncio.Lock()
        self._clients: set[asyncio.Task[None]] = set()

    async def open(self, environment: Mapping[str, str]) -> None:
        """Listen at a Unix socket, in the first directory that this user can write.

        If there is no such directory, logs a message, and does not listen.
        environment: the environment variables of this process. The directories are named `hubs`,
            beside those of status_folders(), for example in XDG_RUNTIME_DIR.
        """
        log.addHandler(self._tails)
        self._listener = listen_in_first(
            _folders(environment), log, "concertino hub will not see this hub at %s: %s"
        )
        if self._listener is not None:
            self._server = await asyncio.start_unix_server(
                self._serve, sock=self._listener.socket, limit=MAX_REQUEST
            )

    async def close(self) -> None:
        """Stop listening, and cancel the requests that are in progress."""
        log.removeHandler(self._tails)
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()
        for task in self._clients:
            task.cancel()
        if self._clients:
            await asyncio.wait(self._clients)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one client, and disconnect."""
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            _, client_uid = credentials(writer.get_extra_info("socket"))
            if not is_trusted(client_uid, os.geteuid()):
                return
            async with asyncio.timeout(REQUEST_S):
                line = await reader.readuntil(b"\n")
            writer.write(encode(await self.answer(_decode_request(line))))
            await writer.drain()
        except (OSError, ValueError, asyncio.IncompleteReadError, TimeoutError) as exc:
            log.debug("a client of the control socket failed: %s", exc)
        finally:
            self._clients.discard(task)
            writer.close()

    async def answer(self, request: ControlRequest) -> ControlAnswer:
        """Carry out a request of a client, and return the answer.

        Waits until a restart or stop is finished. Raises nothing: an unknown plugin is an error in
        the answer.
        """
        hub, pid, id = self._hub, os.getpid(), request.plugin
        if request.command != "ps" and id not in hub.plugins:
            available = ", ".join(hub.plugins) or "none"
            return ControlAnswer(pid, error=f"no plugin {id!r} here; there are: {available}")
        if request.command == "logs":
            return ControlAnswer(pid, lines=self._tails.read(id))
        if request.command != "ps":
            change = hub.restart_plugin if request.command == "restart" else hub.stop_plugin
            async with self._lock:
                await change(id)
        return ControlAnswer(pid, tuple(self._statuses(id)))

    def _statuses(self, id: str) -> list[PluginStatus]:
        """Return the state of a plugin, or of all plugins.

        id: the id of the plugin; "" for all plugins, including those that are withheld.
        """
        withheld = self._hub.withheld
        plugins = self._hub.plugins
        statuses = [
            PluginStatus(
                id=plugin.id,
                state=plugin.state,
                pid=plugin.pid or 0,
                calls=plugin.calls,
                restarts=plugin.restarts,
                tools=len(plugin.features.tools),
                # A plugin whose change is withheld runs as before the change.
                reason=redactor().text(plugin.reason or withheld.get(plugin.id, "")),
                calls_total=plugin.record.calls,
                health=redactor().text(plugin.health),
                last_error=redactor().text(plugin.record.last_error),
                last_error_s=max(0.0, time.time() - plugin.record.last_error_at),
                failed_change=redactor().text(plugin.record.failed_change),
            )
            for plugin in plugins.values()
            if id in ("", plugin.id)
        ]
        if not id:
            for name, reason in withheld.items():
                if name not in plugins:
                    statuses.append(PluginStatus(name, "withheld", reason=reason))
        return statuses


def _folders(environment: Mapping[str, str]) -> list[Path]:
    # Beside the sockets of proxies: what makes a directory safe for one makes it safe for both.
    return [Path(folder).with_name(FOLDER) for folder in status_folders(environment)]


# The client's side


def find_hubs(environment: Mapping[str, str]) -> dict[int, Path]:
    """Return the running hubs of this user, as process id -> path of the hub's socket.

    environment: the environment variables of this process, which say where the sockets may be.
    """
    hubs: dict[int, Path] = {}
    for folder in _folders(environment):
        try:
            remove_stale_sockets(folder)
            for path in sorted(folder.iterdir()):
                pid = path.name.partition("-")[0]
                if not pid.isdecimal():
                    continue
                # remove_stale_sockets() cannot know whether a hub in another pid namespace, such as
                # that of a container, still runs. A hub that has just started may not listen yet.
                if is_old(path) and _refuses(path):
                    path.unlink(missing_ok=True)
                else:
                    hubs[int(pid)] = path
        except OSError:
            continue
    return hubs


def _refuses(path: Path) -> bool:
    """Return whether nobody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            connection.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            # The hub does not accept connections now, or the socket is gone.
            return False
    return False


def ask_hub(path: Path, request: ControlRequest) -> ControlAnswer:
    """Send a request to a hub, block until the hub answers, and return the answer.

    Waits at most 5 s for each piece of the answer, or 60 s if the request restarts or stops a
    plugin.
    path: the path of the hub's socket, from find_hubs().
    Raises OSError if the hub does not answer or belongs to another user.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(CHANGE_S if request.command in ("restart", "stop") else QUICK_S)
        connection.connect(str(path))
        _, hub_uid = credentials(connection)
        if not is_trusted(hub_uid, os.geteuid()):
            raise PermissionError("another user listens there")
        connection.sendall(encode(request) + b"\n")
        data = b""
        while len(data) < MAX_ANSWER and (part := connection.recv(2**16)):
            data += part
    try:
        return decode(data, type=ControlAnswer)
    except DECODE_ERRORS:
        # The text goes after "the hub does not answer: " (cli/hub.py).
        raise OSError("it has closed the connection without an answer") from None
