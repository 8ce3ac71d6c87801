"""EventLog: the latest events of a hub. EventReader: the position of one subscriber in the log.

A hub runs plugins, and passes on the events that they publish. HubEvents (hub_events.py) adds each
published event to the log. For each subscriber, HubEvents reads the log with an EventReader. All
subscribers read the same log, so a slow one takes no memory.

The log has at most MAX_BYTES. When it is full, it drops the oldest event of the publisher whose
events take most bytes, so that no publisher can replace the events of others. A reader that is too
slow learns how many events it has missed.

A cursor is a string that stands for a position in the log. It contains the id of the log and the
number of the event before the position. The log has a new id after a restart of the hub, so a
cursor of the old log is recognized.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Mapping

from msgspec import Struct, field

from concertino.errors import ConcertinoError
from concertino.orchestra.plugin_messages import EventDelivery, Publish, Subscribe, Timestamp
from concertino.orchestra.structs import InvalidStruct, unpack

__all__ = [
    "ANY_TOPIC",
    "CURSOR",
    "MAX_BYTES",
    "EventLog",
    "EventReader",
    "InvalidEvent",
    "LoggedEvent",
    "log_event",
    "unpack_payload",
]

# The largest size of the log, and of one event, in bytes.
MAX_BYTES = 16 * 2**20
MAX_EVENT_BYTES = 2**20
# How much memory an event takes besides its content. The size of a logged event includes it.
EVENT_BYTES = 512
# The longest topic, in characters.
MAX_TOPIC = 256
# How many topics the log remembers.
MAX_TOPICS = 1000
# How many filters a subscription may have.
MAX_FILTERS = 32
# The largest size of the name and of the text of a filter, in characters.
MAX_FILTER = 1024
# How many numbers there are at most from the oldest event in the log to the newest one. This limits
# how many dropped events a reader has to pass between the two.
MAX_NUMBERS = 100_000
# How many events a reader looks at before other tasks have a turn. It takes about 1 ms.
SCAN_EVENTS = 1000
# The topic of a subscription to all topics.
ANY_TOPIC = "*"
# A cursor: the id of the log, and the number of an event.
CURSOR = re.compile(r"([0-9a-f]{8})-(\d{1,19})")
# The value of EventDelivery.lost if an unknown number of events is missing.
UNKNOWN = -1


class InvalidEvent(ConcertinoError):
    """An event or a subscription that the hub refuses. The text says why."""


class LoggedEvent(Struct, frozen=True, eq=False):
    """An event in the log.

    delivery: the message for subscribers.
    payload: the decoded payload, for filters.
    size: how many bytes of the log the event takes.
    """

    delivery: EventDelivery
    payload: Mapping[str, object]
    size: int


class _Publisher(Struct, eq=False):
    """The events of one publisher in the log.

    numbers: the numbers of the events, oldest first.
    size: the size of these events together, in bytes.
    """

    numbers: deque[int] = field(default_factory=deque[int])
    size: int = 0


class EventLog:
    """The latest events of a hub, with ascending numbers. Use it on one event loop.

    max_bytes: the largest size of all events together.

    Attributes:
    id: identifies the log in cursors.
    first, last: the numbers of the oldest and of the newest event in the log. Events between them
        may have been dropped. In an empty log, `first` is last + 1.
    last_at_start: the number of the newest event that was published before this log began; 0 if
        there was none. Only subscribers with a cursor get the events up to this number, which the
        caller of restart() adds later.
    topics: the topics of the newest events, including dropped events, at most MAX_TOPICS. The keys
        of the dict are an ordered set; the topic of the newest event is last.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.id = secrets.token_hex(4)
        self.topics: dict[str, None] = {}
        self._max_bytes = max_bytes
        self._events: dict[int, LoggedEvent] = {}
        self._bytes = 0
        self._publishers: dict[str, _Publisher] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self.last = 0
        self.first = 1
        self.last_at_start = 0

    async def publish(self, event: Publish, source: str) -> None:
        """Add an event to the log. A ClusterLog waits until the cluster has stored the event.

        source: the id of the plugin that has published the event.
        Raises InvalidEvent if the event is not valid. A ClusterLog also raises Disconnected, if the
        event could not be stored.
        """
        self.publish_soon(event, source)

    def publish_soon(self, event: Publish, source: str) -> None:
        """Add an event to the log, without waiting.

        source: the id of the plugin that has published the event; "" for the hub's own events.
        Raises InvalidEvent if the event is not valid.
        """
        logged = log_event(event, source)
        self.add(self.last + 1, logged.delivery, logged.payload, logged.size)

    async def close(self) -> None:
        """Do nothing. ClusterLog, the derived class, closes its stream."""

    def add(
        self, number: int, delivery: EventDelivery, payload: Mapping[str, object], size: int
    ) -> None:
        """Add an event to the log under a number, drop old events if needed, and wake the readers.

        number: usually last + 1. With a higher number, events are missing; the log then drops all
            other events, and begins with this event. With a lower number, nothing is added.
        delivery: the message for subscribers. This method sets its cursor.
        payload: the decoded payload.
        size: how many bytes of the log the event takes.
        """
        if number <= self.last:
            return
        if number > self.last + 1:
            self._clear(number)
        self.last = number
        delivery.cursor = self.cursor_of(number)
        self._events[number] = LoggedEvent(delivery, payload, size)
        publisher = self._publishers.setdefault(delivery.source_plugin, _Publisher())
        publisher.numbers.append(number)
        publisher.size += size
        self._bytes += size
        if delivery.topic:
            self._note_topic(delivery.topic)
        while self._bytes > self._max_bytes:
            self._drop(max(self._publishers.values(), key=_size_of))
        while self.last - self.first >= MAX_NUMBERS:
            # Drop the oldest event of the log.
            self._drop(self._publishers[self._events[self.first].delivery.source_plugin])
        self._wake()

    def _drop(self, publisher: _Publisher) -> None:
        """Drop the oldest event of a publisher."""
        event = self._events.pop(publisher.numbers.popleft())
        publisher.size -= event.size
        self._bytes -= event.size
        if not publisher.numbers:
            del self._publishers[event.delivery.source_plugin]
        while self.first <= self.last and self.first not in self._events:
            self.first += 1

    def _note_topic(self, topic: str) -> None:
        """Move a topic to the end of `topics`."""
        self.topics.pop(topic, None)
        self.topics[topic] = None
        if len(self.topics) > MAX_TOPICS:
            del self.topics[next(iter(self.topics))]

    def restart(self, id: str, oldest: int, newest: int) -> None:
        """Drop all events, and begin a new log, which is empty until the caller adds events.

        id: identifies the new log.
        oldest, newest: the numbers of the oldest and of the newest event that were published before
            now. The caller must add these events. Only subscribers with a cursor get them.
        """
        self.id = id
        self._clear(oldest)
        self.last, self.last_at_start = oldest - 1, newest
        self._wake()

    def _clear(self, first: int) -> None:
        """Drop all events. first: the number of the oldest event that may follow."""
        self._events.clear()
        self._publishers.clear()
        self._bytes = 0
        self.first = first

    def _wake(self) -> None:
        """Wake the readers that wait."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def cursor_of(self, number: int) -> str:
        """Return the cursor for the position directly after an event.

        number: the number of the event; 0 for the position before the first event.
        """
        return f"{self.id}-{number}"

    def get(self, number: int) -> LoggedEvent | None:
        """Return the event with this number; None if the log does not have the event."""
        return self._events.get(number)

    async def wait(self) -> None:
        """Wait until the next event is added, or until restart() begins a new log."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


