"""WebSocketEndpoint: serves a backend to clients that ask for a WebSocket at the MCP endpoint.

Each text frame has one JSON-RPC message. As over stdio, clients of all revisions can use it, with
`initialize` or without. MCP's specification has no such transport, so it is served only if an
option asks for it. The handshake is a GET, whose Host, Origin and token are checked as in every
request. A WebSocket belongs to one principal, the user who has sent the handshake.
Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from concertino.http.caller import HttpCaller
from concertino.http.challenges import Challenges
from concertino.http.connection import READ_AHEAD_BYTES
from concertino.http.exchange import Exchange
from concertino.http.principal_limits import PrincipalUse
from concertino.http.request_head import HttpError
from concertino.http.request_reader import LARGE_BODY
from concertino.http.websocket_messages import (
    GOING_AWAY,
    POLICY_VIOLATION,
    SUBPROTOCOL,
    TRY_AGAIN,
    WebSocketMessages,
    quiet_logger,
)
from concertino.installation import missing_extra
from concertino.jsonrpc.messages import Id
from concertino.runtime.host import Host, Wrap
from concertino.transports.connection import Receiver

try:
    from websockets.datastructures import Headers
    from websockets.http11 import Request
    from websockets.protocol import State
    from websockets.server import ServerProtocol
    from websockets.typing import Subprotocol
except ModuleNotFoundError:
    raise ImportError(missing_extra("WebSocket", "http")) from None

__all__ = ["WebSocketConnection", "WebSocketEndpoint"]

# The headers that the handshake needs, besides Upgrade.
HANDSHAKE_HEADERS = ("Connection", "Sec-WebSocket-Key", "Sec-WebSocket-Version",
                     "Sec-WebSocket-Protocol")  # fmt: skip


class WebSocketEndpoint:
    """Accepts WebSockets, and lets a Host serve its backend on them. An HttpServer has one.

    host: serves the backend on the Connection of each WebSocket (runtime/host.py).
    wrap: wraps each Connection before the host gets it, for example to trace its messages.
    challenges: makes the 401 and 403 errors; None if there is no authorization.
    use: counts the messages of each principal (verified user); None if there is no authorization.
    """

    def __init__(
        self, host: Host, wrap: Wrap, challenges: Challenges | None, use: PrincipalUse | None
    ) -> None:
        self._host = host
        self._wrap = wrap
        self._challenges = challenges
        self._use = use
        # The number of WebSockets so far, which `wrap` gets as part of a name.
        self._count = 0

    def accept(self, exchange: Exchange) -> None:
        """Respond to the handshake of a WebSocket. Raises HttpError to refuse it."""
        # The package `websockets` would read the handshake in the state CONNECTING. Here it begins
        # in the state OPEN, because HttpConnection has read the handshake.
        protocol = ServerProtocol(
            state=State.OPEN,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            select_subprotocol=_select_subprotocol,
            max_size=self._host.limits.max_message_bytes,
            logger=quiet_logger(),
        )
        response = protocol.accept(_handshake_of(exchange))
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            # The first line of the body says what is wrong. The headers are those that RFC 6455
            # demands of a refusal.
            raise HttpError(
                HTTPStatus(response.status_code),
                response.body.decode().partition("\n")[0],
                b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            )
        self._count += 1
        principal = exchange.principal
        caller = HttpCaller(exchange.connection.facts, principal, self._challenges)
        use, count_message = self._use, None
        if use is not None and principal is not None:
            count_message = use.message_counter(principal.identity)
        messages = WebSocketMessages(protocol)
        connection = WebSocketConnection(exchange, caller, messages, count_message)
        # Exchange.switch_protocols() adds the header Date itself.
        lines = [
            f"{name}: {value}\r\n" for name, value in response.headers.raw_items() if name != "Date"
        ]
        # The ServerConnection, which handles the messages of this WebSocket.
        served = self._host.attach(self._wrap(connection, f"websocket {self._count}"))
        caller.attach(served)
        exchange.switch_protocols("".join(lines).encode("ascii"), connection.on_data)


def _handshake_of(exchange: Exchange) -> Request:
    """Return a handshake as the package `websockets` expects it."""
    head = exchange.head
    headers = Headers()
    for name in HANDSHAKE_HEADERS:
        value = head.headers.get(name.lower().encode())
        if value is not None:
            headers[name] = value.decode("latin-1")
    # HeadParser takes this header out of the others.
    headers["Upgrade"] = head.upgrade.decode("latin-1")
    return Request(head.path, headers)


def _select_subprotocol(
    protocol: ServerProtocol, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None


class WebSocketConnection:
    """The Connection (transports/connection.py) of one client with a WebSocket.

    exchange: the request with the handshake; it lasts as long as the WebSocket.
    caller: the user who has sent the handshake.
    messages: converts between bytes and messages; its handshake is done.
    count_message: called for each message, to limit how many messages a user may send in a period.
        Returns 0.0 if the message may be handled now, otherwise how many seconds it has to wait.
        None if there is no such limit.
    """

    def __init__(
        self,
        exchange: Exchange,
        caller: HttpCaller,
        messages: WebSocketMessages,
        count_message: Callable[[], float] | None = None,
    ) -> None:
        self.caller = caller
        self._http = exchange.connection
        self._messages = messages
        self._receiver: Receiver | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_paused = False
        # Whether nothing has arrived since the last ping.
        self._is_silent = False
        self._input = _PacedInput(self._deliver, self._set_reading, count_message)
        self._expiry = self._schedule_expiry(exchange)
        self._http.on_close = self._on_close
        self._http.on_drain = self._on_drain
        exchange.on_idle = self._ping

    def _schedule_expiry(self, exchange: Exchange) -> asyncio.TimerHandle | None:
        """Return a timer that closes the WebSocket when the token of the handshake expires.

        Returns None if there is no token, or if it does not expire.
        """
        expires = None if exchange.principal is None else exchange.principal.expires
        if expires is None:
            return None
        return asyncio.get_running_loop().call_later(
            max(0.0, expires - time.time()), self._fail, POLICY_VIOLATION, "the token has expired"
        )

    # Connection

    @property
    def facts(self) -> Mapping[str, object]:
        return self.caller.facts

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def write(self, frame: bytes, request_id: Id | None) -> int:
        self._messages.send(frame)
        self._queue_output()
        return self._http.unread_bytes

    def flush(self) -> None:
        self._http.flush()

    def pause(self, paused: bool) -> None:
        self._is_paused = paused
        self._set_reading()

    async def close(self, within_s: float) -> None:
        """Send a close frame with the code GOING_AWAY, and wait for the client's close frame.

        within_s: how long to wait for it, in seconds. Then the connection is closed.
        """
        self._receiver = None
        if self._messages.is_open and not self._closed.done():
            self._messages.close(GOING_AWAY, "the server has ended the session")
            self._send()
            # The client's close frame must be read.
            self._is_paused = False
            self._set_reading()
            await asyncio.wait((self._closed,), timeout=within_s)
        self._http.close()

    # Input

    def on_data(self, data: bytes) -> None:
        """Read what has arrived on the connection."""
        self._is_silent = False
        messages = self._messages.feed(data)
        self._send()
        if not self._reserve():
            # The WebSocket has failed, so its messages are dropped.
            return
        if messages:
            self._input.add(messages)
        # Pings of the client cause pongs. If the client does not read the pongs, _set_reading()
        # pauses reading, so that they do not pile up.
        self._set_reading()

    def _reserve(self) -> bool:
        """Reserve memory for an incomplete message among the large bodies of the server.

        Closes the WebSocket and returns False if there is no room for the message.
        """
        held = self._messages.held_bytes
        if held <= LARGE_BODY:
            # Not with reserve(), which counts the memory of a small message, too.
            self._http.reserved_bytes = 0
            return True
        try:
            self._http.reserve(held)
        except HttpError as refusal:
            self._fail(TRY_AGAIN, str(refusal))
            return False
        return True

    def _deliver(self, messages: list[bytes]) -> None:
        if self._receiver is not None:
            self._receiver.on_frames(messages)

    def _set_reading(self) -> None:
        """Pause or resume reading. Pauses if the client reads too slowly or sends too much."""
        has_room = self._http.unread_bytes <= READ_AHEAD_BYTES
        may_read = has_room and not self._is_paused and not self._input.is_waiting
        self._http.set_reading(may_read)

    # Output and end

    def _queue_output(self) -> None:
        if output := self._messages.take_output():
            self._http.send(output)

    def _send(self) -> None:
        """Send the queued output. End the connection afterwards if the WebSocket has ended."""
        self._queue_output()
        if self._messages.is_ending and not self._http.is_ending:
            self._http.end_output()
        else:
            self._http.flush()

    def _fail(self, code: int, reason: str) -> None:
        self._messages.fail(code, reason)
        self._send()

    def _ping(self) -> None:
        """Send a ping, or end the connection if nothing has arrived since the last ping.

        Exchange.on_idle calls this whenever nothing was sent for HttpTimeouts.keep_alive_s.
        """
        if self._is_silent:
            self._http.abort()
            return
        self._is_silent = True
        self._messages.ping()
        self._send()

    def _on_drain(self, unread: int) -> None:
        if self._receiver is not None:
            self._receiver.on_drain(unread)
        self._set_reading()

    def _on_close(self) -> None:
        self._input.close()
        if self._expiry is not None:
            self._expiry.cancel()
        if not self._closed.done():
            self._closed.set_result(None)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            # This type says that the client has cancelled its calls by leaving, which is no error.
            receiver.on_disconnect(ConnectionAbortedError(self._messages.close_text))


class _PacedInput:
    """Delivers messages at the rate that their sender is allowed.

    deliver: called with the messages that may be delivered now.
    on_change: called when `is_waiting` has changed.
    count_message: counts the next message and returns 0.0, or returns how many seconds the message
        has to wait. None if there is no limit.

    Attributes:
    is_waiting: whether messages wait. Read no more input meanwhile.
    """

    def __init__(
        self,
        deliver: Callable[[list[bytes]], object],
        on_change: Callable[[], object],
        count_message: Callable[[], float] | None,
    ) -> None:
        self._deliver = deliver
        self._on_change = on_change
        self._count_message = count_message
        self._waiting: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.is_waiting = False

    def add(self, messages: list[bytes]) -> None:
        """Deliver messages in this order: now, or when the rate allows it."""
        if self._count_message is None:
            self._deliver(messages)
            return
        self._waiting.extend(messages)
        if not self.is_waiting:
            self._deliver_ready()

    def _deliver_ready(self) -> None:
        """Deliver the messages that may be delivered now. Set a timer for all other messages."""
        assert self._count_message is not None
        ready: list[bytes] = []
        wait_s = 0.0
        while self._waiting and (wait_s := self._count_message()) <= 0:
            ready.append(self._waiting.popleft())
        if ready:
            self._deliver(ready)
        self.is_waiting = bool(self._waiting)
        if self.is_waiting:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._deliver_ready)
        self._on_change()

    def close(self) -> None:
        """Drop the messages that wait."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
