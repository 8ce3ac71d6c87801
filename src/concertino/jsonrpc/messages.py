"""JSON-RPC 2.0 messages: frames into messages with undecoded members, and messages into frames.

Which requests are known, who may send what, and what an id refers to is not asked here: that is peer.py and session.py.
Policies: ids keep type and value exactly; a duplicate member counts once, the last; members unknown here are ignored.
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
    "encode",
    "encode_error",
    "encode_id",
    "encode_notification",
    "encode_request",
    "one_line",
]

Id = int | str
ABSENT = Raw(
    b""
)  # for a member that is not there; compare by identity. `Raw | None` would not decode.


class Message(Struct, gc=False):
    """Any well-formed message: a request, a notification, or a response with exactly one of result and error."""

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: Id | UnsetType = UNSET
    params: dict[str, Raw] = {}
    result: Raw = ABSENT
    error: Raw = ABSENT


class Request(Struct, gc=False, forbid_unknown_fields=True):
    """A request, and not a member more than it needs: what nearly every frame to a server is."""

    jsonrpc: Literal["2.0"]
    id: Id
    method: Annotated[str, Meta(min_length=1)]
    params: dict[str, Raw] = {}


class InvalidMessage(Struct, frozen=True):
    """What a frame that is no message is to be answered with; code 0 asks for silence (blank lines, broken responses).

    id: the id if it could be read, else UNSET.
    """

    code: int
    message: str
    id: Id | UnsetType = UNSET


class _Members(Struct):
    """The members of an object, whatever they are: for saying what is wrong with it."""

    jsonrpc: Raw = ABSENT
    method: Raw = ABSENT
    id: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


NEWLINE = 10  # a number: CPython looks for one in bytes at once, and tries bytes as a number first, with an exception inside
BOM = b"\xef\xbb\xbf"
SILENCE = InvalidMessage(0, "")
# For UTF-8 frames. Raises what decode() catches where the frame is anything else; decode() then says what. 1.1 us -> 0.8.
decode_request = Decoder(Request).decode
_message = Decoder(Message).decode
_members = Decoder(_Members).decode
_elements = Decoder(list[Raw]).decode
_anything = Decoder(Raw).decode
_id = Decoder(Id).decode
_text = Decoder(str).decode
encode = Encoder().encode


def decode(frame: bytes | Raw) -> Message | InvalidMessage:
    """Take one frame and say what it is. Raises nothing: what is no message becomes a Bad.

    One pass in C for a good frame. An array is Bad here, see decode_batch.
    """
    try:
        # msgspec does not look at the UTF-8 of members it keeps raw.
        if type(frame) is bytes and not frame.isascii():
            str(frame, "utf-8")
        message = _message(frame)
    except (DecodeError, UnicodeDecodeError, RecursionError) as why:
        return _bad(bytes(frame), why)
    if message.method is UNSET:
        # JSON-RPC 2.0 section 5: exactly one of the two. Nobody answers a response, not even a broken one.
        if (message.result is ABSENT) is not (message.error is ABSENT):
            return message
        return (
            SILENCE
            if message.result is not ABSENT
            else InvalidMessage(INVALID_REQUEST, "Invalid Request: no method", message.id)
        )
    if message.result is not ABSENT or message.error is not ABSENT:
        return InvalidMessage(
            INVALID_REQUEST,
            "Invalid Request: a method together with a result or an error",
            message.id,
        )
    if not message.method:
        return InvalidMessage(
            INVALID_REQUEST,
            "Invalid Request: method: expected a name, got an empty string",
            message.id,
        )
    return message


def decode_batch(frame: bytes) -> list[Raw] | None:
    """The elements of a JSON array, each to be given to decode(); None if the frame is no array."""
    try:
        str(frame, "utf-8")
        return _elements(frame.removeprefix(BOM))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


def encode_request(id: Id, method: str, params: bytes) -> bytes:
    """A request as a frame. params: a JSON object."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
        encode_id(id),
        encode(method),
        one_line(params),
    )


def encode_notification(method: str, params: bytes) -> bytes:
    """A notification as a frame. params: a JSON object."""
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), one_line(params))


