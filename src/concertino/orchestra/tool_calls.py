"""Calls of tools and their results as serialized messages, without ids: written and read without protobuf's classes.

Those classes are used for whatever is not written here, or not as here; they take three times as long.
Source: protobuf.dev "Encoding"; the Orchestra plugin protocol, ToolRequest and ToolResponse.
"""

from __future__ import annotations

from functools import lru_cache

from concertino.orchestra.structs import NotAStruct, Packed, varint

__all__ = ["called_with", "caller", "succeeded", "succeeded_with_text", "text_in"]

_TOOL_CALL = b"\xa2\x01"  # field 20 of PluginRequest and of PluginResponse
_SUCCESS = b"\x08\x01\x12"  # ToolResponse: success is true; the tag of result
# Of a text so short the lengths of all that it is in are one byte each; of one of 128 to 16,355 bytes, two.
_SHORT = 0x7F - 16
_LENGTHS = 5


def caller(plugin: str, session: str) -> bytes:
    """Who calls, for called_with(). What is empty is not said."""
    return _text(b"\x1a", plugin) + _text(b"\x32", session)


def called_with(name: str, arguments: Packed | None, by: bytes, trace_parent: str = "") -> bytes:
    """A request to call a tool."""
    content = _text(b"\x0a", name)
    if arguments is None:
        content += by
    else:
        struct, json = arguments
        content = b"".join((content, b"\x12", varint(len(struct)), struct, by))
        if json is not None:
            content = b"".join((content, b"\xc2\x3e", varint(len(json)), json))  # field 1000
    if trace_parent:
        content += _text(b"\x22", trace_parent)
    return _TOOL_CALL + varint(len(content)) + content


def _text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + varint(len(encoded)) + encoded if encoded else b""


def succeeded(struct: bytes) -> bytes:
    """The response to a call that went well, and whose result is this Struct."""
    header = _SUCCESS + varint(len(struct))
    return _TOOL_CALL + varint(len(header) + len(struct)) + header + struct


def succeeded_with_text(text: str) -> bytes:
    """The same, of the result {"text": text}, which is what most tools give. Raises NotAStruct."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise NotAStruct("a text with half of a surrogate pair") from None
    return _text_head(len(encoded)) + encoded


def text_in(payload: bytes) -> str | None:
    """The text in a response that succeeded_with_text() has made, with an id before it; None for any other, and some of them."""
    try:
        start = payload[1] + 2 if payload[0] == 0x0A and payload[1] < 0x80 else 0
    except IndexError:
        return None
    size = len(payload) - start - 3 - 16
    if size > _SHORT:
        size -= _LENGTHS
    if size < 0 or not payload.startswith(head := _text_head(size), start):
        return None
    start += len(head)
    if len(payload) != start + size:
        return None
    try:
        return payload[start:].decode()
    except UnicodeDecodeError:
        return None


@lru_cache(1024)
def _text_head(size: int) -> bytes:
    """What is before a text of so many bytes, from the outside: response, its tool_call, result, an entry of it, the value."""
    head = b""
    for tag in (b"\x1a", b"\x0a\x04text\x12", b"\x0a", _SUCCESS, _TOOL_CALL):
        head = tag + varint(len(head) + size) + head
    return head
