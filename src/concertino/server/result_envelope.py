"""The envelope: what a tool returned as `{"success": true, "data": ..., "metadata": {"timestamp": ..., "version": ...}}`.

For tools whose callers expect that of every answer (the Orchestre system, protocol reference, "Consistent Response Format").
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Raw
from msgspec.json import encode, format
from msgspec.structs import replace

from concertino.types.results import CallToolResult, TextContent

__all__ = ["wrap_result"]

Shape = Callable[[Any], CallToolResult]


def wrap_result(shape: Shape, version: str) -> Shape:
    """A result shaper whose results are put into an envelope, as text with an indent of two. version: the server's.

    data: the structured content; else the text, or null for nothing, or the content blocks. A CallToolResult that the tool made
    itself is sent as it is, and so are errors.
    """

    def wrapped(value: Any) -> CallToolResult:
        result = shape(value)
        if isinstance(value, CallToolResult) or result.is_error:
            return result
        timestamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        envelope = {
            "success": True,
            "data": _data(result),
            "metadata": {"timestamp": timestamp, "version": version},
        }
        text = format(encode(envelope), indent=2).decode()
        return replace(result, content=[TextContent(text)], structured_content=UNSET)

    return wrapped


def _data(result: CallToolResult) -> Any:
    if result.structured_content is not UNSET:
        return result.structured_content
    if not result.content:
        return None
    if len(result.content) == 1 and isinstance(block := result.content[0], TextContent):
        return block.text
    return Raw(encode(result.content))
