"""How a guard refuses: a tool call by a result that the model can act on, anything else by an error of the protocol."""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from concertino.errors import BUSY, RpcError, ToolError
from concertino.types.results import CallToolResult, TextContent

__all__ = ["as_result", "refuse"]


def as_result(code: str, message: str, suggestion: str, /, **extra: Any) -> CallToolResult:
    """An `isError` result in the shape of a ToolError with a code."""
    body = ToolError(code, message, suggestion=suggestion, **extra).body
    return CallToolResult([TextContent(encode(body).decode())], is_error=True)


def refuse(
    method: str, code: str, message: str, suggestion: str, /, **extra: Any
) -> CallToolResult:
    """The same for any method: raises RpcError -31001 with it as the data where there is no result that could be an error."""
    if method == "tools/call":
        return as_result(code, message, suggestion, **extra)
    raise RpcError(BUSY, message, ToolError(code, message, suggestion=suggestion, **extra).body)
