"""JSON-RPC 2.0 messages: decodes frames into messages, and encodes messages into frames.

    decode(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')    # Message(id=1, method="ping", ...)
    decode(b'{"id":1}')                                    # InvalidMessage(-32600, ...)
    encode_notification("notifications/initialized", b"{}")  # a frame

A frame is one JSON text as bytes. The values of params, result and error stay undecoded JSON
(msgspec.Raw) until some code needs them. An id keeps its type and value exactly. If a member
appears twice, the last one counts. Unknown members are ignored.

This module does not know which methods exist or which request an id belongs to; jsonrpc/peer.py and
protocol/session.py do.
Spec: JSON-RPC 2.0; 2026-07-28 basic/index "Messages".
"""

# No `from __future__ import annotations` here: it would make strings of the annotations, and it
# takes msgspec 10 us to evaluate each of them when it first decodes a Struct.

from collections.abc import Set as AbstractSet
from typing import Annotated, Literal

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, ValidationError
from msgspec.json import Decoder, Encoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

__all__ = [
    "ABSENT",
    "JOINED_BYTES",
    "MALFORMED",
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
    "is_response",
    "one_line",
    "reject_oversize",
]

# The id of a request.
Id = int | str

# The value of a missing member; compare with `is`. It is not None, because msgspec cannot decode
# `Raw | None`.
ABSENT = Raw(b"")


class Message(Struct, gc=False):
    """A well-formed message.

    A request has a method and an id, a notification has a method and no id. A response has no
    method, and either a result or an error.
    """

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: Id | UnsetType = UNSET
    params: dict[str, Raw] = {}
    result: Raw = ABSENT
    error: Raw = ABSENT


class Request(Struct, gc=False, forbid_unknown_fields=True):
    """A request without unknown members. Nearly every frame that a server receives is one."""

    jsonrpc: Literal["2.0"]
    id: Id
    method: Annotated[str, Meta(min_length=1)]
    params: dict[str, Raw] = {}


class InvalidMessage(Struct, frozen=True):
    """A frame that is not a message, and the error response to send for it.

    code: the error's code; 0 for a frame that must not be answered: a blank line, a malformed
        response, or a notification with malformed params.
    message: the error's text, which is logged, too; "" for a blank line, and for a malformed
        response with the id null.
    id: the id for the error response; UNSET if the frame has no readable id, or is a response.
    answered_ids: the ids of our requests to which this frame seems to be the response. The caller
        fails them, because no other response will come. A batch or a broken line may have several.
        If `code` is not 0, the frame is perhaps a request instead: also send the error response.
    """

    code: int
    message: str
    id: Id | UnsetType = UNSET
    answered_ids: tuple[Id, ...] = ()


# A larger frame that msgspec rejects is not decoded by `json`, which makes objects of all values.
# That would take 10 to 20 ms for each megabyte, during which no other client is served.
LENIENT_BYTES = 1024 * 1024

# An integer, because `10 in frame` is faster in CPython than `b"\n" in frame`, which first tries to
# convert the bytes to an integer and handles the exception.
NEWLINE = 10

# From this size on, joining the parts of a frame takes less time than formatting it: for 1 MB,
# 0.03 ms instead of 1 ms (CPython 3.11).
JOINED_BYTES = 32_768

# The UTF-8 byte order mark, which some programs write before the first message.
BOM = b"\xef\xbb\xbf"

# The beginning of the text about a malformed response.
MALFORMED = "a malformed response: "
# The members of a response that does not say which version of JSON-RPC it has.
UNVERSIONED = frozenset(("id", "result", "error"))

# The result of decode() for frames that are neither answered nor logged, such as blank lines.
IGNORED = InvalidMessage(0, "")
NULL = Raw(b"null")
# The member `jsonrpc` of each valid message.
JSONRPC_VERSION = Raw(b'"2.0"')

# Decodes a frame that is a Request in 0.8 us, while decode() takes 1.1 us. The caller must have
# checked that the frame is UTF-8. For a frame that is not a Request, this raises DecodeError or
# RecursionError, and the caller must use decode().
decode_request = Decoder(Request).decode

