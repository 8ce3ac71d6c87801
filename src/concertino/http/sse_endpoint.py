"""SseEndpoint: the two endpoints of MCP 2024-11-05, for clients that know no newer transport.

A client opens a stream of events with GET. The first event names a URL, to which the client sends
each message as a POST; all messages to the client come on the stream. Its end is the end of the
session. Newer revisions do not have this transport, so it is served only if an option asks for it.
Spec: 2024-11-05 basic/transports "HTTP with SSE".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs, quote

from concertino.http.accepted import is_json, read_accept
from concertino.http.caller import HttpCaller, identity_of
from concertino.http.challenges import Challenges
from concertino.http.exchange import Exchange
from concertino.http.principal_limits import too_many
from concertino.http.request_head import HttpError, unavailable
from concertino.http.responses import encode_event
from concertino.http.session_peers import SessionPeers, create_session_id, pass_on
from concertino.jsonrpc.messages import Id, one_line
from concertino.runtime.host import Host, Wrap
from concertino.transports.connection import Receiver

__all__ = ["SseConnection", "SseEndpoint"]

# The parameter of the URL for messages.
SESSION = "session_id"
# How many POSTs of one session may wait because the client reads too slowly.
MAX_HELD = 64


class SseEndpoint:
    """Serves a backend, such as a Server, to clients of MCP 2024-11-05.

    host: serves the backend on the connection of each session (runtime/host.py).
    wrap: wraps each connection before the host gets it, for example to trace its messages.
    messages: the path to which clients send messages.
    max_sessions: how many sessions there may be at the same time.
    challenges: makes the 401 and 403 errors; None if there is no authorization.
    max_own_sessions: how many sessions one principal (verified user) may have; None for any number.
    peers: passes requests to the other processes that share the sessions; None if there is one
        process.
    """

    def __init__(
        self,
        host: Host,
        wrap: Wrap,
        messages: str,
        max_sessions: int,
        challenges: Challenges | None,
        max_own_sessions: int | None,
        peers: SessionPeers | None = None,
    ) -> None:
        self._host = host
        self._wrap = wrap
        self._messages = messages
        self._max_sessions = max_sessions
        self._challenges = challenges
        self._max_own_sessions = max_own_sessions
        self._peers = peers
        # The sessions by their ids. Without authorization, an id is as secret as an access token,
        # because it allows using the session.
        self._sessions: dict[str, SseConnection] = {}
        # The number of sessions so far, which `wrap` gets as part of a name.
        self._count = 0

    def open(self, exchange: Exchange) -> None:
        """Serve a GET, which opens a session. Raises HttpError to refuse it."""
        if not read_accept(exchange.head.headers.get(b"accept")).stream:
            raise HttpError(HTTPStatus.NOT_ACCEPTABLE, "Accept: expected text/event-stream")
        if len(self._sessions) >= self._max_sessions:
            raise unavailable(f"{self._max_sessions} sessions are open")
        identity = identity_of(exchange.principal)
        if self._max_own_sessions is not None:
            own = [item for item in self._sessions.values() if item.caller.identity == identity]
            if len(own) >= self._max_own_sessions:
                raise too_many(f"{self._max_own_sessions} sessions of yours are in use")

        id = create_session_id(self._peers)
        caller = HttpCaller(exchange.connection.facts, exchange.principal, self._challenges)
        session = SseConnection(exchange, caller, lambda: self._sessions.pop(id, None))
        self._sessions[id] = session
        self._count += 1
        # An ASGI application may be mounted below another path, which the URL must contain.
        path = quote(f"{exchange.connection.facts.get('root_path', '')}{self._messages}")
        exchange.open_stream()
        exchange.send_event(f"event: endpoint\ndata: {path}?{SESSION}={id}\n\n".encode())
        # Serve the session, and tell the caller which ServerConnection serves it.
        caller.attach(self._host.attach(self._wrap(session, f"sse {self._count}")))

    def post(self, exchange: Exchange) -> None:
        """Serve a POST, which is a message of a session. Raises HttpError to refuse it."""
        if not is_json(exchange.head.headers.get(b"content-type")):
            raise HttpError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type: expected application/json"
            )
        ids = parse_qs(exchange.head.query).get(SESSION, [""])
        session = self._sessions.get(ids[0])
        if session is None and pass_on(self._peers, exchange, ids[0]):
            return
        if session is None or session.caller.identity != identity_of(exchange.principal):
            raise HttpError(HTTPStatus.NOT_FOUND, "no such session: open another stream")
        session.deliver(exchange)


class SseConnection:
    """The Connection of one session of MCP 2024-11-05.

    transports/connection.py has the docstrings of the methods that have none here.

    exchange: the GET whose response is the stream.
    caller: the user who has sent the GET.
    on_close: called when the session has ended.
    """

    def __init__(
        self, exchange: Exchange, caller: HttpCaller, on_close: Callable[[], object]
    ) -> None:
        self.caller = caller
        self._exchange = exchange
        self._http = exchange.connection
        self._receiver: Receiver | None = None
        self._on_close = on_close
        # The POSTs that wait because the client reads the stream too slowly, oldest first.
        self._held: dict[Exchange, None] = {}
        self._is_paused = False
        exchange.on_disconnect = self._on_disconnect
        self._http.on_drain = self._on_drain

    @property
    def facts(self) -> Mapping[str, object]:
        return self.caller.facts

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def write(self, frame: bytes, request_id: Id | None) -> int:
        self._exchange.send_event(encode_event(frame))
        return self._http.unread_bytes

    def flush(self) -> None:
        self._http.flush()

    def pause(self, paused: bool) -> None:
        self._is_paused = paused
        # Test `_is_paused` each time: a message that is passed on may cause output, and so another
        # call of this method, with True.
        while self._held and not self._is_paused:
            exchange = next(iter(self._held))
            del self._held[exchange]
            exchange.on_disconnect = None
            self._accept(exchange)
            exchange.connection.flush()

    async def close(self, within_s: float) -> None:
        """End the stream, and so the session. within_s has no effect: this waits for nothing."""
        self._receiver = None
        self._exchange.on_disconnect = None
        self._exchange.end_stream()
        self._http.flush()
        self._end()

    def deliver(self, exchange: Exchange) -> None:
        """Pass a message on to the server, at once or when the client has read more output.

        So a client that does not read its stream cannot cause more output.

        exchange: the POST, whose body is the message. Its response is 202 when the message is
            passed on.
        Raises HttpError 429 if too many messages wait.
        """
        if self._is_paused:
            if len(self._held) >= MAX_HELD:
                raise too_many(f"{MAX_HELD} messages of this session wait")
            self._held[exchange] = None
            exchange.on_disconnect = partial(self._held.pop, exchange, None)
            return
        self._accept(exchange)

    def _accept(self, exchange: Exchange) -> None:
        """Answer a POST with 202, and pass its message on. Refuse it if the session has ended."""
        receiver = self._receiver
        if receiver is None:
            exchange.refuse(HttpError(HTTPStatus.NOT_FOUND, "the session has ended"))
            return
        # The token of this POST may be newer than that of the GET.
        self.caller.update(exchange.principal)
        exchange.respond(HTTPStatus.ACCEPTED)
        # A frame is one line, because over stdio a newline ends it.
        receiver.on_frames((one_line(exchange.body),))

    def _on_drain(self, unread: int) -> None:
        if self._receiver is not None:
            self._receiver.on_drain(unread)

    def _on_disconnect(self) -> None:
        receiver, self._receiver = self._receiver, None
        self._end()
        if receiver is not None:
            receiver.on_disconnect(ConnectionAbortedError("the client has closed its stream"))

    def _end(self) -> None:
        """End the session, and refuse the messages that wait."""
        self._on_close()
        held = list(self._held)
        self._held.clear()
        for exchange in held:
            exchange.refuse(HttpError(HTTPStatus.NOT_FOUND, "the session has ended"))
            exchange.connection.flush()
