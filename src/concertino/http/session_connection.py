"""SessionConnection: carries the frames (JSON-RPC messages) of one session over many HTTP requests.

Sessions belong to the revisions before 2026-07-28. The client sends each message in a POST. The
HTTP response to a request contains the progress, log messages and requests that the call sends to
the client, and then its result. Messages that belong to no call are sent on the stream that the
client opens with GET. Losing an HTTP connection does not cancel a call: the client can resume a
stream after the last event that it has received. Only subscriptions end with their connection.
Spec: 2025-11-25 basic/transports "Streamable HTTP".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

from msgspec import Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, INVALID_REQUEST, Disconnected
from concertino.http.accepted import AcceptedForms
from concertino.http.caller import HttpCaller
from concertino.http.envelope import RESULT, decode_envelope, read_outcome, read_revision
from concertino.http.event_streams import EventBudget, EventStream
from concertino.http.exchange import Exchange, RequestConnection
from concertino.http.options import Polling
from concertino.http.request_head import HttpError
from concertino.http.session_output import SessionOutput
from concertino.http.session_streams import SessionStreams
from concertino.jsonrpc.messages import Id, encode_error, encode_id, encode_notification
from concertino.protocol.revisions import LATEST_LEGACY
from concertino.transports.connection import Receiver

__all__ = ["SessionConnection"]

ENDED = "the session has ended"
SUBSCRIPTION_LOST = "the connection was lost, which ends a subscription; subscribe again"
NO_STREAM = "the client cannot be asked: its request does not accept text/event-stream"


class _BatchItem(Struct):
    """The id of a response in a batch."""

    id: Id | None = None


_decode_batch = Decoder(list[_BatchItem]).decode


class SessionConnection:
    """The Connection (transports/connection.py) of one session.

    id: the id of the session, which the client sends in Mcp-Session-Id.
    caller: the user who has opened the session.
    budget: limits the memory for sent events, which are kept for clients that resume a stream.
    on_close: called when the session has ended.
    polling: when the client must resume a stream to get the rest of a response; None for never.

    Attributes:
    revision: the name of the revision of the session; "" before `initialize` is answered.
    last_used: when the client last sent a message or had a stream open, by the clock of the event
        loop.
    """

    def __init__(
        self,
        id: str,
        caller: HttpCaller,
        budget: EventBudget,
        on_close: Callable[[], object],
        polling: Polling | None = None,
    ) -> None:
        self.id = id
        self.caller = caller
        self.revision = ""
        self._loop = asyncio.get_running_loop()
        self.last_used = self._loop.time()
        self._on_close = on_close
        self._receiver: Receiver | None = None
        self._streams = SessionStreams(budget, self._note_use, polling)
        self._output = SessionOutput(self._on_drain)
        # The POSTs that wait until the client has read more of the responses, oldest first.
        self._held: dict[Exchange, tuple[AcceptedForms, Sequence[Id]]] = {}
        # The stream of the request that is being passed to the receiver. An error response without
        # an id belongs to it.
        self._current: EventStream | None = None
        # Whether requests wait, because the client has not read enough of the responses.
        self._is_paused = False

    @property
    def header(self) -> bytes:
        """The header Mcp-Session-Id, as a whole line."""
        return b"Mcp-Session-Id: %b\r\n" % self.id.encode()

    # Connection

    @property
    def facts(self) -> Mapping[str, object]:
        return self.caller.facts

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def write(self, frame: bytes, request_id: Id | None) -> int:
        """Send a frame (the bytes of a JSON-RPC message) on the stream of its request.

        request_id: the id of the request to which the frame belongs; None if it belongs to none.
        Returns how many bytes of output the client has not read.
        """
        connection: RequestConnection | None = None
        # The responses to a batch (an array of requests, 2025-03-26) come as one frame.
        if frame.startswith(b"["):
            connection = self._write_batch(frame)
        else:
            stream = self._streams.find(request_id)
            # None for a notification or a request of the server, RESULT for a result, and otherwise
            # the code of an error response.
            outcome = read_outcome(frame, request_id)
            if outcome is None:
                connection = self._send(stream or self._streams.standalone, frame)
            else:
                # An error without the id of a running request is the response to the message that
                # is being passed to the server just now.
                if stream is None and outcome != RESULT:
                    stream = self._current
                if stream is not None:
                    connection = self._answer(stream, frame, request_id, outcome)
        return self._output.watch(connection)

    def flush(self) -> None:
        self._output.flush()

    def pause(self, paused: bool) -> None:
        self._is_paused = paused
        if self._held and not paused:
            self._loop.call_soon(self._deliver_held)

    async def close(self, within_s: float) -> None:
        """End all streams of the session. Their HTTP connections send what is buffered.

        within_s: has no effect, because this waits for nothing.
        """
        self._receiver = None
        held, self._held = self._held, {}
        for exchange in held:
            exchange.respond(HTTPStatus.NOT_FOUND, encode_error(None, INVALID_REQUEST, ENDED))
            exchange.connection.flush()
        self._streams.close()
        self._output.close()
        self._on_close()

    # SupportsSubscriptions (transports/connection.py): called when a handler makes its call a
    # subscription. Such a call ends when its client has lost the HTTP connection. Other calls
    # continue.

    def hold_open(self, request_id: Id) -> None:
        stream = self._streams.find(request_id)
        if stream is not None:
            stream.cancel = partial(self._cancel_subscription, stream, request_id)
            if stream.exchange is not None:
                stream.exchange.is_subscription = True
            else:
                # The client has left already. With call_soon(), because the call has just begun.
                self._loop.call_soon(stream.cancel)

    def _cancel_subscription(self, stream: EventStream, id: Id) -> None:
        """Cancel a subscription whose client has lost the connection.

        If the client resumes the stream, the stream contains the error SUBSCRIPTION_LOST.
        """
        if stream.cancel is None:
            return
        stream.cancel = None
        params = encode({"requestId": id, "reason": "the client has disconnected"})
        self._receive(encode_notification("notifications/cancelled", params))
        self._streams.finish(stream, id)
        stream.send(encode_error(encode_id(id), INTERNAL_ERROR, SUBSCRIPTION_LOST))
        stream.end()

    # Requests of the client

    def deliver(self, exchange: Exchange, accepted: AcceptedForms, ids: Sequence[Id]) -> None:
        """Pass a message to the server. Returns at once.

        If there are requests in the message, their responses are sent later as the response to the
        POST. Otherwise the POST gets 202 at once. If too many responses are unread, the message
        waits until the client has read some.

        exchange: the POST, whose body is the message.
        accepted: the forms of a response that the client accepts, JSON or a stream of events.
        ids: the ids of the JSON-RPC requests in the message; empty for a notification or a
            response.
        Raises HttpError 404 if the session has ended, and 400 if a running request has the same id.
        """
        receiver = self._receiver
        if receiver is None:
            raise HttpError(HTTPStatus.NOT_FOUND, ENDED)
        self.caller.update(exchange.principal)
        if not ids:
            # Not held while paused, because it causes no response.
            self._note_use()
            receiver.on_frames((exchange.body,))
            exchange.respond(HTTPStatus.ACCEPTED)
            return
        if self._is_paused:
            self._held[exchange] = accepted, ids
            exchange.on_disconnect = partial(self._forget_held, exchange)
            return
        # Begin the stream with an event that has only an id, so that the client can resume the
        # stream even if it loses the connection before the first message. Only the latest revision
        # with sessions, 2025-11-25, has such events.
        is_primed = self.revision == LATEST_LEGACY.name
        stream = self._streams.open(exchange, ids, accepted, is_primed=is_primed)
        if accepted.stream:
            exchange.on_idle = partial(self._begin_stream, stream)

        self._current = stream
        try:
            receiver.on_frames((exchange.body,))
        finally:
            self._current = None

    def receive_malformed(self, exchange: Exchange) -> None:
        """Pass a malformed response to the server, so that the request which it answers fails."""
        self.caller.update(exchange.principal)
        self._note_use()
        self._receive(exchange.body)

    def _deliver_held(self) -> None:
        """Pass waiting requests to the server, until too many responses are unread again."""
        while self._held and not self._is_paused and self._receiver is not None:
            exchange = next(iter(self._held))
            accepted, ids = self._held.pop(exchange)
            exchange.on_disconnect = None
            try:
                self.deliver(exchange, accepted, ids)
            except HttpError as refusal:
                exchange.refuse(refusal)
            exchange.connection.flush()

    def _forget_held(self, exchange: Exchange) -> None:
        """Drop a waiting request whose client has closed the HTTP connection."""
        self._held.pop(exchange, None)
        self._note_use()

    def cancel(self, exchange: Exchange, id: Id | None) -> None:
        """Pass on notifications/cancelled, and end the stream of the cancelled request.

        The stream ends because a cancelled request gets no response.

        exchange: the POST with the notification.
        id: the id of the cancelled request; None if the notification contains none.
        """
        # The accepted forms have no effect, because a notification gets no JSON-RPC response.
        self.deliver(exchange, AcceptedForms(json=True, stream=True), ())
        if id is None:
            return
        # The request is running, or its POST waits.
        stream = self._streams.find(id) or self._take_held(id)
        if stream is not None:
            self._streams.finish(stream, id)
            # If the POST was a batch, its other requests still need the stream.
            if not stream.ids:
                stream.end()

    def _take_held(self, id: Id) -> EventStream | None:
        """Remove the waiting POST whose only request has this id, and open a stream for it.

        The request is not passed to the server. The caller ends the stream, so that the POST gets
        its HTTP response. Returns None if no such POST waits. A batch with the id stays in place.
        """
        for exchange, (accepted, ids) in self._held.items():
            if len(ids) == 1 and ids[0] == id:
                del self._held[exchange]
                return self._streams.open(exchange, ids, accepted, is_primed=False)
        return None

    def listen(self, exchange: Exchange) -> None:
        """Respond to a GET with a stream of events of the session.

        With Last-Event-ID, the stream of that event is resumed. Without it, the stream carries the
        messages that belong to no request. Raises HttpError 400 if Last-Event-ID names no stream of
        this session.
        """
        self.last_used = self._loop.time()
        self._streams.listen(exchange)

    def end(self, reason: str) -> None:
        """End the session: cancel its calls, and close its streams. reason: why, for the log."""
        if self._receiver is not None:
            self._receiver.on_disconnect(Disconnected(reason))

    @property
    def is_in_use(self) -> bool:
        """Whether a call is running or waits, or the client has a stream open.

        A session that is not in use ends after HttpTimeouts.session_s.
        """
        return self._streams.is_in_use or bool(self._held)

    def _receive(self, frame: bytes) -> None:
        """Pass a frame to the server, unless the session has ended."""
        if self._receiver is not None:
            self._receiver.on_frames((frame,))

    # Output

    def _send(self, stream: EventStream, frame: bytes) -> RequestConnection | None:
        """Send a notification or a request of the server as an event of a stream.

        Returns the connection on which it was queued; None if it was kept or dropped.
        If the client accepts no stream of events, the notification is dropped, and the request is
        answered with an error in place of the client.
        """
        if not stream.accepts_events:
            message = decode_envelope(frame)
            if message.request_id is not None:
                refusal = encode_error(encode_id(message.request_id), INVALID_REQUEST, NO_STREAM)
                # With call_soon(), because the session is still sending this request.
                self._loop.call_soon(self._receive, refusal)
            return None
        stream.send(frame)
        return None if stream.exchange is None else stream.exchange.connection

    def _answer(
        self, stream: EventStream, frame: bytes, id: Id | None, outcome: int | None
    ) -> RequestConnection | None:
        """Send the response to a request, and end its stream if it was the last one.

        outcome: what read_outcome() returns for the response; None for a batch.
        Returns the connection on which it was queued; None if it was kept.
        """
        exchange = stream.exchange
        if not self.revision:
            # This is the first response of the session, the one to `initialize`.
            self._begin(exchange, frame, outcome)
        if id is not None:
            self._streams.finish(stream, id)
        else:
            # The responses to a batch, or an error without an id. Both are for all requests of the
            # POST.
            self._streams.finish(stream)
        is_last = not stream.ids
        # If no event was sent before, the response can be a plain HTTP response. An error for
        # missing scopes must be one, because it needs the status 403 and WWW-Authenticate.
        if is_last and exchange is not None and not exchange.is_stream:
            is_forbidden = self.caller.is_scope_refusal(outcome)
            if stream.accepted.json or is_forbidden:
                # The stream ends without events: respond() completes the HTTP response.
                stream.exchange = None
                headers = self.caller.scope_challenge(frame) if is_forbidden else b""
                status = HTTPStatus.FORBIDDEN if is_forbidden else _status_of(outcome)
                exchange.respond(status, frame, headers)
                return exchange.connection
        stream.send(frame)
        if is_last:
            stream.end()
        return None if exchange is None else exchange.connection

    def _write_batch(self, frame: bytes) -> RequestConnection | None:
        """Send the responses to a batch (2025-03-26), which are one frame.

        Returns the connection on which they were queued; None if they were kept.
        """
        try:
            ids = [item.id for item in _decode_batch(frame) if item.id is not None]
        except DECODE_ERRORS:
            ids = []
        # All responses belong to the same stream: that of an id, or without ids, the current one.
        found = [stream for id in ids if (stream := self._streams.find(id)) is not None]
        stream = found[0] if found else self._current
        return None if stream is None else self._answer(stream, frame, None, None)

    def _begin(self, exchange: Exchange | None, frame: bytes, outcome: int | None) -> None:
        """Begin the session with the response to `initialize`, or end it if that is an error.

        exchange: the POST with the `initialize` request; None if its client has disconnected.
        frame: the response.
        outcome: what read_outcome() returns for the response.
        """
        if outcome == RESULT:
            self.revision = read_revision(frame)
            return
        if exchange is not None:
            # Do not tell the client the id of a session that ends now.
            exchange.headers = exchange.headers.replace(self.header, b"")
        # With call_soon(), because the response is not sent yet.
        self._loop.call_soon(self.end, "initialize was refused")

    def _begin_stream(self, stream: EventStream) -> None:
        """Begin the stream of a call that takes long, so that comments can keep it alive.

        Exchange.on_idle calls this when a call has sent nothing for HttpTimeouts.keep_alive_s.
        """
        stream.open()
        if stream.exchange is not None:
            stream.exchange.keep_alive()

    def _on_drain(self, unread: int) -> None:
        """Tell the server how many bytes of output the client has not read."""
        if self._receiver is not None:
            self._receiver.on_drain(unread)

    def _note_use(self) -> None:
        """Note that the client uses the session now."""
        self.last_used = self._loop.time()


def _status_of(outcome: int | None) -> HTTPStatus:
    """Return the HTTP status of a response: 400 if the message was not a valid request."""
    return HTTPStatus.BAD_REQUEST if outcome == INVALID_REQUEST else HTTPStatus.OK
