"""peek_tool_call() and similar functions read fields of a serialized message without decoding it.

A hub forwards requests between plugins. Forwarding is faster without decoding, but the hub must
read four fields of a serialized message: the request id, the kind of the message, the name of the
called tool, and the caller.

Protobuf allows fields in any order, and repeated fields. But serializers write each field once, in
ascending order. If a message is written differently, these functions return None or False, and the
hub decodes the message.
Source: protobuf.dev "Encoding"; the Orchestra plugin protocol.
"""

from __future__ import annotations

from concertino.orchestra.protobuf_wire import LENGTH_DELIMITED, InvalidWire, read_length

__all__ = [
    "is_chunk",
    "is_stream_end",
    "is_stream_start",
    "is_tool_response",
    "join_id",
    "peek_tool_call",
    "split_id",
]

# The tags of length-delimited fields, as they are written before the length of the field.
# Field 1: request_id of a message, and ToolRequest.tool_name.
_FIRST = 0x0A
# Field 3: ToolRequest.caller_plugin.
_CALLER = 0x1A
# Field 5: ToolRequest.provider.
_PROVIDER = 0x2A
# Field 1000: ToolRequest.arguments_json.
_JSON = b"\xc2\x3e"
# Field 20: tool_call, of PluginRequest and of PluginResponse.
_TOOL_CALL = b"\xa2\x01"
# Field 40: stream_start of PluginRequest, and stream_chunk of PluginResponse.
_STREAM_START = _STREAM_CHUNK = b"\xc2\x02"
# Field 41: stream_end of PluginResponse.
_STREAM_END = b"\xca\x02"

# The bytes before an id, which are its tag and its length. The index is the length.
_ID_HEADERS = tuple(bytes((_FIRST, size)) for size in range(0x80))


def join_id(id: bytes, body: bytes) -> bytes:
    """Return a serialized message that consists of a request id and other fields.

    id: the id, at most 127 bytes; empty for a message without an id.
    body: the other fields of the message, serialized.
    """
    return _ID_HEADERS[len(id)] + id + body if id else body


def split_id(payload: bytes) -> tuple[bytes, bytes] | None:
    """Return the request id of a serialized message, and its other fields. Reverses join_id().

    payload: the serialized message. If it does not begin with an id, the returned id is empty.
    Returns None if the id is truncated or longer than 127 bytes.
    """
    if not payload or payload[0] != _FIRST:
        return b"", payload

    try:
        end = payload[1] + 2
    except IndexError:
        return None
    # A length from 0x80 on takes several bytes, so `end` is less than 0x80 and the two bytes of the
    # tag and the length.
    return None if end > len(payload) or end >= 0x82 else (payload[2:end], payload[end:])


def peek_tool_call(body: bytes) -> tuple[str, str] | None:
    """Return the tool's name and the caller of a tool call; None if the hub must decode the call.

    body: the serialized PluginRequest, without the id at its beginning.
    Returns None in these cases:

    - The request is not a tool call, or has another field, too.
    - The call names an AI provider, because the choice of the plugin then depends on the provider.
    - The fields of the call are not in ascending order, or a field is repeated. The receiver would
      use the last value of a repeated field, while this function would read the first.
    """
    at = _content_start(body, _TOOL_CALL)
    size_of_body = len(body)
    try:
        if at == 0 or body[at] != _FIRST:
            return None
        size = body[at + 1]
        if size >= 0x80:
            return None
        name_start = at + 2
        name_end = at = name_start + size

        caller = b""
        previous = _FIRST
        while at < size_of_body:
            tag = body[at]
            # The only field with a tag of two bytes is arguments_json, and it is the last field.
            if tag >= 0x80:
                if body[at : at + 2] != _JSON:
                    return None
                if read_length(body, at + 2, size_of_body)[1] != size_of_body:
                    return None
                break

            if tag <= previous or tag & 7 != LENGTH_DELIMITED or tag == _PROVIDER:
                return None
            previous = tag
            start, at = read_length(body, at + 1, size_of_body)
            if tag == _CALLER:
                caller = body[start:at]
        # The `else` of the loop, which runs only without `break`: the name may be truncated.
        else:
            if at > size_of_body:
                return None
        return body[name_start:name_end].decode(), caller.decode()
    except (IndexError, InvalidWire, UnicodeDecodeError):
        return None


def is_stream_start(body: bytes) -> bool:
    """Return whether a request begins with a stream_start.

    body: the serialized request, without its id.
    """
    return body.startswith(_STREAM_START)


def is_chunk(payload: bytes) -> bool:
    """Return whether a serialized response has only the field stream_chunk, apart from its id."""
    return _content_start(payload, _STREAM_CHUNK, _id_end(payload)) > 0


def is_stream_end(payload: bytes) -> bool:
    """Return whether a serialized response has only the field stream_end, apart from its id."""
    return _content_start(payload, _STREAM_END, _id_end(payload)) > 0


def is_tool_response(body: bytes) -> bool:
    """Return whether a response has only the field tool_call.

    body: the serialized response, without its id.
    """
    return _content_start(body, _TOOL_CALL) > 0


def _id_end(payload: bytes) -> int:
    """Return the offset after the id at the beginning of a message; 0 if there is no id."""
    return payload[1] + 2 if len(payload) > 1 and payload[0] == _FIRST else 0


def _content_start(payload: bytes, tag: bytes, at: int = 0) -> int:
    """Return the offset of a field's content, if the message has only this field from `at` on.

    tag: the tag of the field, of two bytes.
    Returns 0 if there is another field, or a truncated field.
    """
    if not payload.startswith(tag, at):
        return 0
    try:
        start, end = read_length(payload, at + 2, len(payload))
    except InvalidWire:
        return 0
    return start if end == len(payload) else 0
