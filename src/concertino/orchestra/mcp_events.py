"""McpEvents: the events of a hub for MCP clients, as the triggers-and-events draft describes them.

A hub runs plugins, and passes on the events that they publish. A client lists the topics of events
(`events/list`). Then the client requests events now and then (`events/poll`), or keeps a request
open during which events arrive as notifications (`events/stream`). For a hub, the terms of the
draft mean:

- An event type is a topic of the hub.
- The arguments of a subscription are filters: each names a key of an event's payload, and the
  string that the value of the key must equal.
- A cursor is a position between two events in the hub's EventLog. With the cursor of its last
  event, a client misses no event after the loss of a connection.

HubBackend passes these requests on to McpEvents. For each request, McpEvents opens a stream of
events at the hub (hub_events.py), and ends the stream with the request.
Source: github.com/modelcontextprotocol/experimental-ext-triggers-events,
docs/design-sketch-proposal.md (docs/decisions/0119-event-names-and-cursors-of-the-mcp-draft.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from datetime import UTC
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import encode

from concertino.backend.caller import Caller
from concertino.backend.interface import Call, Context
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, INVALID_PARAMS, ConcertinoError, RpcError
from concertino.orchestra.client_events import RETRY_S, STREAM_S, WATCHED_TOPIC, OpenStream
from concertino.orchestra.event_log import CURSOR
from concertino.orchestra.hub_events import INVALID, UNKNOWN_TOPIC
from concertino.orchestra.plugin_messages import (
    DecodeError,
    EventDelivery,
    ListEventsRequest,
    PluginRequest,
    PluginResponse,
    StreamStart,
    Subscribe,
    ToolResponse,
)
from concertino.orchestra.rpc_interface import TIMEOUT_S
from concertino.orchestra.streams import WINDOW_BYTES
from concertino.orchestra.structs import InvalidStruct, unpack
from concertino.protocol.principal import UNIX, Principal

__all__ = ["CAPABILITIES", "McpEvents"]

log = logging.getLogger("concertino.orchestra")

# The capability of the draft, without `listChanged`: a topic may appear in the list with its first
# event, and clients are not notified of new topics.
CAPABILITIES: Mapping[str, Any] = {"events": {}}

# The error codes of the draft that this module uses.
NOT_FOUND, FORBIDDEN, EXHAUSTED, UNSUPPORTED = -32011, -32012, -32013, -32014

# The limits of a response to events/poll: the number of events, and the number of bytes of all
# events together. The first event is sent even if it is larger than POLL_BYTES.
POLL_EVENTS = 1000
POLL_BYTES = 2**20
# The pause before the next poll, in milliseconds. Each response recommends it to the client.
NEXT_POLL_MS = 5000
# How many events/stream requests may be open: those of one user, and those of all users together.
# If the transport has not verified a user, each connection counts as a user.
MAX_STREAMS, MAX_STREAMS_TOTAL = 16, 64

# The largest integer that every JSON parser reads exactly (RFC 8259 section 6).
MAX_INTEGER = 2**53 - 1

# The keys of a payload may have any name, so every name is accepted as a filter.
_INPUT_SCHEMA = {
    "type": "object",
    "description": "Texts that members of the payload must equal",
    "additionalProperties": {"type": "string"},
}


class _Params(Struct, rename="camel"):
    """The params of events/poll and events/stream.

    name: the topic.
    arguments: the filters: key of an event's payload -> the string that its value must equal.
    cursor: the cursor after which the client wants events; None for events from now on.
    max_age_ms: the highest age of events of the past, in milliseconds; None for any age.
    max_events: how many events a poll returns at most; None for POLL_EVENTS.
    """

    name: str
    arguments: dict[str, str] = {}
    cursor: str | None = None
    max_age_ms: int | None = None
    max_events: int | None = None


class McpEvents:
    """Answers the requests `events/*` of MCP clients. A HubBackend owns it.

    ask: called with a PluginRequest and the client's call that causes the request. Sends the
        request to the hub, and returns the PluginResponse.
    open_stream: called with a PluginRequest that has a stream_start, and the time limit of the
        stream in seconds. Returns an async generator of the responses; None while the hub is down.

    Attribute:
    handlers: method -> the function that answers requests of this method, for all methods but
        events/list.
    """

    def __init__(
        self,
        ask: Callable[[PluginRequest, Call], Awaitable[PluginResponse]],
        open_stream: OpenStream,
    ) -> None:
        self._ask = ask
        self._open_stream = open_stream
        # The number of open events/stream requests of each client; see MAX_STREAMS.
        self._streams: Counter[object] = Counter()
        self.handlers: Mapping[str, Callable[[Call, Context], Awaitable[Raw]]] = {
            "events/poll": self._poll,
            "events/stream": self._stream,
            "events/subscribe": _refuse_webhook,
            "events/unsubscribe": _refuse_webhook,
        }

    async def list(self, call: Call) -> Raw:
        """Answer events/list with all topics of the hub, in a single page."""
        response = await self._ask(PluginRequest(list_events=ListEventsRequest()), call)
        # A hub that does not have this request, such as one in Go, has no events. Events of
        # WATCHED_TOPIC are for plugins, not for clients (_read_params()).
        topics = [name for name in response.list_events.topics if name != WATCHED_TOPIC]
        types = [
            {
                "name": topic,
                "delivery": ["push", "poll"],
                "inputSchema": _INPUT_SCHEMA,
                "payloadSchema": {"type": "object"},
            }
            for topic in topics
        ]
        return Raw(encode({"events": types}))

    async def _poll(self, call: Call, context: Context) -> Raw:
        """Answer events/poll with the events that have already happened."""
        params = _read_params(call)
        limit = min(params.max_events or POLL_EVENTS, POLL_EVENTS)
        events: list[Mapping[str, Any]] = []
        size = 0
        cursor = ""
        truncated = has_more = False
        reading = self._read(params, context.principal, params.cursor, TIMEOUT_S)
        async with aclosing(reading) as items:
            async for item, has_caught_up in items:
                if item.topic:
                    size += item.ByteSize()
                    has_more = len(events) == limit or (size > POLL_BYTES and bool(events))
                    if has_more:
                        break
                    events.extend(_occurrences(item))
                cursor = item.cursor
                truncated = truncated or item.lost != 0
                # The stream has sent all events that have happened, and would now wait for new
                # events.
                if has_caught_up and not item.topic:
                    break
        result = {
            "events": events,
            "cursor": cursor,
            "truncated": truncated,
            "hasMore": has_more,
            "nextPollMs": NEXT_POLL_MS,
        }
        return Raw(encode(result))

    async def _stream(self, call: Call, context: Context) -> Raw:
        """Answer events/stream: send notifications until the client cancels the request.

        If the connection to the hub is lost, send a notification that events are delayed. When the
        hub is back, go on after the last event.
        """
        params = _read_params(call)
        # Without a session, there is no connection on which notifications could be sent.
        if context.caller.session is None:
            raise _unsupported_error("deliveryMode", "push")
        with self._count_stream(context):
            # Only the client ends this request. A server that shuts down must not wait for it.
            context.caller.hold_open()
            delivery = _Delivery(context.caller, params.cursor)
            while True:
                try:
                    reading = self._read(params, context.principal, delivery.cursor, STREAM_S)
                    async with aclosing(reading) as items:
                        async for item, has_caught_up in items:
                            await delivery.send(item, has_caught_up)
                except ConcertinoError as exc:
                    # If the subscription has not begun, it has failed: the client gets the reason.
                    if not delivery.is_active:
                        raise
                    log.debug("the hub sends no events now: %s", exc)
                    await delivery.report(exc)
                    await asyncio.sleep(RETRY_S)

    @contextmanager
    def _count_stream(self, context: Context) -> Generator[None, None, None]:
        """Count an events/stream request as open inside this `with` block.

        Raises RpcError if the client, or all clients together, have too many.
        """
        user = context.principal.identity if context.principal else context.caller.session
        for limit, count in (
            (MAX_STREAMS, self._streams[user]),
            (MAX_STREAMS_TOTAL, self._streams.total()),
        ):
            if count >= limit:
                data = {"limit": "subscriptions", "max": limit}
                raise RpcError(EXHAUSTED, f"{limit} event streams are open", data)
        self._streams[user] += 1
        try:
            yield
        finally:
            self._streams[user] -= 1
            if not self._streams[user]:
                del self._streams[user]

    async def _read(
        self, params: _Params, principal: Principal | None, cursor: str | None, timeout_s: float
    ) -> AsyncGenerator[tuple[EventDelivery, bool], None]:
        """Yield the events that a user may get, and positions in the hub's log.

        Each item is a pair (event or position, has_caught_up):

        - A position is an EventDelivery without a topic. It has a cursor, up to which the hub has
          compared all events with the filters, and the number of events that were lost before this
          cursor. An event that is older than params.max_age_ms is yielded as a position with one
          lost event.
        - has_caught_up is False until all events that had happened before the subscription have
          been yielded.

        principal: the verified user of the client; None if there is none.
        cursor: the cursor to begin after; None to begin after the newest event.
        timeout_s: the time limit of the stream, in seconds.
        """
        oldest = time.time() - params.max_age_ms / 1000 if params.max_age_ms else 0.0
        has_caught_up = cursor is None
        is_first_position = True
        async with aclosing(self._open(params, cursor, timeout_s)) as items:
            async for item in items:
                if not item.topic:
                    # The hub sends a first position, the events of the past, and a position that
                    # ends the past. Positions between the events of the past have `lost`.
                    if not is_first_position and not item.lost:
                        has_caught_up = True
                    is_first_position = False
                    yield item, has_caught_up
                # Events for other users are skipped. They do not become positions: the client would
                # learn that their payloads pass its filters.
                elif _is_visible(item, principal):
                    if not has_caught_up and _time_of(item) < oldest:
                        item = EventDelivery(cursor=item.cursor, lost=1)
                    yield item, has_caught_up

    async def _open(
        self, params: _Params, cursor: str | None, timeout_s: float
    ) -> AsyncGenerator[EventDelivery, None]:
        """Open a stream at the hub, and yield the events and positions of a subscription.

        Raises RpcError if the hub cannot be reached, refuses the subscription or ends the stream,
        and if an event cannot be decoded. Raises ConcertinoError when the connection to the hub is
        lost.
        """
        subscribe = Subscribe(
            topic=params.name, filters=params.arguments, after=cursor or "", positions=True
        )
        start = StreamStart(subscribe=subscribe, window=WINDOW_BYTES)
        stream = self._open_stream(PluginRequest(stream_start=start), timeout_s)
        if stream is None:
            raise RpcError(INTERNAL_ERROR, "orchestrator: the hub cannot be reached now")
        async with aclosing(stream) as responses:
            async for response in responses:
                if response.HasField("stream_chunk"):
                    try:
                        event = EventDelivery.FromString(response.stream_chunk.data)
                    except DecodeError as exc:
                        text = f"orchestrator: an event of the hub cannot be decoded: {exc}"
                        raise RpcError(INTERNAL_ERROR, text) from None
                    yield event
                elif response.HasField("tool_call"):
                    raise _stream_refusal(response.tool_call)
                elif response.stream_end.error_code == UNKNOWN_TOPIC:
                    raise _not_found_error(params.name)
                elif response.stream_end.error_code == INVALID:
                    text = f"Invalid params: {response.stream_end.error_message}"
                    raise RpcError(INVALID_PARAMS, text)
        raise RpcError(INTERNAL_ERROR, "orchestrator: the stream of events has ended")


class _Delivery:
    """Sends the notifications of one events/stream request.

    caller: the client that has sent the request.
    cursor: the cursor in the request; None if the request has none.

    Attributes:
    cursor: the last cursor that was sent to the client; before that, the cursor in the request.
        None if there was no cursor yet.
    is_active: whether the client was notified that its subscription is active.
    """

    def __init__(self, caller: Caller, cursor: str | None) -> None:
        self.cursor = cursor
        self.is_active = False
        self._caller = caller
        # Whether the client was notified that the hub cannot be reached.
        self._is_reported = False
        # Whether events were lost since the client last got a position.
        self._truncated = False

    async def send(self, item: EventDelivery, has_caught_up: bool) -> None:
        """Send an event, or a position in the hub's log, to the client.

        item: the event. An EventDelivery without a topic is a position.
        has_caught_up: whether all events that had happened before the subscription were sent.
        """
        self._is_reported = False
        if item.topic:
            if not self.is_active:
                await self._activate()
            self.cursor = item.cursor
            for occurrence in _occurrences(item):
                params = {**occurrence, "cursor": item.cursor}
                await self._caller.notify("notifications/events/event", params)
            return
        self.cursor = item.cursor
        self._truncated = self._truncated or item.lost != 0
        if self.is_active and not self._truncated:
            await self._caller.notify("notifications/events/heartbeat", {"cursor": self.cursor})
        # If events were lost, send `active` once more, because a heartbeat cannot say so.
        elif self.is_active or has_caught_up:
            await self._activate()

    async def _activate(self) -> None:
        """Notify the client that its subscription is active, and whether it has missed events."""
        params = {"cursor": self.cursor, "truncated": self._truncated}
        self.is_active, self._truncated = True, False
        await self._caller.notify("notifications/events/active", params)

    async def report(self, exc: ConcertinoError) -> None:
        """Notify the client that events are delayed, because the hub cannot be reached.

        exc: the error, whose text the client gets.
        """
        # Notify the client once between two events or positions.
        if self._is_reported:
            return
        self._is_reported = True
        code = exc.code if isinstance(exc, RpcError) else INTERNAL_ERROR
        error = {"code": code, "message": str(exc)}
        await self._caller.notify("notifications/events/error", {"error": error})


def _read_params(call: Call) -> _Params:
    """Return the params of events/poll or events/stream. Raises RpcError if they are not valid."""
    try:
        params = call.decode_params(_Params)
    except DECODE_ERRORS as exc:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {exc}") from None
    if params.cursor is not None and CURSOR.fullmatch(params.cursor) is None:
        raise RpcError(INVALID_PARAMS, "Invalid params: cursor: not one of this server's")
    for name, value in (("maxAgeMs", params.max_age_ms), ("maxEvents", params.max_events)):
        if value is not None and not 1 <= value <= MAX_INTEGER:
            text = f"Invalid params: {name}: expected 1 to {MAX_INTEGER}"
            raise RpcError(INVALID_PARAMS, text)
    # The draft has no subscription to all topics. Events of WATCHED_TOPIC name the resources to
    # which other clients have subscribed, which this client need not know.
    if params.name in ("*", WATCHED_TOPIC):
        raise _not_found_error(params.name)
    return params


def _time_of(event: EventDelivery) -> float:
    """Return when an event happened, in seconds since 1970."""
    return event.timestamp.seconds + event.timestamp.nanos / 1e9


def _is_visible(event: EventDelivery, principal: Principal | None) -> bool:
    """Return whether a user may get an event: the event has no audience, or the user is in it.

    An audience is the subject of an access token, or the URL of an issuer, a space and a subject of
    this issuer.
    """
    if not event.audience:
        return True
    if principal is None:
        return False
    # The subject of this principal is the user id of a process on a Unix socket, which cannot be
    # compared with the subject of an access token.
    if principal.issuer == UNIX:
        return False
    issuer, _, subject = event.audience.partition(" ")
    if subject and "://" in issuer:
        return (principal.issuer, principal.subject) == (issuer, subject)
    return principal.subject == event.audience


def _occurrences(event: EventDelivery) -> list[Mapping[str, Any]]:
    """Return a list of one event in the form of the draft, an EventOccurrence without the cursor.

    If the payload cannot be read, logs a warning, and returns an empty list.
    """
    try:
        payload = unpack(event.payload, event.payload_json) if event.HasField("payload") else {}
    except InvalidStruct as exc:
        log.warning("an event of %s cannot be read: %s", event.topic, exc)
        return []
    meta = {"orchestra/type": event.event_type, "orchestra/source": event.source_plugin}
    occurrence = {
        "eventId": event.cursor,
        "name": event.topic,
        "timestamp": event.timestamp.ToDatetime(UTC),
        "data": payload,
        "_meta": meta,
    }
    return [occurrence]


def _not_found_error(name: str) -> RpcError:
    return RpcError(NOT_FOUND, f"NotFound: no event {name[:80]!r}", {"kind": "event"})


def _stream_refusal(response: ToolResponse) -> RpcError:
    """Return the error for the client if the hub has answered a stream_start with a tool_call."""
    code = response.error_code
    # A hub without streams, such as one in Go, does not have this request.
    if code == "unknown_request":
        return _unsupported_error("events", code)
    return RpcError(INTERNAL_ERROR, f"orchestrator: {response.error_message or code}")


def _unsupported_error(feature: str, value: str) -> RpcError:
    data = {"feature": feature, "value": value}
    return RpcError(UNSUPPORTED, f"Unsupported: {feature} {value}", data)


async def _refuse_webhook(call: Call, context: Context) -> Raw:
    """Refuse a subscription by webhook: this server sends no requests to URLs that clients name.

    Raises RpcError in each case. As in the draft, its code depends on whether the user is
    authenticated.
    """
    if context.principal is None:
        raise RpcError(FORBIDDEN, "Forbidden: webhooks need an authenticated user")
    raise _unsupported_error("deliveryMode", "webhook")
