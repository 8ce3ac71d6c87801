"""Refusals of guards: an error result that a model can act on, or a protocol error."""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from concertino.errors import BUSY, RpcError, ToolError
from concertino.types.results import CallToolResult, TextContent

__all__ = ["as_result", "refuse"]


def as_result(code: str, message: str, suggestion: str, /, **extra: Any) -> CallToolResult:
    """Return an `isError` result in the shape of a ToolError with a code."""
    body = ToolError(code, message, suggestion=suggestion, **extra).body
    return CallToolResult([TextContent(encode(body).decode())], is_error=True)


def refuse(
    method: str, code: str, message: str, suggestion: str, /, **extra: Any
) -> CallToolResult:
    """Return the same for a tool call; raise RpcError -31001 with it as data for other methods."""
    if method == "tools/call":
        return as_result(code, message, suggestion, **extra)
    raise RpcError(BUSY, message, ToolError(code, message, suggestion=suggestion, **extra).body)
