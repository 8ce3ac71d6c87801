"""PartCalls: counts the calls of each part, so that a removed part is closed after its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

__all__ = ["CallsUnderWay", "PartCalls"]


class CallsUnderWay:
    """The number of calls of one part that are under way; each is a `with` block."""

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
        """Wait until no call is under way, at most within_s seconds."""
        if self._count:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=within_s)


class PartCalls:
    """The calls of all parts, and the removed parts that are not closed yet.

    by_part: the calls of each part, by its name.
    """

    def __init__(self, names: Iterable[str], drain_s: float) -> None:
        """Count calls of these parts. drain_s: how long a removed part may go on with its calls."""
        self.by_part = {name: CallsUnderWay() for name in names}
        self._drain_s = drain_s
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, name: str) -> None:
        """Count the calls of one more part."""
        self.by_part[name] = CallsUnderWay()

    def remove(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        """Forget a part, and close it with `close` in the background when its calls have ended."""
        task = asyncio.create_task(self._close(self.by_part.pop(name), close))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, calls: CallsUnderWay, close: Callable[[], Awaitable[None]]) -> None:
        await calls.wait(self._drain_s)
        await close()

    async def wait_closed(self) -> None:
        """Wait until all removed parts are closed."""
        if self._closing:
            await asyncio.wait(self._closing)
