"""What a call's Context needs of the connection that the call came on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from concertino.backend.interface import Backend
from concertino.protocol.session import Session

__all__ = ["CallConnection"]


class CallConnection(Protocol):
    """One connection, as seen by the calls that came on it. thread: the id of its loop's thread."""

    backend: Backend
    session: Session
    loop: asyncio.AbstractEventLoop
    thread: int

    def backpressure(self) -> Awaitable[None]:
        """Return what a handler awaits after it has sent something."""
        ...

    def post(self, callback: Callable[[], object]) -> None:
        """Run `callback` on the loop; from any thread."""
        ...
