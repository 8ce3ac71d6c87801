"""The option `envelope` of tools: wraps each result into a JSON object with metadata.

    {"success": true, "data": ..., "metadata": {"timestamp": ..., "version": ...}}

The option is for tools whose callers expect this form of every result (the Orchestre system,
protocol reference, "Consistent Response Format").
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Raw
from msgspec.json import encode, format
from msgspec.structs import replace

from concertino.types.results import CallToolResult, TextContent

# The type of a function that converts the return value of a handler to a result.
Shape = Callable[[Any], CallToolResult]


def wrap_result(shape: Shape, version: str) -> Shape:
    """Return a function that calls `shape` and wraps the result into an envelope.

    The new result is one text block with JSON, indented by two spaces. The key `data` of the JSON
    has the structured content. If there is none, `data` is

    - the text, if the content is a single text block,
    - null, if there is no content,
    - otherwise the list of content blocks.

    Error results are not wrapped, nor is a CallToolResult that the handler itself has returned.
    shape: converts a value that the handler has returned to a result.
    version: the server's version, for `metadata`.
    """

    def shape_with_envelope(value: Any) -> CallToolResult:
        result = shape(value)
        if isinstance(value, CallToolResult) or result.is_error:
            return result
        timestamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        envelope = {
            "success": True,
            "data": _extract_data(result),
            "metadata": {"timestamp": timestamp, "version": version},
        }
        text = format(encode(envelope), indent=2).decode()
        return replace(result, content=[TextContent(text)], structured_content=UNSET)

    return shape_with_envelope


def _extract_data(result: CallToolResult) -> Any:
    """Return the value of `data` in the envelope for a result."""
    if result.structured_content is not UNSET:
        return result.structured_content
    if not result.content:
        return None
    if len(result.content) == 1 and isinstance(block := result.content[0], TextContent):
        return block.text
    return Raw(encode(result.content))
