"""How a guard refuses a call: with an error result for the model, or with a protocol error."""

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
    """Return the `isError` result that a ToolError with these arguments would become."""
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
    """Refuse a call: return an `isError` result for a tool, raise RpcError for other methods.

    The error has the code -31001, and as data the object that the result would hold as text.
    """
    if method == "tools/call":
        return as_result(code, message, suggestion, **extra)
    raise RpcError(BUSY, message, ToolError(code, message, suggestion=suggestion, **extra).body)
