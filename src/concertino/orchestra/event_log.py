"""EventLog: the latest events of a hub. EventReader: the position of one subscriber in the log.

All subscribers read from one log, so a slow subscriber takes no memory. The log keeps at most
MAX_BYTES and drops the oldest events. A reader that is too slow learns how many events it has
missed. Events are numbered while the hub runs; the number of an event is its cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.orchestra.plugin_messages import EventDelivery, Publish, Subscribe, Timestamp
from concertino.orchestra.structs import InvalidStruct, unpack

__all__ = ["ANY_TOPIC", "EventLog", "EventReader", "InvalidEvent", "LoggedEvent"]

# The largest size of the log, and of one event, in bytes.
MAX_BYTES = 16 * 2**20
MAX_EVENT_BYTES = 2**20
# The size of an event without its content, as it is counted in the log.
EVENT_BYTES = 512
MAX_TOPIC = 256
MAX_FILTERS = 32
# The topic of a subscription to all topics.
ANY_TOPIC = "*"


class InvalidEvent(ConcertinoError):
    """An event or a subscription that the hub refuses. The text says why."""


class LoggedEvent(Struct, frozen=True, eq=False):
    """An event in the log.

    delivery: the message for subscribers.
    payload: the decoded payload, for filters.
    size: the size of the event as it is counted in the log, in bytes.
    """

    delivery: EventDelivery
    payload: Mapping[str, object]
    size: int


class EventLog:
    """The latest events. Use it on one event loop.

    Attributes:
    first, last: the numbers of the oldest event in the log and of the newest one.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: dict[int, LoggedEvent] = {}
        self._bytes = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.last = 0
        self.first = 1

    def append(self, event: Publish, source: str) -> None:
        """Add an event. source: the id of the plugin that has published it. Raises InvalidEvent."""
        _check_topic(event.topic)
        if event.topic == ANY_TOPIC:
            raise InvalidEvent(f"topic: {ANY_TOPIC!r} stands for all topics in subscriptions only")
        size = event.ByteSize() + EVENT_BYTES
        if size > MAX_EVENT_BYTES:
            raise InvalidEvent(f"expected an event of at most {MAX_EVENT_BYTES} bytes, got {size}")
        try:
            payload = unpack(event.payload, event.payload_json) if event.payload else {}
        except InvalidStruct as exc:
            raise InvalidEvent(f"payload: {exc}") from None
        self.last += 1
        now = Timestamp()
        now.GetCurrentTime()
        delivery = EventDelivery(
            topic=event.topic,
            event_type=event.event_type,
            source_plugin=source,
            timestamp=now,
            cursor=str(self.last),
        )
        if event.HasField("payload"):
            delivery.payload = event.payload
        if event.HasField("payload_json"):
            delivery.payload_json = event.payload_json
        self._events[self.last] = LoggedEvent(delivery, payload, size)
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= self._events.pop(self.first).size
            self.first += 1
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def get(self, number: int) -> LoggedEvent | None:
        """Return an event; None if the log no longer has it."""
        return self._events.get(number)

    async def wait(self) -> None:
        """Wait for the next event."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


class EventReader:
    """The position of one subscriber in a log. It begins after the newest event.

    subscribe: the topic and the filters, which are strings that members of the payload must equal.
        If it has a cursor (`after`), the position begins after that event instead.
    Raises InvalidEvent if the topic or the filters are not acceptable.
    """

    def __init__(self, log: EventLog, subscribe: Subscribe) -> None:
        _check_topic(subscribe.topic)
        if len(subscribe.filters) > MAX_FILTERS:
            raise InvalidEvent(f"filters: expected at most {MAX_FILTERS}")
        self.id = subscribe.subscription_id
        self._log = log
        self._topic = subscribe.topic
        self._filters = dict(subscribe.filters)
        self._position = log.last
        if (after := subscribe.after) and after.isdecimal():
            # A cursor from another hub, or from before a restart of this one, may be too large.
            self._position = min(int(after), log.last)

    async def next(self) -> EventDelivery:
        """Wait for the next event that the subscriber wants, and return it."""
        lost = 0
        while True:
            while self._position >= self._log.last:
                await self._log.wait()
            if self._position + 1 < self._log.first:
                lost += self._log.first - 1 - self._position
                self._position = self._log.first - 1
            self._position += 1
            event = self._log.get(self._position)
            if event is not None and self._wants(event):
                delivery = EventDelivery()
                delivery.CopyFrom(event.delivery)
                delivery.subscription_id, delivery.lost = self.id, lost
                return delivery

    def _wants(self, event: LoggedEvent) -> bool:
        """Return whether an event has the topic, and a payload that passes the filters."""
        if self._topic not in (ANY_TOPIC, event.delivery.topic):
            return False
        return all(event.payload.get(name) == text for name, text in self._filters.items())


def _check_topic(topic: str) -> None:
    """Raise InvalidEvent if a topic is empty or too long."""
    if not 0 < len(topic) <= MAX_TOPIC:
        raise InvalidEvent(f"topic: expected 1 to {MAX_TOPIC} characters, got {len(topic)}")