def encode_error(id: bytes | None, code: int, message: str, data: object = None) -> bytes:
    """An error response as a frame. id: as encode_id gives it; None leaves it out (2025-11-25 and later)."""
    body: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        body["data"] = data
    head = b"" if id is None else b'"id":%b,' % id
    return b'{"jsonrpc":"2.0",%b"error":%b}' % (head, one_line(encode(body)))


def one_line(json: bytes) -> bytes:
    """JSON without newlines: somebody's Raw may be indented, and a newline ends the frame. Within strings there is none."""
    return json.replace(b"\n", b" ") if NEWLINE in json else json


def encode_id(id: Id) -> bytes:
    """An id as JSON."""
    return b"%d" % id if type(id) is int else encode(id)


def _bad(frame: bytes, why: Exception) -> Message | InvalidMessage:
    """Say what is wrong with a frame that is no message; slow, and never on the way of a good one."""
    if frame.startswith(BOM) and not frame.startswith(
        BOM, len(BOM)
    ):  # once: a line of nothing else would recurse
        return decode(frame[len(BOM) :])
    if not frame.strip():
        return SILENCE
    if isinstance(why, UnicodeDecodeError):
        return _with_readable_id(frame, f"Parse error: not UTF-8 at byte {why.start}")
    try:
        _anything(frame)  # the next line would not read on behind what is no object
        members = _members(frame)
    except ValidationError as wrong:  # first: it is a DecodeError too
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {_expected(wrong)}")
    except DecodeError as wrong:
        return _with_readable_id(frame, f"Parse error: {wrong}")
    except RecursionError:
        return InvalidMessage(PARSE_ERROR, "Parse error: nested too deeply")
    once = encode(
        {
            name: raw
            for name in members.__struct_fields__
            if (raw := getattr(members, name)) is not ABSENT
        }
    )
    try:
        _message(once)
    except DecodeError:
        return _not_a_message(members)
    return decode(Raw(once))  # a member stood twice, and only what does not count of it was wrong


def _not_a_message(members: _Members) -> InvalidMessage:
    """Sound JSON and an object, but no message: find the member to blame."""
    if members.method is ABSENT and (members.result is not ABSENT or members.error is not ABSENT):
        return SILENCE  # before its id is looked at: null, where the other side could not read ours
    id: Id | UnsetType = UNSET
    try:
        if members.id is not ABSENT:
            id = _id(members.id)
    except DecodeError as wrong:
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: id: {_expected(wrong)}")
    if bytes(members.jsonrpc) != b'"2.0"':
        return InvalidMessage(INVALID_REQUEST, 'Invalid Request: jsonrpc: expected "2.0"', id)
    try:
        _text(members.method)
    except DecodeError as wrong:
        reason = "missing" if members.method is ABSENT else _expected(wrong)
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: method: {reason}", id)
    # What is left is params. Without an id this is a notification, and those are never answered.
    return (
        SILENCE
        if id is UNSET
        else InvalidMessage(INVALID_PARAMS, "Invalid params: params: expected object", id)
    )


def _with_readable_id(frame: bytes, reason: str) -> InvalidMessage:
    """Look for the id with a reader that forgives more than ours: a caller that hears nothing waits for its time-out.

    A lone surrogate (half an emoji, cut by a client) is the case that happens; json reads it, and NaN, and control characters.
    """
    import json

    try:
        found: object = json.loads(str(frame, "utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return InvalidMessage(PARSE_ERROR, reason)
    if not isinstance(found, dict):
        return InvalidMessage(PARSE_ERROR, reason)
    members: dict[str, object] = found  # pyright: ignore[reportUnknownVariableType]  # json gives str keys
    if reason.endswith(
        "truncated"
    ):  # it is not, or json would have refused: msgspec's word for half a surrogate pair
        reason = "Parse error: a string holds half a surrogate pair"
    if "method" not in members and ("result" in members or "error" in members):
        return SILENCE
    id = members.get("id")
    if type(id) is int or (type(id) is str and id.isprintable() and "\ufffd" not in id):
        return InvalidMessage(PARSE_ERROR, reason, id)
    return InvalidMessage(PARSE_ERROR, reason)


def _expected(why: DecodeError) -> str:
    """msgspec's sentence without its path, in lower case: `expected int | str, got bool`."""
    return str(why).split(" - at ")[0].replace("`", "").replace("Expected", "expected")
