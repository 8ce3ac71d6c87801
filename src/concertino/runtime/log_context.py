"""Adds the request id and the trace id of a call to the log lines that are written during it.

run() in runtime/process.py imports this module for the log format "json" only; the other formats do
not show these ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from concertino.backend.call_hooks import CheckArguments, argument_check_of
from concertino.backend.interface import Call, Context
from concertino.backend.wrappers import BackendWrapper
from concertino.decode_errors import DECODE_ERRORS
from concertino.logs.formats import LogContext, current_context

__all__ = ["LogContextBackend", "log_context_of"]

# The `traceparent` header: W3C Trace Context, section 3.2.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
_decode_text = Decoder(str).decode


class LogContextBackend(BackendWrapper):
    """A BackendWrapper that adds the request id and the trace id of a call to its log lines.

    It sets `current_context` (logs/formats.py) while the inner backend handles the call.
    """

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the inner backend's function that checks arguments of one tool or prompt.

        check(call, context) raises ArgumentsRefused or RpcError for invalid arguments.
        method, name: for example "tools/call" and the name of the tool.
        Returns None if the inner backend has no such function.
        """
        # The check calls no handler, so it needs no log context. The interfaces that begin calls
        # are not forwarded: they would bypass handle().
        return argument_check_of(self.inner, method, name)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        # Not every Context has a request id.
        token = current_context.set(
            LogContext(getattr(context, "request_id", None), _trace_of(call.meta))
        )
        try:
            return await self.inner.handle(call, context)
        finally:
            current_context.reset(token)


# Decoding a message as these types reads the members for the log context and skips all others.
class _Params(Struct, frozen=True):
    meta: dict[str, Raw] = field(name="_meta", default={})


class _Message(Struct, frozen=True):
    id: int | str | None = None
    params: _Params = _Params()


_decode_message = Decoder(_Message).decode


def log_context_of(message: str) -> LogContext:
    """Return the log context for a JSON-RPC message; an empty one if it cannot be decoded.

    message: the JSON text.
    """
    try:
        decoded = _decode_message(message)
    except DECODE_ERRORS:
        return LogContext()
    return LogContext(decoded.id, _trace_of(decoded.params.meta))


def _trace_of(meta: Mapping[str, Raw]) -> str:
    """Return the trace id in the `traceparent` of a request's `_meta`; "" if there is none."""
    try:
        match = _TRACEPARENT.fullmatch(_decode_text(meta["traceparent"]))
    except (KeyError, *DECODE_ERRORS):
        return ""
    return "" if match is None else match[1]
