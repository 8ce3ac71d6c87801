"""PartCalls: counts the running calls of a composition's parts, and closes removed parts.

A composition serves several backends, its parts, as one. A part is removed when its entry in the
server file, which lists the parts, is removed or changed. It is closed when its running calls have
ended, or after a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

__all__ = ["CallsUnderWay", "PartCalls"]


class CallsUnderWay:
    """The number of running calls of one part. Each call runs in a `with` block of this object."""

    def __init__(self) -> None:
        self._count = 0
        self._idle: asyncio.Future[None] | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *failure: object) -> None:
        self._count -= 1
        if not self._count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def wait(self, within_s: float) -> None:
        """Wait until no call is running, at most within_s seconds."""
        if self._count:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=within_s)


class PartCalls:
    """The running calls of a composition's parts, and the removed parts that are not closed yet.

    names: the names of the parts.
    drain_s: how many seconds the calls of a removed part get to end.

    Attributes:
    by_part: name of the part -> its running calls.
    """

    def __init__(self, names: Iterable[str], drain_s: float) -> None:
        self.by_part = {name: CallsUnderWay() for name in names}
        self._drain_s = drain_s
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, name: str) -> None:
        """Add a part."""
        self.by_part[name] = CallsUnderWay()

    def remove(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Remove a part. Its calls get time to end in the background.

        close: called afterwards, to close the part.
        """
        task = asyncio.create_task(self._close(self.by_part.pop(name), close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, calls: CallsUnderWay, close: Callable[[], Awaitable[None]]) -> None:
        """Wait for the calls of a removed part, at most drain_s seconds, then close the part."""
        await calls.wait(self._drain_s)
        await close()

    async def wait_closed(self) -> None:
        """Wait until all removed parts are closed."""
        if self._closing:
            await asyncio.wait(self._closing)
