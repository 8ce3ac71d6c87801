"""SessionStreams: the streams of one session.

Sessions belong to the revisions before 2026-07-28. For each POST with JSON-RPC requests,
SessionConnection opens an EventStream in this table, and finds it again when a response is written.
A GET of the client opens the stream for messages that belong to no request, or resumes a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus

from concertino.http.accepted import AcceptedForms
from concertino.http.event_streams import EventBudget, EventStore, EventStream, parse_event_id
from concertino.http.exchange import Exchange
from concertino.http.options import Polling
from concertino.http.request_head import HttpError
from concertino.jsonrpc.messages import Id

__all__ = ["SessionStreams"]

# The number of the stream that the client opens with GET.
STANDALONE = 0


class SessionStreams:
    """The streams of one session.

    budget: limits the events that are kept for clients which lose a connection.
    on_stream_end: called when the client has closed the HTTP response of a stream, or when a stream
        is complete or suspended.
    polling: after which time the response to a POST is ended, so that the client has to resume its
        stream with a GET; None to keep responses open until their streams are complete.

    Attributes:
    standalone: the stream for messages that belong to no request. The client opens it with GET.
    """

    def __init__(
        self, budget: EventBudget, on_stream_end: Callable[[], object], polling: Polling | None
    ) -> None:
        self._polling = polling
        self._store = EventStore(budget)
        self._on_stream_end = on_stream_end
        self.standalone = EventStream(STANDALONE, self._store)
        self._count = STANDALONE
        # Number of a stream -> the stream, while it is not complete.
        self._streams: dict[int, EventStream] = {}
        # Id of a request -> the stream for its response.
        self._by_request: dict[Id, EventStream] = {}

    @property
    def is_in_use(self) -> bool:
        """Whether a call is running, or the client has a stream open."""
        return bool(self._streams) or self.standalone.exchange is not None

    def find(self, id: Id | None) -> EventStream | None:
        """Return the stream of the running request with this id; None if no such request runs."""
        return None if id is None else self._by_request.get(id)

    def open(
        self, exchange: Exchange, ids: Sequence[Id], accepted: AcceptedForms, *, is_primed: bool
    ) -> EventStream:
        """Return a new stream for the requests in a POST.

        exchange: the POST and the HTTP response to it.
        ids: the ids of the requests.
        accepted: the forms of a response that the client accepts.
        is_primed: whether the client gets an event id at once, with which it can resume the stream.
        Raises HttpError 400 if a running request has one of these ids.
        """
        for id in ids:
            if id in self._by_request:
                raise HttpError(HTTPStatus.BAD_REQUEST, f"the request id {id!r} is in use")
        self._count += 1
        stream = EventStream(self._count, self._store, ids, is_primed=is_primed, accepted=accepted)
        self._streams[self._count] = stream
        for id in ids:
            self._by_request[id] = stream
        stream.attach(exchange, self._on_stream_end)
        if is_primed and accepted.stream:
            self._suspend_later(stream, exchange)
        return stream

    def _suspend_later(self, stream: EventStream, exchange: Exchange) -> None:
        """End the HTTP response of a stream if the stream is not complete after polling.wait_s.

        This frees the connection. The client resumes the stream later, with a GET.
        """
        polling = self._polling
        if polling is None:
            return

        def suspend() -> None:
            # Only the stream of a subscription has `cancel`. It cannot be resumed.
            if stream.exchange is exchange and stream.cancel is None:
                stream.suspend(polling.retry_s)
                self._on_stream_end()

        timer = asyncio.get_running_loop().call_later(polling.wait_s, suspend)
        exchange.on_end = _call_both(exchange.on_end, timer.cancel)

    def finish(self, stream: EventStream, *ids: Id) -> None:
        """Remove requests from a stream, because they were responded to or cancelled.

        ids: the ids of the requests. Without any, all requests of the stream are removed.
        """
        for id in ids or list(stream.ids):
            stream.ids.discard(id)
            self._by_request.pop(id, None)
        if not stream.ids:
            self._streams.pop(stream.number, None)
            self._on_stream_end()

    def listen(self, exchange: Exchange) -> None:
        """Respond to a GET of the client, as SessionConnection.listen() says."""
        last_event = exchange.head.headers.get(b"last-event-id")
        if last_event is None:
            self.standalone.attach(exchange, self._on_stream_end)
            self.standalone.resume()
            return

        position = parse_event_id(last_event)
        if position is None or position[0] > self._count:
            raise HttpError(HTTPStatus.BAD_REQUEST, "Last-Event-ID: no event of this session")
        number, last_number = position
        # A subscription, whose stream has `cancel`, ends when its HTTP connection is lost, and
        # cannot be resumed. The server may notice the loss only now. cancel() removes the stream
        # from the table.
        if number in self._streams and (cancel := self._streams[number].cancel) is not None:
            cancel()
        stream = self.standalone if number == STANDALONE else self._streams.get(number)
        # A stream that is not in the table is complete, but the client may not have received its
        # end. So make a new EventStream, which sends the events of the old one that are still kept.
        is_complete = stream is None
        stream = stream or EventStream(number, self._store)
        stream.attach(exchange, self._on_stream_end)
        stream.resume(last_number)
        if is_complete:
            stream.end()
        elif stream.is_primed:
            self._suspend_later(stream, exchange)

    def close(self) -> None:
        """End all streams. Their HTTP connections send what is buffered."""
        for stream in [self.standalone, *self._streams.values()]:
            stream.end()
        self._streams.clear()
        self._by_request.clear()
        self._store.clear()


def _call_both(
    first: Callable[[], object] | None, second: Callable[[], object]
) -> Callable[[], object]:
    """Return a function that calls two functions, or only the second if the first is None."""
    if first is None:
        return second

    def call_both() -> None:
        first()
        second()

    return call_both
