"""BlockingNats: requests to a NATS server from a thread, or from code that may block for a moment.

Buckets use a BlockingNats (bucket.py). Between two requests, nothing reads from the connection. So
the server's pings are answered only before the next request. If the server has ended the connection
in the meantime, the next request connects again.
"""

from __future__ import annotations

import math
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from msgspec import Struct

from concertino.errors import Disconnected, ProtocolError
from concertino.nats.protocol import (
    NatsEvent,
    NatsMessage,
    NatsParser,
    Ping,
    Pong,
    ServerError,
    ServerInfo,
    encode_connect,
    encode_publish,
    encode_subscribe,
)
from concertino.nats.servers import NatsOptions, NatsServer, connect_members, tls_context
from concertino.nats.subjects import inbox_prefix
from concertino.transports.listeners import errno_message

__all__ = ["BlockingNats", "PermissionsViolation", "Request"]

# After a failed attempt to connect, all attempts within this time, in seconds, fail at once, so
# that callers that must not block for long do not wait again and again.
RETRY_S = 0.5
# How many bytes are read from the socket at once, at most.
READ_BYTES = 256 * 1024
# The errors of a connection after which it cannot be used any more.
FAILURES = (OSError, ProtocolError, Disconnected)


class PermissionsViolation(Disconnected):
    """The server does not permit a request of this user. The text names the request's subject."""


class Request(Struct, frozen=True):
    """A message that gets one response.

    subject: the NATS subject to which the message is published.
    headers: the encoded headers, from the line `NATS/1.0` to the empty line at the end; empty for
        no headers.
    """

    subject: str
    payload: bytes = b""
    headers: bytes = b""


