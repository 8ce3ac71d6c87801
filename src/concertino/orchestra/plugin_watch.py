"""PluginWatch: replaces the process of a plugin when the plugin's files are saved.

A hub runs plugins, programs with tools. Its PluginSet has one PluginWatch for each plugin whose
entry in the plugins file has the key `watch`. After a save, the next call waits for the new
process, and calls in progress finish in the old process. If the new code fails to start, the old
process goes on, and the next call of a tool fails with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.watched_paths import WatchedPaths
from concertino.proxy.source_files import SourceFiles, forget_bytecode

__all__ = ["PluginWatch"]

log = logging.getLogger("concertino.hub")

# How many processes are started in a row, because the files change again while a new process
# starts. The limit is needed for a plugin that changes a watched file whenever it starts.
MAX_STARTS = 5


class PluginWatch:
    """Watches the files of one plugin. Use it on one event loop. Call start() next.

    paths: the files and directories to watch.
    plugin: the plugin. PluginWatch calls its set_replacement_pending() when a replacement begins
        and ends.
    replace: starts a new process of the plugin, which gets all calls as soon as it has started.
        Returns when the process has started or failed to start.
    """

    def __init__(
        self,
        paths: WatchedPaths,
        plugin: PluginProcess,
        replace: Callable[[], Awaitable[None]],
    ) -> None:
        self.paths = paths
        self._files = SourceFiles(
            [*map(Path, paths.folders)], [*map(Path, paths.paths)], paths.suffixes
        )
        self._plugin = plugin
        self._replace = replace
        # The task that waits for changes.
        self._following: asyncio.Task[None] | None = None
        # The task that replaces the plugin's process after a change; None while there is none.
        self._reloading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        if not self._files.is_complete:
            log.warning("%s: too many files to watch; name fewer with `watch`", self._plugin.id)
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        """Stop watching."""
        for task in (self._following, self._reloading):
            if task is not None:
                task.cancel()
        self._files.close()

    async def check(self) -> None:
        """Begin to replace the plugin's process if the plugin's files have changed.

        Returns before the new process has started.
        """
        if self._reloading is not None:
            return
        has_changed = await self._files.check()
        # While this call waited, another check() may have begun to replace the process.
        if has_changed and self._reloading is None:
            self._plugin.set_replacement_pending(True)
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _follow(self) -> None:
        """Check the files again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._files.poll_s)
            await self.check()

    async def _reload(self) -> None:
        """Replace the plugin's process until it runs the code that was saved last."""
        record = self._plugin.record
        try:
            for _ in range(MAX_STARTS):
                # Wait until the editor has finished.
                changed = await self._files.settle()
                forget_bytecode(changed)
                await self._replace()
                # failed_change says why the new code failed to start; "" if it runs. The next call
                # of a tool fails with unsent_failure.
                record.unsent_failure = record.failed_change
                if not await self._files.check():
                    break
        except Exception:
            log.exception("%s: a change could not be applied", self._plugin.id)
        finally:
            self._reloading = None
            self._plugin.set_replacement_pending(False)
