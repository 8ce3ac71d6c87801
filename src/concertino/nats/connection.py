"""NatsConnection: the connection to one NATS server. It does not reconnect; see NatsCluster.

    connection = await open_connection(server, options)
    sid = connection.subscribe("o.tools.*", on_message, queue="tools")
    connection.publish("o.notes.tools", payload, reply)

Output is collected for one iteration of the event loop, and written in one piece. A NATS server
disconnects a client that reads slower than others publish to it, so the callbacks of subscriptions
must return quickly.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import cast

from concertino.errors import Disconnected, ProtocolError
from concertino.nats.protocol import (
    NatsMessage,
    NatsParser,
    Ping,
    Pong,
    ServerError,
    ServerInfo,
    encode_connect,
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from concertino.nats.servers import NatsOptions, NatsServer, connect_members, tls_context
from concertino.transports.listeners import errno_message

__all__ = ["MessageCallback", "NatsConnection", "NotAuthorized", "open_connection"]

log = logging.getLogger("concertino.nats")

# The time limit for connecting, including TLS and authentication, in seconds.
CONNECT_S = 5.0
# The time between two pings, in seconds. If the server sends nothing in this time, the connection
# is ended.
PING_S = 2.0
# If more output than this is buffered, because the server reads too slowly, the functions in
# on_full are called with True.
HIGH_WATER_BYTES = 2**20
# If more output than this is buffered, the connection is ended, so that memory does not grow
# without limit.
MAX_UNSENT_BYTES = 128 * 2**20


class NotAuthorized(Disconnected):
    """The server does not accept this client. The text is the server's error message."""


MessageCallback = Callable[[NatsMessage], None]
"""The function of a subscription, which is called with each message."""


async def open_connection(
    server: NatsServer, options: NatsOptions, timeout_s: float = CONNECT_S
) -> NatsConnection:
    """Connect to a server, authenticate, and return the connection.

    server: the address of the server.
    options: the options of the connection, such as TLS settings and a key.
    timeout_s: the time limit for connecting and authenticating together, in seconds.
    Raises:
        Disconnected: the server cannot be reached in this time, or does not accept messages as long
            as options.max_message_bytes.
        NotAuthorized: the server refuses this client.
        ImportError: the options have a key, and the extra `nats` is not installed.
        ConcertinoError: the key in the options is not valid.
    """
    loop = asyncio.get_running_loop()
    connection = NatsConnection(server, loop)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, server.host, server.port)
            await connection.authenticate(options)
    except TimeoutError:
        connection.abort(f"no answer within {timeout_s:g} s")
        raise Disconnected(f"{server}: no answer within {timeout_s:g} s") from None
    except OSError as exc:
        connection.abort(str(exc))
        raise Disconnected(f"{server}: {errno_message(exc)}") from None
    except BaseException:
        connection.abort("the connection was not completed")
        raise
    return connection


