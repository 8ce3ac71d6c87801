"""A function that verifies tokens, for --auth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from concertino.backend import Principal


def verify(token: str) -> Principal | Awaitable[Principal] | None:
    if token == "later":
        return _verify_later(token)
    return Principal(token) if token.startswith("good") else None


async def _verify_later(token: str) -> Principal:
    await asyncio.sleep(0)
    return Principal(token)
