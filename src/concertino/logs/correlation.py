"""Which call a log line belongs to: set by whoever handles one, read by the JSON format."""

from __future__ import annotations

from contextvars import ContextVar

from msgspec import Struct

__all__ = ["LogContext", "current_context"]


class LogContext(Struct, frozen=True):
    """request: the JSON-RPC id. trace: the trace id of W3C Trace Context, 32 hexadecimal digits, if there is one."""

    request: int | str | None = None
    trace: str = ""


# A thread that runs a handler has a copy. None: not in a call, or nobody wants to know.
current_context: ContextVar[LogContext | None] = ContextVar("concertino_call", default=None)
