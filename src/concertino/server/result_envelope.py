"""The option `envelope` of tools: wraps each result into a JSON object with metadata.

    {"success": true, "data": ..., "metadata": {"timestamp": ..., "version": ...}}

It is for tools whose callers expect this form of every result (the Orchestre system, protocol
reference, "Consistent Response Format").
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Raw
from msgspec.json import encode, format
from msgspec.structs import replace

from concertino.types.results import CallToolResult, TextContent

# Converts the value that a handler has returned to a result.
Shape = Callable[[Any], CallToolResult]


def wrap_result(shape: Shape, version: str) -> Shape:
    """Return a function that calls `shape` and wraps the result into an envelope.

    The result is then one text block: JSON, indented by two spaces. Its member `data` is the
    structured content. Without structured content, `data` is the text of a single text block, null
    for no content, or else the list of content blocks.

    Errors get no envelope, and neither does a CallToolResult that the handler itself has returned.
    version: the server's version, for the metadata.
    """

    def shape_with_envelope(value: Any) -> CallToolResult:
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

    return shape_with_envelope


def _data(result: CallToolResult) -> Any:
    if result.structured_content is not UNSET:
        return result.structured_content
    if not result.content:
        return None
    if len(result.content) == 1 and isinstance(block := result.content[0], TextContent):
        return block.text
    return Raw(encode(result.content))
