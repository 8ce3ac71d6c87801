"""connect(connection): the least that can call a server. Enough for tests and demos; the client is another issue's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.errors import METHOD_NOT_FOUND, Disconnected
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, Message
from concertino.jsonrpc.peer import IncomingRequest, Peer
from concertino.transports.connection import Connection

__all__ = ["RawClient", "connect"]

log = logging.getLogger("concertino.caller")
Notified = Callable[[str, dict[str, Any]], object]


def connect(
    connection: Connection, notified: Notified | None = None, limits: Limits | None = None
) -> RawClient:
    """Speak to a server over a connection, on the running loop. notified: called with every notification's method and params.

    Send `initialize` yourself, or the `_meta` of 2026-07-28 in every request. A request of the server's is answered with -32601,
    except `ping`. Call `aclose()` at the end.
    """
    caller = RawClient(connection, notified, limits or Limits())
    connection.open(caller)
    return caller


class RawClient:
    """The calling end of a connection. Made by connect()."""

    def __init__(self, connection: Connection, notified: Notified | None, limits: Limits) -> None:
        self._connection = connection
        self._notified = notified
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._over = False
        self.peer = Peer(self._send, limits, self._loop.time)
        self.peer.invalid_input.answered = False

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request and return its result, decoded.

        Raises RpcError for an error answer, ProtocolError for a malformed one, TimeoutError after timeout_s seconds (and tells the
        server that the request is cancelled, as it does when this task is), Disconnected when the connection ends first,
        ValueError when timeout_s is NaN.
        """
        if timeout_s is not None and isnan(
            timeout_s
        ):  # among asyncio's timers it would stop the others
            raise ValueError("timeout_s: expected seconds, got nan")
        if self._over:
            raise Disconnected("the connection is closed")
        future: asyncio.Future[Raw] = self._loop.create_future()

        def done(outcome: Raw | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        outgoing = self.peer.request(method, encode(params or {}), done, deadline)
        self._schedule_expiry()
        try:
            return decode(await future)
        except asyncio.CancelledError:
            self.peer.abandon(outgoing, "the caller gave up")
            raise

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        if not self._over:
            self.peer.notify(method, encode(params or {}))

    async def aclose(self, within_s: float = 2.0) -> None:
        """Flush for at most within_s seconds and close. Requests under way raise Disconnected."""
        self._lose()
        await self._connection.close(within_s)

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            event = self.peer.receive(frame)
            if isinstance(event, IncomingRequest):
                if event.method == "ping":
                    self.peer.respond(event, b"{}")
                else:
                    self.peer.fail(event, METHOD_NOT_FOUND, f"method not found: {event.method}")
            elif isinstance(event, Message) and self._notified is not None:
                try:
                    self._notified(str(event.method), decode(encode(event.params)))
                except Exception:
                    log.exception("the function that is told of notifications failed")

    def on_frame_too_long(self, size: int) -> None:
        log.warning("a message of more than %d bytes was discarded", self._limits.max_message_bytes)

    def on_drain(self, held: int) -> None:
        self.peer.on_drain(held)

    def on_eof(self) -> None:
        self._lose()

    def on_disconnect(self, why: Exception) -> None:
        self._lose()

    def _lose(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self.peer.close()

    def _send(self, frame: bytes, about: Id | None) -> int:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return self._connection.write(frame, about)

    def _flush(self) -> None:
        self._scheduled = False
        self._connection.flush()

    def _schedule_expiry(self) -> None:
        deadline = self.peer.next_deadline
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
