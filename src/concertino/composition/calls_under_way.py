"""CallsUnderWay: counts the calls of a part, which is closed after them."""

from __future__ import annotations

import asyncio

__all__ = ["CallsUnderWay"]


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
        """Wait until there is no call."""
        if self._count:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=within_s)