_decode_message = Decoder(Message).decode
_decode_elements = Decoder(list[Raw]).decode
_decode_raw = Decoder(Raw).decode
_decode_value = Decoder().decode
_decode_id = Decoder(Id).decode
_decode_text = Decoder(str).decode
# Returns any value as JSON.
encode = Encoder().encode


# Decoding


def decode(frame: bytes | Raw) -> Message | InvalidMessage:
    """Decode one frame. Returns an InvalidMessage if it is not a message; raises nothing.

    A batch, which is a JSON array, is an InvalidMessage, because decode_batch() decodes batches.
    """
    try:
        # msgspec leaves members such as params undecoded, and does not check that they are UTF-8.
        if type(frame) is bytes and not frame.isascii():
            str(frame, "utf-8")
        message = _decode_message(frame)
    except DECODE_ERRORS as exc:
        return _diagnose(bytes(frame), exc)

    if message.method is UNSET:
        # A response has either a result or an error (JSON-RPC 2.0 section 5).
        if (message.result is ABSENT) is not (message.error is ABSENT):
            return message
        answered_ids = _answered_ids(message.id)
        # A response must not be answered, even if it is malformed, so its error code is 0. A frame
        # without a method, result and error may be a request, too, so it gets an error response.
        if message.result is not ABSENT:
            return InvalidMessage(0, f"{MALFORMED}a result and an error", answered_ids=answered_ids)
        text = "Invalid Request: expected a method, a result or an error"
        return InvalidMessage(INVALID_REQUEST, text, message.id, answered_ids)

    if message.result is not ABSENT or message.error is not ABSENT:
        text = "Invalid Request: a method together with a result or an error"
        return InvalidMessage(INVALID_REQUEST, text, message.id, _answered_ids(message.id))
    if not message.method:
        text = "Invalid Request: method: expected a name, got an empty string"
        return InvalidMessage(INVALID_REQUEST, text, message.id)
    return message


def decode_batch(frame: bytes) -> list[Raw] | None:
    """Return the undecoded elements of a batch; None if the frame is not a JSON array.

    The caller passes each element to decode().
    """
    try:
        str(frame, "utf-8")
        text = frame.removeprefix(BOM)
        if len(text) > LENIENT_BYTES:
            # Checking it first takes 1 ms for each megabyte. Decoding the elements of a text that
            # turns out to be incomplete may take 25 ms.
            _decode_raw(text)
        return _decode_elements(text)
    except RecursionError:
        return _split_deep_batch(frame)
    except (DecodeError, UnicodeDecodeError):
        return None


def _split_deep_batch(frame: bytes) -> list[Raw] | None:
    """Return the elements of a batch in which a message is nested too deeply.

    Each message can then be answered on its own id. A single error without an id would leave all
    callers waiting.
    Returns None if the batch cannot be split.
    """
    try:
        from concertino.jsonrpc.deep_frames import split_batch
    except ImportError:
        # The process has no file descriptor left to read the module with.
        return None

    elements = split_batch(frame)
    return None if elements is None else [Raw(element) for element in elements]


def describe_decode_error(exc: Exception, max_chars: int | None = None) -> str:
    """Return the text of an exception of msgspec without its backticks.

    max_chars: the maximum length of the text; None for no maximum.
    """
    return str(exc).replace("`", "")[:max_chars]


# Encoding


def encode_request(id: Id, method: str, params: bytes) -> bytes:
    """Return a request as a frame.

    params: a JSON object, as bytes; it may contain newlines.
    """
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
        encode_id(id),
        encode(method),
        one_line(params),
    )


def encode_notification(method: str, params: bytes) -> bytes:
    """Return a notification as a frame.

    params: a JSON object, as bytes; it may contain newlines.
    """
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (encode(method), one_line(params))


def encode_error(
    id: bytes | None,
    code: int,
    message: str,
    data: object = None,
) -> bytes:
    """Return an error response as a frame.

    id: the request's id as JSON. If it is unknown, pass None (MCP 2025-11-25 and later) to leave
        the member out, or b"null" (older revisions).
    data: any value that can be encoded as JSON; None for no data.
    """
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    id_member = b"" if id is None else b'"id":%b,' % id
    return b'{"jsonrpc":"2.0",%b"error":%b}' % (id_member, one_line(encode(error)))