def _size_of(publisher: _Publisher) -> int:
    return publisher.size


class EventReader:
    """Reads the events of a log for one subscriber, from a position that moves forward.

        reader = EventReader(log, subscribe)
        event = await reader.next()

    subscribe: the subscription:
        - `topic`: the topic of the events; "*" for all topics.
        - `filters`: key of an event's payload -> the string that the value of the key must equal.
        - `after`: the cursor of the position where the reader begins. With an empty string, the
          reader gets only events that are published from now on. With a cursor of another log, the
          reader begins before the oldest event.
    Raises InvalidEvent if the topic or the filters are not valid.

    Attribute:
    subscription_id: the id of the subscription, which each result of take() contains.
    """

    def __init__(self, log: EventLog, subscribe: Subscribe) -> None:
        _check_topic(subscribe.topic)
        if len(subscribe.filters) > MAX_FILTERS:
            raise InvalidEvent(f"filters: expected at most {MAX_FILTERS}")
        if any(max(len(name), len(text)) > MAX_FILTER for name, text in subscribe.filters.items()):
            raise InvalidEvent(f"filters: expected at most {MAX_FILTER} characters each")
        self.subscription_id = subscribe.subscription_id
        self._log = log
        self._topic = subscribe.topic
        self._filters = dict(subscribe.filters)
        self._log_id = log.id
        # Whether the subscription began without a cursor, so that the subscriber gets new events
        # only.
        self._is_live = not subscribe.after
        # The number of the event before the position. After a restart, `last` is smaller than
        # last_at_start until the caller has added the old events.
        self._position = max(log.last, log.last_at_start)
        # How many events before the position the subscriber has missed since the last event or
        # position that it got; UNKNOWN for an unknown number.
        self._lost = 0
        if subscribe.after:
            cursor = CURSOR.fullmatch(subscribe.after)
            if cursor is not None and cursor[1] == log.id:
                self._position = int(cursor[2])
            else:
                self._position, self._lost = log.first - 1, UNKNOWN

    async def next(self) -> EventDelivery:
        """Wait for the next event of the subscription, and return the event."""
        while (event := self.take()) is None:
            await self.wait()
        return event

    async def wait(self) -> None:
        """Wait until take() may find another event. Call this after take() has returned None."""
        # If take() has not looked at all events of the log yet, only let other tasks run.
        if self.is_behind:
            await asyncio.sleep(0)
        else:
            await self._log.wait()

    @property
    def is_behind(self) -> bool:
        """Whether take() has not yet looked at all events of the log."""
        return self._position < self._log.last

    @property
    def has_gap(self) -> bool:
        """Whether the subscriber has missed events that are not reported yet.

        The next result of take() or take_position() reports their number in `lost`.
        """
        self._follow_restart()
        return self._lost != 0 or (self.is_behind and self._log.get(self._position + 1) is None)

    def take(self) -> EventDelivery | None:
        """Return the next event of the subscription; None if this call has found none.

        After None, call wait(), and then take() again. One call looks at 1,000 events at most. If
        the log has more events, `is_behind` is True after None, and wait() returns at once.
        In the result, `lost` is how many events the subscriber has missed before this event;
        UNKNOWN for an unknown number.
        """
        self._follow_restart()
        self._skip_dropped()
        for _ in range(SCAN_EVENTS):
            event = self._log.get(self._position + 1)
            # Stop at the end of the log, and before dropped events, which has_gap reports first.
            if event is None:
                break
            self._position += 1
            if self._wants(event):
                delivery = EventDelivery()
                delivery.CopyFrom(event.delivery)
                delivery.subscription_id = self.subscription_id
                delivery.lost, self._lost = self._lost, 0
                return delivery
        return None

    def take_position(self) -> EventDelivery:
        """Return the position of the subscriber, as an EventDelivery without topic.

        Its `cursor` is the position. Its `lost` is how many events the subscriber has missed since
        the last result of take() or take_position(); UNKNOWN for an unknown number.
        """
        self._follow_restart()
        self._skip_dropped()
        lost, self._lost = self._lost, 0
        cursor = self._log.cursor_of(self._position)
        return EventDelivery(subscription_id=self.subscription_id, cursor=cursor, lost=lost)

    def _follow_restart(self) -> None:
        """Move to the beginning of the log if a new log has begun."""
        if self._log_id != self._log.id:
            self._log_id = self._log.id
            if self._is_live:
                # A subscriber at position 0 has missed nothing, because the old log had no events.
                self._lost = UNKNOWN if self._position else 0
                self._position = self._log.last_at_start
            else:
                self._position, self._lost = self._log.first - 1, UNKNOWN

    def _skip_dropped(self) -> None:
        """Move the position behind the next events that were dropped, and count them as missed."""
        before = self._position
        # Pass all dropped events before the oldest event of the log. Of the later dropped events,
        # pass SCAN_EVENTS at most, so that other tasks have a turn.
        self._position = max(self._position, self._log.first - 1)
        for _ in range(SCAN_EVENTS):
            if not self.is_behind or self._log.get(self._position + 1) is not None:
                break
            self._position += 1
        if self._lost != UNKNOWN:
            self._lost += self._position - before

    def _wants(self, event: LoggedEvent) -> bool:
        """Return whether an event has the topic, and a payload that passes the filters."""
        if self._topic not in (ANY_TOPIC, event.delivery.topic):
            return False
        return all(event.payload.get(name) == text for name, text in self._filters.items())


