"""The envelope of a result: `{"success": true, "data": ..., "metadata": {...}}`.

Its metadata are `timestamp` and `version`. It is for tools whose callers expect it around every
result (the Orchestre system, protocol reference, "Consistent Response Format").
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET, Raw
from msgspec.json import encode, format
from msgspec.structs import replace

from concertino.types.results import CallToolResult, TextContent

Shape = Callable[[Any], CallToolResult]


def wrap_result(shape: Shape, version: str) -> Shape:
    """Return a shape() that puts results into an envelope, as text indented by two spaces.

    version: the server's. The member `data` is the structured content; without it the text, null
    for no content, or the list of content blocks. A CallToolResult that the tool made itself is
    sent as it is, and so are errors.
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