class NatsConnection(asyncio.Protocol):
    """A connection to a server. Create it with open_connection(); use it on one event loop.

    Attributes:
    server: the server's address.
    info: the server's last INFO message.
    ended: a future that is done when the connection has ended. Its result says why.
    on_info: the function to call with each INFO message after the first. In such a message, the
        server reports a change, for example that it is about to shut down.
    on_refusal: functions to call with the error text when the server does not permit a publish or
        subscribe of this client. The connection stays open.
    on_full: functions to call with True when callers should stop publishing, because too much
        output is buffered, and with False when they may go on.
    """

    def __init__(self, server: NatsServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.info = ServerInfo()
        self.ended: asyncio.Future[str] = loop.create_future()
        self.on_info: Callable[[ServerInfo], None] = _ignore
        self.on_refusal: list[Callable[[str], None]] = []
        self.on_full: list[Callable[[bool], None]] = []
        self._loop = loop
        self._parser = NatsParser()
        self._transport: asyncio.Transport | None = None
        # The number of a subscription (sid) -> its callback.
        self._callbacks: dict[int, MessageCallback] = {}
        self._last_sid = 0
        # Output to be written at the end of this loop iteration.
        self._output: list[bytes] = []
        # One item for each ping without a pong, oldest first: the future of flush() or
        # unsubscribe(), or None for a ping of the timer.
        self._pongs: list[asyncio.Future[None] | None] = []
        # A future that is done when the first INFO message has arrived; None after authenticate()
        # has awaited it.
        self._info_arrived: asyncio.Future[None] | None = loop.create_future()
        self._ping_timer: asyncio.TimerHandle | None = None
        # Whether anything has arrived since the last ping of the timer.
        self._has_received = False

    # Publish and subscribe

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """Publish a message. Does not wait: the output is buffered.

        payload: the content. Check that it has at most info.max_payload bytes: the server ends the
            connection if it is longer.
        reply: the subject for responses; empty if no response is expected.
        headers: the encoded headers, from the line `NATS/1.0` to the empty line at the end; empty
            for no headers.
        Raises Disconnected if the connection has ended.
        """
        self._write(encode_publish(subject, payload, reply, headers))

    def subscribe(self, subject: str, callback: MessageCallback, queue: str = "") -> int:
        """Call a function for each message of a subject. Returns the subscription's number.

        subject: may contain the wildcards of NATS: `*` for one token, `>` for all tokens to the
            end.
        callback: called with each message, on the event loop. It must return quickly.
        queue: the name of a queue group. The server delivers each message to only one of the
            clients that subscribe with the same name. "" to get all messages.
        Raises Disconnected if the connection has ended.
        """
        self._last_sid += 1
        self._callbacks[self._last_sid] = callback
        self._write(encode_subscribe(subject, self._last_sid, queue))
        return self._last_sid

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. Messages that the server has already sent are still delivered.

        Does nothing if the connection has ended.
        sid: the number of the subscription, from subscribe().
        """
        if self.ended.done():
            return
        # The server sends no more messages of the subscription after its pong.
        pong = self._send_and_ping(encode_unsubscribe(sid))
        pong.add_done_callback(lambda _: self._callbacks.pop(sid, None))

    async def flush(self) -> None:
        """Wait until the server has handled everything that was sent.

        Raises Disconnected if the connection ends first.
        """
        await self._send_and_ping()

    def _send_and_ping(self, data: bytes = b"") -> asyncio.Future[None]:
        """Send data and a ping. Returns a future for the pong, which fails with Disconnected."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(pong)
        self._write(data + b"PING\r\n")
        return pong

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of output wait in this process, because the server reads slowly."""
        waiting = sum(map(len, self._output))
        return waiting if self._transport is None else waiting + self._buffer_size()

    def _buffer_size(self) -> int:
        return cast("asyncio.Transport", self._transport).get_write_buffer_size()

    # The end

    def begin_close(self) -> None:
        """Begin to send the remaining output and to disconnect, without waiting. See close()."""
        if not self.ended.done() and self._transport is not None:
            self._flush_output()
            self._transport.close()

    async def close(self) -> None:
        """Send the remaining output, and disconnect. Takes at most a second.

        Output that the server has not read by then is dropped.
        """
        if not self.ended.done():
            self.begin_close()
            # A server that does not read must not hold up the end of this process.
            await asyncio.wait((self.ended,), timeout=1.0)
            self.abort("the connection was closed")

    def abort(self, reason: str) -> None:
        """Disconnect at once, and drop the remaining output.

        reason: becomes the result of `ended`.
        """
        # asyncio's transport cannot be aborted after it has ended.
        if self._transport is not None and not self.ended.done():
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        """Handle the end of the connection: fail the futures that wait for the server."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        # The server's error for a client that it does not accept is "Authorization Violation".
        is_refusal = reason.lower().startswith("authorization")
        kind = NotAuthorized if is_refusal else Disconnected
        failure = kind(f"{self.server}: {reason}")
        waiters = [pong for pong in self._pongs if pong is not None]
        if self._info_arrived is not None:
            waiters.append(self._info_arrived)
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(failure)
                # Mark the exception as retrieved. Otherwise asyncio would log an error if the task
                # that waited was cancelled.
                waiter.exception()
        self._callbacks.clear()
        self._output.clear()

    # The opening

    async def authenticate(self, options: NatsOptions) -> None:
        """Open the connection: wait for INFO, begin TLS if needed, and send CONNECT.

        Only open_connection() calls this method. The docstring there describes the errors.
        options: the options of the connection, such as TLS settings and a key.
        """
        await cast("asyncio.Future[None]", self._info_arrived)
        self._info_arrived = None
        if self.info.max_payload < options.max_message_bytes:
            raise Disconnected(
                f"{self.server}: its max_payload is {self.info.max_payload}, and must be at least "
                f"{options.max_message_bytes}"
            )
        context = tls_context(self.server, options, self.info)
        if context is not None:
            await self._start_tls(context, options.server_name or self.server.host)

        members = connect_members(self.server, options, self.info.nonce)
        self._write(encode_connect(members))
        # Wait until the server answers a ping. If it refuses this client, flush() raises the
        # reason.
        await self.flush()
        # The server may also answer the ping first, and refuse this client right after that.
        self._raise_if_ended()
        self._ping_timer = self._loop.call_later(PING_S, self._ping)

    async def _start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Begin TLS on the connection. Raises Disconnected if the handshake fails."""
        transport = cast("asyncio.Transport", self._transport)
        try:
            secure = await self._loop.start_tls(
                transport, self, context, server_hostname=server_name
            )
        except ssl.SSLError as exc:
            raise Disconnected(f"{self.server}: the TLS handshake failed: {exc}") from None
        if secure is None:
            raise Disconnected(f"{self.server}: the server disconnected in the TLS handshake")
        # Reset the limit of encrypted bytes to asyncio's small default, so that most output waits
        # before the encryption, where _buffer_size() counts it.
        transport.set_write_buffer_limits()
        secure.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._transport = secure

    def _ping(self) -> None:
        """Send a ping, or disconnect if the server has sent nothing since the last ping."""
        # A server that has sent something is alive, even if its pong was not read yet, because this
        # process may be slow to read.
        if None in self._pongs and not self._has_received:
            self.abort(f"no answer to a ping within {PING_S:g} s")
            return
        self._has_received = False
        self._pongs.append(None)
        self._write(b"PING\r\n")
        self._ping_timer = self._loop.call_later(PING_S, self._ping)

    # Output

    def _raise_if_ended(self) -> None:
        if self.ended.done():
            raise Disconnected(f"{self.server}: {self.ended.result()}")

    def _write(self, data: bytes) -> None:
        """Queue output, which is written at the end of this loop iteration.

        Raises Disconnected if the connection has ended.
        """
        # The test saves a call for each write.
        if self.ended.done():
            self._raise_if_ended()
        if not self._output:
            self._loop.call_soon(self._flush_output)
        self._output.append(data)

    def _flush_output(self) -> None:
        if self._output and self._transport is not None:
            data = b"".join(self._output)
            self._output.clear()
            self._transport.write(data)
            if self._buffer_size() > MAX_UNSENT_BYTES:
                self.abort(f"the server has not read {MAX_UNSENT_BYTES} bytes")

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the server disconnected")

    def pause_writing(self) -> None:
        for callback in self.on_full:
            callback(True)

    def resume_writing(self) -> None:
        for callback in self.on_full:
            callback(False)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the server, and handle the messages and events in them."""
        self._has_received = True
        try:
            events = self._parser.feed(data)
        except ProtocolError as exc:
            self.abort(str(exc))
            return
        callbacks = self._callbacks
        for event in events:
            if type(event) is NatsMessage:
                callback = callbacks.get(event.sid)
                if callback is not None:
                    callback(event)
            elif isinstance(event, Ping):
                self._answer_ping()
            elif isinstance(event, Pong):
                self._on_pong()
            elif isinstance(event, ServerInfo):
                self._on_info(event)
            elif isinstance(event, ServerError):
                self._on_error(event)

    def _answer_ping(self) -> None:
        if not self.ended.done():
            self._write(b"PONG\r\n")

    def _on_pong(self) -> None:
        if self._pongs:
            waiter = self._pongs.pop(0)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _on_info(self, info: ServerInfo) -> None:
        """Store an INFO message, which the server sends at the beginning and after changes."""
        self.info = info
        if self._info_arrived is not None:
            if not self._info_arrived.done():
                self._info_arrived.set_result(None)
        else:
            self.on_info(info)

    def _on_error(self, error: ServerError) -> None:
        """Report a refusal of the server, and end the connection after any other error."""
        if error.is_refusal:
            log.warning("%s: %s", self.server, error.text)
            for callback in self.on_refusal:
                callback(error.text)
        else:
            self.abort(error.text)


def _ignore(value: object) -> None:
    pass
