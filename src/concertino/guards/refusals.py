"""refuse(): the response of a guard to a call that it refuses.

The response is a result with isError for a tool, because the model sees results. For other methods
the response is a JSON-RPC error.
"""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from concertino.errors import BUSY, RpcError, ToolError
from concertino.types.results import CallToolResult, TextContent

__all__ = ["as_result", "refuse"]


def as_result(
    code: str,
    message: str,
    suggestion: str,
    /,
    **extra: Any,
) -> CallToolResult:
    """Return an isError result, whose text is a JSON object that contains all arguments.

    A tool that raises ToolError with these arguments has the same result.
    """
    body = ToolError(code, message, suggestion=suggestion, **extra).body
    return CallToolResult([TextContent(encode(body).decode())], is_error=True)


def refuse(
    method: str,
    code: str,
    message: str,
    suggestion: str,
    /,
    **extra: Any,
) -> CallToolResult:
    """Refuse a call: return an isError result for a tool, and raise RpcError for other methods.

    The text of the result, or the data of the RpcError, is a JSON object that contains all
    arguments except `method`. The code of the RpcError is BUSY (-31001).
    method: the method of the call, such as "tools/call".
    code: the kind of the refusal, such as RATE_LIMIT_EXCEEDED.
    message: the text of the refusal.
    suggestion: advice for the caller, such as when to try again.
    extra: further fields of the JSON object.
    """
    if method == "tools/call":
        return as_result(code, message, suggestion, **extra)
    raise RpcError(BUSY, message, ToolError(code, message, suggestion=suggestion, **extra).body)
