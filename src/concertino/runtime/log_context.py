"""Adds the call's request id and trace id to log lines: a Backend around another, for JSON logs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import DecodeError, Raw, Struct, field
from msgspec.json import Decoder

from concertino.backend.interface import BackendWrapper, Call, Context
from concertino.logs.correlation import LogContext, current_context

__all__ = ["LogContextBackend", "log_context_of"]

_PARENT = re.compile(
    r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*"
)  # W3C Trace Context 3.2
_text = Decoder(str).decode


class LogContextBackend(BackendWrapper):
    """Sets the log context (logs/correlation.py) while a call is handled."""

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        token = current_context.set(
            LogContext(getattr(context, "request_id", None), _trace_of(call.meta))
        )
        try:
            return await self.inner.handle(call, context)
        finally:
            current_context.reset(token)


class _Params(Struct, frozen=True):
    meta: dict[str, Raw] = field(name="_meta", default={})


class _Message(Struct, frozen=True):
    id: int | str | None = None
    params: _Params = _Params()


_message = Decoder(_Message).decode


def log_context_of(message: str) -> LogContext:
    """Return the log context of a protocol message, as far as it can be parsed."""
    try:
        read = _message(message)
    except (DecodeError, UnicodeError, RecursionError):
        return LogContext()
    return LogContext(read.id, _trace_of(read.params.meta))


def _trace_of(meta: Mapping[str, Raw]) -> str:
    """Return the trace id of a request's `traceparent`; empty if there is none."""
    try:
        found = _PARENT.fullmatch(_text(meta["traceparent"]))
    except (KeyError, DecodeError, UnicodeError):
        return ""
    return "" if found is None else found[1]
