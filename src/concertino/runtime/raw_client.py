"""connect(connection): a raw client, for tests, demos and programs that speak JSON-RPC themselves.

    async with connect(spawn(["python", "server.py"])) as client:
        await client.request("initialize", {...})

It sends JSON-RPC requests and notifications as they are: it makes no MCP handshake and has no types
for results. The full client is concertino.Client. A Peer (jsonrpc/peer.py) encodes the messages and
matches responses with requests; the Connection carries the messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isnan
from types import TracebackType
from typing import Any, Self

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.errors import METHOD_NOT_FOUND, Disconnected
from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, Message
from concertino.jsonrpc.peer import Peer
from concertino.runtime.pending import set_outcome
from concertino.transports.connection import Connection

__all__ = ["RawClient", "connect"]

log = logging.getLogger("concertino.raw_client")
# A function on_notification(method, params).
OnNotification = Callable[[str, dict[str, Any]], object]


def connect(
    connection: Connection, notified: OnNotification | None = None, limits: Limits | None = None
) -> RawClient:
    """Open a connection, and return a client that uses it on the running event loop.

        async with connect(spawn(["python", "server.py"])) as client:
            await client.request("initialize", {...})

    The client makes no MCP handshake: its user sends `initialize` first, or the `_meta` of
    MCP 2026-07-28 in every request. The client answers the server's `ping` with a result, and all
    other requests of the server with error -32601. Use it with `async with`, or call aclose() at
    the end.

    connection: a Connection that is not open yet, such as spawn(["python", "server.py"]).
    notified: a function called with the method and the params of each notification from the server;
        None ignores them.
    limits: limits the sizes and numbers of JSON-RPC messages; by default Limits().
    """
    client = RawClient(connection, notified, limits or Limits())
    connection.open(client)
    return client


class RawClient:
    """A client that sends JSON-RPC messages over one Connection; made by connect().

    It has request(), notify() and aclose(), and can be used with `async with`.
    peer: encodes the messages, and matches responses with requests.
    """

    def __init__(
        self,
        connection: Connection,
        on_notification: OnNotification | None,
        limits: Limits,
    ) -> None:
        self._connection = connection
        self._on_notification = on_notification
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        # The timer for the earliest deadline of a pending request.
        self._timer: asyncio.TimerHandle | None = None
        self._is_flush_scheduled = False
        self._closed = False
        self.peer = Peer(self._send, limits, self._loop.time)
        # A client must not answer malformed lines of a server, which are often its output by print.
        self.peer.invalid_input.answered = False

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and return its decoded result, which usually is a dict.

        params: the params of the request, sent as they are; None for {}.
        timeout_s: how long to wait for the response, in seconds; None waits until the connection
            ends.
        Raises RpcError for an error response, ProtocolError for a malformed response, TimeoutError
        after timeout_s seconds, Disconnected when the connection ends first, and ValueError when
        timeout_s is NaN.
        After a timeout, and if the task that awaits the result is cancelled, the client sends
        notifications/cancelled for the request.
        """
        # asyncio keeps its timers in a heap. A NaN there breaks the order and delays other timers.
        if timeout_s is not None and isnan(timeout_s):
            raise ValueError("timeout_s: expected seconds, got nan")
        if self._closed:
            raise Disconnected("the connection is closed")
        future: asyncio.Future[Raw] = self._loop.create_future()
        on_response = partial(set_outcome, future)
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        outgoing = self.peer.request(method, encode(params or {}), on_response, deadline)
        self._schedule_expiry()
        try:
            return decode(await future)
        except asyncio.CancelledError:
            self.peer.abandon(outgoing, "the caller gave up")
            raise

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. Does nothing if the connection is closed.

        params: the params of the notification, sent as they are; None for {}.
        """
        if not self._closed:
            self.peer.notify(method, encode(params or {}))

    async def aclose(self, within_s: float = 2.0) -> None:
        """Close the connection. Pending requests raise Disconnected.

        within_s: how long to wait until the buffered output is sent, in seconds.
        """
        self._end()
        await self._connection.close(within_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # The methods of Receiver, which the connection calls.

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            event = self.peer.receive(frame)
            if isinstance(event, IncomingRequest):
                if event.method == "ping":
                    self.peer.respond(event, b"{}")
                else:
                    self.peer.fail(event, METHOD_NOT_FOUND, f"method not found: {event.method}")
            # A Message is a notification; responses complete the futures of request().
            elif isinstance(event, Message) and self._on_notification is not None:
                try:
                    # The values of params are undecoded JSON; decode all of them at once.
                    self._on_notification(str(event.method), decode(encode(event.params)))
                except Exception:
                    log.exception("the callback for notifications failed")

    def on_frame_too_long(self, size: int) -> None:
        log.warning("a message of more than %d bytes was discarded", self._limits.max_message_bytes)

    def on_drain(self, held: int) -> None:
        self.peer.on_drain(held)

    def on_eof(self) -> None:
        self._end()

    def on_disconnect(self, exc: Exception) -> None:
        self._end()

    def _end(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.peer.close()

    def _send(self, frame: bytes, request_id: Id | None) -> int:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        return self._connection.write(frame, request_id)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._connection.flush()

    def _schedule_expiry(self) -> None:
        """Set the one timer of this client to the earliest deadline of all pending requests."""
        deadline = self.peer.outgoing.next_deadline
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline:
                return
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.peer.expire(self._loop.time())
        self._schedule_expiry()
