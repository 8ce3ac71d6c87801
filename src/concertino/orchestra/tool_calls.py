"""encode_tool_call() and others: encode tool calls and their results as Protobuf messages.

A hub's front end encodes calls (translation.py), and a plugin encodes results (plugin_requests.py).
These functions take a third of the time that the package protobuf takes. The messages have no id;
message_peek.join_id() adds it. For all other messages, and for responses that another serializer
has written differently, the classes of the package protobuf are used.
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
_PROVIDER = b"\x2a"
_SESSION_ID = b"\x32"
_ARGUMENTS_JSON = b"\xc2\x3e"
# ToolResponse: the field success = true and the tag of result; then the tag of structured.
_SUCCESS = b"\x08\x01\x12"
_STRUCTURED = b"\xc8\x3e"

# The header of a text result has five nested lengths. For texts of up to _SHORT bytes each length
# has one byte; for texts of 128 to 16,355 bytes each has two, which makes _LENGTHS more bytes.
_SHORT = 0x7F - 16
_LENGTHS = 5


def encode_caller(plugin: str, session: str) -> bytes:
    """Return the encoded fields that name the caller, for encode_tool_call().

    plugin: the caller's plugin id.
    session: the id of the MCP session.
    Empty values are omitted.
    """
    return _encode_text(_CALLER_PLUGIN, plugin) + _encode_text(_SESSION_ID, session)


def encode_tool_call(
    name: str,
    arguments: PackedObject | None,
    caller: bytes,
    trace_parent: str = "",
    provider: str = "",
) -> bytes:
    """Return a serialized PluginRequest that calls a tool.

    arguments: None for a call without arguments.
    caller: from encode_caller().
    provider: the AI provider whose bridge is to run the tool; empty for none.
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
    return _TOOL_CALL + encode_varint(len(content)) + content


def _encode_text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + encode_varint(len(encoded)) + encoded if encoded else b""


def encode_result(struct: bytes, structured: int = 0) -> bytes:
    """Return a serialized PluginResponse for a successful call.

    struct: the result, the bytes of a Struct.
    structured: a value of the enum ToolResponse.Structured.
    """
    header = _SUCCESS + encode_varint(len(struct))
    end = _STRUCTURED + encode_varint(structured) if structured else b""
    size = len(header) + len(struct) + len(end)
    return b"".join((_TOOL_CALL, encode_varint(size), header, struct, end))


def encode_text_result(text: str) -> bytes:
    """Return a serialized PluginResponse with the result {"text": text}, which most tools have.

    Raises NotAStruct for a lone surrogate.
    """
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise NotAStruct("a string with a lone surrogate") from None
    return _text_header(len(encoded)) + encoded


def read_text_result(payload: bytes) -> str | None:
    """Return the text of a response, if encode_text_result() has encoded it.

    payload: the response, with or without its id.
    Returns None for any other response, and for some texts, because of their lengths. The caller
    then decodes the response with the package protobuf.
    """
    try:
        start = payload[1] + 2 if payload[0] == 0x0A and payload[1] < 0x80 else 0
    except IndexError:
        return None

    # Guess the size of the text from the size of the response, and compare the header for it.
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
    """Return the bytes of a response before its text.

    size: the size of the text in bytes. They are the tags and lengths of nested messages. From the
        innermost to the outermost: the string in a Value, an entry with the key "text", the result
        (after success = true), the tool_call.
    """
    header = b""
    for tag in (b"\x1a", b"\x0a\x04text\x12", b"\x0a", _SUCCESS, _TOOL_CALL):
        header = tag + encode_varint(len(header) + size) + header
    return header
