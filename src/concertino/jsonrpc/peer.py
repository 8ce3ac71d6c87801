"""One end of a JSON-RPC conversation: which requests are under way, in both directions, and who may start.

The peer matches answers to requests, refuses ids that are in use, admits calls within the limits and keeps the others in order,
collects the answers of a batch, and sees to it that every request gets exactly one answer, or none once it is cancelled.
What a method means is not known here (session.py). Output leaves through `send`; time comes in as a function.
Spec: JSON-RPC 2.0; 2026-07-28 basic/patterns/cancellation; 2025-03-26 basic "Batching".
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.errors import (
    BUSY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Disconnected,
    ProtocolError,
    RpcError,
)
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import (
    ABSENT,
    Id,
    InvalidMessage,
    Message,
    decode,
    decode_batch,
    encode,
    encode_error,
    encode_id,
    encode_notification,
    encode_request,
)
from concertino.jsonrpc.token_bucket import TokenBucket

__all__ = [
    "IncomingRequest",
    "NotificationThrottle",
    "OutgoingRequest",
    "Peer",
    "PendingRequest",
    "Send",
]

SHOWN = 256  # characters of an error's text, where the whole is too long
RESULT = b'{"jsonrpc":"2.0","id":%b,"result":%b}'
INT_ID_RESULT = b'{"jsonrpc":"2.0","id":%d,"result":%b}'

Send = Callable[
    [bytes, Id | None], int
]  # (frame, the request it belongs to) -> bytes of output now held


class Batch:
    """The answers of one array of requests, sent together when the last is there. size: their bytes."""

    __slots__ = ("answers", "ids", "missing", "size")

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.size = 0
        self.ids: set[Id] = set()  # of its requests: none is in a table before all are sorted
        self.missing = 0


class NotificationThrottle:
    """What one call tells its caller on the way. late: frames that were held back, by what they tell: the newest of each.

    progress, log: how often.
    """

    __slots__ = ("log", "progress", "suppressed")

    def __init__(self, progress: TokenBucket, log: TokenBucket) -> None:
        self.progress = progress
        self.log = log
        self.suppressed: dict[str, bytes] = {}


class IncomingRequest(Struct, eq=False):
    """A request from the other side, from its arrival to its answer.

    open: it may still be answered; False once it was, or was cancelled. stop: called with the reason when the other side cancels.
    table: the table it is in, while it waits or runs. era, call, dialogue, terms: what the session and the driver made of it.
    last_progress: the last progress told. telling: once there was anything to tell.
    """

    id: Id
    method: str
    params: dict[str, Raw]
    size: int
    open: bool = True
    table: dict[Id, Any] | None = None
    batch: Batch | None = None
    on_cancel: Callable[[str], object] | None = None
    profile: Any = None  # a session.RequestProfile; the peer does not look at it
    call: Any = None  # a backend.Call; nor at this
    dialogue: Any = None  # a dialogue.Dialogue, once it asks its client something; nor at this
    terms: Any = None  # what its backend admitted it under (runtime/call_hooks.py); nor at this
    last_progress: float = float("-inf")
    throttle: NotificationThrottle | None = None


class PendingRequest(Protocol):
    """A request of ours that waits for its answer."""

    @property
    def id(self) -> int: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def done(self) -> Callable[[Raw | Exception], object]:
        """Called once, with the result or with what went wrong."""
        ...


class OutgoingRequest(Struct, eq=False):
    """The plain kind of it."""

    id: int
    done: Callable[[Raw | Exception], object]
    deadline: float | None = None


class _ErrorBody(Struct):
    """Both members are required (JSON-RPC 2.0 section 5.1)."""

    code: int
    message: str
    data: Any = None


_error_body = Decoder(_ErrorBody).decode


class Peer:
    """Give it every frame that comes in; it calls `send` with every frame that is to go out.

    clock: seconds, steady, any origin. first_id: of our own requests.
    """

    def __init__(
        self, send: Send, limits: Limits, clock: Callable[[], float], first_id: int = 1
    ) -> None:
        self.running: dict[
            Id, IncomingRequest
        ] = {}  # started, and their first step did not finish them
        self.waiting: dict[Id, IncomingRequest] = {}  # received, in order, not yet admitted
        self.outgoing: dict[Id, PendingRequest] = {}
        self.buffered_bytes = (
            0  # bytes of output that the transport holds; the driver lowers it when they drain
        )
        self.ready = True  # False while the backend starts: calls wait
        self.batches = False  # arrays are received (2025-03-26)
        self.unknown_id: bytes | None = (
            b"null"  # how an answer says that no id could be read; None leaves it out
        )
        self.suppressed_errors = 0  # answers to garbage that the rate limit swallowed
        self.ignore_invalid = False  # a client never answers what is no message; it counts it
        self.unsolicited = (
            0  # responses that nobody waits for, and what a silent peer did not answer
        )
        self.send = send  # may be replaced at any time
        self._limits = limits
        self._high_water_bytes = limits.high_water_bytes
        self._clock = clock
        self._next_id = first_id
        self._deadlines: list[tuple[float, int]] = []
        self._coalesced: dict[
            bytes, Id | None
        ] = {}  # that wait for a slow reader, in order; what each is about
        self._waiting_bytes = 0
        self._running_bytes = 0
        self._batched_bytes = 0  # of answers that wait until their batch is complete
        self._error_bucket = TokenBucket(limits.garbage_answers_per_s, clock)

    # What comes in

    def receive(
        self, frame: bytes
    ) -> IncomingRequest | Message | list[IncomingRequest | Message] | None:
        """Take one frame.

        Returns a request to be opened, a notification, those of a batch, or None when there is nothing left to do: a response was
        handed to its request, or a malformed frame was answered. Raises nothing.
        Hand every Incoming to admit(), respond() or fail().
        """
        message = decode(frame)
        if type(message) is Message:
            return self._classify(message, len(frame), None)
        if message.id is UNSET and (elements := decode_batch(frame)) is not None:
            return self._receive_batch(elements)
        self._reject(message, None)  # pyright: ignore[reportArgumentType]  # no Message, so it is Bad
        return None

    def on_frame_too_long(self, size: int) -> None:
        """A frame passed the limit and is lost."""
        limit = self._limits.max_message_bytes
        text = f"Invalid Request: a message longer than {limit} bytes (limit)"
        self._reject(
            InvalidMessage(INVALID_REQUEST, text),
            None,
            {"limitBytes": limit, "receivedBytes": size},
        )

    def cancel(self, id: Id, reason: str) -> None:
        """The other side no longer wants the answer to its request. Unknown and answered ids are ignored."""
        incoming = self.running.get(id) or self.waiting.get(id)
        if incoming is None:
            return
        self._untrack(incoming)
        incoming.open = False
        if incoming.batch is not None:
            self._finish_batch_item(incoming.batch, None)
        if incoming.on_cancel is not None:
            incoming.on_cancel(reason)

    def _receive_batch(self, elements: list[Raw]) -> list[IncomingRequest | Message] | None:
        if not self.batches:
            self._reject(
                InvalidMessage(
                    INVALID_REQUEST,
                    "Invalid Request: batches are not part of this protocol revision",
                ),
                None,
            )
            return None
        if not 0 < len(elements) <= self._limits.max_batch:
            text = f"Invalid Request: expected a batch of 1 to {self._limits.max_batch} messages, got {len(elements)}"
            self._reject(InvalidMessage(INVALID_REQUEST, text), None)
            return None
        batch = Batch()
        batch.missing = 1  # ours, until all elements are sorted
        events: list[IncomingRequest | Message] = []
        for element in elements:
            message = decode(element)
            if type(message) is InvalidMessage:
                self._reject(message, batch)
            elif (event := self._classify(message, len(bytes(element)), batch)) is not None:  # pyright: ignore[reportArgumentType]
                events.append(event)
        self._finish_batch_item(batch, None)
        return events

    def _classify(
        self, message: Message, size: int, batch: Batch | None
    ) -> IncomingRequest | Message | None:
        """Which of the three a well-formed message is."""
        method = message.method
        id = message.id
        if method is UNSET:
            self._on_response(message)
            return None
        if id is UNSET:
            return message
        incoming = IncomingRequest(id, method, message.params, size, batch=batch)
        in_use = id in self.running or id in self.waiting
        if batch is not None:
            batch.missing += 1
            in_use = in_use or id in batch.ids
            batch.ids.add(id)
        if in_use:
            incoming.params = {}
            self._answer(
                incoming,
                encode_error(
                    encode_id(id),
                    INVALID_REQUEST,
                    "Invalid Request: this id is in use by a request in flight",
                ),
            )
            return None
        return incoming

    def _reject(self, bad: InvalidMessage, batch: Batch | None, data: object = None) -> None:
        """Answer what is no message, unless it asks for silence or there were too many."""
        if self.ignore_invalid:
            self.unsolicited += 1
            return
        if bad.code == 0:
            return
        if bad.id is not UNSET:
            frame = encode_error(encode_id(bad.id), bad.code, bad.message, data)
        elif batch is not None or self._error_bucket.take():
            frame = encode_error(self.unknown_id, bad.code, bad.message, data)
        else:
            self.suppressed_errors += 1
            return
        if batch is not None:
            batch.answers.append(frame)
        else:
            self.buffered_bytes = self.send(frame, None)

    # Admission

    def admit(self, incoming: IncomingRequest) -> bool:
        """Whether a call may start now. If not, it waits its turn, or was answered with -31001 because the queue is full."""
        if (
            not self.waiting
            and self.ready
            and self.buffered_bytes < self._high_water_bytes
            and (not self.running or self._has_capacity())
        ):
            return True
        limits = self._limits
        # One call may always wait, of whatever size: it may be as long as a message.
        if len(self.waiting) >= limits.max_waiting or (
            self.waiting and self._waiting_bytes + incoming.size > limits.max_waiting_bytes
        ):
            text = f"busy: {len(self.running)} calls in flight, {len(self.waiting)} waiting"
            self.fail(
                incoming,
                BUSY,
                text,
                {"maxWaiting": limits.max_waiting, "maxWaitingBytes": limits.max_waiting_bytes},
            )
            return False
        self.waiting[incoming.id] = incoming
        incoming.table = self.waiting
        self._waiting_bytes += incoming.size
        return False

    def pop_waiting(self) -> IncomingRequest | None:
        """The next waiting call that may start now, taken out of the queue."""
        if not (
            self.waiting
            and self.ready
            and self.buffered_bytes < self._high_water_bytes
            and self._has_capacity()
        ):
            return None
        incoming = next(iter(self.waiting.values()))
        self._untrack(incoming)
        return incoming

    def add_running(self, incoming: IncomingRequest) -> None:
        """A call outlived its first step: from now on it counts as in flight and can be cancelled."""
        self.running[incoming.id] = incoming
        self._running_bytes += incoming.size
        incoming.table = self.running

    def _has_capacity(self) -> bool:
        limits = self._limits
        return (
            len(self.running) < limits.max_in_flight
            and self._running_bytes < limits.max_in_flight_bytes
        )

    # Answers to the other side

    def respond(self, incoming: IncomingRequest, result: bytes) -> None:
        """Answer a request with a result (a JSON object). Nothing is sent if it was answered or cancelled."""
        if incoming.open:
            id = incoming.id
            frame = (
                INT_ID_RESULT % (id, result) if type(id) is int else RESULT % (encode(id), result)
            )
            if incoming.table is None and incoming.batch is None and incoming.throttle is None:
                incoming.open = False
                self.buffered_bytes = self.send(frame, id)
            else:
                self._answer(incoming, frame)

    def fail(self, incoming: IncomingRequest, code: int, message: str, data: object = None) -> None:
        """Answer a request with an error. Nothing is sent if it was answered or cancelled.

        One longer than a message may be goes without data, and with the beginning of its text.
        """
        if incoming.open:
            frame = encode_error(encode_id(incoming.id), code, message, data)
            if len(frame) > self._limits.max_message_bytes:
                frame = encode_error(encode_id(incoming.id), code, message[:SHOWN])
            self._answer(incoming, frame)

    def _answer(self, incoming: IncomingRequest, frame: bytes) -> None:
        incoming.open = False
        self._untrack(incoming)
        if incoming.throttle is not None:
            for held_back in incoming.throttle.suppressed.values():
                self.send(held_back, incoming.id)
        if incoming.batch is None:
            self.buffered_bytes = self.send(frame, incoming.id)
        else:
            limit = self._limits.max_message_bytes
            if self._batched_bytes + len(frame) > limit:
                text = f"Internal error: the answers of unfinished batches would have more than {limit} bytes (limit)"
                frame = min(
                    frame, encode_error(encode_id(incoming.id), INTERNAL_ERROR, text), key=len
                )
            self._finish_batch_item(incoming.batch, frame)

    def _untrack(self, incoming: IncomingRequest) -> None:
        """Out of the table it is in, if it is in one."""
        if incoming.table is None:
            return
        del incoming.table[incoming.id]
        if incoming.table is self.waiting:
            self._waiting_bytes -= incoming.size
        else:
            self._running_bytes -= incoming.size
        incoming.table = None

    def _finish_batch_item(self, batch: Batch, answer: bytes | None) -> None:
        """One request of a batch is done with, or without, an answer."""
        if answer is not None:
            batch.answers.append(answer)
            batch.size += len(answer)
            self._batched_bytes += len(answer)
        batch.missing -= 1
        if batch.missing:
            return
        self._batched_bytes -= batch.size
        if batch.answers:
            self.buffered_bytes = self.send(b"[%b]" % b",".join(batch.answers), None)

    def on_drain(self, held: int) -> None:
        """Output that was held has left; held: what still is. What waited for a slow reader leaves now, as far as there is room."""
        self.buffered_bytes = held
        high = self._limits.high_water_bytes
        for incoming in self.running.values():
            late = None if incoming.throttle is None else incoming.throttle.suppressed
            while late and self.buffered_bytes < high:
                self.send_frame(late.pop(next(iter(late))), incoming.id)
        while self._coalesced and self.buffered_bytes < high:
            frame = next(iter(self._coalesced))
            self.send_frame(frame, self._coalesced.pop(frame))

    # Requests and notifications of ours

    def send_frame(self, frame: bytes, about: Id | None) -> None:
        """Send a frame that is no answer. about: the request that it belongs to."""
        self.buffered_bytes = self.send(frame, about)

    def send_coalesced(self, frame: bytes, about: Id | None = None) -> None:
        """Send a notification that says no more when it is said twice: while output is held it waits, once.

        about: the request that it belongs to, see forget().
        """
        if self.buffered_bytes < self._limits.high_water_bytes:
            self.send_frame(frame, about)
        else:
            self._coalesced[frame] = about

    def drop_coalesced(self, about: Id) -> None:
        """Send nothing more of what was announced about this request."""
        self._coalesced = {frame: id for frame, id in self._coalesced.items() if id != about}

    def request(
        self,
        method: str,
        params: bytes,
        done: Callable[[Raw | Exception], object],
        deadline: float | None = None,
    ) -> OutgoingRequest:
        """Send a request. done: called once: with the result, RpcError, ProtocolError, TimeoutError or Disconnected.

        deadline: on the clock; see next_deadline() and expire().
        """
        outgoing = OutgoingRequest(self._next_id, done, deadline)
        self._next_id += 1
        self.outgoing[outgoing.id] = outgoing
        if deadline is not None:
            heappush(self._deadlines, (deadline, outgoing.id))
        self.buffered_bytes = self.send(encode_request(outgoing.id, method, params), outgoing.id)
        return outgoing

    def notify(self, method: str, params: bytes, about: Id | None = None) -> None:
        """Send a notification. about: the request that it belongs to."""
        self.send_frame(encode_notification(method, params), about)

    def abandon(self, outgoing: PendingRequest, reason: str) -> None:
        """Stop waiting for an answer and say so to the other side. done is not called; a late answer is stray."""
        if self.outgoing.pop(outgoing.id, None) is not None:
            self.notify(
                "notifications/cancelled",
                encode({"requestId": outgoing.id, "reason": reason}),
                outgoing.id,
            )

    @property
    def next_deadline(self) -> float | None:
        """When expire() is to be called next."""
        # Answered requests leave their entry behind; once those are most of the heap it is made anew.
        if len(self._deadlines) > 2 * len(self.outgoing) + 64:
            self._deadlines = [
                (o.deadline, o.id) for o in self.outgoing.values() if o.deadline is not None
            ]
            heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][1] not in self.outgoing:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float) -> None:
        """Give up the requests whose deadline is not after now: cancel is sent, done gets TimeoutError."""
        while (at := self.next_deadline) is not None and at <= now:
            outgoing = self.outgoing[heappop(self._deadlines)[1]]
            self.abandon(outgoing, "timed out")
            outgoing.done(TimeoutError("no answer within the time limit"))

    def _on_response(self, message: Message) -> None:
        """A response: to a request of ours, or to nobody."""
        id = message.id
        outgoing = None if id is UNSET else self.outgoing.pop(id, None)
        if outgoing is None:
            self.unsolicited += 1
        elif message.error is ABSENT:
            outgoing.done(message.result)
        else:
            try:
                body = _error_body(message.error)
                outgoing.done(RpcError(body.code, body.message, body.data))
            except (DecodeError, RecursionError) as why:
                outgoing.done(
                    ProtocolError(f"expected an error object with a code and a message: {why}")
                )

    def on_eof(self) -> None:
        """No answer can come any more. Every request of ours fails with Disconnected."""
        self._fail_outgoing("the input ended before the answer came")

    def _fail_outgoing(self, why: str) -> None:
        unanswered = list(self.outgoing.values())
        self.outgoing.clear()
        self._deadlines.clear()
        for outgoing in unanswered:
            outgoing.done(Disconnected(why))

    # The end

    def close(self) -> list[IncomingRequest]:
        """The connection is gone. Every request of ours fails with Disconnected. Returns the calls that will not be answered.

        Nothing is sent any more, and whoever did the sending is let go.
        """
        self.send = _discard
        left = [*self.running.values(), *self.waiting.values()]
        for incoming in left:
            incoming.open = False
            incoming.table = None
        self.running.clear()
        self.waiting.clear()
        self._coalesced.clear()
        self._waiting_bytes = self._running_bytes = self._batched_bytes = 0
        self._fail_outgoing("the connection ended before the answer came")
        return left


def _discard(frame: bytes, about: Id | None) -> int:
    """What a closed peer sends to."""
    return 0
