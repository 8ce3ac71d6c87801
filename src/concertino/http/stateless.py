"""StatelessConnection: carries the 2026-07-28 requests that come on one HTTP connection.

Each request is a separate POST and needs no session. At most one of them is running at a time,
because HttpConnection reads the next request only after the response. The response is a JSON body;
if the call sends progress or log messages, or takes long, it is a stream of events. A client that
closes the HTTP connection cancels the call.
Spec: 2026-07-28 basic/transports/streamable-http, basic/patterns/cancellation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from concertino.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)
from concertino.http.accepted import AcceptedForms
from concertino.http.caller import HttpCaller
from concertino.http.envelope import RESULT, read_outcome
from concertino.http.exchange import OK, Exchange, RequestConnection
from concertino.http.request_head import unavailable
from concertino.http.responses import KEEP_ALIVE_COMMENT, encode_event
from concertino.jsonrpc.messages import Id
from concertino.runtime.tasks import do_nothing
from concertino.transports.connection import Receiver

__all__ = ["StatelessConnection"]

# Error code -> HTTP status. Other errors come from handlers and are sent with status 200.
STATUSES = {
    METHOD_NOT_FOUND: HTTPStatus.NOT_FOUND,
    PARSE_ERROR: HTTPStatus.BAD_REQUEST,
    INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    HEADER_MISMATCH: HTTPStatus.BAD_REQUEST,
    MISSING_CAPABILITY: HTTPStatus.BAD_REQUEST,
    UNSUPPORTED_VERSION: HTTPStatus.BAD_REQUEST,
}


class StatelessConnection:
    """The Connection (transports/connection.py) of one client's requests of 2026-07-28.

    It is bound to one HTTP connection at a time.

    caller: the user who sends the requests.

    Attributes:
    http: the HTTP connection; None while this Connection waits in the StatelessPool.
    """

    def __init__(self, http: RequestConnection, caller: HttpCaller) -> None:
        self.caller = caller
        self.http: RequestConnection | None = None
        self._receiver: Receiver | None = None
        self._exchange: Exchange | None = None
        self._accepted = AcceptedForms(json=True, stream=True)
        # The bound method is made once here, and not for each request.
        self._bound_on_idle = self._on_idle
        # The method of the HTTP connection, stored by bind() to save a function call for each
        # response.
        self.flush: Callable[[], None]
        self.bind(http)

    def bind(self, http: RequestConnection) -> None:
        """Carry the requests that come on this HTTP connection from now on."""
        self.http = http
        self.flush = http.flush
        http.on_close = self._on_close
        http.on_drain = self._on_drain

    def unbind(self) -> None:
        """Release the HTTP connection, so that it can carry requests of another user.

        Call this only while no request is running.
        """
        http, self.http = self.http, None
        self.flush = do_nothing
        if http is not None:
            http.on_close = http.on_drain = None

    def end(self) -> None:
        """End this Connection, and tell the server. Call unbind() before.

        The HTTP connection stays open.
        """
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_eof()

    @property
    def facts(self) -> Mapping[str, object]:
        # may_return: the client's next request may come on another HTTP connection, so the end of
        # this one is not the end of the client.
        return {**self.caller.facts, "may_return": True}

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def deliver(self, exchange: Exchange, accepted: AcceptedForms) -> None:
        """Pass a request to the server. The caller has checked its headers and its `_meta`.

        The response is sent later, by write().

        exchange: the POST, whose body is the request.
        accepted: the forms of a response that the client accepts.
        Raises HttpError 503 after close().
        """
        receiver = self._receiver
        if receiver is None:
            raise unavailable("the server is shutting down")
        if exchange.principal is not self.caller.principal:
            self.caller.update(exchange.principal)
        self._exchange = exchange
        self._accepted = accepted
        exchange.on_idle = self._bound_on_idle
        receiver.on_frames((exchange.body,))

    def write(self, frame: bytes, request_id: Id | None) -> int:
        """Send a frame (the bytes of a JSON-RPC message) of the running request.

        The frame becomes the body of the HTTP response, or an event.

        request_id: the id of the request, if it is known; with it, a result is recognized faster.
        Returns how many bytes of output the client has not read.
        """
        exchange = self._exchange
        if exchange is None:
            # The notification belongs to no running request. In this revision, a client gets such
            # notifications only through subscriptions/listen, so drop it.
            return 0 if self.http is None else self.http.unread_bytes
        outcome = read_outcome(frame, request_id)
        if outcome == RESULT and self._accepted.json and not exchange.is_stream:
            # The usual response.
            self._exchange = None
            exchange.respond(OK, frame)
        elif outcome is not None:
            # An error, or a result for a stream of events or for a client that accepts no JSON.
            self._exchange = None
            is_forbidden = self.caller.is_scope_refusal(outcome)
            if not self._accepted.json and not is_forbidden:
                exchange.open_stream()
            if exchange.is_stream:
                exchange.send_event(encode_event(frame))
                exchange.end_stream()
            else:
                headers = self.caller.scope_challenge(frame) if is_forbidden else b""
                status = HTTPStatus.FORBIDDEN if is_forbidden else STATUSES.get(outcome, OK)
                exchange.respond(status, frame, headers)
        elif self._accepted.stream:
            # Progress, or a log message. A client that accepts no stream does not get it.
            exchange.open_stream()
            exchange.send_event(encode_event(frame))
        return exchange.connection.unread_bytes

    # SupportsSubscriptions (transports/connection.py): the running call is subscriptions/listen,
    # whose stream has no end of its own. So it ends when the user's token expires.

    def hold_open(self, request_id: Id) -> None:
        if self._exchange is not None:
            self._exchange.is_subscription = True

    def pause(self, paused: bool) -> None:
        """Do nothing. While a request is running, no other request is read anyway."""

    async def close(self, within_s: float) -> None:
        self._receiver = None
        self._exchange = None
        if self.http is not None:
            self.http.on_close = self.http.on_drain = None
            self.http.close()

    def _on_idle(self) -> None:
        """Begin a stream of events for a call that takes long, to keep the connection alive."""
        if self._exchange is not None and self._accepted.stream:
            self._exchange.open_stream()
            self._exchange.send_event(KEEP_ALIVE_COMMENT)
            self.flush()

    def _on_drain(self, unread: int) -> None:
        if self._receiver is not None:
            self._receiver.on_drain(unread)

    def _on_close(self) -> None:
        """Tell the server that the HTTP connection is closed, which cancels a running call."""
        receiver, self._receiver = self._receiver, None
        exchange, self._exchange = self._exchange, None
        if receiver is None:
            return
        if exchange is None:
            receiver.on_eof()
        else:
            # In this revision, a client cancels a call by closing the connection.
            receiver.on_disconnect(ConnectionAbortedError("the client has cancelled its call"))
