"""LifecycleHooks: runs the functions that a plugin has registered with on_boot and on_shutdown.

A hub starts a plugin, and sends it a `boot` request with its configuration. At the end, the hub
sends a `shutdown` request. PluginRequests (plugin_requests.py) runs the functions when these
requests arrive. If the process ends without a `shutdown` request, for example on a signal, Plugin
runs the on_shutdown functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any

from concertino.runtime.threads import Threads

__all__ = ["LifecycleHooks"]


class LifecycleHooks:
    """The on_boot and on_shutdown functions of one plugin.

    log: the plugin's logger.

    Attributes:
    boot: functions that take the configuration, a dict of strings. They are called in the order in
        which they were added.
    shutdown: functions without parameters, called in reverse order.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.boot: list[Callable[..., Any]] = []
        self.shutdown: list[Callable[..., Any]] = []
        self._log = log
        # A single thread, so that no two functions run at the same time.
        self._thread = Threads(1)

    async def run_boot(self, config: Mapping[str, str]) -> None:
        """Run the boot functions in order. If one raises, run no more and raise its exception.

        config: the configuration that the hub has sent.
        """
        for function in self.boot:
            await self._call(function, config)

    async def run_shutdown(self) -> bool:
        """Run each shutdown function, and log exceptions. Returns whether all of them succeeded.

        A second call does nothing and returns True.
        """
        # Both the hub's request and the end of the process call this method. The functions must run
        # only once.
        functions, self.shutdown = self.shutdown, []
        is_clean = True
        for function in reversed(functions):
            try:
                await self._call(function)
            except Exception:
                is_clean = False
                name = getattr(function, "__name__", function)
                self._log.exception("shutting down: %s failed", name)
        return is_clean

    async def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the thread. If it is `async def`, await its coroutine in the loop."""
        result = await self._thread.run(lambda: function(*args))
        if isawaitable(result):
            await result
