"""The Context that a guard hands on: the caller's, with what the guard knows besides. Everything else is forwarded."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from msgspec import Struct

from concertino.logs.redact import redactor

__all__ = ["GuardContext"]


class GuardContext(Struct, eq=False):  # a Struct is made in a third of the time
    """over: the guard has answered the call, so for its handler it is cancelled. hushed: what is told has no secrets."""

    within: Any  # a Context, of which only what is overridden here is known
    over: bool = False
    hushed: bool = False

    @property
    def cancelled(self) -> bool:
        return self.over or self.within.cancelled

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        return self.within.progress(
            done, total, redactor().value(message) if self.hushed else message
        )

    def log(self, level: Any, data: object, logger: str | None = None) -> Awaitable[None]:
        if self.hushed:
            data, logger = redactor().value(data), redactor().value(logger)
        return self.within.log(level, data, logger)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)
