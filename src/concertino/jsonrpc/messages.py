"""JSON-RPC 2.0 messages: decodes frames into messages, and encodes messages into frames.

Members keep their JSON undecoded (msgspec.Raw); the code that needs a member decodes it. This
module does not know which methods exist, who may send them, or which request an id refers to:
peer.py and session.py do.
Policies: an id keeps its type and value exactly; of a duplicate member the last one counts; unknown
members are ignored.
Spec: JSON-RPC 2.0; 2026-07-28 basic/index "Messages"; policies: docs/architecture.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, ValidationError
from msgspec.json import Decoder, Encoder

from concertino.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

__all__ = [
    "ABSENT",
    "NEWLINE",
    "Id",
    "InvalidMessage",
    "Message",
    "Request",
    "decode",
    "decode_batch",
    "decode_request",
    "describe_decode_error",
    "encode",
    "encode_error",
    "encode_id",
    "encode_notification",
    "encode_request",
    "one_line",
]

Id = int | str

# Stands for a missing member; compare by identity. msgspec cannot decode `Raw | None`.
ABSENT = Raw(b"")


class Message(Struct, gc=False):
    """A well-formed message: a request, a notification or a response.

    A response has no method, and exactly one of result and error.
    """

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: Id | UnsetType = UNSET
    params: dict[str, Raw] = {}
    result: Raw = ABSENT
    error: Raw = ABSENT


class Request(Struct, gc=False, forbid_unknown_fields=True):
    """A request with no other members than these, as nearly every frame to a server is."""

    jsonrpc: Literal["2.0"]
    id: Id
    method: Annotated[str, Meta(min_length=1)]
    params: dict[str, Raw] = {}


class InvalidMessage(Struct, frozen=True):
    """A frame that is not a message, with the error to answer it with.

    code: 0 if nothing must be sent, for blank lines and malformed responses.
    message: "" for a frame that is not worth a log message, such as a blank line.
    id: UNSET if the frame has no readable id. With code 0, the id of the request of ours that gets
    no other response.
    """

    code: int
    message: str
    id: Id | UnsetType = UNSET


class _Members(Struct):
    """The members of any JSON object, to find out which one is wrong."""

    jsonrpc: Raw = ABSENT
    method: Raw = ABSENT
    id: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


# A number, not bytes: `10 in frame` is a plain memchr in CPython, while `b"\n" in frame` first
# tries to convert the bytes to a number and catches an exception internally.
NEWLINE = 10
BOM = b"\xef\xbb\xbf"
SILENCE = InvalidMessage(0, "")
NULL = Raw(b"null")

# Decodes the usual request in 0.8 us, decode() takes 1.1. The caller must have checked that the
# frame is UTF-8. Raises DecodeError or RecursionError for any other frame; pass that to decode().
decode_request = Decoder(Request).decode

_decode_message = Decoder(Message).decode
_decode_elements = Decoder(list[Raw]).decode
_decode_raw = Decoder(Raw).decode
_decode_id = Decoder(Id).decode
_decode_text = Decoder(str).decode
encode = Encoder().encode


# Decoding


def decode(frame: bytes | Raw) -> Message | InvalidMessage:
    """Decode one frame; a frame that is not a message becomes an InvalidMessage.

    A good frame takes one pass in C. An array is an InvalidMessage here; see decode_batch().
    Raises nothing.
    """
    try:
        # msgspec does not check the UTF-8 of members that it keeps raw.
        if type(frame) is bytes and not frame.isascii():
            str(frame, "utf-8")
        message = _decode_message(frame)
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return _diagnose(bytes(frame), exc)

    if message.method is UNSET:
        # JSON-RPC 2.0 section 5: exactly one of result and error.
        if (message.result is ABSENT) is not (message.error is ABSENT):
            return message
        # A response is never answered, not even a broken one.
        if message.result is not ABSENT:
            return InvalidMessage(0, "a response with a result and an error")
        return InvalidMessage(INVALID_REQUEST, "Invalid Request: no method", message.id)

    if message.result is not ABSENT or message.error is not ABSENT:
        text = "Invalid Request: a method together with a result or an error"
        return InvalidMessage(INVALID_REQUEST, text, message.id)
    if not message.method:
        text = "Invalid Request: method: expected a name, got an empty string"
        return InvalidMessage(INVALID_REQUEST, text, message.id)
    return message


def decode_batch(frame: bytes) -> list[Raw] | None:
    """Return the elements of a JSON array, each to be passed to decode().

    None if the frame is not an array.
    """
    try:
        str(frame, "utf-8")
        return _decode_elements(frame.removeprefix(BOM))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


def describe_decode_error(exc: Exception, max_chars: int | None = None) -> str:
    """Return msgspec's error text without backticks, its first max_chars characters."""
    return str(exc).replace("`", "")[:max_chars]


# Encoding


def encode_request(id: Id, method: str, params: bytes) -> bytes:
    """Return a request as a frame. params: a JSON object."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
        encode_id(id),
        encode(method),
        one_line(params),
    )


def encode_notification(method: str, params: bytes) -> bytes:
    """Return a notification as a frame. params: a JSON object."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), one_line(params))


