"""encode_tool_call() and others: encode tool calls and their results as Protobuf messages.

A bridge passes the calls of MCP clients on to a hub, which forwards them to plugins. The bridge
encodes the calls (translation.py), and a plugin encodes the results (plugin_requests.py). These
functions take a third of the time that the package protobuf takes. The messages have no request id;
message_peek.join_id() adds it.
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

# The constants are tags of length-delimited fields, if their comments do not say otherwise.
# Field 20 of PluginRequest and of PluginResponse.
_TOOL_CALL = b"\xa2\x01"
# Fields of ToolRequest.
_TOOL_NAME = b"\x0a"
_ARGUMENTS = b"\x12"
_CALLER_PLUGIN = b"\x1a"
_TRACE_PARENT = b"\x22"
_PROVIDER = b"\x2a"
_SESSION_ID = b"\x32"
_ARGUMENTS_JSON = b"\xc2\x3e"
# Fields of ToolResponse: the whole field success = true, with the tag of result; then the tag of
# structured.
_SUCCESS = b"\x08\x01\x12"
_STRUCTURED = b"\xc8\x3e"

# The bytes before the text of a text result contain five nested lengths, the largest of which is
# the text and 16 bytes. By the size of the text:
#
#   up to 111 bytes           each length has one byte
#   128 to 16,363 bytes       each length has two bytes, and so they have _LENGTHS bytes more
#   112 to 127 bytes, others  the lengths have different numbers of bytes
#
# The largest text of the first row.
_SHORT = 0x7F - 16
_LENGTHS = 5


def encode_caller(plugin: str, session: str) -> bytes:
    """Return the encoded fields of a ToolRequest that name the caller, for encode_tool_call().

    plugin: the caller's plugin id; empty to leave out the field.
    session: the id of the MCP session; empty to leave out the field.
    """
    return _encode_text(_CALLER_PLUGIN, plugin) + _encode_text(_SESSION_ID, session)


def encode_tool_call(
    name: str,
    arguments: PackedObject | None,
    caller: bytes,
    trace_parent: str = "",
    provider: str = "",
    rest: bytes = b"",
) -> bytes:
    """Return a PluginRequest that calls a tool, serialized without its id.

    name: the name of the tool.
    arguments: the arguments from pack() or pack_json(); None for a call without arguments.
    caller: the result of encode_caller().
    trace_parent: the W3C trace context of the call; empty if the call has none.
    provider: the AI provider whose plugin must run the tool; empty if the call names none.
    rest: fields of the ToolRequest without a parameter here, such as `trace`, serialized.
    """
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
    if provider:
        content += _encode_text(_PROVIDER, provider)
    content += rest
    return _TOOL_CALL + encode_varint(len(content)) + content


def _encode_text(tag: bytes, text: str) -> bytes:
    """Return an encoded field with a string; empty for an empty string, as in proto3."""
    encoded = text.encode()
    return tag + encode_varint(len(encoded)) + encoded if encoded else b""


def encode_result(struct: bytes, structured: int = 0) -> bytes:
    """Return the PluginResponse for a successful call of a tool, serialized without its id.

    struct: the result, as the bytes of a Struct.
    structured: a value of the enum ToolResponse.Structured, which says what the result contains
        (plugin_requests.py); 0 is UNKNOWN.
    """
    header = _SUCCESS + encode_varint(len(struct))
    end = _STRUCTURED + encode_varint(structured) if structured else b""
    size = len(header) + len(struct) + len(end)
    return b"".join((_TOOL_CALL, encode_varint(size), header, struct, end))


def encode_text_result(text: str) -> bytes:
    """Return a PluginResponse with the result {"text": text}, serialized without its id.

    Raises NotAStruct if the text has a lone surrogate.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise NotAStruct("a string with a lone surrogate") from None
    return _text_header(len(encoded)) + encoded


def read_text_result(payload: bytes) -> str | None:
    """Return the text of a response that encode_text_result() has encoded.

    Returns None for any other response, and for texts of 112 to 127 bytes or more than 16,363,
    whose sizes this function does not support. Decode the response with the package protobuf then.
    payload: the response, with or without its id.
    """
    try:
        # The response begins with its id, or with the tool_call.
        start = payload[1] + 2 if payload[0] == 0x0A and payload[1] < 0x80 else 0
    except IndexError:
        return None

    # Compute the size of the text, assuming that all lengths have one byte, or all have two bytes:
    # _TOOL_CALL and its length have 3 bytes, and there are 16 bytes between them and the text. Then
    # compare the bytes before the text with the bytes for a text of this size.
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
    """Return the bytes of a text result that come before the text.

    They are the tags and lengths of nested messages. From the innermost to the outermost: the
    string in a Value, the Value in an entry with the key "text", the entry, the result (after
    success = true), the tool_call.
    size: the size of the text in bytes.
    """
    header = b""
    for tag in (b"\x1a", b"\x0a\x04text\x12", b"\x0a", _SUCCESS, _TOOL_CALL):
        header = tag + encode_varint(len(header) + size) + header
    return header
