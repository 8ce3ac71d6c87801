"""EventLog: the latest events of a hub. EventReader: the position of one subscriber in the log.

A hub runs plugins, and passes on the events that they publish. HubEvents (hub_events.py) adds each
event that is published to the log. For each plugin, bridge and client that has subscribed, it reads
the log with an EventReader. All of them read the same log, so a slow subscriber takes no memory.
The log keeps at most MAX_BYTES. When it is full, it drops the oldest event of the publisher whose
events take most bytes, so that nobody can replace the events of others. A reader that is too slow
learns how many events it has missed.

A cursor stands for a position in the log. It contains the id of the log and the number of the event
before the position, so a cursor from before a restart of the hub is recognized.
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
]

# The largest size of the log, and of one event, in bytes.
MAX_BYTES = 16 * 2**20
MAX_EVENT_BYTES = 2**20
# How much memory an event takes besides its content. The log counts it with the content.
EVENT_BYTES = 512
# The longest topic, in characters, and how many topics the log remembers.
MAX_TOPIC = 256
MAX_TOPICS = 1000
# How many filters a subscription may have.
MAX_FILTERS = 32
# The largest size of the name and of the text of a filter, in characters.
MAX_FILTER = 1024
# How many numbers there are at most from the oldest event in the log to the newest one. Without
# this limit, a reader might have to pass any number of events that were dropped after the oldest.
MAX_NUMBERS = 100_000
# How many events a reader looks at before other tasks have a turn. It takes about 1 ms.
SCAN_EVENTS = 1000
# The topic of a subscription to all topics.
ANY_TOPIC = "*"
# A cursor: the id of the log, and the number of an event.
CURSOR = re.compile(r"([0-9a-f]{8})-(\d{1,19})")
# The value of EventDelivery.lost if events are missing, but it is not known how many.
UNKNOWN = -1


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


class _Publisher(Struct, eq=False):
    """The events of one publisher in the log. numbers: oldest first. size: their size in bytes."""

    numbers: deque[int] = field(default_factory=deque[int])
    size: int = 0


class EventLog:
    """The latest events of a hub. Use it on one event loop.

    Attributes:
    id: identifies the log in cursors.
    first, last: the numbers of the oldest event in the log and of the newest one. Events between
        them may have been dropped.
    last_at_start: the number of the newest event when the log began, which restart() sets. A new
        subscriber gets the events after it.
    topics: the topics of the newest events, also of dropped ones, at most MAX_TOPICS. The keys of
        the dict are an ordered set; the topic of the newest event is last.
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
        """Add an event. In a cluster, wait until it is stored.

        source: the id of the plugin that has published it.
        Raises InvalidEvent. In a cluster, raises Disconnected if the event could not be stored.
        """
        self.publish_soon(event, source)

    def publish_soon(self, event: Publish, source: str) -> None:
        """Add an event, without waiting.

        source: the id of the plugin that has published it.
        Raises InvalidEvent.
        """
        logged = log_event(event, source)
        self.add(self.last + 1, logged.delivery, logged.payload, logged.size)

    async def close(self) -> None:
        """Release what the log uses. This class uses nothing; derived classes may."""

    def add(
        self, number: int, delivery: EventDelivery, payload: Mapping[str, object], size: int
    ) -> None:
        """Add an event with its number, unless the log has an event with this or a higher number.

        delivery: the message for subscribers. This method sets its cursor.
        payload: the decoded payload.
        size: how many bytes of the log the event takes.
        """
        if number <= self.last:
            return
        if number > self.last + 1:
            # Events before this one are missing. A log has no gaps, so it begins anew here.
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
        """Remember a topic as the one that was used last."""
        self.topics.pop(topic, None)
        self.topics[topic] = None
        if len(self.topics) > MAX_TOPICS:
            del self.topics[next(iter(self.topics))]

    def restart(self, id: str, first: int, last: int) -> None:
        """Begin a new log.

        id: identifies it.
        first: the number of its first event.
        last: the number of the newest event that has already happened. The caller adds the events
            up to it afterwards, but only subscribers with a cursor get them.
        """
        self.id = id
        self._clear(first)
        self.last, self.last_at_start = first - 1, last
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
        """Return the cursor with which a reader goes on after an event.

        number: the number of the event; 0 to begin with the first event.
        """
        return f"{self.id}-{number}"

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


def _size_of(publisher: _Publisher) -> int:
    return publisher.size


