"""The W3C trace context of a request, which connects the spans of all programs that handle it.

In MCP, a request has it in the keys `traceparent`, `tracestate` and `baggage` of `_meta`. The
plugin protocol of the Go implementation has only the field `trace_parent` of a ToolRequest, for
`traceparent`. The other values are in a field `trace`, a map with the same keys, which programs of
this package read.
Spec: 2026-07-28 basic/index "_meta" (SEP-414); W3C Trace Context and Baggage.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.orchestra.plugin_messages import PluginRequest

__all__ = ["PARENT", "TRACE_KEYS", "read_trace", "trace_of"]

PARENT = "traceparent"
TRACE_KEYS = (PARENT, "tracestate", "baggage")
# The longest value that is passed on, in characters: programs must pass on baggage of 8,192 bytes.
MAX_VALUE = 8192

_parse_text = Decoder(str).decode


def read_trace(meta: Mapping[str, Raw]) -> dict[str, str]:
    """Return the trace context in the `_meta` of an MCP request, as key -> value.

    Values that are no strings, or too long, are left out.
    """
    trace: dict[str, str] = {}
    for key in TRACE_KEYS:
        if key in meta:
            try:
                value = _parse_text(meta[key])
            except DECODE_ERRORS:
                continue
            if 0 < len(value) <= MAX_VALUE:
                trace[key] = value
    return trace


def trace_of(request: PluginRequest) -> dict[str, str]:
    """Return the trace context of a request of the plugin protocol, as key -> value.

    The result becomes part of the `_meta` of requests to MCP servers. So it has only the keys of
    TRACE_KEYS, whatever keys a plugin has put into the field `trace`.
    """
    match request.WhichOneof("request"):
        case "tool_call":
            parent, trace = request.tool_call.trace_parent, request.tool_call.trace
        case "stream_start":
            parent, trace = request.stream_start.trace_parent, request.stream_start.trace
        case "prompt_get":
            parent, trace = "", request.prompt_get.trace
        case "storage_read":
            parent, trace = "", request.storage_read.trace
        case _:
            return {}
    values = {key: trace[key] for key in TRACE_KEYS if key in trace}
    if parent:
        values[PARENT] = parent
    return values
