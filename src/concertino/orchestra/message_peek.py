"""What a hub must know of a message that it passes on, read from the serialized message: its id, the tool that is called, and who
calls it.

Only messages as every serializer writes them are read: fields in the order of their numbers, none twice. Of any other nothing is
said, and it is decoded as a whole.
Source: protobuf.dev "Encoding"; the Orchestra plugin protocol.
"""

from __future__ import annotations

__all__ = ["is_of_a_tool", "join_id", "peek_tool_call", "split_id"]

_FIRST = 0x0A  # field 1, length-delimited: request_id, and ToolRequest.tool_name
_CALLER = 0x1A  # field 3, length-delimited: ToolRequest.caller_plugin
_JSON = b"\xc2\x3e"  # field 1000, length-delimited: arguments_json
_LENGTH_DELIMITED = 2
_TOOL_CALL = b"\xa2\x01"  # field 20, length-delimited: tool_call of requests and of responses
_HEADS = tuple(bytes((_FIRST, size)) for size in range(0x80))


def join_id(id: bytes, body: bytes) -> bytes:
    """The message with an id of at most 127 bytes."""
    return _HEADS[len(id)] + id + body if id else body


def split_id(payload: bytes) -> tuple[bytes, bytes] | None:
    """The id of a message, empty if it begins with none, and its other fields; None for an id that is not all there."""
    if not payload or payload[0] != _FIRST:
        return b"", payload
    try:
        end = payload[1] + 2
    except IndexError:
        return None
    return None if end > len(payload) or end >= 0x82 else (payload[2:end], payload[end:])


def peek_tool_call(body: bytes) -> tuple[str, str] | None:
    """The name of the tool that a request calls, and who says that they call it, given its fields but for the id.

    The fields of the call are looked at one by one: of two names a decoder would take the last.
    """
    at = _content(body)
    try:
        if at == 0 or body[at] != _FIRST or (size := body[at + 1]) >= 0x80:
            return None
        start, at = at + 2, at + 2 + size
        end, before = at, _FIRST
        by = b""
        while at < len(body):
            tag = body[at]
            if tag >= 0x80:  # of a field from 16 on: only the last has such a number
                if (
                    body[at + 1] != _JSON[1]
                    or tag != _JSON[0]
                    or _field(body, at + 2)[1] != len(body)
                ):
                    return None
                break
            if tag <= before or tag & 7 != _LENGTH_DELIMITED:
                return None
            before = tag
            begins, at = _field(body, at + 1)
            if tag == _CALLER:
                by = body[begins:at]
        else:
            if at > len(body):
                return None
        return body[start:end].decode(), by.decode()
    except (IndexError, UnicodeDecodeError):
        return None


def is_of_a_tool(body: bytes) -> bool:
    """Whether a response is that to a tool call, and nothing beside it, given its fields but for the id."""
    return _content(body) > 0


def _content(body: bytes) -> int:
    """Where the content of a tool_call begins that is all there is; 0 if it is not."""
    if not body.startswith(_TOOL_CALL):
        return 0
    try:
        start, end = _field(body, 2)
    except IndexError:
        return 0
    return start if end == len(body) else 0


def _field(body: bytes, at: int) -> tuple[int, int]:
    """Where a field begins whose length is here, and where it ends. Raises IndexError for a length that is none."""
    size = byte = body[at]
    at += 1
    shift = 7
    while byte >= 0x80:  # the 0x80 of each byte is taken away with the next
        if shift > 28:
            raise IndexError("a length has at most five bytes")
        byte = body[at]
        size += (byte - 1) << shift
        at += 1
        shift += 7
    return at, at + size