def one_line(json: bytes) -> bytes:
    """Return a JSON text on one line, because a newline would end the frame.

    A backend's JSON may be indented. Newlines in JSON strings are escaped, so every newline byte is
    whitespace.
    """
    return json.replace(b"\n", b" ") if NEWLINE in json else json


def encode_id(id: Id) -> bytes:
    """Return the id of a request as JSON."""
    return b"%d" % id if type(id) is int else encode(id)


# Diagnosis of frames that could not be decoded. _diagnose() chooses by the kind of the frame:
# - JSON, but not a message: _find_invalid_member(), and for responses _reject_response()
# - nested too deeply: _reject_deep()
# - not JSON: _reject_text(), which calls _reject_large() for a large frame, and _search_line() for
# a line that even a lenient decoder rejects


def _diagnose(frame: bytes, exc: Exception) -> Message | InvalidMessage:
    """Return what is wrong with a frame that could not be decoded, as an InvalidMessage.

    For three kinds of frames, a Message is returned although the decoder rejects them:

    - The frame begins with a byte order mark.
    - A member appears twice and only its first value is wrong; the last value counts.
    - A response follows text that a program has printed, on the same line.

    exc: the exception that the decoder has raised.
    """
    # If there is a second mark, remove none: decode() calls this function again, so a frame of many
    # marks would cause deep recursion.
    if frame.startswith(BOM) and not frame.startswith(BOM, len(BOM)):
        return decode(frame[len(BOM) :])
    if not frame.strip():
        return IGNORED
    if isinstance(exc, UnicodeDecodeError):
        return _reject_text(frame, f"Parse error: not UTF-8 at byte {exc.start}")
    if type(exc) is DecodeError:
        return _reject_text(frame, f"Parse error: {exc}")

    try:
        # The first line checks that the whole frame is JSON. The second line alone would not: it
        # stops at the first byte of a frame that is not an object.
        _decode_raw(frame)
        members = Decoder(dict[str, Raw]).decode(frame)
    # ValidationError is a subclass of DecodeError, so it must come first.
    except ValidationError as invalid:
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {_describe(invalid)}")
    except DecodeError as invalid:
        return _reject_text(frame, f"Parse error: {invalid}")
    except RecursionError:
        return _reject_deep(frame)

    # `members` has the last value of each member. If these values make a message, use the message.
    last_members = encode(members)
    try:
        _decode_message(last_members)
    except DecodeError:
        return _find_invalid_member(members)
    return decode(Raw(last_members))


def _find_invalid_member(members: dict[str, Raw]) -> InvalidMessage:
    """Return the error for a JSON object that is not a message; its text names the wrong member."""
    id_member = members.get("id", ABSENT)
    method = members.get("method", ABSENT)
    # Check for responses before the id, because the other side sends an error response with the id
    # null if it could not read the id of our request. Nothing can be done with such a response.
    is_request = method is not ABSENT and method != NULL
    if not is_request and ("result" in members or "error" in members):
        return IGNORED if id_member == NULL else _reject_response(members)

    id: Id | UnsetType = UNSET
    try:
        if id_member is not ABSENT:
            id = _decode_id(id_member)
    except DecodeError as exc:
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: id: {_describe(exc)}")

    if members.get("jsonrpc") != JSONRPC_VERSION:
        return InvalidMessage(INVALID_REQUEST, 'Invalid Request: jsonrpc: expected "2.0"', id)
    try:
        _decode_text(method)
    except DecodeError as exc:
        reason = "missing" if method is ABSENT else _describe(exc)
        return InvalidMessage(INVALID_REQUEST, f"Invalid Request: method: {reason}", id)

    # All other members are right, so params is wrong. Without an id this is a notification, which
    # must not be answered.
    text = "Invalid params: params: expected object"
    return InvalidMessage(0 if id is UNSET else INVALID_PARAMS, text, id)


