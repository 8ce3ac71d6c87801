"""EventStream: one stream of server-sent events of a session.

A session has one stream for each POST with requests, which carries the responses and the messages
before them, and one stream for messages that belong to no request. Events have ids, so that a
client that has lost its connection can request the events that it has missed. For this purpose, an
EventStore keeps the events that were sent, within limits.
Spec: 2025-11-25 basic/transports "Resumability and Redelivery".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import NamedTuple

from concertino.http.accepted import AcceptedForms
from concertino.http.exchange import Exchange
from concertino.http.responses import encode_event, encode_retry
from concertino.jsonrpc.messages import Id

__all__ = ["EventBudget", "EventStore", "EventStream", "parse_event_id"]

# The limits for the events kept for one session, and for all sessions of a server, in bytes.
SESSION_BYTES = 4 * 1024 * 1024
TOTAL_BYTES = 64 * 1024 * 1024
# The largest number of events kept for one session.
SESSION_EVENTS = 1000
# The form of a response that a client accepts if it opens a stream with GET: events only.
STREAM_ONLY = AcceptedForms(json=False, stream=True)


class EventBudget:
    """The memory for the events that all sessions of a server keep.

    limit_bytes: the limit for all of these events together, in bytes.

    Attributes:
    kept_bytes: the size of the events that are kept now. Each EventStore updates it.
    """

    def __init__(self, limit_bytes: int = TOTAL_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.kept_bytes = 0


class _StoredEvent(NamedTuple):
    """An event that a client may request again.

    stream: the number of its stream.
    number: its own number within the stream.
    frame: its data, the bytes of one JSON-RPC message.
    """

    stream: int
    number: int
    frame: bytes


class EventStore:
    """The events of one session that its client can request again after losing a connection.

    budget: counts the events of all sessions of the server.
    """

    def __init__(self, budget: EventBudget) -> None:
        self._budget = budget
        self._events: deque[_StoredEvent] = deque()
        self._bytes = 0

    def add(self, stream: int, number: int, frame: bytes) -> None:
        """Add an event. The oldest events of the session are removed to make room for it.

        The event is not kept if it is too large, or if other sessions have used up the budget.

        stream: the number of its stream.
        number: the number of the event in the stream.
        """
        budget = self._budget
        size = len(frame)
        while self._events and (
            self._bytes + size > SESSION_BYTES
            or budget.kept_bytes + size > budget.limit_bytes
            or len(self._events) >= SESSION_EVENTS
        ):
            self._drop_oldest()
        if size <= SESSION_BYTES and budget.kept_bytes + size <= budget.limit_bytes:
            self._events.append(_StoredEvent(stream, number, frame))
            self._bytes += size
            budget.kept_bytes += size

    def after(self, stream: int, number: int) -> Iterator[_StoredEvent]:
        """Return the kept events of a stream with numbers greater than this number."""
        return (event for event in self._events if event.stream == stream and event.number > number)

    def clear(self) -> None:
        """Drop all events."""
        while self._events:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        size = len(self._events.popleft().frame)
        self._bytes -= size
        self._budget.kept_bytes -= size


class EventStream:
    """One stream of events to a client.

    A client that loses its connection resumes the stream with another HTTP request. So a stream may
    be sent over several HTTP responses, one after the other.

    number: the number of the stream within its session. Event ids begin with this number.
    store: keeps the events.
    ids: the ids of the requests whose responses are sent on this stream; empty for the stream of
        messages that belong to no request.
    is_primed: whether a response begins with an event that only has an id, so that the client can
        resume the stream even if it gets no other event (2025-11-25).
    accepted: the forms of a response that the client accepts.

    Attributes:
    exchange: the HTTP response that carries the stream now; None while the client has none open.
    cancel: cancels the subscription of this stream; called when the client has closed the HTTP
        response. None without a running subscription. While it is set, events are not kept.
    """

    def __init__(
        self,
        number: int,
        store: EventStore,
        ids: Iterable[Id] = (),
        *,
        is_primed: bool = False,
        accepted: AcceptedForms = STREAM_ONLY,
    ) -> None:
        self.number = number
        self.ids = set(ids)
        self.accepted = accepted
        self.exchange: Exchange | None = None
        self.cancel: Callable[[], object] | None = None
        self._store = store
        self.is_primed = is_primed
        # The number of the newest event, and of the newest one that was sent; 0 before the first.
        self._last = 0
        self._last_sent = 0

    def attach(self, exchange: Exchange, on_disconnect: Callable[[], object]) -> None:
        """Send the stream on this HTTP response from now on. The previous response ends.

        exchange: the GET or POST of the client whose response carries the stream.
        on_disconnect: called when the client has closed this response before its end.
        """
        previous, self.exchange = self.exchange, exchange
        if previous is not None:
            previous.end_stream()
            previous.connection.flush()

        def on_lost() -> None:
            if self.exchange is exchange:
                self.exchange = None
                on_disconnect()
                if self.cancel is not None:
                    self.cancel()

        exchange.on_disconnect = on_lost

    @property
    def accepts_events(self) -> bool:
        """Whether events can be sent. They cannot if the client accepts only a JSON body."""
        return self.accepted.stream or (self.exchange is not None and self.exchange.is_stream)

    def open(self) -> None:
        """Begin the stream of events on the current response."""
        exchange = self.exchange
        if exchange is not None and not exchange.is_stream:
            exchange.open_stream()
            if self.is_primed:
                exchange.send_event(encode_event(b"", self._event_id(self._last)))

    def send(self, frame: bytes) -> None:
        """Send a frame (the bytes of a JSON-RPC message) as an event.

        The store keeps the event, within its limits, for a client that resumes the stream. While
        `cancel` is set, events are not kept.
        """
        self.open()
        self._last += 1
        # The many events of a subscription would evict the responses of other calls.
        if self.cancel is None:
            self._store.add(self.number, self._last, frame)
        if self.exchange is not None:
            self._last_sent = self._last
            self.exchange.send_event(encode_event(frame, self._event_id(self._last)))

    def resume(self, last_number: int | None = None) -> None:
        """Begin the current response with the events that the client has missed.

        last_number: the number of the last event that the client has received. By default, only the
            events added while no response was open are sent.
        """
        exchange = self.exchange
        if exchange is None:
            return
        if last_number is None:
            last_number = self._last_sent
        self._last_sent = self._last
        exchange.open_stream()
        for event in self._store.after(self.number, last_number):
            exchange.send_event(encode_event(event.frame, self._event_id(event.number)))

    def suspend(self, retry_s: float) -> None:
        """End the current response but not the stream, and tell the client to resume it later.

        retry_s: the time after which the client is to resume the stream, in seconds.
        """
        self.open()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_disconnect = None
            exchange.send_event(encode_retry(self._event_id(self._last), retry_s))
            exchange.end_stream()
            exchange.connection.flush()

    def end(self) -> None:
        """End the current response. It is 204 if the client accepts only JSON and got nothing."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_disconnect = None
            if self.accepted.stream:
                exchange.open_stream()
            if exchange.is_stream:
                exchange.end_stream()
            else:
                # For example, the client has cancelled its request.
                exchange.respond(HTTPStatus.NO_CONTENT)
            exchange.connection.flush()

    def _event_id(self, number: int) -> bytes:
        return b"%d-%d" % (self.number, number)


def parse_event_id(value: bytes) -> tuple[int, int] | None:
    """Return the number of the stream, and that of the event, in an event id such as `3-17`.

    Returns None if the id is malformed.
    """
    stream, _, number = value.partition(b"-")
    # No id of ours is longer than 40 bytes. int() would take long for a very long number.
    if not (stream.isdigit() and number.isdigit() and len(value) < 40):
        return None
    return int(stream), int(number)