class EventReader:
    """The position of one subscriber in a log. It begins after the newest event.

    subscribe: the topic and the filters of the subscription. A filter is a string that a member of
        the payload must equal. If the subscription has a cursor (`after`), the reader begins at its
        position. With a cursor of another log, the reader begins with the oldest event.
    Raises InvalidEvent if the topic or the filters are not valid.
    """

    def __init__(self, log: EventLog, subscribe: Subscribe) -> None:
        _check_topic(subscribe.topic)
        if len(subscribe.filters) > MAX_FILTERS:
            raise InvalidEvent(f"filters: expected at most {MAX_FILTERS}")
        if any(max(len(name), len(text)) > MAX_FILTER for name, text in subscribe.filters.items()):
            raise InvalidEvent(f"filters: expected at most {MAX_FILTER} characters each")
        self.id = subscribe.subscription_id
        self._log = log
        self._topic = subscribe.topic
        self._filters = dict(subscribe.filters)
        self._log_id = log.id
        # Whether the subscriber wants new events only.
        self._is_live = not subscribe.after
        self._position = max(log.last, log.last_at_start)
        # How many events before the position were missed, and not reported yet to the subscriber.
        self._lost = 0
        if subscribe.after:
            cursor = CURSOR.fullmatch(subscribe.after)
            if cursor is not None and cursor[1] == log.id:
                self._position = int(cursor[2])
            else:
                self._position, self._lost = log.first - 1, UNKNOWN

    async def next(self) -> EventDelivery:
        """Wait for the next event that the subscriber wants, and return it."""
        while (event := self.take()) is None:
            await self.wait()
        return event

    async def wait(self) -> None:
        """Wait until take() has something to do: until the log has another event.

        If take() has not looked at all events yet, this only lets other tasks run.
        """
        if self.is_behind:
            await asyncio.sleep(0)
        else:
            await self._log.wait()

    @property
    def is_behind(self) -> bool:
        """Whether take() has not looked at all events of the log."""
        return self._position < self._log.last

    @property
    def has_gap(self) -> bool:
        """Whether events before the next one were missed, and were not reported yet."""
        self._follow_restart()
        return self._lost != 0 or (self.is_behind and self._log.get(self._position + 1) is None)

    def take(self) -> EventDelivery | None:
        """Return the next event that the subscriber wants; None if there is none yet.

        Looks at SCAN_EVENTS events at most, and none behind a gap between them. So None may also
        mean that there are more events to look at; then `is_behind` is true.
        """
        self._follow_restart()
        self._skip_dropped()
        for _ in range(SCAN_EVENTS):
            event = self._log.get(self._position + 1)
            # At the end of the log, or before a gap, which has_gap reports first.
            if event is None:
                break
            self._position += 1
            if self._wants(event):
                delivery = EventDelivery()
                delivery.CopyFrom(event.delivery)
                delivery.subscription_id = self.id
                delivery.lost, self._lost = self._lost, 0
                return delivery
        return None

    def take_position(self) -> EventDelivery:
        """Return the position of the subscriber, as an EventDelivery without topic.

        Its `cursor` is the position; `lost` is how many events before it were missed.
        """
        self._follow_restart()
        self._skip_dropped()
        lost, self._lost = self._lost, 0
        cursor = self._log.cursor_of(self._position)
        return EventDelivery(subscription_id=self.id, cursor=cursor, lost=lost)

    def _follow_restart(self) -> None:
        """Move to the beginning of the log if a new log has begun."""
        if self._log_id != self._log.id:
            self._log_id = self._log.id
            if self._is_live:
                # A subscriber at position 0 came before the first event, and has missed nothing.
                self._lost = UNKNOWN if self._position else 0
                self._position = self._log.last_at_start
            else:
                self._position, self._lost = self._log.first - 1, UNKNOWN

    def _skip_dropped(self) -> None:
        """Pass the next events as far as they were dropped, and count them as missed.

        Passes SCAN_EVENTS of them at most, besides those before the oldest event of the log.
        """
        before = self._position
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
    """Return an event as it is logged, without its cursor. Raises InvalidEvent.

    source: the id of the plugin that has published it.
    """
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


def _check_topic(topic: str) -> None:
    """Raise InvalidEvent if a topic is empty or too long."""
    if not 0 < len(topic) <= MAX_TOPIC:
        raise InvalidEvent(f"topic: expected 1 to {MAX_TOPIC} characters, got {len(topic)}")