def _reject_response(members: dict[str, Raw]) -> InvalidMessage:
    """Return the error for a malformed response; its text names the wrong member."""
    id = members.get("id", ABSENT)
    version = members.get("jsonrpc", ABSENT)
    try:
        _decode_id(id)
    except DecodeError as exc:
        problem = "no id" if id is ABSENT else f"id: {_describe(exc)}"
    else:
        if version is ABSENT:
            problem = 'jsonrpc: expected "2.0", and it is missing'
        elif version != JSONRPC_VERSION:
            problem = 'jsonrpc: expected "2.0"'
        elif "method" in members:
            problem = "method: expected none"
        else:
            problem = "params: expected none"
    answered_ids: tuple[Id, ...] = ()
    if id is not ABSENT and is_response(members.keys() - {"method"}):
        try:
            answered_ids = _answered_ids(_decode_value(id))
        except (DecodeError, RecursionError):
            # The id is a number such as 1e400, which is too large for a float, or an array that is
            # nested too deeply. No request of ours has such an id.
            pass
    return InvalidMessage(0, f"{MALFORMED}{problem}", answered_ids=answered_ids)


def is_response(names: AbstractSet[str]) -> bool:
    """Return whether a malformed message is a response, judging by the names of its members.

    A response has no method, and a result or an error. If it lacks `jsonrpc`, it must have no
    members besides `id`, `result` and `error`.
    """
    if "method" in names or not ("result" in names or "error" in names):
        return False
    # The second condition excludes lines of a log that a server prints as JSON, such as
    # {"level": "error", "id": 5, "error": "..."}.
    return "jsonrpc" in names or names <= UNVERSIONED


def _answered_ids(id: object) -> tuple[Id, ...]:
    """Return the id in a response as a tuple; an empty one if no request can have this id.

    Some programs write 5.0 for 5.
    """
    if type(id) is float and id.is_integer():
        return (int(id),)
    return (id,) if type(id) is int or type(id) is str else ()


