"""PluginReplacement: starts a new process of a plugin, and lets the old one finish its calls.

A hub runs each plugin, a program with tools, in its own process, which a PluginProcess
(plugin_process.py) supervises. The process is replaced when the plugin's files or its entry in the
plugins file have changed. The old process gets the calls until the new process has started, so a
program that fails to start replaces nothing. Then the old process gets no new calls, and ends when
its pending calls have finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from concertino.orchestra.hub_calls import CALL_S
from concertino.orchestra.plugin_run import PluginRun

__all__ = ["PluginReplacement"]

# How many old processes of a plugin may finish their calls at the same time. The oldest processes
# beyond this number are ended at once.
MAX_OLD = 4
REPLACED = "its process was replaced by a new one"


class PluginReplacement:
    """The replacements of one plugin's process. Use it on one event loop.

    log: the plugin's logger.

    Attributes:
    next_run: the PluginRun of the new process while it is being started; otherwise None.
        PluginProcess sets it.
    is_pending: whether the hub makes calls of the plugin wait for a replacement.
        PluginProcess.set_replacement_pending() sets it.
    start_ended: an event that PluginProcess clears before it starts the program while no old
        process runs, and sets when this start has succeeded or failed.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.next_run: PluginRun | None = None
        self.is_pending = False
        self.start_ended = asyncio.Event()
        self._log = log
        self._lock = asyncio.Lock()
        # The task of the replacement that is running.
        self._current: asyncio.Task[None] | None = None
        # Old runs that are finishing their calls, the oldest first.
        self._old: dict[PluginRun, asyncio.Task[None]] = {}

    def groups(self) -> Iterator[int]:
        """Yield the ids of the process groups of the new run and of the old runs."""
        for run in (self.next_run, *self._old):
            if run is not None and run.pid is not None:
                yield run.pid

    async def run(self, replace: Callable[[], Awaitable[None]]) -> None:
        """Run a replacement, and wait for its end. First wait for the end of an earlier one.

        replace: starts the new process, and retires the old process. It runs in a task, which
            cancel() cancels.
        Raises the exception of `replace`. Returns normally if cancel() was called.
        """
        async with self._lock:
            task = self._current = asyncio.ensure_future(replace())
            try:
                await asyncio.wait((task,))
            finally:
                # The task still runs here only if this method itself is cancelled.
                task.cancel()
                self._current = None
        if not task.cancelled():
            task.result()

    async def cancel(self) -> None:
        """Cancel the current replacement, and wait until its task has ended."""
        if (task := self._current) is not None:
            task.cancel()
            await asyncio.wait((task,))

    def retire(self, run: PluginRun) -> None:
        """Let an old run finish its calls in the background, at most 600 s, and then end it."""
        # End the oldest runs, so that there are at most MAX_OLD old runs together with this one.
        excess = max(0, len(self._old) + 1 - MAX_OLD)
        for oldest in list(self._old)[:excess]:
            self._old[oldest].cancel()
        task = asyncio.get_running_loop().create_task(self._finish(run))
        self._old[run] = task
        task.add_done_callback(lambda done: self._forget(run, done))

    async def _finish(self, run: PluginRun) -> None:
        """Wait for a run's calls, and end its process. A cancellation ends the process at once."""
        try:
            await run.drain(CALL_S)
            await run.shut_down()
        finally:
            await run.close(REPLACED)

    def _forget(self, run: PluginRun, done: asyncio.Task[None]) -> None:
        """Forget an old run when the task that ends it is done, and log its error."""
        self._old.pop(run, None)
        if not done.cancelled() and (exc := done.exception()) is not None:
            self._log.error("its old process could not be ended", exc_info=exc)

    async def close(self) -> None:
        """End all old runs without waiting for their calls."""
        tasks = list(self._old.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
