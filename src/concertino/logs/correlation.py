"""The request and the trace of the running call, for log lines in the JSON format."""

from __future__ import annotations

from contextvars import ContextVar

from msgspec import Struct

__all__ = ["LogContext", "current_context"]


class LogContext(Struct, frozen=True):
    """The call that a log line belongs to.

    request: its JSON-RPC id. trace: its W3C Trace Context trace id, 32 hexadecimal digits; empty
    without one.
    """

    request: int | str | None = None
    trace: str = ""


# None outside of calls, and inside of calls when neither the log format nor telemetry needs it.
# A thread that runs a handler has a copy of the handler's context.
current_context: ContextVar[LogContext | None] = ContextVar("concertino_call", default=None)
