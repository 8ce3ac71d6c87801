"""PluginSet: all plugins of a hub. It starts, changes and ends them in the right order.

A hub runs plugins, programs with tools, and forwards requests to them. The Hub (hub.py) owns the
PluginSet. A plugin starts after the plugins that it depends on (`depends_on` in the plugins file),
and ends before them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from msgspec.structs import replace

from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.plugin_run import HubEnvironment, LaunchSettings
from concertino.orchestra.plugin_watch import PluginWatch
from concertino.transports.process import ShutdownTimeouts

__all__ = ["PluginSet", "sort_by_dependency"]

log = logging.getLogger("concertino.hub")


class PluginSet:
    """Starts, changes and ends the plugins of a hub. Use it on one event loop.

    entries: the enabled plugins, in the order of the plugins file.
    stop_s: how long stop() waits for the plugins to end by themselves, in seconds. To end plugins
        that still run then, stop() takes at most stop_s more: it closes their stdin, sends SIGTERM,
        and at last SIGKILL.
    on_change: called when a plugin's state, tools or prompts have changed, and when plugins were
        added or removed.

    Attributes:
    by_id: the plugins by id, in the order of the plugins file.
    by_start: the plugins in the order in which they start: dependencies come first.
    """

    def __init__(
        self, entries: Sequence[PluginEntry], stop_s: float, on_change: Callable[[], None]
    ) -> None:
        self.by_id: Mapping[str, PluginProcess] = {}
        self.by_start: Sequence[PluginProcess] = ()
        self._stop_s = stop_s
        self._on_change = on_change
        # Numbers for the plugins, which distinguish their sockets.
        self._numbers = count()
        # None until start() is called.
        self._environment: HubEnvironment | None = None
        # Id -> the watch over the files of a plugin that is restarted when they change.
        self._watches: dict[str, PluginWatch] = {}
        # Plugins that are no longer in the file, and are finishing their calls.
        self._retiring: dict[PluginProcess, asyncio.Task[None]] = {}
        self._put(entries)

    def _put(self, entries: Sequence[PluginEntry]) -> list[PluginProcess]:
        """Make the set contain exactly the plugins of the entries. Returns the new plugins.

        A plugin that exists already keeps its old entry, which change() replaces later.
        """
        # Plugins that use QUIC are started one after the other, because some Go plugins share a
        # database, and fail if two of them create the database at the same time.
        previous: PluginProcess | None = None
        by_id: dict[str, PluginProcess] = {}
        added: list[PluginProcess] = []
        for entry in sort_by_dependency(entries):
            dependencies = [by_id[id] for id in entry.depends_on]
            plugin = self.by_id.get(entry.id)
            if plugin is None:
                settings = self._settings(entry)
                awaited = previous if not entry.socket else None
                plugin = PluginProcess(settings, dependencies, self._on_change, awaited)
                added.append(plugin)
            plugin.dependencies = dependencies
            if not entry.socket:
                previous = plugin
            by_id[entry.id] = plugin
        self.by_start = list(by_id.values())
        self.by_id = {entry.id: by_id[entry.id] for entry in entries}
        return added

    def _settings(self, entry: PluginEntry) -> LaunchSettings:
        return LaunchSettings(
            entry=entry,
            # A new process needs another socket than the old one, which may still run.
            number=next(self._numbers),
            timeouts=_shutdown_timeouts(self._stop_s),
            log=logging.getLogger(f"concertino.hub.{entry.id}"),
        )

    def start(self, environment: HubEnvironment) -> None:
        """Begin to start all plugins. Each one waits for its dependencies by itself.

        environment: the settings that all plugins of the hub share.
        """
        self._environment = environment
        for plugin in self.by_id.values():
            plugin.start(environment)
        self._watch()

    @property
    def has_watches(self) -> bool:
        """Whether the files of at least one plugin are watched."""
        return bool(self._watches)

    async def check_saves(self) -> None:
        """Check all watched files now, and begin to replace the plugins whose files have changed.

        The hub calls this before a request, so that the request does not get to the old code.
        """
        await asyncio.gather(*(watch.check() for watch in self._watches.values()))

    def _watch(self) -> None:
        """Watch the files of exactly those plugins that have `watch` in their entries."""
        # End the watches of plugins that are gone, or whose entries now name other files.
        for id, watch in list(self._watches.items()):
            plugin = self.by_id.get(id)
            if plugin is None or plugin.entry.watch != watch.paths:
                self._watches.pop(id).close()
        for id, plugin in self.by_id.items():
            paths = plugin.entry.watch
            if paths is not None and id not in self._watches:
                watch = PluginWatch(paths, plugin, partial(self.replace, id))
                self._watches[id] = watch
                watch.start()

    async def change(self, entries: Sequence[PluginEntry], environment: HubEnvironment) -> None:
        """Change the plugins of the set. Call this after start().

        entries: all plugins from now on:
            - A new plugin is started.
            - A plugin that has no entry any more ends after its calls.
            - A plugin whose entry has changed is replaced. Its new process gets all calls as soon
              as it has started, and the old process ends after its calls.
            - All other plugins run on.
        environment: the settings that all plugins share from now on.
        Returns when the replaced plugins have started or failed to start.
        Raises ValueError, and changes nothing, if a dependency is missing or dependencies form a
        cycle.
        """
        old_plugins = self.by_id
        added = self._put(entries)
        self._environment = environment
        for id, plugin in old_plugins.items():
            if id not in self.by_id:
                self._retire(plugin)
        self._on_change()
        for plugin in added:
            plugin.start(environment)
        changed = [entry for entry in entries if not is_same(entry, self.by_id[entry.id].entry)]
        await asyncio.gather(
            *(self.by_id[entry.id].replace(self._settings(entry), environment) for entry in changed)
        )
        self._watch()

    async def replace(self, id: str) -> None:
        """Replace a plugin's process, because its files have changed."""
        assert self._environment is not None, "the hub has not been launched"
        plugin = self.by_id[id]
        await plugin.replace(self._settings(plugin.entry), self._environment)

    def _retire(self, plugin: PluginProcess) -> None:
        """End a plugin after its calls, in the background."""
        task = asyncio.get_running_loop().create_task(plugin.retire())
        self._retiring[plugin] = task
        task.add_done_callback(lambda done: self._forget(plugin, done))

    def _forget(self, plugin: PluginProcess, done: asyncio.Task[None]) -> None:
        """Forget a removed plugin when the task that ends it is done, and log the task's error."""
        self._retiring.pop(plugin, None)
        if not done.cancelled() and (exc := done.exception()) is not None:
            log.error("%s could not be ended", plugin.id, exc_info=exc)

    async def restart_plugin(self, id: str) -> None:
        """End a plugin's process after its calls, and start the program again.

        Waits until the new process has started or failed, at most 15 seconds
        (plugin_process.RESTART_S) after the end of the old one.
        """
        assert self._environment is not None, "the hub has not been launched"
        until = asyncio.get_running_loop().time() + self._stop_s
        await self.by_id[id].restart(until, self._environment)

    async def stop_plugin(self, id: str) -> None:
        """End a plugin, and wait for its end. Only restart_plugin() starts it again."""
        until = asyncio.get_running_loop().time() + self._stop_s
        reason = f"it was stopped; to start it: concertino hub restart {id}"
        await self.by_id[id].stop(until, reason=reason)

    async def stop(self) -> None:
        """End all plugins. A plugin ends before the plugins that it depends on."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._stop_s
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
        # The tasks of removed plugins wait until the calls have ended. Now removed plugins must end
        # as fast as all others, so cancel these tasks, and stop the plugins below.
        retiring = dict(self._retiring)
        for task in retiring.values():
            task.cancel()
        if retiring:
            await asyncio.wait(retiring.values())
        # The task that stops a plugin waits for the tasks of its dependents, the plugins that
        # depend on it. These tasks must exist before, so dependents come first.
        stops: dict[PluginProcess, asyncio.Task[None]] = {}
        for plugin in (*retiring, *reversed(self.by_start)):
            dependents = [stops[other] for other in stops if plugin in other.dependencies]
            stops[plugin] = loop.create_task(plugin.stop(until, dependents))
        outcomes = await asyncio.gather(*stops.values(), return_exceptions=True)

        for plugin, outcome in zip(stops, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                log.error("%s could not be ended", plugin.id, exc_info=outcome)

    def kill(self) -> None:
        """Kill every plugin's process groups immediately, when there is no time for stop()."""
        for plugin in (*self._retiring, *self.by_start):
            for group in plugin.groups:
                try:
                    os.killpg(group, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass


def is_same(entry: PluginEntry, other: PluginEntry) -> bool:
    """Return whether two entries are equal, apart from their lines in the file."""
    return replace(entry, line=0) == replace(other, line=0)


def sort_by_dependency(entries: Sequence[PluginEntry]) -> list[PluginEntry]:
    """Return the entries in the same order, except that dependencies come first.

    Raises ValueError if a dependency is missing, or if there is a cycle of dependencies.
    """
    ordered: dict[str, PluginEntry] = {}
    remaining = {entry.id: entry for entry in entries}
    while remaining:
        # The next entry is the first one whose dependencies are all in `ordered`.
        id = next((id for id in remaining if ordered.keys() >= set(remaining[id].depends_on)), None)
        if id is None:
            raise ValueError(
                f"{', '.join(remaining)}: a dependency is missing, or the dependencies form a cycle"
            )
        ordered[id] = remaining.pop(id)
    return list(ordered.values())


def _shutdown_timeouts(within_s: float) -> ShutdownTimeouts:
    """Return the timeouts of the three steps that end a process, `within_s` seconds together."""
    # A process that ends because its stdin is closed ends fast, so this step gets the least time.
    return ShutdownTimeouts(
        stdin_closed_s=0.2 * within_s, terminated_s=0.4 * within_s, killed_s=0.4 * within_s
    )