def log_event(event: Publish, source: str) -> LoggedEvent:
    """Return an event as it is logged, without its cursor.

    source: the id of the plugin that has published the event; "" for the hub's own events.
    Raises InvalidEvent if the topic or the payload is not valid, or if the event is too large.
    """
    _check_topic(event.topic)
    if event.topic == ANY_TOPIC:
        raise InvalidEvent(f"topic: {ANY_TOPIC!r} stands for all topics in subscriptions only")
    size = event.ByteSize() + EVENT_BYTES
    if size > MAX_EVENT_BYTES:
        raise InvalidEvent(f"expected an event of at most {MAX_EVENT_BYTES} bytes, got {size}")
    try:
        payload = unpack_payload(event)
    except InvalidStruct as exc:
        raise InvalidEvent(f"payload: {exc}") from None
    now = Timestamp()
    now.GetCurrentTime()
    delivery = EventDelivery(
        topic=event.topic,
        event_type=event.event_type,
        source_plugin=source,
        timestamp=now,
        audience=event.audience,
    )
    if event.HasField("payload"):
        delivery.payload = event.payload
    if event.HasField("payload_json"):
        delivery.payload_json = event.payload_json
    return LoggedEvent(delivery, payload, size)


def unpack_payload(event: Publish | EventDelivery) -> Mapping[str, object]:
    """Return the decoded payload of an event; {} if it has none.

    Raises InvalidStruct if the payload cannot be decoded.
    """
    return unpack(event.payload, event.payload_json) if event.payload else {}


def _check_topic(topic: str) -> None:
    """Raise InvalidEvent if a topic is empty or too long."""
    if not 0 < len(topic) <= MAX_TOPIC:
        raise InvalidEvent(f"topic: expected 1 to {MAX_TOPIC} characters, got {len(topic)}")