def encode_error(
    id: bytes | None,
    code: int,
    message: str,
    data: object = None,
) -> bytes:
    """Return an error response as a frame.

    id: the id as JSON, see encode_id(); None omits it, as 2025-11-25 and later do for an unknown
    id.
    """
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    id_member = b"" if id is None else b'"id":%b,' % id
    return b'{"jsonrpc":"2.0",%b"error":%b}' % (id_member, one_line(encode(error)))


def one_line(json: bytes) -> bytes:
    """Return the JSON without newlines, which would end the frame.

    The Raw of a backend may be indented. JSON strings never contain a literal newline.
    """
    return json.replace(b"\n", b" ") if NEWLINE in json else json


def encode_id(id: Id) -> bytes:
    """Return an id as JSON."""
    return b"%d" % id if type(id) is int else encode(id)


# Diagnosis of frames that are not messages; never runs for a good frame


def _diagnose(frame: bytes, exc: Exception) -> Message | InvalidMessage:
    """Find out what is wrong with a frame that could not be decoded.

    Returns a Message if the frame is one after all: behind a byte order mark, or when only a
    duplicate member that does not count was wrong.
    """
    # Remove only one mark: otherwise a line of many marks would cause deep recursion.
    if frame.startswith(BOM) and not frame.startswith(BOM, len(BOM)):
        return decode(frame[len(BOM) :])
    if not frame.strip():
        return SILENCE
    if isinstance(exc, UnicodeDecodeError):
        return _recover_id(frame, f"Parse error: not UTF-8 at byte {exc.start}")

    try:
        # Checks the whole frame; decoding into a Struct stops at a value that is not an object.
        _decode_raw(frame)
        members = Decoder(_Members).decode(frame)
    # A ValidationError is a DecodeError too, so it must come first.
    except ValidationError as invalid:
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {_describe(invalid)}")
    except DecodeError as invalid:
        return _recover_id(frame, f"Parse error: {invalid}")
    except RecursionError:
        return _recover_deep_id(frame, "Parse error: nested too deeply")

    # Of each member, the last one counts. If those make a message, the frame was one.
    last_members = encode(
        {
            name: raw
            for name in members.__struct_fields__
            if (raw := getattr(members, name)) is not ABSENT
        }
    )
    try:
        _decode_message(last_members)
    except DecodeError:
        return _find_invalid_member(members)
    return decode(Raw(last_members))


def _find_invalid_member(members: _Members) -> InvalidMessage:
    """Name the member that makes a JSON object no message."""
    # Before the id is checked: the other side sends null where it could not read our id.
    if members.method is ABSENT and (members.result is not ABSENT or members.error is not ABSENT):
        return SILENCE if members.id == NULL else InvalidMessage(0, "a malformed response")

    id: Id | UnsetType = UNSET
    try:
        if members.id is not ABSENT:
            id = _decode_id(members.id)
    except DecodeError as exc:
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: id: {_describe(exc)}")

    if bytes(members.jsonrpc) != b'"2.0"':
        return InvalidMessage(INVALID_REQUEST, 'Invalid Request: jsonrpc: expected "2.0"', id)
    try:
        _decode_text(members.method)
    except DecodeError as exc:
        reason = "missing" if members.method is ABSENT else _describe(exc)
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: method: {reason}", id)

    # Only params is left. Without an id this is a notification, which is never answered.
    text = "Invalid params: params: expected object"
    return InvalidMessage(0 if id is UNSET else INVALID_PARAMS, text, id)


def _recover_id(frame: bytes, reason: str) -> InvalidMessage:
    """Return a parse error with the id that the more lenient `json` module finds.

    Without the id the caller would wait for its timeout. The usual case is a lone surrogate, half
    an emoji cut off by a client; `json` also accepts NaN and control characters.
    """
    import json

    try:
        value: object = json.loads(str(frame, "utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return InvalidMessage(PARSE_ERROR, reason)
    if not isinstance(value, dict):
        return InvalidMessage(PARSE_ERROR, reason)

    # json makes str keys.
    members: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]

    # The text is complete, or json would have rejected it: msgspec says "truncated" for half a
    # surrogate pair as well.
    if reason.endswith("truncated"):
        reason = "Parse error: a string holds half a surrogate pair"
    if "method" not in members and ("result" in members or "error" in members):
        return InvalidMessage(0, reason)

    id = members.get("id")
    if type(id) is int or (type(id) is str and id.isprintable() and "\ufffd" not in id):
        return InvalidMessage(PARSE_ERROR, reason, id)
    return InvalidMessage(PARSE_ERROR, reason)


def _recover_deep_id(frame: bytes, reason: str) -> InvalidMessage:
    """Return a parse error with the id of a frame that is nested too deeply for any decoder."""
    from concertino.jsonrpc.deep_frames import read_outer_members

    members = read_outer_members(frame)
    code = 0 if members.is_response else PARSE_ERROR
    try:
        id = UNSET if members.id is None else _decode_id(members.id)
    except (DecodeError, UnicodeDecodeError):
        id = UNSET
    return InvalidMessage(code, reason, id)


def _describe(exc: DecodeError) -> str:
    """Return msgspec's text without its path, in lower case: `expected int | str, got bool`."""
    return describe_decode_error(exc).split(" - at ")[0].replace("Expected", "expected")
