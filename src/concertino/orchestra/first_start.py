"""FirstStart: the progress of a plugin's first start, for which other plugins and requests wait.

A hub runs each plugin, a program with tools, in its own process. A PluginProcess supervises the
process, and has a FirstStart. A plugin starts after the plugins that it depends on. A plugin over
QUIC also starts after the previous plugin over QUIC in the plugins file. Requests that arrive while
a hub starts wait for the plugins that they need (start_waits.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

__all__ = ["FirstStart"]

# Both limits are seconds of processor time, because a start takes longer on a loaded machine.
#
# Plugins over QUIC start one after the other. When a plugin has used this much processor time, the
# next plugin starts even if the first is not ready. Go programs, which may depend on the order of
# starts, are ready before: after 0.03 s. Programs of this package need 0.2 s over QUIC, and with
# this limit they do not wait for each other's whole start.
NEXT_S = 0.1
# When a plugin has used this much processor time and is not ready, calls that another plugin can
# answer no longer wait for it.
LATE_S = 0.4


class FirstStart:
    """The progress of a plugin's first start. Use it on one event loop.

    on_change: called without arguments when is_late, settled or over has changed.
    previous: the FirstStart of the previous plugin over QUIC in the plugins file. This start waits
        until `previous.lets_next_start` is set. None if this start need not wait for another
        plugin.

    Attributes (each is an asyncio.Event, except `is_late`):
    has_run: set when the plugin runs for the first time.
    over: set when nobody should wait for this start any more. The plugin has run, has failed to
        start or takes too long to boot, or a plugin on which it depends has failed to start.
    settled: set when requests should no longer wait for the plugin: `over` is set, the plugin uses
        no processor time (idleness.py), or a request has waited 15 s.
    lets_next_start: set when the next plugin over QUIC may start: `settled` is set, or this plugin
        has used 0.1 s of processor time.
    is_late: whether the plugin has used 0.4 s of processor time before it was ready. Calls that
        another plugin can answer do not wait for such a plugin.
    """

    def __init__(self, on_change: Callable[[], None], previous: FirstStart | None = None) -> None:
        self.lets_next_start = asyncio.Event()
        self.is_late = False
        self.settled = asyncio.Event()
        self.over = asyncio.Event()
        self.has_run = asyncio.Event()
        self._on_change = on_change
        self._previous = previous

    async def await_turn(
        self, dependencies: Mapping[str, FirstStart], on_failure: Callable[[str], None]
    ) -> None:
        """Wait until the dependencies have run, and until the previous plugin lets this one start.

        dependencies: plugin id -> first start, for each plugin that must have run before.
        on_failure: called with the id of a dependency that has failed to start. This method then
            sets `over`, so that nobody waits for this plugin. The plugin itself goes on waiting for
            the dependency, which the hub starts again.
        """
        for id, other in dependencies.items():
            await other.settled.wait()
            # If the dependency is settled, but has not run, requests no longer wait for it. They
            # need not wait for this plugin either.
            if not other.has_run.is_set():
                self.settle()
            await other.over.wait()
            # The dependency has failed to start. Nobody else should wait for this plugin now,
            # although this method does.
            if not other.has_run.is_set():
                on_failure(id)
                self.end()
                await other.has_run.wait()
        if self._previous is not None:
            await self._previous.lets_next_start.wait()

    def on_work(self, used_s: float) -> None:
        """Handle a report about the work of the plugin. Call this only while it is not ready.

        used_s: the processor time that the plugin has used so far, in seconds.
        """
        if used_s >= NEXT_S:
            self.lets_next_start.set()
        if used_s >= LATE_S and not self.is_late:
            self.is_late = True
            self._on_change()

    def settle(self) -> None:
        """End the waits of requests and other plugins for this start. The start may go on."""
        self.settled.set()
        self.lets_next_start.set()
        self._on_change()

    def end(self) -> None:
        """Record that the start has succeeded or failed, or that nobody should wait for it."""
        self.over.set()
        self.settle()