def _reject_text(frame: bytes, reason: str) -> Message | InvalidMessage:
    """Return the parse error for a frame that is not JSON, with the request's id if possible.

    If a program has printed text, and then a response on the same line, the response is returned.
    reason: the text of the error.
    """
    # Without its id, an error response or a response could not be matched to its request, and the
    # caller would wait until its timeout. The standard library's `json` is more lenient than
    # msgspec: it accepts NaN, control characters and lone surrogates. A lone surrogate is the usual
    # cause: a text was cut in the middle of an emoji.
    if len(frame) > LENIENT_BYTES:
        return _reject_large(frame, reason)

    import json

    try:
        value: object = json.loads(str(frame, "utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return _search_line(frame, reason)
    if not isinstance(value, dict):
        return InvalidMessage(PARSE_ERROR, reason)

    # The keys of a dict from json.loads() are always str.
    members: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]

    # msgspec says "truncated" both for an incomplete text and for a lone surrogate. json has
    # accepted the text, so it is complete. (If msgspec changes the word, its own text is sent.)
    if reason.endswith("truncated"):
        reason = "Parse error: a string holds half a surrogate pair"
    id = members.get("id")
    # Some programs send a response with "method": null.
    names = {name for name in members if name != "method" or members[name] is not None}
    if is_response(names):
        return InvalidMessage(0, reason, answered_ids=_answered_ids(id))
    # An id that was damaged, or that cannot be encoded, would match no request of the sender.
    if type(id) is int or (type(id) is str and id.isprintable() and "\ufffd" not in id):
        return InvalidMessage(PARSE_ERROR, reason, id)
    return InvalidMessage(PARSE_ERROR, reason)


def _reject_large(frame: bytes, reason: str) -> Message | InvalidMessage:
    """Return the same as _reject_text() for a large frame, without decoding all of its values.

    Unlike there, the error has the id of a request even if the frame is incomplete.
    """
    if not frame.lstrip().startswith(b"{"):
        return _search_line(frame, reason)
    if reason.endswith("truncated"):
        reason += ", or a string holds half a surrogate pair"
    id, seems_response = _read_outer_id(frame)
    if not seems_response:
        return InvalidMessage(PARSE_ERROR, reason, id)
    # A second response may follow the beginning of this one.
    others = _search_line(frame, reason)
    answered_ids = others.answered_ids if isinstance(others, InvalidMessage) else ()
    return InvalidMessage(
        0, reason, answered_ids=tuple(dict.fromkeys((*_answered_ids(id), *answered_ids)))
    )


def _search_line(frame: bytes, reason: str) -> Message | InvalidMessage:
    """Return the response at the end of a line that is not JSON, or the parse error for the line.

    Such a line is usually a response that was cut off, two responses without a newline between
    them, or a text that the program has printed.
    reason: the text of the error. The error's `answered_ids` are the ids of the incomplete
        responses in the line.
    """
    # A printed text may end with a response for two reasons. The program has printed the text
    # without a newline, or it has logged what it sends. The response is used in both cases. After a
    # log line, the same response arrives again, and is ignored as unsolicited.
    #
    # Untrusted text that a program prints cannot forge a response in this way, because a client's
    # ids begin with a random number.
    try:
        from concertino.jsonrpc.deep_frames import find_objects
    except ImportError:
        # The process has no file descriptor left to read the module with.
        return InvalidMessage(PARSE_ERROR, reason)

    objects = find_objects(frame)
    # If the frame begins with a brace, it is no printed text, but a broken object, and the object
    # that was found may be a part of it. So it is not taken for a response.
    if len(objects) == 1 and not frame.lstrip().startswith(b"{"):
        [members] = objects
        response = decode(frame[members.begin :])
        if type(response) is Message and response.method is UNSET:
            return response
        # If text follows the response, such as a closing quote, the line is a log line.
        if members.end is not None and frame[members.end :].strip():
            return InvalidMessage(PARSE_ERROR, reason)

    answered_ids: list[Id] = []
    for members in objects:
        if members.id is not None and is_response(members.names):
            try:
                answered_ids.append(_decode_id(members.id))
            except (DecodeError, UnicodeDecodeError):
                # No request of ours has such an id.
                pass
    return InvalidMessage(
        0 if answered_ids else PARSE_ERROR, reason, answered_ids=tuple(answered_ids)
    )


def _reject_deep(frame: bytes) -> InvalidMessage:
    """Return a parse error, with the request's id, for a frame that is nested too deeply."""
    reason = "Parse error: nested too deeply"
    id, seems_response = _read_outer_id(frame)
    if seems_response:
        return InvalidMessage(0, reason, answered_ids=_answered_ids(id))
    return InvalidMessage(PARSE_ERROR, reason, id)


def reject_oversize(head: bytes, reason: str) -> InvalidMessage:
    """Return the error for a frame that was too long and was discarded.

    head: the beginning of the frame, in which the id usually is; may be empty.
    reason: the text of the error.
    """
    # The last value in the head may be cut off, so read the id from the text before the last comma.
    # If that comma is inside of a string, the text is not valid JSON, so no wrong id is read. The
    # names, which tell whether the frame is a response, may come from the whole head.
    id, _ = _read_outer_id(head[: head.rfind(b",") + 1])
    _, seems_response = _read_outer_id(head)
    if seems_response:
        return InvalidMessage(0, reason, answered_ids=_answered_ids(id))
    return InvalidMessage(INVALID_REQUEST, f"Invalid Request: {reason}", id)


def _read_outer_id(frame: bytes) -> tuple[Id | UnsetType, bool]:
    """Return the id of a frame that cannot be decoded, and whether the frame is a response."""
    try:
        from concertino.jsonrpc.deep_frames import read_outer_members
    except ImportError:
        # The process has no file descriptor left to read the module with.
        return UNSET, False

    members = read_outer_members(frame)
    try:
        id = UNSET if members.id is None else _decode_id(members.id)
    except (DecodeError, UnicodeDecodeError):
        id = UNSET
    return id, is_response(members.names)


def _describe(exc: DecodeError) -> str:
    """Return the text of an exception of msgspec without the path to the wrong value.

    An example is `expected int | str, got bool`.
    """
    return describe_decode_error(exc).split(" - at ")[0].replace("Expected", "expected")