class BlockingNats:
    """A client of a NATS server whose methods block until the server has answered.

        nats = BlockingNats(parse_servers("nats://a,b,c"), NatsOptions(name="tools.notes"))
        [response] = nats.request_all([Request("$JS.API.INFO")], timeout_s=1.0)

    Connects at the first request, and again after a failure. Several threads may use the same
    object; their calls wait for each other. After an attempt that no server has accepted, calls
    fail at once for 0.5 s, without another attempt.

    servers: the servers of a cluster, which are tried in random order until one accepts.
    options: the options of a connection, such as TLS settings and a key.
    connect_s: how long the attempt to connect to one server may take, in seconds.
    """

    def __init__(
        self, servers: Sequence[NatsServer], options: NatsOptions, connect_s: float = 2.0
    ) -> None:
        self._servers = servers
        self._options = options
        self._connect_s = connect_s
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        # When the last failed attempt to connect ended, by time.monotonic(), which may be near 0
        # after the machine has started.
        self._failed_at = -math.inf
        # Why this attempt failed.
        self._reason = ""

    def request_all(self, requests: Sequence[Request], timeout_s: float) -> Sequence[NatsMessage]:
        """Send several requests at once, and return their responses in the same order.

        requests: the server disconnects if one is longer than its max_payload (by default 1 MiB).
        timeout_s: the time limit for the responses, in seconds, after connecting.

        Raises:
            Disconnected: no server can be reached, the server reports an error, or the server has
                not answered all requests in time. It may have handled some of them.
            PermissionsViolation: this user may not send one of the requests. The server may have
                handled the others.
            ImportError: the options have a key, and the extra `nats` is not installed.
            ConcertinoError: the key in the options is not valid.
        """
        with self._lock:
            # The pings have their own limit, so that they do not use up the time for the responses.
            if self._connection is not None:
                try:
                    self._connection.answer_pings(time.monotonic() + timeout_s)
                except FAILURES:
                    # No request was sent yet, so it is safe to connect again.
                    self._close()
            connection = self._connection or self._connect()
            self._connection = connection
            try:
                return connection.request_all(requests, time.monotonic() + timeout_s)
            except FAILURES as exc:
                self._close()
                text = f"{connection.server}: {errno_message(exc)}"
                if isinstance(exc, PermissionsViolation):
                    raise PermissionsViolation(text) from None
                raise Disconnected(text) from None

    def close(self) -> None:
        """Disconnect. The next request connects again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.socket.close()
            self._connection = None

    def _connect(self) -> _Connection:
        """Connect to the first server that accepts, and return the connection.

        Raises Disconnected if no server accepts. The text has the reason of the last server.
        """
        if time.monotonic() < self._failed_at + RETRY_S:
            raise Disconnected(self._reason)
        for server in random.sample(self._servers, len(self._servers)):
            try:
                return _Connection(server, self._options, time.monotonic() + self._connect_s)
            except FAILURES as exc:
                self._reason = f"{server}: {errno_message(exc)}"
        self._failed_at = time.monotonic()
        raise Disconnected(self._reason)


class _Connection:
    """A connection to a server. The constructor connects and authenticates.

    until: when the connection must be ready, by time.monotonic().
    Raises OSError if the server cannot be reached in time, ProtocolError for invalid messages, and
    Disconnected if the server refuses this client.
    """

    def __init__(self, server: NatsServer, options: NatsOptions, until: float) -> None:
        self.server = server
        self.socket = socket.create_connection((server.host, server.port), _socket_timeout(until))
        self._parser = NatsParser()
        # Events that were read and not handled yet, latest first.
        self._events: list[NatsEvent] = []
        # The beginning of the reply subjects. The random part distinguishes processes of one user.
        self._inbox = f"{inbox_prefix(options.name)}{os.urandom(8).hex()}"
        # How many requests were sent. The number of a request is the end of its reply subject.
        self._count = 0
        try:
            self._open(options, until)
        except BaseException:
            self.socket.close()
            raise

    def _open(self, options: NatsOptions, until: float) -> None:
        """Begin TLS if needed, authenticate, and subscribe to the responses."""
        info = self._next(until)
        if not isinstance(info, ServerInfo):
            raise ProtocolError("expected INFO as the server's first message")
        context = tls_context(self.server, options, info)
        if context is not None:
            self.socket = context.wrap_socket(
                self.socket, server_hostname=options.server_name or self.server.host
            )
        opening = encode_connect(connect_members(self.server, options, info.nonce))
        # The only subscription of the connection has the number 1.
        self.socket.sendall(opening + encode_subscribe(f"{self._inbox}.*", 1) + b"PING\r\n")
        # The server answers the ping if it accepts this client, and sends an error otherwise.
        while not isinstance(event := self._next(until), Pong):
            self._handle(event)

    def request_all(self, requests: Sequence[Request], until: float) -> Sequence[NatsMessage]:
        """Send several requests at once, and return their responses in the same order.

        until: when all responses must have arrived, by time.monotonic().
        Raises OSError (TimeoutError after `until`), ProtocolError or Disconnected. Then the
        connection cannot be used any more, and some of the requests may have taken effect.
        """
        replies: dict[str, int] = {}
        output: list[bytes] = []
        for number, request in enumerate(requests):
            self._count += 1
            reply = f"{self._inbox}.{self._count}"
            replies[reply] = number
            output.append(encode_publish(request.subject, request.payload, reply, request.headers))
        self.socket.settimeout(_socket_timeout(until))
        self.socket.sendall(b"".join(output))

        responses: dict[int, NatsMessage] = {}
        while len(responses) < len(requests):
            event = self._next(until)
            if isinstance(event, NatsMessage) and event.subject in replies:
                responses[replies[event.subject]] = event
            else:
                self._handle(event)
        return [responses[number] for number in range(len(requests))]

    def answer_pings(self, until: float) -> None:
        """Handle the messages that the server has sent since the last request, such as pings.

        until: when the answers must have been sent, by time.monotonic().
        Raises OSError, ProtocolError or Disconnected. Then the connection cannot be used any more,
        for example because the server has ended it.
        """
        self.socket.setblocking(False)
        try:
            while True:
                self._receive()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        self.socket.settimeout(_socket_timeout(until))
        while self._events:
            self._handle(self._events.pop())

    def _handle(self, event: NatsEvent) -> None:
        """Answer a ping, and raise the error that the server reports. Ignore other events."""
        if isinstance(event, Ping):
            self.socket.sendall(b"PONG\r\n")
        elif isinstance(event, ServerError):
            if event.is_refusal:
                raise PermissionsViolation(event.text)
            raise Disconnected(event.text)

    def _next(self, until: float) -> NatsEvent:
        """Return the next event of the server. Raises TimeoutError if none comes before `until`."""
        while not self._events:
            left_s = until - time.monotonic()
            if left_s <= 0:
                # The first argument is the errno; errno_message() returns the second one.
                raise TimeoutError(None, "no answer in time")
            self.socket.settimeout(left_s)
            self._receive()
        return self._events.pop()

    def _receive(self) -> None:
        """Read once, and keep the events for _next()."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise Disconnected("the server disconnected")
        # _next() takes the last item of the list, which is the earliest event.
        self._events = [*reversed(self._parser.feed(data)), *self._events]


def _socket_timeout(until: float) -> float:
    """Return the seconds until a time of time.monotonic(), as a timeout of a socket."""
    # A socket raises ValueError for a negative timeout, and does not wait at all with 0.
    return max(0.001, until - time.monotonic())
