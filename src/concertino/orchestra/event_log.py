"""EventLog: the latest events of a hub. EventReader: the position of one subscriber in the log.

A hub runs plugins, and passes on the events that they publish. HubEvents (hub_events.py) adds each
event that is published to the log. For each plugin, bridge and client that has subscribed, it reads
the log with an EventReader. All of them read the same log, so a slow subscriber takes no memory.
The log keeps at most MAX_BYTES. When it is full, it drops the oldest event of the publisher whose
events take most bytes, so that nobody can replace the events of others. A reader that is too slow
learns how many events it has missed.

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
    first, last: the numbers of the oldest event in the log and of the newest one. Events between
        them may have been dropped. Before the first event, `first` is larger than `last`.
    last_at_start: 0, unless restart() was called for a log that had events already. Then it is the
        number of the newest event at that time. A subscriber without a cursor gets the events after
        it.
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
        """Add an event to the log. In the derived class ClusterLog, wait until it is stored.

        source: the id of the plugin that has published it.
        Raises InvalidEvent if the event is not valid. ClusterLog also raises Disconnected, if the
        event could not be stored.
        """
        self.publish_soon(event, source)

    def publish_soon(self, event: Publish, source: str) -> None:
        """Add an event to the log, without waiting.

        source: the id of the plugin that has published it; "" for the hub's own events.
        Raises InvalidEvent if the event is not valid.
        """
        logged = log_event(event, source)
        self.add(self.last + 1, logged.delivery, logged.payload, logged.size)

    async def close(self) -> None:
        """Release what the log uses. This class does nothing; ClusterLog closes its stream."""

    def add(
        self, number: int, delivery: EventDelivery, payload: Mapping[str, object], size: int
    ) -> None:
        """Add an event to the log under a number, drop old events if needed, and wake the readers.

        Does nothing if there was an event with this or a higher number already.
        number: usually last + 1. With a higher number, the log drops all other events and begins
            with this one, because events before this one are missing.
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
        """Remember that this topic was used last."""
        self.topics.pop(topic, None)
        self.topics[topic] = None
        if len(self.topics) > MAX_TOPICS:
            del self.topics[next(iter(self.topics))]

    def restart(self, id: str, first: int, last: int) -> None:
        """Drop all events, and begin a new log.

        The caller then adds the events that the new log has already. Of these, only subscribers
        with a cursor get any.
        id: identifies the new log.
        first, last: the numbers of the oldest and of the newest of these events.
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
        """Return the cursor for the position directly after an event.

        number: the number of the event; 0 for the position before the first event.
        """
        return f"{self.id}-{number}"

    def get(self, number: int) -> LoggedEvent | None:
        """Return the event with this number; None if the log does not have it, or no longer."""
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
        - `topic`: the topic of the wanted events; "*" for all topics.
        - `filters`: key of an event's payload -> the string that its value must equal.
        - `after`: the cursor of the position where the reader begins. If it is empty, the reader
          begins after the newest event. If it is a cursor of another log, the reader begins before
          the oldest event.
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
        # The number of the event before the position.
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
        """Wait until take() may find another event. Call this when take() has returned None.

        If take() has not looked at all events of the log yet, this only lets other tasks run.
        """
        if self.is_behind:
            await asyncio.sleep(0)
        else:
            await self._log.wait()

    @property
    def is_behind(self) -> bool:
        """Whether the log has events at which take() has not looked yet."""
        return self._position < self._log.last

    @property
    def has_gap(self) -> bool:
        """Whether the subscriber has missed events directly after its position.

        take() or take_position() reports them in `lost`. Then this is False again.
        """
        self._follow_restart()
        return self._lost != 0 or (self.is_behind and self._log.get(self._position + 1) is None)

    def take(self) -> EventDelivery | None:
        """Return the next event that the subscriber wants; None if this call has found none.

        After None, the log has more events if `is_behind` is True: call take() again soon.
        Otherwise call wait() first. One call looks at SCAN_EVENTS events at most. It also stops
        before events that were dropped; the next calls pass them, SCAN_EVENTS at most in each.
        In the result, `lost` is how many events before it the subscriber has missed, UNKNOWN if
        that is not known.
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

        Its `cursor` is the position. Its `lost` is how many events before the position the
        subscriber has missed and was not told of yet; UNKNOWN if their number is not known.
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
                # A subscriber at position 0 came before the first event of the old log, and has
                # missed nothing.
                self._lost = UNKNOWN if self._position else 0
                self._position = self._log.last_at_start
            else:
                self._position, self._lost = self._log.first - 1, UNKNOWN

    def _skip_dropped(self) -> None:
        """Move the position behind the next events that were dropped, and count them as missed.

        This method passes all dropped events before the oldest event of the log. Of the later
        dropped events, it passes SCAN_EVENTS at most, so that other tasks have a turn.
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
    """Return an event as it is logged, without its cursor.

    source: the id of the plugin that has published it; "" for the hub's own events.
    Raises InvalidEvent if the topic or the payload is not valid, or if the event is too large.
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
