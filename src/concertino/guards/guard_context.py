"""GuardContext: the Context that Guard.handle() passes to the backend."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from msgspec import Struct

from concertino.backend.caller import Caller
from concertino.backend.interface import Context
from concertino.logs.redact import redactor
from concertino.runtime.guarded_calls import RedactingCaller

__all__ = ["GuardContext"]


# This is a Struct, because creating a Struct takes a third of the time of another object.
class GuardContext(Struct, eq=False):
    """A Context that can remove secrets from messages, and knows whether the time limit has passed.

    inner: the Context of the call. Attributes that this object lacks are looked up in `inner`.
    is_over: whether the time limit has passed. Deadline (guards/deadline.py) sets it. `cancelled`
        is then True, too.
    redacts: whether to remove secrets from progress and log messages.
    """

    inner: Context
    is_over: bool = False
    redacts: bool = False

    @property
    def cancelled(self) -> bool:
        return self.is_over or self.inner.cancelled

    @property
    def caller(self) -> Caller:
        return RedactingCaller(self.inner.caller) if self.redacts else self.inner.caller

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        if self.redacts:
            message = redactor().value(message)
        return self.inner.progress(done, total, message)

    def log(
        self,
        level: Any,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        if self.redacts:
            data, logger = redactor().value(data), redactor().value(logger)
        return self.inner.log(level, data, logger)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
