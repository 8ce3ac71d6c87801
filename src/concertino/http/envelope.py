"""Envelope: the fields of a JSON-RPC message that the HTTP transport itself reads.

A server compares the headers of each POST with its message, and chooses the form of the response by
the kind of the message. A client writes headers from the messages that it sends. Everything else in
a message is read and checked by the session (protocol/session.py).
Spec: 2026-07-28 basic/transports/streamable-http.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError, field
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_REQUEST, PARSE_ERROR
from concertino.jsonrpc.messages import (
    Id,
    InvalidMessage,
    decode,
    decode_batch,
    encode_id,
    is_response,
)
from concertino.protocol.request_profile import CAPABILITIES, VERSION

__all__ = [
    "RESULT",
    "Envelope",
    "Malformed",
    "Params",
    "decode_arguments",
    "decode_envelope",
    "decode_header_text",
    "decode_messages",
    "read_outcome",
    "read_revision",
]


class _Meta(Struct, frozen=True):
    """The fields of `_meta` that headers repeat, or that a request must have.

    capabilities: the client's capabilities as JSON; empty if the field is missing.
    """

    version: Any = field(default=None, name=VERSION)
    capabilities: Raw = field(default=Raw(), name=CAPABILITIES)


class Params(Struct, frozen=True):
    """The fields of `params` that the HTTP transport reads. A field that is missing is None.

    meta: the fields of `_meta`, such as the revision.
    name, uri, task_id: one of them is repeated in the header Mcp-Name: `name` for tools/call and
        prompts/get, `uri` for resources/read, and `task_id` for the methods of tasks.
    request_id: the id of the cancelled request in `notifications/cancelled`.
    protocol_version: the revision that a client requests with `initialize`.
    """

    meta: _Meta | None = field(default=None, name="_meta")
    name: Any = None
    uri: Any = None
    task_id: Any = field(default=None, name="taskId")
    request_id: Any = field(default=None, name="requestId")
    protocol_version: Any = field(default=None, name="protocolVersion")


class Envelope(Struct, frozen=True):
    """The fields of one JSON-RPC message that the HTTP transport reads.

    method: the method; None for a response.
    id: one of these:
        - the id of a request or response
        - UNSET if the message has no id, such as a notification
        - None for a null or malformed id; only in a batch (decode_messages())
    result, error: these fields of a response, as JSON; empty if they are missing.
    """

    method: str | None = None
    id: Id | UnsetType | None = UNSET
    params: Params = Params()
    result: Raw = Raw()
    error: Raw = Raw()

    @property
    def header_name(self) -> str | None:
        """What the header Mcp-Name repeats: a name, URI or task id. None if the method has none."""
        read = NAMED.get(self.method or "")
        name = None if read is None else read(self.params)
        return name if isinstance(name, str) else None

    @property
    def request_id(self) -> Id | None:
        """The id of a request; None for a notification or a response."""
        return None if self.method is None or self.id is UNSET else self.id


# Method -> reads the field of Params that the header Mcp-Name repeats.
NAMED: dict[str, Callable[[Params], object]] = {
    "tools/call": attrgetter("name"),
    "prompts/get": attrgetter("name"),
    "resources/read": attrgetter("uri"),
    "tasks/get": attrgetter("task_id"),
    "tasks/update": attrgetter("task_id"),
    "tasks/cancel": attrgetter("task_id"),
}


class _LooseEnvelope(Struct):
    """A message of which some fields do not have the types of Envelope."""

    method: Any = None
    id: Any = UNSET


class _Arguments(Struct, frozen=True):
    arguments: Any = None


class _ToolCall(Struct):
    """A call of a tool, with the arguments decoded."""

    params: _Arguments = _Arguments()


class _InitializeResult(Struct, frozen=True, rename="camel"):
    """The field of the result of `initialize` that both sides of the transport read."""

    protocol_version: str = ""


class _InitializeResponse(Struct):
    result: _InitializeResult = _InitializeResult()


class Malformed(ValueError):
    """Raised if the body of a POST is not a JSON-RPC message.

    text: what is wrong with the body.
    code: the code of the error to respond with.
    id: the encoded id of the request; None if the body has none, or is a response.
    is_response: whether the body is a malformed response to a request of the server.
    """

    def __init__(
        self, text: str, code: int, id: bytes | None = None, *, is_response: bool = False
    ) -> None:
        super().__init__(text)
        self.code = code
        self.id = id
        self.is_response = is_response


_decode = Decoder(Envelope).decode
_decode_loose = Decoder(_LooseEnvelope).decode
_decode_call = Decoder(_ToolCall).decode
_decode_initialize = Decoder(_InitializeResponse).decode
_decode_id = Decoder(Id).decode
_decode_messages = Decoder(list[Envelope]).decode


def decode_envelope(body: bytes) -> Envelope:
    """Read a message. Raises Malformed if it is not a JSON-RPC message.

    If fields of `params` have wrong types, the Envelope has no params. The server later responds to
    such a request with an error (protocol/session.py).
    """
    try:
        # msgspec does not check that fields which it leaves undecoded are valid UTF-8.
        if not body.isascii():
            str(body, "utf-8")
        envelope = _decode(body)
    except ValidationError:
        envelope = _read_loosely(body)
    except DECODE_ERRORS:
        raise _diagnose(body) from None
    # A null id is never valid outside of a batch. Responses are rare, so read them once more, as
    # strictly as the session will.
    if envelope.id is None or (envelope.method is None and type(decode(body)) is InvalidMessage):
        raise _diagnose(body)
    return envelope


def _read_loosely(body: bytes) -> Envelope:
    """Read a message with fields of wrong types, for which the session will return an error.

    If the message's id is malformed, the Envelope's id is None. decode_envelope() then raises
    Malformed. In a batch, the session answers this message.
    Raises Malformed if the method is not a text, or if the body cannot be decoded.
    """
    try:
        loose = _decode_loose(body)
    except DECODE_ERRORS:
        raise _diagnose(body) from None
    # True is an int in Python, but no id of JSON-RPC.
    is_id = isinstance(loose.id, str | int) and not isinstance(loose.id, bool)
    id = loose.id if is_id else None
    if isinstance(loose.method, str):
        return Envelope(loose.method, UNSET if loose.id is UNSET else id)
    if loose.method is None:
        return Envelope(None, id)
    raise _diagnose(body)


def decode_messages(body: bytes, max_messages: int) -> list[Envelope]:
    """Read a batch, an array of messages. Returns one Envelope for each message, in order.

    Raises Malformed if the body is no array of JSON-RPC messages, or has more than max_messages.
    """
    # Split the array first: for 10 MB of tiny messages this takes 30 ms, a tenth of the time that
    # decoding takes.
    elements = decode_batch(body)
    if elements is None:
        raise _diagnose(body)
    if len(elements) > max_messages:
        expected = f"expected a batch of 1 to {max_messages} messages"
        raise Malformed(f"Invalid Request: {expected}, got {len(elements)}", INVALID_REQUEST)
    try:
        return _decode_messages(body)
    except RecursionError:
        return [_decode_element(bytes(element)) for element in elements]
    except ValidationError:
        text = "Invalid Request: expected an array of JSON-RPC messages"
        raise Malformed(text, INVALID_REQUEST) from None


def _decode_element(element: bytes) -> Envelope:
    """Read one message of a batch in which some message is nested too deeply.

    For a request that is nested too deeply itself, returns an Envelope with its id and the method
    "". The session responds to this request with an error.
    Raises Malformed if the element is not a JSON-RPC message for another reason.
    """
    try:
        return _decode(element)
    except RecursionError:
        from concertino.jsonrpc.deep_frames import read_outer_members

        members = read_outer_members(element)
        # An Envelope without an id stands for a message that gets no response.
        if members.id is None or is_response(members.names):
            return Envelope()
        # The method does not matter: a message with any method and an id is a request.
        try:
            return Envelope("", _decode_id(members.id))
        except DecodeError:
            return Envelope()
    except ValidationError:
        return _read_loosely(element)
    except DecodeError:
        raise _diagnose(element) from None


def _diagnose(body: bytes) -> Malformed:
    """Return the error for a body that is not a message, with the same text as over stdio."""
    message = decode(body)
    # decode() accepts error responses with a null id, and has no text for a blank body.
    if type(message) is not InvalidMessage or not message.message:
        if body.startswith(b"{"):
            # An error response of a client that could not read the id of a request.
            return Malformed("Invalid Request: id: expected a text or an integer", INVALID_REQUEST)
        # An empty body, or a message after a byte order mark or another text.
        return Malformed("Parse error: expected one JSON-RPC message and nothing else", PARSE_ERROR)

    text, code = message.message, message.code
    # The code 0 means that over stdio, the message gets no error response. A POST always gets one.
    if code == 0:
        code = PARSE_ERROR if text.startswith("Parse error") else INVALID_REQUEST
    id = None if message.id is UNSET else encode_id(message.id)
    # A malformed notification has the code 0, too, but no answered_ids.
    return Malformed(text, code, id, is_response=message.code == 0 and bool(message.answered_ids))


def decode_arguments(body: bytes) -> Any:
    """Return the arguments in a call of a tool; None if the call has none, or is malformed."""
    try:
        return _decode_call(body).params.arguments
    except DECODE_ERRORS:
        return None


# The beginning of a response, as this program's own encoder writes it: without white space. The
# group is the code of an error.
OUTCOME = re.compile(
    rb'\{"jsonrpc":"2\.0",(?:"id":(?:-?\d+|"(?:[^"\\]|\\.)*"|null),)?'
    rb'"(?:result"|error":\{"code":(-?\d+))'
)
# What read_outcome() returns for a result.
RESULT = 0


def read_outcome(frame: bytes, request_id: Id | None = None) -> int | None:
    """Return the error code of a response that the server sends, or RESULT (0) for a result.

    Returns None for a frame (the bytes of one JSON-RPC message) that is not a response.
    request_id: the id of the request to which the frame belongs, if it is known. With it, a result
        is recognized in a third of the time.
    """
    if type(request_id) is int and frame.startswith(
        b'{"jsonrpc":"2.0","id":%d,"result"' % request_id
    ):
        return RESULT
    match = OUTCOME.match(frame)
    return None if match is None else int(match[1] or RESULT)


def read_revision(frame: bytes) -> str:
    """Return the revision in the response to `initialize`; "" if it names none."""
    try:
        version = _decode_initialize(frame).result.protocol_version
    except DECODE_ERRORS:
        # The client refuses such a response itself.
        return ""
    return version if version.isascii() and version.isprintable() else ""


# The beginning and the end of the Base64 form of a text in a header.
BASE64_PREFIX = "=?base64?"
BASE64_SUFFIX = "?="


def decode_header_text(value: bytes) -> str | None:
    """Return the text of an `Mcp-Name` or `Mcp-Param-...` header; None if it is malformed.

    Text with characters that headers must not contain has the form `=?base64?...?=`, with standard
    Base64 of its UTF-8.
    """
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return None
    if not all(" " <= char <= "~" for char in text):
        return None
    if not (text.startswith(BASE64_PREFIX) and text.endswith(BASE64_SUFFIX)):
        return text
    encoded = text[len(BASE64_PREFIX) : -len(BASE64_SUFFIX)]
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
