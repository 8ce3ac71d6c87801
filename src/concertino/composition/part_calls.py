"""PartCalls: counts the running calls of a composition's parts, and closes removed parts.

A composition serves several backends, its parts, as one. A part is removed, for example, when its
entry in a server file such as mcp.json is removed or changed. It is closed when its running calls
have ended, or after a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

__all__ = ["PartCalls", "RunningCalls"]


class RunningCalls:
    """Counts the running calls of one part. Each call runs in a `with` block of this object.

    with part_calls.by_part["math"]:
        result = await part.handle(call, context)
    """

    def __init__(self) -> None:
        self._count = 0
        # Done when the count has become 0; None if nobody waits for that.
        self._idle: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *failure: object) -> None:
        self._count -= 1
        if not self._count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def wait(self, within_s: float) -> None:
        """Wait until no call is running, at most within_s seconds. Raises nothing.

        Only one task may wait.
        """
        if self._count:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=within_s)


class PartCalls:
    """Counts the running calls of a composition's parts, and closes parts that were removed.

    names: the names of the parts.
    drain_s: how many seconds the calls of a removed part get to end.

    Attributes:
    by_part: name of the part -> its running calls.
    """

    def __init__(self, names: Iterable[str], drain_s: float) -> None:
        self.by_part = {name: RunningCalls() for name in names}
        self._drain_s = drain_s
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, name: str) -> None:
        """Add a part, which has no running calls."""
        self.by_part[name] = RunningCalls()

    def remove(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Remove a part, and close it in the background. Returns at once.

        name: the name of the part.
        close: called without arguments, and awaited, when the part's calls have ended, but after
            `drain_s` seconds at the latest; closes the part.
        """
        task = asyncio.create_task(self._close(self.by_part.pop(name), close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, calls: RunningCalls, close: Callable[[], Awaitable[None]]) -> None:
        """Wait for the calls of a removed part, at most drain_s seconds, then close the part."""
        await calls.wait(self._drain_s)
        await close()

    async def wait_closed(self) -> None:
        """Wait until all removed parts are closed."""
        if self._closing:
            await asyncio.wait(self._closing)
