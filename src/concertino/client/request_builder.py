"""RequestBuilder: adds to the params of a client's requests the `_meta` that a revision requires.

Since 2026-07-28 every request names the revision, the client and its capabilities in `_meta`. To
make tool calls fast, everything in a call but the id and the arguments is encoded only once for
each tool, as a PreparedRequest.
Spec: 2026-07-28 basic/index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.json import Decoder, encode

from concertino.client.pending_request import (
    PreparedRequest,
    Reply,
    decode_reply,
    request_template,
)
from concertino.client.request_handlers import RequestHandlers
from concertino.protocol.call import Call, ClientFacts
from concertino.protocol.request_profile import CAPABILITIES, CLIENT, LOG_LEVEL, VERSION
from concertino.protocol.revisions import Revision
from concertino.types.results import CallToolResult, Implementation, Level

__all__ = ["RequestBuilder"]

# Most servers of 2026-07-28 write these bytes near the beginning of the response to a tool call. A
# response with these bytes cannot be `input_required`.
COMPLETE = b'"result":{"resultType":"complete"'
# COMPLETE is searched for only in this many bytes at the beginning of a response.
SEARCHED_BYTES = 96
# At most this many tools have a prepared request.
MAX_PREPARED = 1024
# At most this many methods have a prepared request for forwarded calls. MCP has fewer methods, but
# a client of the proxy may send any method.
MAX_FORWARDED = 64


class _ToolReply(Struct, gc=False, forbid_unknown_fields=True):
    """A successful response to tools/call without unknown fields. The result is decoded.

    Decoding raises DecodeError for any other response. Channel then decodes it as a Reply.
    """

    jsonrpc: Literal["2.0"]
    id: int
    result: CallToolResult


_decode_tool_reply = Decoder(_ToolReply).decode


def _decode_modern_tool_reply(frame: bytes) -> _ToolReply | Reply:
    """Decode a response to tools/call of revision 2026-07-28.

    The result stays undecoded if it may be an `input_required` result.
    """
    if frame.find(COMPLETE, 0, SEARCHED_BYTES) >= 0:
        return _decode_tool_reply(frame)
    return decode_reply(frame)


class RequestBuilder:
    """Builds the params of the requests that are sent over one connection to a server.

    Before use() is called, the params have the form of the revisions before 2026-07-28: `_meta` is
    only added for a progress token or for keys of the user.

    info: the description of this client.
    handlers: the object that knows the capabilities of this client.

    Attributes:
    is_modern: whether the negotiated revision is 2026-07-28; False before use().
    prepared: tool name -> the encoded call of this tool, without its id and the arguments. For
        calls without a progress function and without `_meta` of the user.
    forwarded: method -> an encoded request without its id and its params, for the calls that a
        proxy forwards for other clients.
    """

    def __init__(self, info: Implementation, handlers: RequestHandlers) -> None:
        self.info = info
        self.handlers = handlers
        self.is_modern = False
        self.prepared: dict[str, PreparedRequest] = {}
        self.forwarded: dict[str, PreparedRequest] = {}
        self._meta: dict[str, Any] = {}
        self._encoded_meta = b""
        # The client and the log level of the latest forwarded call, and the `_meta` for them. Calls
        # in a row usually come from one client, so its `_meta` is encoded once.
        self._caller: tuple[ClientFacts, Level | None] | None = None
        self._encoded_caller_meta = b""

    @property
    def ping_method(self) -> str:
        """Return the method of the request that checks whether the server responds."""
        return "server/discover" if self.is_modern else "ping"

    def meta_of(self, revision: Revision) -> dict[str, Any]:
        """Return the `_meta` that every request of a revision since 2026-07-28 contains."""
        return {
            VERSION: revision.name,
            CAPABILITIES: self.handlers.capabilities(),
            CLIENT: self.info,
        }

    def use(self, revision: Revision) -> None:
        """Build requests of this revision from now on."""
        self.is_modern = revision.modern
        self._set_meta(self.meta_of(revision) if revision.modern else {})

    def set_log_level(self, level: Level) -> None:
        """Request log messages of this level and above, in every request from now on.

        Only for servers of revisions since 2026-07-28. Earlier servers need the request
        `logging/setLevel` instead.
        """
        self._set_meta({**self._meta, LOG_LEVEL: level})

    def _set_meta(self, meta: dict[str, Any]) -> None:
        """Set the `_meta` of all requests from now on."""
        self._meta = meta
        self._encoded_meta = encode(meta)
        self._caller = None
        self.prepared.clear()

    def params(
        self,
        body: bytes,
        token: int = 0,
        user_meta: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the params of a request, as JSON.

        body: the params without `_meta`, a JSON object.
        token: the progress token; 0 to request no progress.
        user_meta: keys and values that the user adds to `_meta`; None to add nothing.
        """
        if token or user_meta:
            # The members that the revision requires override the user's.
            progress = {"progressToken": token} if token else {}
            return _join_meta(encode({**(user_meta or {}), **self._meta, **progress}), body)
        if self.is_modern:
            return _join_meta(self._encoded_meta, body)
        return body

    def forwarded_params(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        token: int = 0,
    ) -> bytes:
        """Return the params, as JSON, with which a proxy forwards the call of another client.

        call: the other client's call. Its `answers` become `inputResponses` in the params, and its
            `state` becomes `requestState`.
        caller: the other client, whose name and capabilities a 2026-07-28 server gets in `_meta`.
        level: the lowest level of the log messages that the other client requests from a 2026-07-28
            server; None for no log messages.
        token: the progress token; 0 to request no progress.
        """
        body = encode(call.params)
        if call.answers:
            body = _add_member(body, b'"inputResponses":%b' % encode(call.answers))
        if call.state:
            body = _add_member(body, b'"requestState":%b' % call.state)
        if token or call.meta:
            members = self._caller_members(caller, level) if self.is_modern else {}
            progress = {"progressToken": token} if token else {}
            return _join_meta(encode({**call.meta, **members, **progress}), body)
        if self.is_modern:
            return _join_meta(self._meta_of_caller(caller, level), body)
        return body

    def _meta_of_caller(self, caller: ClientFacts, level: Level | None) -> bytes:
        """Return the `_meta`, as JSON, of a forwarded call that has no `_meta` of its client."""
        if self._caller is not None:
            previous_caller, previous_level = self._caller
            if previous_caller is caller and previous_level == level:
                return self._encoded_caller_meta
        self._caller = caller, level
        self._encoded_caller_meta = encode(self._caller_members(caller, level))
        return self._encoded_caller_meta

    def _caller_members(self, caller: ClientFacts, level: Level | None) -> dict[str, Any]:
        """Return `_meta`, undecoded, with the name and the capabilities of another client.

        level: the lowest level of the log messages that this client requests; None for no log
            messages.
        """
        members = {**self._meta, CAPABILITIES: caller.capabilities}
        if caller.name:
            members[CLIENT] = Implementation(caller.name, caller.version, title=caller.title)
        if level is not None:
            members[LOG_LEVEL] = level
        return members

    def prepare_tool_call(self, name: str) -> PreparedRequest:
        """Return an encoded call of a tool, which lacks only its id and the arguments.

        Also stores it in the attribute `prepared`, unless this has MAX_PREPARED entries already.
        """
        # Encode the params with `null` for the arguments, which come last, and cut off `null}`.
        params = self.params(encode({"name": name, "arguments": None}))
        template = request_template("tools/call", params.removesuffix(b"null}"), b"}")
        decode = _decode_modern_tool_reply if self.is_modern else _decode_tool_reply
        prepared = PreparedRequest(template, "tools/call", name, decode)
        if len(self.prepared) < MAX_PREPARED:
            self.prepared[name] = prepared
        return prepared

    def prepare_forward(self, method: str) -> PreparedRequest:
        """Return an encoded request with this method, which lacks its id and all of its params.

        Also stores it in the attribute `forwarded`, unless this has MAX_FORWARDED entries already.
        """
        prepared = PreparedRequest(request_template(method), method, "", decode_reply)
        if len(self.forwarded) < MAX_FORWARDED:
            self.forwarded[method] = prepared
        return prepared


def _join_meta(meta: bytes, body: bytes) -> bytes:
    """Return `body` with `_meta` added. Both arguments are JSON objects."""
    # Two bytes are an empty object.
    if len(body) <= 2:
        return b'{"_meta":%b}' % meta
    return b"".join((b'{"_meta":', meta, b",", memoryview(body)[1:]))


def _add_member(body: bytes, member: bytes) -> bytes:
    """Return a JSON object with one more key and value, such as `"name":"value"`."""
    # Two bytes are an empty object.
    if len(body) <= 2:
        return b"{%b}" % member
    return b"%b,%b}" % (body[:-1], member)
