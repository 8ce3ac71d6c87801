"""ListChanges: detects when a hub's list of tools or prompts has changed.

A hub runs plugins, and lists the tools and prompts of all of them. After each change of a plugin,
it calls compare_soon(). Most changes, such as a new state of the plugin, do not change the lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

__all__ = ["ListChanges", "ListName"]

ListName = Literal["tools", "prompts"]
# The time between compare_soon() and the comparison, in seconds. During a start, a plugin changes
# several times, and each list should be reported only once.
CHANGE_S = 0.05


class ListChanges:
    """Compares a hub's lists of tools and prompts with the lists at the last comparison.

    The first comparison is with empty lists, and so reports each list that has items.

    serialize: returns the current list of tools and the current list of prompts, as bytes.
    report: called with "tools" or "prompts" when this list has changed.
    """

    def __init__(
        self, serialize: Callable[[], tuple[bytes, bytes]], report: Callable[[ListName], object]
    ) -> None:
        self._serialize = serialize
        self._report = report
        # The result of `serialize` at the last comparison.
        self._last = b"", b""
        # Calls _compare(); None while no comparison is scheduled.
        self._timer: asyncio.TimerHandle | None = None

    def compare_soon(self) -> None:
        """Compare the lists after 50 ms, unless a comparison is scheduled already."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHANGE_S, self._compare)

    def cancel(self) -> None:
        """Cancel a comparison that compare_soon() has scheduled."""
        if self._timer is not None:
            self._timer.cancel()

    def _compare(self) -> None:
        """Report each list that has changed since the last comparison."""
        self._timer = None
        before, self._last = self._last, self._serialize()
        names: tuple[ListName, ListName] = ("tools", "prompts")
        for name, old, new in zip(names, before, self._last, strict=True):
            if old != new:
                self._report(name)
