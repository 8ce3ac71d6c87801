"""EventStreams: the requests `events/stream` of a proxy's clients, and their notifications.

A client keeps the request `events/stream` open, and the server sends events for it as notifications
(the draft "triggers and events" for MCP). The `_meta` of a notification contains the id of the
request: in the server's notification, the id with which the proxy has forwarded the request. The
proxy finds the open request by this id, and sends the notification on with the client's own id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Raw, Struct, field
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.backend.interface import Call, Context
from concertino.client.channel_ending import UnreadRequest
from concertino.client.client import Client
from concertino.errors import INTERNAL_ERROR, ConcertinoError, RpcError
from concertino.protocol.wanted_updates import SUBSCRIPTION
from concertino.proxy.failures import to_rpc_error

__all__ = ["EventStreams"]

# How many bytes of notifications may wait for a client that reads slowly. A single notification may
# be larger.
MAX_WAITING_BYTES = 2**20


class _Notification(Struct):
    """A notification that waits to be sent.

    size: the length of its params in bytes.
    """

    method: str
    params: dict[str, Any]
    size: int


class _Stream(Struct, eq=False):
    """The notifications that wait for the client of one open request.

    size: the length of the waiting notifications in bytes.
    has_news: set when a notification or the response has arrived.
    """

    waiting: deque[_Notification] = field(default_factory=deque[_Notification])
    size: int = 0
    has_news: asyncio.Event = field(default_factory=asyncio.Event)


class EventStreams:
    """Forwards the requests `events/stream` of a proxy's clients to one server.

    The server sends notifications for such a request until the request ends. len() of this object
    is the number of open requests.

    name: the name of the server, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Id of the request at the server -> the request.
        self._streams: dict[int, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def forward(self, client: Client, call: Call, context: Context) -> Raw:
        """Forward a request to the server, and send the server's notifications to the client.

        Waits until the server answers the request, and returns the server's result. To end the
        request earlier, cancel the task that waits.
        client: the Client that is connected to the server.
        call, context: the request `events/stream`, and its Context.
        Raises RpcError if the server answers with an error or has ended, or if the client reads the
        notifications too slowly.
        """
        # Copy the params: hold_open() tells the runtime that this request stays open for long, and
        # the runtime then frees the message. Decode and encode the params, because a request over
        # HTTP may contain newlines, which separate messages over stdio.
        params = {name: Raw(encode(decode(value))) for name, value in call.params.items()}
        call = replace(call, params=params)
        caller = context.caller
        caller.hold_open()
        while True:
            try:
                raw = await self._forward_once(client, call, context)
            except UnreadRequest:
                # The server has ended before it read the request, so send the request again.
                continue
            except ConcertinoError as exc:
                raise to_rpc_error(self._name, exc, client.protocol_version) from None
            caller.pass_result(raw, client.protocol_version)
            return raw

    async def _forward_once(self, client: Client, call: Call, context: Context) -> Raw:
        """Send a request, pass notifications on until the response, and return the result.

        Raises ConcertinoError if the request fails.
        """
        stream = _Stream()

        def on_reply(_: object) -> None:
            stream.has_news.set()

        reply = client.begin_forward(call, context.client, level=None, callback=on_reply)
        if reply is None:
            # The server is being restarted, or does not read its input now. A ping waits until it
            # reads again.
            await client.ping()
            reply = client.begin_forward(call, context.client, level=None, callback=on_reply)
        if reply is None:
            raise RpcError(INTERNAL_ERROR, f"Internal error: {self._name}: send it again later")
        self._streams[reply.id] = stream
        try:
            while reply.outcome is None or stream.waiting:
                await stream.has_news.wait()
                stream.has_news.clear()
                await self._send_waiting(stream, context)
        finally:
            del self._streams[reply.id]
            # Cancels the request at the server. Does nothing if the request has its response.
            reply.give_up()
        if reply.failed:
            # The error says how long the request has waited.
            raise reply.error(asyncio.get_running_loop().time())
        return reply.outcome

    async def _send_waiting(self, stream: _Stream, context: Context) -> None:
        """Send the waiting notifications to the client.

        Raises RpcError if the client reads too slowly.
        """
        while stream.waiting:
            if stream.size > MAX_WAITING_BYTES and len(stream.waiting) > 1:
                text = (
                    f"more than {MAX_WAITING_BYTES} bytes of events wait for this client: read "
                    "faster, and send events/stream again with the last cursor"
                )
                raise RpcError(INTERNAL_ERROR, f"Internal error: {self._name}: {text}")
            item = stream.waiting.popleft()
            stream.size -= item.size
            await context.caller.notify(item.method, item.params)

    def deliver(self, method: str, params: Mapping[str, Any]) -> bool:
        """Queue a notification of the server for the client, if it belongs to `events/stream`.

        Returns whether it belongs to such a request: its `_meta` then contains the request's id. If
        this request is not open any more, drops the notification and returns True.
        method, params: the method and the decoded params of the notification.
        """
        meta: object = params.get("_meta")
        if not isinstance(meta, dict):
            return False
        id = cast("Mapping[str, object]", meta).get(SUBSCRIPTION)
        if id is None:
            return False
        stream = self._streams.get(id) if isinstance(id, int) else None
        # Nothing more is stored for a client that is too slow: _send_waiting() ends its request.
        if stream is not None and stream.size <= MAX_WAITING_BYTES:
            # Context.caller.notify() adds the `_meta` with the id of the client's request.
            rest = {name: value for name, value in params.items() if name != "_meta"}
            size = len(encode(rest))
            stream.waiting.append(_Notification(method, rest, size))
            stream.size += size
            stream.has_news.set()
        return True
