"""WebSocketClientConnection: a Connection to a server at a ws: or wss: URL.

Each JSON-RPC message is one WebSocket message of text, in both directions. open_websocket()
connects and does the handshake of the WebSocket. If the server refuses the handshake with 401 or
403, open_websocket() tries again with another access token of the Credentials, if there are any.
Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import cast

from concertino.errors import AuthorizationError
from concertino.http.websocket_messages import (
    POLICY_VIOLATION,
    SUBPROTOCOL,
    WebSocketMessages,
    quiet_logger,
)
from concertino.http_client.credentials import Credentials, Refusal
from concertino.http_client.exchange import describe_status
from concertino.http_client.pool import CONNECT_S, make_tls_context, open_transport
from concertino.http_client.server_url import ServerUrl
from concertino.installation import missing_extra
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver

try:
    from websockets.client import ClientProtocol
    from websockets.http11 import Response
    from websockets.typing import Subprotocol
    from websockets.uri import parse_uri
except ModuleNotFoundError:
    raise ImportError(missing_extra("WebSocket", "http")) from None

__all__ = ["WebSocketClientConnection", "open_websocket"]

_log = logging.getLogger("concertino.http_client")

# How often to check whether the server has sent something, in seconds. If the server was silent, a
# ping is sent. If it is silent until the next check, too, the connection is ended.
SILENT_S = 20.0
# How long the server may take to answer a close frame, in seconds.
CLOSE_S = 2.0
# After more output than this was buffered, in bytes, the receiver's on_drain() is called when the
# server has read it.
HIGH_BYTES = 64 * 1024
# How many bytes of pongs may wait until the server reads them. A server that sends pings and reads
# nothing would otherwise fill the memory.
MAX_UNREAD_PONGS = 2**20
# The status code of a close frame for a normal end (RFC 6455, section 7.4.1).
NORMAL = 1000
# How many times the handshake is tried, each time with another token; the first may have none.
MAX_TRIES = 3


async def open_websocket(
    url: ServerUrl,
    limits: Limits,
    headers: Mapping[str, str],
    credentials: Credentials | None = None,
) -> WebSocketClientConnection:
    """Connect to a server, and return the connection after its handshake.

    url: the URL of the server, with the scheme ws or wss.
    limits: max_message_bytes limits the size of a received message.
    headers: additional headers for the request of the handshake.
    credentials: the source of the header Authorization; None to send only `headers`.
    Raises OSError if the server cannot be reached or refuses the handshake. Raises ValueError if an
    environment variable names an HTTP proxy in a malformed way. Raises AuthorizationError if no
    token can be obtained.
    """
    authorization = "" if credentials is None else credentials.header()
    if credentials is not None and authorization is None:
        authorization = await credentials.prepare()
    for _ in range(MAX_TRIES):
        all_headers = {**headers, "Authorization": authorization} if authorization else headers
        connection = WebSocketClientConnection(url, limits, all_headers)
        try:
            async with asyncio.timeout(CONNECT_S):
                await open_transport(url, connection, make_tls_context() if url.is_tls else None)
                response = await connection.handshake
        except TimeoutError:
            connection.abort()
            raise TimeoutError(f"no WebSocket within {CONNECT_S:.0f} s") from None
        except BaseException:
            connection.abort()
            raise
        if response is None:
            return connection
        connection.abort()
        authorization = await _authorize(response, credentials, authorization or "")
    raise ConnectionError("the server refuses each token")


async def _authorize(
    response: Response, credentials: Credentials | None, authorization: str
) -> str:
    """Return another value of the header Authorization after a refused handshake.

    response: the server's refusal.
    authorization: the value that was refused; "" for none.
    Raises ConnectionError, whose text describes the refusal, if there is no other value.
    """
    status = response.status_code
    text = f"no WebSocket: {describe_status(status)}"
    body = bytes(response.body or b"")[:200].strip()
    # Leave out a JSON body, because it tells people no more than the status.
    if body and not body.startswith(b"{"):
        text += f": {body.decode('utf-8', 'replace')}"
    if status in (401, 403) and credentials is not None:
        challenge = response.headers.get("WWW-Authenticate", "")
        try:
            other = await credentials.on_refusal(
                Refusal(status, challenge, authorization, "connect")
            )
        except AuthorizationError as exc:
            raise ConnectionError(f"no WebSocket: {describe_status(status)}: {exc}") from exc
        if other:
            return other
    raise ConnectionError(text)


class WebSocketClientConnection(asyncio.Protocol):
    """A Connection to a server over a WebSocket, and the asyncio protocol of its socket.

    Connection is the interface in transports/connection.py: it carries JSON-RPC messages, whose
    bytes are called frames. Make it with open_websocket().

    url: the URL of the server.
    limits: max_message_bytes limits the size of a received message.
    headers: additional headers for the request of the handshake.

    Attributes:
    handshake: a future that is done after the handshake. Its result is None if the server has
        accepted the handshake, and the server's response if it has refused. The future raises
        ConnectionError if there was no response.
    """

    def __init__(self, url: ServerUrl, limits: Limits, headers: Mapping[str, str]) -> None:
        self.facts: Mapping[str, object] = {"transport": "websocket", "address": url.text}
        self._headers = headers
        self._protocol = ClientProtocol(
            parse_uri(url.text_with_query),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            max_size=limits.max_message_bytes,
            logger=quiet_logger(),
        )
        self._messages = WebSocketMessages(self._protocol)
        loop = asyncio.get_running_loop()
        self.handshake: asyncio.Future[Response | None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        # Messages that have arrived before open() was called.
        self._early: list[bytes] = []
        self._watch = _SilenceWatch(self._ping, self.abort)
        # The bytes of pongs that the server has not read.
        self._unread_pongs = 0

    # Connection

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        early, self._early = self._early, []
        loop = asyncio.get_running_loop()
        if early:
            loop.call_soon(self._deliver, early)
        if self._closed.done():
            loop.call_soon(self._report_end)

    def write(self, frame: bytes, request_id: Id | None) -> int:
        self._messages.send(frame)
        return self._unsent_bytes

    def flush(self) -> None:
        output = self._messages.take_output()
        transport = self._transport
        if transport is None:
            return
        if output:
            transport.write(output)
        if self._messages.is_ending:
            transport.close()

    def pause(self, paused: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    async def close(self, within_s: float) -> None:
        """Close the WebSocket, and wait for the server to do the same.

        within_s: how long to wait, in seconds; at most 2.
        """
        self._receiver = None
        if self._messages.is_open and self._transport is not None:
            self._messages.close(NORMAL)
            self.flush()
            # The server's close frame must be read.
            self.pause(False)
            await asyncio.wait((self._closed,), timeout=min(within_s, CLOSE_S))
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._watch.stop()
        if self._transport is not None:
            self._transport.abort()

    @property
    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No assert checks the type: uvloop's transports are no subclasses of asyncio.Transport.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        request = self._protocol.connect()
        for name, value in self._headers.items():
            request.headers[name] = value
        self._protocol.send_request(request)
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._watch.note_input()
        messages = self._messages.feed(data)
        if not self.handshake.done():
            self._finish_handshake()
        unsent_before = self._unsent_bytes
        # In response to input, this method sends nothing but pongs.
        self.flush()
        if unsent_before:
            self._unread_pongs += self._unsent_bytes - unsent_before
        else:
            # Before this input, the server had read all output, so also all earlier pongs.
            self._unread_pongs = 0
        if self._unread_pongs > MAX_UNREAD_PONGS:
            self._messages.fail(POLICY_VIOLATION, "the server does not read the pongs to its pings")
            self.abort()
        if messages:
            self._deliver(messages)

    def eof_received(self) -> None:
        self._messages.feed_eof()
        if not self.handshake.done():
            self._finish_handshake()

    def resume_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.on_drain(self._unsent_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.stop()
        self._transport = None
        if not self.handshake.done():
            self.handshake.set_exception(ConnectionError("the server has closed the connection"))
            # Read the exception: otherwise asyncio would log it if no task awaits this future.
            self.handshake.exception()
        if not self._closed.done():
            self._closed.set_result(None)
        self._report_end()

    def _finish_handshake(self) -> None:
        """Set the result of `handshake`, if the server's response is complete."""
        failure, response = self._protocol.handshake_exc, self._messages.response
        if failure is None and response is not None:
            self.handshake.set_result(None)
            self._watch.start()
        elif response is not None and response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self.handshake.set_result(response)
        elif failure is not None:
            self.handshake.set_exception(ConnectionError(f"no WebSocket: {failure}"))

    def _deliver(self, messages: Sequence[bytes]) -> None:
        if self._receiver is not None:
            self._receiver.on_frames(messages)
        elif not self._closed.done():
            self._early.extend(messages)

    def _report_end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            text = self._messages.close_text
            _log.warning("%s: %s", self.facts["address"], text)
            receiver.on_disconnect(ConnectionError(text))

    def _ping(self) -> None:
        self._messages.ping()
        self.flush()


class _SilenceWatch:
    """Detects a server that sends nothing any more, by a check every 20 seconds.

    ping: called if the server has sent nothing since the last check, to make it send something.
    give_up: called if the server has sent nothing until the check after the ping.
    """

    def __init__(self, ping: Callable[[], object], give_up: Callable[[], object]) -> None:
        self._ping = ping
        self._give_up = give_up
        self._timer: asyncio.TimerHandle | None = None
        # Whether the server has sent something since the last check.
        self._has_input = False
        # Whether a ping was sent at the last check, and nothing has arrived since.
        self._awaits_pong = False

    def start(self) -> None:
        """Watch from now on."""
        self._timer = asyncio.get_running_loop().call_later(SILENT_S, self._check)

    def note_input(self) -> None:
        """Note that the server has sent something."""
        self._has_input = True
        self._awaits_pong = False

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        """Ping after a silence, or give up if the ping was not answered. The timer calls this."""
        if self._awaits_pong:
            self._give_up()
            return
        if not self._has_input:
            self._awaits_pong = True
            self._ping()
        self._has_input = False
        self.start()
