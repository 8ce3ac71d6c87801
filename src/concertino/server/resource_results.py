"""Converts the content of a resource to the result of `resources/read`.

resources.py calls make_result() with the return value of the author's function, or with the content
of a file or a fixed text.
"""

from __future__ import annotations

from typing import Any, cast

from concertino.errors import INVALID_PARAMS, RpcError
from concertino.schema.value_results import InvalidResult, check_struct, shape_any
from concertino.server.settings import CacheHints
from concertino.types.results import ReadResourceResult, ResourceContents, TextContent

_CONTENTS = (ResourceContents, bytes, bytearray, memoryview)


def make_not_found_error(uri: str, details: list[str] | None = None) -> RpcError:
    """Return the error for a URI without a resource.

    details: sentences that say why the matching resource templates do not accept the URI; None if
        no template matches.
    """
    data = {"uri": uri}
    if details:
        data["details"] = "; ".join(details)
    return RpcError(INVALID_PARAMS, "Resource not found", data)


def make_result(
    value: Any,
    uri: str,
    mime_type: str | None,
    hints: CacheHints,
) -> ReadResourceResult:
    """Return the result for the content of a resource.

    value: the return value of the resource's function, or the content itself.
    uri: the URI that the client reads.
    mime_type: the MIME type of the content; None to derive it from the type of the value.
    hints: how long clients may cache the result.
    Raises the RpcError "Resource not found" if the value is None, and InvalidResult for a value
    that is neither text, bytes, ResourceContents nor JSON.
    """
    if isinstance(value, ReadResourceResult):
        return check_struct(value)
    if value is None:
        raise make_not_found_error(uri)

    # A list becomes one JSON text. But if it contains bytes or ResourceContents, which are no JSON,
    # each item becomes contents of its own.
    parts: list[Any] = [value]
    if isinstance(value, (list, tuple)) and any(
        isinstance(item, _CONTENTS) for item in cast("list[Any]", value)
    ):
        parts = list(cast("list[Any]", value))
    contents = [_make_contents(part, uri, mime_type) for part in parts]
    return ReadResourceResult(contents, ttl_ms=hints.ttl_ms, cache_scope=hints.scope)


def _make_contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    """Return one value as the contents of a resource.

    Raises InvalidResult for a value that is neither text, bytes, ResourceContents nor JSON.
    """
    if isinstance(value, ResourceContents):
        return check_struct(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(cast("bytes", value))
        return ResourceContents(uri, blob=data, mime_type=mime_type or "application/octet-stream")

    # Convert the value as a tool's result: a single text block contains the text or the JSON.
    blocks = shape_any(value).content
    if len(blocks) != 1 or not isinstance(block := blocks[0], TextContent):
        raise InvalidResult(
            f"expected str, bytes, ResourceContents or JSON as a resource, got "
            f"{type(value).__name__}"
        )
    kind = "text/plain" if isinstance(value, (str, TextContent)) else "application/json"
    return ResourceContents(uri, text=block.text, mime_type=mime_type or kind)
