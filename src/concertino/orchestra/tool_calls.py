"""Encodes tool calls and their results, without ids, and without the protobuf package's classes.

Those classes take three times as long. They are used for everything that is not encoded here, or
that another peer encoded in a different way.
Source: protobuf.dev "Encoding"; the Orchestra plugin protocol, ToolRequest and ToolResponse.
"""

from __future__ import annotations

from functools import lru_cache

from concertino.orchestra.protobuf_wire import encode_varint
from concertino.orchestra.structs import NotAStruct, PackedObject

__all__ = [
    "encode_caller",
    "encode_result",
    "encode_text_result",
    "encode_tool_call",
    "read_text_result",
]

# Field 20 of PluginRequest and of PluginResponse.
_TOOL_CALL = b"\xa2\x01"
# Fields of ToolRequest.
_TOOL_NAME = b"\x0a"
_ARGUMENTS = b"\x12"
_CALLER_PLUGIN = b"\x1a"
_TRACE_PARENT = b"\x22"
_SESSION_ID = b"\x32"
_ARGUMENTS_JSON = b"\xc2\x3e"
# ToolResponse: success = true, then the tag of result; and the tag of structured.
_SUCCESS = b"\x08\x01\x12"
_STRUCTURED = b"\xc8\x3e"

# A text result has five nested lengths and 16 bytes of other overhead. The lengths have one byte
# each up to this size of the text, and two bytes each for texts of 128 to 16,355 bytes.
_SHORT = 0x7F - 16
_LENGTHS = 5


def encode_caller(plugin: str, session: str) -> bytes:
    """Return the fields that name the caller, for encode_tool_call(). Empty values are omitted."""
    return _encode_text(_CALLER_PLUGIN, plugin) + _encode_text(_SESSION_ID, session)


def encode_tool_call(
    name: str,
    arguments: PackedObject | None,
    caller: bytes,
    trace_parent: str = "",
) -> bytes:
    """Return a PluginRequest that calls a tool. caller: from encode_caller()."""
    content = _encode_text(_TOOL_NAME, name)
    if arguments is None:
        content += caller
    else:
        struct, json = arguments
        content = b"".join((content, _ARGUMENTS, encode_varint(len(struct)), struct, caller))
        if json is not None:
            content = b"".join((content, _ARGUMENTS_JSON, encode_varint(len(json)), json))
    if trace_parent:
        content += _encode_text(_TRACE_PARENT, trace_parent)
    return _TOOL_CALL + encode_varint(len(content)) + content


def _encode_text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + encode_varint(len(encoded)) + encoded if encoded else b""


def encode_result(struct: bytes, structured: int = 0) -> bytes:
    """Return the PluginResponse of a successful call whose result is this Struct.

    structured: of ToolResponse.Structured.
    """
    header = _SUCCESS + encode_varint(len(struct))
    end = _STRUCTURED + encode_varint(structured) if structured else b""
    size = len(header) + len(struct) + len(end)
    return b"".join((_TOOL_CALL, encode_varint(size), header, struct, end))


def encode_text_result(text: str) -> bytes:
    """Return the PluginResponse of a successful call whose result is {"text": text}.

    Most tools return that. Raises NotAStruct for a lone surrogate.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise NotAStruct("a string with a lone surrogate") from None
    return _text_header(len(encoded)) + encoded


def read_text_result(payload: bytes) -> str | None:
    """Return the text of a response made by encode_text_result(), with or without an id in front.

    None for any other response, and for some of these: decode the response then.
    """
    try:
        start = payload[1] + 2 if payload[0] == 0x0A and payload[1] < 0x80 else 0
    except IndexError:
        return None

    size = len(payload) - start - 3 - 16
    if size > _SHORT:
        size -= _LENGTHS
    if size < 0 or not payload.startswith(header := _text_header(size), start):
        return None

    start += len(header)
    if len(payload) != start + size:
        return None
    try:
        return payload[start:].decode()
    except UnicodeDecodeError:
        return None


@lru_cache(1024)
def _text_header(size: int) -> bytes:
    """Return all bytes in front of a text of this size in a response.

    From the inside: the Value, the entry's key and value, the entry, the result, the tool_call.
    """
    header = b""
    for tag in (b"\x1a", b"\x0a\x04text\x12", b"\x0a", _SUCCESS, _TOOL_CALL):
        header = tag + encode_varint(len(header) + size) + header
    return header
