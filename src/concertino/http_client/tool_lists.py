"""learn_tools(): reads the `x-mcp-header` annotations in a response to tools/list.

The connection calls it before it delivers the response. The annotations say which arguments of
later tools/call requests must be repeated in headers (param_headers.py).
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.backend.call_hooks import ParamHeaders
from concertino.decode_errors import DECODE_ERRORS
from concertino.http.param_headers import InvalidAnnotation, read_annotations

__all__ = ["learn_tools"]

_log = logging.getLogger("concertino.http_client")

# The arguments of at most this many tools are remembered. The oldest tools are removed first.
MAX_TOOLS = 10_000


class _ToolListResponse(Struct):
    """A response to tools/list. result: the fields of its result, as key -> undecoded value."""

    result: dict[str, Raw]


_decode_fields = Decoder(dict[str, Raw]).decode
_decode_response = Decoder(_ToolListResponse).decode
_decode_tools = Decoder(list[dict[str, Any]]).decode


def learn_tools(frame: bytes, param_headers: MutableMapping[str, ParamHeaders]) -> bytes:
    """Read from a tool list which arguments must be repeated in HTTP headers.

    frame: the response to tools/list, as JSON.
    param_headers: tool name -> its arguments with the annotation `x-mcp-header`. This function adds
        the listed tools.
    Returns the response for the client, without the tools that have invalid annotations: the
    specification forbids using these tools.
    """
    if b"x-mcp-header" not in frame:
        return frame
    try:
        fields = _decode_fields(frame)
        result = _decode_response(frame).result
        tools = _decode_tools(result["tools"])
    except (KeyError, *DECODE_ERRORS):
        return frame
    usable: list[dict[str, Any]] = []
    for tool in tools:
        try:
            param_headers[str(tool.get("name"))] = read_annotations(tool.get("inputSchema"))
            if len(param_headers) > MAX_TOOLS:
                del param_headers[next(iter(param_headers))]
        except InvalidAnnotation as exc:
            _log.warning("the tool %.100r is left out: %s", tool.get("name"), exc)
        else:
            usable.append(tool)
    if len(usable) == len(tools):
        return frame
    return encode({**fields, "result": {**result, "tools": usable}})
