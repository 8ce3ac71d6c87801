"""Envelope: the members of a JSON-RPC message that the HTTP transport itself reads.

The transport compares headers with the message, and chooses the form of the response by the kind of
the message. Everything else in a message is read and checked by the session (protocol/session.py).
Spec: 2026-07-28 basic/transports/streamable-http.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError, field
from msgspec.json import Decoder

from concertino.jsonrpc.messages import Id, is_response
from concertino.protocol.request_profile import CAPABILITIES, VERSION

__all__ = [
    "RESULT",
    "Envelope",
    "Malformed",
    "Params",
    "ResponseHead",
    "decode_arguments",
    "decode_envelope",
    "decode_header_text",
    "decode_messages",
    "read_outcome",
]


class _Meta(Struct, frozen=True):
    """The members of `_meta` that headers repeat, or that a request must have.

    capabilities: the client's capabilities; empty if the member is missing.
    """

    version: Any = field(default=None, name=VERSION)
    capabilities: Raw = field(default=Raw(), name=CAPABILITIES)


class Params(Struct, frozen=True):
    """The members of `params` that headers repeat, and the id in `notifications/cancelled`."""

    meta: _Meta | None = field(default=None, name="_meta")
    name: Any = None
    uri: Any = None
    task_id: Any = field(default=None, name="taskId")
    request_id: Any = field(default=None, name="requestId")
    protocol_version: Any = field(default=None, name="protocolVersion")


class Envelope(Struct, frozen=True):
    """The members of one JSON-RPC message that the HTTP transport reads.

    method: the method; None for a response.
    id: the id; UNSET for a notification.
    result, error: the members of a response, as JSON; empty if they are missing.
    """

    method: str | None = None
    id: Id | UnsetType | None = UNSET
    params: Params = Params()
    result: Raw = Raw()
    error: Raw = Raw()

    @property
    def request_id(self) -> Id | None:
        """The id of a request; None for a notification or a response."""
        return None if self.method is None or self.id is UNSET else self.id


class _LooseEnvelope(Struct):
    """A message whose params do not have the types of Params."""

    method: Any = None
    id: Any = UNSET


class _Arguments(Struct, frozen=True):
    arguments: Any = None


class _ToolCall(Struct):
    """A call of a tool, with the arguments decoded."""

    params: _Arguments = _Arguments()


class ResponseHead(Struct):
    """The id of a response in a batch."""

    id: Id | None = None


class Malformed(ValueError):
    """The body of a POST is not a JSON-RPC message.

    is_json: whether the body is valid JSON.
    id: the encoded id of the message; None if it has none or could not be read.
    """

    def __init__(self, text: str, *, is_json: bool, id: bytes | None = None) -> None:
        super().__init__(text)
        self.is_json = is_json
        self.id = id


_decode = Decoder(Envelope).decode
_decode_loose = Decoder(_LooseEnvelope).decode
_decode_call = Decoder(_ToolCall).decode
_decode_id = Decoder(Id).decode
_decode_messages = Decoder(list[Envelope]).decode


def decode_envelope(body: bytes) -> Envelope:
    """Read a message. Raises Malformed if it is no JSON-RPC message."""
    try:
        # msgspec does not check that members which it leaves undecoded are valid UTF-8.
        if not body.isascii():
            str(body, "utf-8")
        envelope = _decode(body)
    except ValidationError:
        return _read_loosely(body)
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _not_json(body, exc) from None
    if envelope.method is None and not envelope.result and not envelope.error:
        raise Malformed("Invalid Request: expected method, result or error", is_json=True)
    return envelope


def _read_loosely(body: bytes) -> Envelope:
    """Read a message with members of wrong types, for which the session will return an error.

    Raises Malformed if even the kind of the message cannot be recognized.
    """
    try:
        loose = _decode_loose(body)
    except ValidationError:
        raise Malformed("Invalid Request: expected an object", is_json=True) from None
    id = loose.id if isinstance(loose.id, str | int) and not isinstance(loose.id, bool) else None
    if isinstance(loose.method, str):
        return Envelope(loose.method, UNSET if loose.id is UNSET else id)
    if loose.method is None:
        return Envelope(None, id)
    raise Malformed("Invalid Request: method: expected a text", is_json=True)


def decode_messages(body: bytes) -> list[Envelope]:
    """Read a batch. Raises Malformed if it is no array of objects."""
    try:
        if not body.isascii():
            str(body, "utf-8")
        return _decode_messages(body)
    except RecursionError as exc:
        from concertino.jsonrpc.deep_frames import split_batch

        elements = split_batch(body)
        if elements is None:
            raise _not_json(body, exc) from None
        return [_decode_element(element) for element in elements]
    except ValidationError:
        raise Malformed(
            "Invalid Request: expected an array of JSON-RPC messages", is_json=True
        ) from None
    except (DecodeError, UnicodeDecodeError) as exc:
        raise _not_json(body, exc) from None


def _decode_element(element: bytes) -> Envelope:
    """Read one message of a batch in which a message is nested too deeply.

    The session refuses such a message, if it is a request, on its id.
    Raises Malformed if the element is no JSON-RPC message for another reason.
    """
    try:
        return _decode(element)
    except RecursionError:
        from concertino.jsonrpc.deep_frames import read_outer_members

        members = read_outer_members(element)
        if members.id is None or is_response(members.names):
            return Envelope()
        try:
            return Envelope("", _decode_id(members.id))
        except DecodeError:
            return Envelope()
    except ValidationError:
        return _read_loosely(element)
    except DecodeError as exc:
        raise _not_json(element, exc) from None


def decode_arguments(body: bytes) -> Any:
    """Return the arguments in a call of a tool; None if the call has none, or is malformed."""
    try:
        return _decode_call(body).params.arguments
    except (DecodeError, RecursionError):
        return None


def _not_json(body: bytes, exc: Exception) -> Malformed:
    """Return the error for a body that is not JSON or is nested too deeply. exc: the cause."""
    if not isinstance(exc, RecursionError):
        return Malformed(f"Parse error: {exc}", is_json=False)

    from concertino.jsonrpc.deep_frames import read_outer_members

    id = read_outer_members(body).id
    return Malformed("Parse error: nested too deeply", is_json=False, id=id)


# The beginning of a response, as this program's own encoder writes it: without white space. The
# group is the code of an error.
OUTCOME = re.compile(
    rb'\{"jsonrpc":"2\.0",(?:"id":(?:-?\d+|"(?:[^"\\]|\\.)*"|null),)?'
    rb'"(?:result"|error":\{"code":(-?\d+))'
)
# What read_outcome() returns for a result.
RESULT = 0


def read_outcome(frame: bytes, request_id: Id | None = None) -> int | None:
    """Return the code of the error in a response that the server sends, or RESULT for a result.

    Returns None for a frame that is no response.
    request_id: the id of the request to which the frame belongs, if it is known. With it, a result
        is recognized in a third of the time.
    """
    if type(request_id) is int and frame.startswith(
        b'{"jsonrpc":"2.0","id":%d,"result"' % request_id
    ):
        return RESULT
    match = OUTCOME.match(frame)
    return None if match is None else int(match[1] or RESULT)


BASE64_PREFIX, BASE64_SUFFIX = "=?base64?", "?="


def decode_header_text(value: bytes) -> str | None:
    """Return the text of an `Mcp-Name` or `Mcp-Param-...` header; None if it is malformed.

    Text with characters that headers must not contain has the form `=?base64?...?=`, with standard
    Base64 of its UTF-8.
    """
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return None
    if any(not " " <= char <= "~" for char in text):
        return None
    if not (text.startswith(BASE64_PREFIX) and text.endswith(BASE64_SUFFIX)):
        return text
    encoded = text[len(BASE64_PREFIX) : -len(BASE64_SUFFIX)]
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
