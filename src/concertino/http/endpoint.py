"""McpEndpoint: serves the requests to the MCP endpoint of an HTTP server.

A POST whose message names revision 2026-07-28 in `_meta` is passed to a StatelessConnection. Other
requests belong to a session, which `initialize` opens, and are passed to its SessionConnection. A
request of 2026-07-28 whose headers do not agree with its body is refused.
Spec: 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

from __future__ import annotations

from http import HTTPStatus

from msgspec import UNSET, UnsetType

from concertino.backend.call_hooks import ParamHeaders, param_headers_reader
from concertino.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
)
from concertino.http.challenges import Challenges
from concertino.http.envelope import (
    Envelope,
    Malformed,
    decode_arguments,
    decode_envelope,
    decode_messages,
)
from concertino.http.exchange import Exchange
from concertino.http.malformed_bodies import MalformedBodies
from concertino.http.mcp_headers import METHOD as METHOD_HEADER
from concertino.http.mcp_headers import NAME as NAME_HEADER
from concertino.http.mcp_headers import VERSION as VERSION_HEADER
from concertino.http.mcp_headers import McpHeaders, read_headers
from concertino.http.param_headers import find_mismatch
from concertino.http.request_head import HttpError, RequestHead
from concertino.http.session_table import SessionTable
from concertino.http.stateless_pool import StatelessPool
from concertino.jsonrpc.messages import Id, encode_error, encode_id
from concertino.protocol.request_profile import CAPABILITIES as CAPABILITIES_KEY
from concertino.protocol.request_profile import QUOTED_CHARS
from concertino.protocol.request_profile import VERSION as VERSION_KEY
from concertino.protocol.revisions import LEGACY, MODERN, REVISIONS
from concertino.runtime.host import Host, Wrap

__all__ = ["McpEndpoint"]

LEGACY_NAMES = frozenset(revision.name for revision in LEGACY)
# The names of all revisions, the newest one first.
ALL_NAMES = [revision.name for revision in reversed(REVISIONS)]
# How many heads of requests are kept together with their parsed headers.
MAX_PARSED_HEADS = 256
# In this revision a client may send several messages as an array.
BATCH_REVISION = "2025-03-26"


class McpEndpoint:
    """Serves a backend to the clients of an HTTP server. HttpServer calls its methods.

    host: serves the backend on each Connection that this object makes (runtime/host.py).
    wrap: wraps each Connection before the host gets it, for example to trace its messages.
    sessions: the sessions of clients of revisions before 2026-07-28.
    challenges: makes the 401 and 403 errors; None if there is no authorization.
    """

    def __init__(
        self, host: Host, wrap: Wrap, sessions: SessionTable, challenges: Challenges | None = None
    ) -> None:
        self._host = host
        self._sessions = sessions
        self._stateless = StatelessPool(host, wrap, challenges)
        # HeadParser returns the same object for equal heads, so parse each one only once.
        self._parsed_headers: dict[RequestHead, McpHeaders] = {}
        self._malformed = MalformedBodies(host.limits)
        # A function that takes the name of a tool, and returns which arguments of the tool clients
        # must repeat in headers: path of an argument -> name of the header after `Mcp-Param-`.
        self._read_param_headers = param_headers_reader(host.backend)

    # POST

    def post(self, exchange: Exchange) -> None:
        """Serve a POST. Raises HttpError to refuse it."""
        headers = self._parsed_headers.get(exchange.head) or self._parse_headers(exchange)
        if not headers.is_acceptable:
            raise _unacceptable(headers)
        body = exchange.body
        try:
            # Compare the first byte before lstrip(), which may copy a large body.
            if not body.startswith(b"{") and body.lstrip().startswith(b"["):
                self._post_batch(exchange, headers)
                return
            message = decode_envelope(body)
        except Malformed as exc:
            self._refuse_malformed(exchange, headers, exc)
            return

        id = message.id
        # Only a batch may contain an id that is null.
        assert id is not None
        version = headers.version
        meta = message.params.meta
        # Any revision in `_meta` means that the request needs no session. _check_headers() refuses
        # a revision that is not known.
        if version == MODERN.name or (meta is not None and meta.version is not None):
            if message.method is None:
                raise HttpError(
                    HTTPStatus.BAD_REQUEST, "a response, and the server has asked nothing"
                )
            if id is UNSET:
                # Ignore the notification: revision 2026-07-28 defines none that a client sends over
                # HTTP.
                exchange.respond(HTTPStatus.ACCEPTED)
            elif self._check_request(exchange, headers, message, id):
                self._stateless.find(exchange).deliver(exchange, headers.accepted)
        elif version is not None and version not in LEGACY_NAMES and message.method != "initialize":
            # An `initialize` with an unknown revision is not refused: the response names another
            # revision, which the client may accept.
            _refuse_version(exchange, id, version, ALL_NAMES)
        else:
            self._post_to_session(exchange, headers, message)

    def _refuse_malformed(
        self, exchange: Exchange, headers: McpHeaders, malformed: Malformed
    ) -> None:
        """Refuse a POST whose body is not a message.

        If the body is a response in a session, the server's request that it answers fails.
        Raises HttpError if the body is a response, and the session does not exist.
        """
        if malformed.is_response and headers.session is not None:
            session = self._sessions.find(exchange, headers.session)
            if session is None:
                # The request was passed on to the process that has the session.
                return
            session.receive_malformed(exchange)
        else:
            self._malformed.add(str(malformed), exchange.body)
        body = encode_error(malformed.id, malformed.code, str(malformed))
        exchange.respond(HTTPStatus.BAD_REQUEST, body)

    def _parse_headers(self, exchange: Exchange) -> McpHeaders:
        """Parse the headers of a request, and keep them for requests with an equal head."""
        headers = read_headers(exchange.head)
        if len(self._parsed_headers) >= MAX_PARSED_HEADS:
            self._parsed_headers.clear()
        self._parsed_headers[exchange.head] = headers
        return headers

    def _check_request(
        self, exchange: Exchange, headers: McpHeaders, message: Envelope, id: Id
    ) -> bool:
        """Return whether the headers of a request of 2026-07-28 agree with its body.

        If they do not agree, sends the error response.
        """
        if not _check_headers(exchange, headers, message, id):
            return False
        if message.method != "tools/call" or headers.name is None:
            return True
        annotated = self._read_param_headers(headers.name)
        return not annotated or _check_params(exchange, annotated, id)

    # Sessions

    def _post_to_session(self, exchange: Exchange, headers: McpHeaders, message: Envelope) -> None:
        """Serve a message of a revision before 2026-07-28. Raises HttpError to refuse it.

        If the server has no sessions (max_sessions=0), an `initialize` request gets an error that
        names 2026-07-28 as the supported revision.
        """
        ids = () if message.request_id is None else (message.request_id,)
        if message.method == "initialize" and headers.session is None:
            if message.request_id is None:
                raise HttpError(HTTPStatus.BAD_REQUEST, "initialize: expected a request with an id")
            if self._sessions.max_sessions:
                self._sessions.open(exchange).deliver(exchange, headers.accepted, ids)
            else:
                requested = str(message.params.protocol_version)
                _refuse_version(exchange, message.request_id, requested, [MODERN.name])
            return
        session = self._sessions.find(exchange, headers.session)
        if session is None:
            # The request was passed on to the process that has the session.
            return
        if message.method == "notifications/cancelled" and not ids:
            # Not only passed on: the session also ends the stream of the cancelled request, which
            # gets no response.
            request_id = message.params.request_id
            session.cancel(exchange, request_id if isinstance(request_id, str | int) else None)
        else:
            session.deliver(exchange, headers.accepted, ids)

    def _post_batch(self, exchange: Exchange, headers: McpHeaders) -> None:
        """Serve an array of messages, which only 2025-03-26 allows.

        Raises HttpError to refuse it, and Malformed if it is no array of messages.
        """
        if headers.session is None:
            raise HttpError(
                HTTPStatus.BAD_REQUEST, "expected one message, and not an array of messages"
            )
        session = self._sessions.find(exchange, headers.session)
        if session is None:
            # The request was passed on to the process that has the session.
            return
        if session.revision != BATCH_REVISION:
            raise HttpError(
                HTTPStatus.BAD_REQUEST,
                f"expected one message; only {BATCH_REVISION} allows several in an array",
            )
        batch = decode_messages(exchange.body, self._host.limits.max_batch)
        if not batch:
            raise HttpError(HTTPStatus.BAD_REQUEST, "expected messages, got an empty array")
        ids = [message.request_id for message in batch if message.request_id is not None]
        if not ids and any(message.id is None for message in batch):
            # An id is malformed, and no request has one. The session would send its error response
            # on the stream of a request, and this POST gets no stream.
            raise HttpError(HTTPStatus.BAD_REQUEST, "id: expected a text or an integer")
        session.deliver(exchange, headers.accepted, ids)

    def get(self, exchange: Exchange) -> None:
        """Serve a GET, which opens a stream of a session. Raises HttpError to refuse it."""
        headers = self._read_session_headers(exchange, "GET opens a stream of a session")
        if headers is None:
            return
        if not headers.accepted.stream:
            raise HttpError(HTTPStatus.NOT_ACCEPTABLE, "Accept: expected text/event-stream")
        session = self._sessions.find(exchange, headers.session)
        if session is not None:
            session.listen(exchange)

    def delete(self, exchange: Exchange) -> None:
        """Serve a DELETE, which ends a session. Raises HttpError to refuse it."""
        headers = self._read_session_headers(exchange, "DELETE ends a session")
        if headers is None:
            return
        session = self._sessions.find(exchange, headers.session)
        if session is not None:
            self._sessions.end(session, "the client has ended the session")
            exchange.respond(HTTPStatus.NO_CONTENT)

    def report_end(self) -> None:
        """Log how many malformed bodies have arrived. Called at the end of the server."""
        self._malformed.report_end()

    def _read_session_headers(self, exchange: Exchange, purpose: str) -> McpHeaders | None:
        """Return the headers of a request that is for a session only.

        purpose: what the method does, for the error.
        If the request is of an unknown revision, sends the error response and returns None.
        Raises HttpError 405 if the request names no session, or is of a revision without sessions.
        """
        # Parsed each time: such requests are rare, compared with POST.
        headers = read_headers(exchange.head)
        is_modern = headers.version == MODERN.name
        if is_modern or headers.session is None:
            reason = f"{MODERN.name} has no sessions" if is_modern else "this request names none"
            raise HttpError(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{purpose}, and {reason}", b"Allow: POST\r\n"
            )
        if headers.version is not None and headers.version not in LEGACY_NAMES:
            _refuse_version(exchange, UNSET, headers.version, ALL_NAMES)
            return None
        return headers


def _unacceptable(headers: McpHeaders) -> HttpError:
    """Return the error for a POST whose Accept or Content-Type header is not acceptable."""
    if not (headers.accepted.json or headers.accepted.stream):
        return HttpError(
            HTTPStatus.NOT_ACCEPTABLE, "Accept: expected application/json and text/event-stream"
        )
    return HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type: expected application/json")


def _check_headers(exchange: Exchange, headers: McpHeaders, message: Envelope, id: Id) -> bool:
    """Return whether the headers except `Mcp-Param-...` agree with the body, for 2026-07-28.

    If they do not agree, sends the error response.
    """
    params = message.params
    meta = params.meta
    if headers.version is None:
        return _refuse_header(exchange, id, f"{VERSION_HEADER} is missing")
    if meta is None or meta.version is None or not meta.capabilities:
        missing: list[str] = []
        if meta is None or meta.version is None:
            missing.append(VERSION_KEY)
        if meta is None or not meta.capabilities:
            missing.append(CAPABILITIES_KEY)
        text = f"Invalid params: _meta lacks {' and '.join(missing)}"
        data = {"supported": [MODERN.name], "missing": missing}
        body = encode_error(encode_id(id), INVALID_PARAMS, text, data)
        exchange.respond(HTTPStatus.BAD_REQUEST, body)
        return False

    if headers.repeated is not None:
        return _refuse_header(exchange, id, f"{headers.repeated} came more than once")
    if headers.version != meta.version:
        return _refuse_header(exchange, id, f"{VERSION_HEADER} is not that of {VERSION_KEY}")
    if headers.version != MODERN.name:
        _refuse_version(exchange, id, str(meta.version), [MODERN.name])
        return False
    if headers.method != message.method:
        return _refuse_header(exchange, id, f"{METHOD_HEADER} is not the method of the request")
    name = message.header_name
    if name is not None and headers.name != name:
        return _refuse_header(exchange, id, f"{NAME_HEADER} is not the name in the request")
    return True


def _check_params(exchange: Exchange, annotated: ParamHeaders, id: Id) -> bool:
    """Return whether the headers `Mcp-Param-...` of a call agree with the tool's arguments.

    If they do not agree, sends the error response.
    annotated: path of an argument -> name in its header.
    """
    head = exchange.head
    arguments = decode_arguments(exchange.body)
    mismatch = find_mismatch(annotated, head.headers, head.repeated, arguments)
    return mismatch is None or _refuse_header(exchange, id, mismatch)


def _refuse_header(exchange: Exchange, id: Id, text: str) -> bool:
    """Refuse a request whose headers do not agree with its body.

    Returns False, so that a check can end with `return _refuse_header(...)`.
    """
    body = encode_error(encode_id(id), HEADER_MISMATCH, f"Header mismatch: {text}")
    exchange.respond(HTTPStatus.BAD_REQUEST, body)
    return False


def _refuse_version(
    exchange: Exchange, id: Id | UnsetType, requested: str, supported: list[str]
) -> None:
    """Refuse a request of a revision that is not supported.

    id: the id of the request; UNSET if it has none.
    requested: the revision that the client has named.
    """
    data = {"supported": supported, "requested": requested[:QUOTED_CHARS]}
    encoded_id = None if id is UNSET else encode_id(id)
    body = encode_error(encoded_id, UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    exchange.respond(HTTPStatus.BAD_REQUEST, body)
