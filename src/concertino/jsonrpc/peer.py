"""One end of a JSON-RPC conversation: the requests in both directions and their responses.

The peer matches responses to requests, rejects ids that are in use, starts requests within the
limits and queues the others in order, and collects the responses of a batch. Every request gets
exactly one response, or none once it was cancelled. The peer does not know what a method means;
session.py does.

There is no I/O here. Output leaves through `send`, a function that returns how many bytes the
transport still buffers. That number is the backpressure signal: at `high_water_bytes` no queued
request starts and coalesced notifications wait, until on_drain() reports a lower number.
Spec: JSON-RPC 2.0; 2026-07-28 basic/patterns/cancellation; 2025-03-26 basic "Batching".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from msgspec import UNSET, Raw

from concertino.errors import (
    BUSY,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Disconnected,
    ProtocolError,
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
from concertino.jsonrpc.requests import (
    Batch,
    IncomingRequest,
    OutgoingRequest,
    PendingTable,
    RequestTable,
    TokenBucket,
    parse_error,
)
from concertino.jsonrpc.unread_results import LARGE_BYTES, ProcessBudget, UnreadResults

if TYPE_CHECKING:
    from concertino.jsonrpc.requests import PendingRequest

__all__ = ["InvalidInput", "Peer", "Send"]

# Characters of an error's text that are kept when the whole error does not fit into a message.
SHORT_ERROR_CHARS = 256
# Bytes of the first malformed frame that are kept for the log.
MAX_FRAME_KEPT = 2048

RESULT = b'{"jsonrpc":"2.0","id":%b,"result":%b}'

# send(frame, id of the request that the frame belongs to) -> bytes of output now buffered
Send = Callable[[bytes, Id | None], int]

R = TypeVar("R", bound=IncomingRequest)


class InvalidInput:
    """How a peer treats frames that are not messages, and how many it met.

    answered: False for a client, which only counts them (in `unsolicited`).
    count: how many there were; first_problem, first_frame: what was wrong with the first one, and
    its beginning. has_news: there was one since this was set to False.
    unknown_id: the id, as JSON, of a response to a frame without a readable id; None omits it.
    suppressed: how many error responses the rate limit suppressed.
    unsolicited: how many responses nobody waited for.
    """

    __slots__ = (
        "answered",
        "bucket",
        "count",
        "first_frame",
        "first_problem",
        "has_news",
        "suppressed",
        "unknown_id",
        "unsolicited",
    )

    def __init__(self, bucket: TokenBucket) -> None:
        self.answered = True
        self.count = 0
        self.first_problem = ""
        self.first_frame = b""
        self.has_news = False
        self.unknown_id: bytes | None = b"null"
        self.suppressed = 0
        self.unsolicited = 0
        self.bucket = bucket

    def add(self, problem: str, frame: bytes | Raw) -> None:
        """Count a frame, and keep the beginning of the first one."""
        if not self.count:
            self.first_problem = problem
            self.first_frame = bytes(frame)[:MAX_FRAME_KEPT]
        self.count += 1
        self.has_news = True


class Peer(Generic[R]):
    """One end of a conversation: pass it every received frame; it sends its own through `send`.

    send: may be replaced at any time.
    clock: returns seconds; must not go backwards, any origin.
    first_id: the id of our first request.
    request_type: the class of incoming requests, for layers that need more fields.
    budget: what the unread responses of all connections may occupy; by default of this one alone.

    running: requests that were not finished in their first step, see add_running().
    waiting: requests that admit() queued.
    outgoing: our requests that wait for a response.
    buffered_bytes: output that the transport buffers.
    unread: what the responses that the other side has not read occupy.
    ready: False while the backend starts; requests wait until it is True.
    batches: whether arrays are accepted, which only 2025-03-26 has.
    """

    def __init__(
        self,
        send: Send,
        limits: Limits,
        clock: Callable[[], float],
        first_id: int = 1,
        request_type: type[R] = IncomingRequest,  # pyright: ignore[reportArgumentType]
        budget: ProcessBudget | None = None,
    ) -> None:
        self.running: RequestTable[R] = RequestTable()
        self.waiting: RequestTable[R] = RequestTable()
        self.outgoing = PendingTable(first_id)
        self.buffered_bytes = 0
        self.ready = True
        self.batches = False
        self.invalid_input = InvalidInput(TokenBucket(limits.garbage_answers_per_s, clock))
        self.send = send
        self.unread = UnreadResults(limits, budget)
        self._request_type = request_type
        self._limits = limits
        # Notifications that wait for a slow reader, in order, with the request each belongs to.
        self._coalesced: dict[bytes, Id | None] = {}
        # Bytes of the responses that wait until their batch is complete.
        self._batched_bytes = 0

    # Input

    def receive(self, frame: bytes) -> R | Message | list[R | Message] | None:
        """Process one frame.

        Returns a request, a notification, or a list of both for a batch. None if there is nothing
        left to do: the frame was a response, or invalid. Raises nothing.
        Pass every request to admit(), respond() or fail().
        """
        message = decode(frame)
        if type(message) is Message:
            return self._classify(message, len(frame), None)
        if message.id is UNSET and (elements := decode_batch(frame)) is not None:
            return self._receive_batch(elements, frame)
        # decode() returned no Message.
        self._reject(message, frame, None)  # pyright: ignore[reportArgumentType]
        return None

    def on_frame_too_long(self, size: int) -> None:
        """Answer a frame that exceeded the limit. size: its bytes so far."""
        limit = self._limits.max_message_bytes
        text = f"Invalid Request: a message longer than {limit} bytes (limit)"
        data = {"limitBytes": limit, "receivedBytes": size}
        self._reject(InvalidMessage(INVALID_REQUEST, text), None, None, data)

    def on_eof(self) -> None:
        """Fail our pending requests with Disconnected: no response can arrive any more."""
        self._fail_outgoing("the input ended before the answer came")

    def cancel(self, id: Id, reason: str) -> None:
        """Cancel a request for the other side. An unknown id is ignored."""
        incoming = self.running.get(id) or self.waiting.get(id)
        if incoming is None:
            return

        self._leave_table(incoming)
        incoming.open = False
        if incoming in self.unread.waiting:
            self.unread.pop_waiting(incoming)
        try:
            if incoming.batch is not None:
                self._finish_batch_item(incoming.batch, None)
        finally:
            # Also if the batch cannot be written: the request is in no table any more, so nobody
            # else would cancel it.
            if incoming.on_cancel is not None:
                incoming.on_cancel(reason)

    def _receive_batch(self, elements: list[Raw], frame: bytes) -> list[R | Message] | None:
        if not self.batches:
            text = "Invalid Request: batches are not part of this protocol revision"
            self._reject(InvalidMessage(INVALID_REQUEST, text), frame, None)
            return None
        limit = self._limits.max_batch
        if not 0 < len(elements) <= limit:
            text = (
                f"Invalid Request: expected a batch of 1 to {limit} messages, got {len(elements)}"
            )
            self._reject(InvalidMessage(INVALID_REQUEST, text), frame, None)
            return None

        batch = Batch()
        # One more than there are requests, so that the batch is not complete before it was read.
        batch.missing = 1
        events: list[R | Message] = []
        for element in elements:
            message = decode(element)
            if type(message) is Message:
                event = self._classify(message, len(bytes(element)), batch)
                if event is not None:
                    events.append(event)
            else:
                self._reject(message, element, batch)  # pyright: ignore[reportArgumentType]
        self._finish_batch_item(batch, None)
        return events

    def _classify(
        self,
        message: Message,
        size: int,
        batch: Batch | None,
    ) -> R | Message | None:
        """Return a request or notification; None for a response or a request with a used id."""
        method = message.method
        id = message.id
        if method is UNSET:
            self._on_response(message)
            return None
        if id is UNSET:
            return message

        incoming = self._request_type(id, method, message.params, size, batch=batch)
        in_use = id in self.running or id in self.waiting
        if batch is not None:
            batch.missing += 1
            in_use = in_use or id in batch.ids
            batch.ids.add(id)
        if in_use:
            incoming.params = {}
            text = "Invalid Request: this id is in use by a request in flight"
            self._answer(incoming, encode_error(encode_id(id), INVALID_REQUEST, text))
            return None
        return incoming

    def _reject(
        self,
        invalid: InvalidMessage,
        frame: bytes | Raw | None,
        batch: Batch | None,
        data: object = None,
    ) -> None:
        """Answer an invalid frame, unless that is not wanted or happens too often.

        frame: None if it was discarded, for its size.
        A response that cannot be decoded fails the request that it belongs to.
        """
        policy = self.invalid_input
        if invalid.code == 0 and invalid.id is not UNSET:
            outgoing = self.outgoing.pop(cast("int", invalid.id), None)
            if outgoing is not None:
                reason = invalid.message.removeprefix("Parse error: ")
                outgoing.done(ProtocolError(f"the answer cannot be decoded: {reason}"))
                return
        if not policy.answered:
            policy.unsolicited += 1
            return
        if invalid.message and frame is not None:
            policy.add(invalid.message, frame)
        if invalid.code == 0:
            return

        if invalid.id is not UNSET:
            answer = encode_error(encode_id(invalid.id), invalid.code, invalid.message, data)
        elif batch is not None or policy.bucket.take():
            answer = encode_error(policy.unknown_id, invalid.code, invalid.message, data)
        else:
            policy.suppressed += 1
            policy.has_news = True
            return

        if batch is not None:
            batch.answers.append(answer)
        else:
            self.buffered_bytes = self.send(answer, None)

    # Admission

    def admit(self, incoming: R) -> bool:
        """Return whether a request may start now.

        If not, it was queued; or answered with -31001 (busy), because the queue is full.
        """
        limits = self._limits
        if (
            (not self.waiting or self.unread.may_overtake(incoming))
            and self.ready
            and self.buffered_bytes < limits.high_water_bytes
            and (not self.running or self._has_capacity(incoming))
        ):
            return True

        # The first one in the queue may have any size: it may be as long as a message.
        if len(self.waiting) >= limits.max_waiting or (
            self.waiting and self.waiting.size + incoming.size > limits.max_waiting_bytes
        ):
            text = f"busy: {len(self.running)} calls in flight, {len(self.waiting)} waiting"
            data = {"maxWaiting": limits.max_waiting, "maxWaitingBytes": limits.max_waiting_bytes}
            self.fail(incoming, BUSY, text, data)
            return False
        self.waiting.add(incoming)
        return False

    def pop_waiting(self) -> R | None:
        """Remove and return the next queued request that may start now; None if there is none."""
        if not (
            self.waiting and self.ready and self.buffered_bytes < self._limits.high_water_bytes
        ):
            return None
        incoming = next(iter(self.waiting.values()))
        self.unread.blocked_kind = None
        if self.running and not self._has_capacity(incoming):
            return None
        self.waiting.remove(incoming)
        return incoming

    def add_running(self, incoming: R, has_result: bool = True) -> None:
        """Count a request as in flight. Call this if its first step did not finish it.

        From now on it can be cancelled.
        has_result: whether it may end with a large result; a subscription does not.
        """
        self.running.add(incoming)
        if has_result:
            self.unread.on_start(incoming)

    def _has_capacity(self, incoming: R) -> bool:
        limits = self._limits
        running = self.running
        return (
            len(running) < limits.max_in_flight
            and running.size < limits.max_in_flight_bytes
            and self.unread.has_room_for(incoming)
        )

    def _leave_table(self, incoming: IncomingRequest) -> None:
        if incoming.table is not None:
            incoming.table.remove(incoming)
            if incoming.kind is not None:
                self.unread.on_end(incoming)

    # Responses to the other side

    def respond(self, incoming: IncomingRequest, result: bytes) -> None:
        """Answer a request with a result, a JSON object.

        Nothing is sent if it was already answered or cancelled.
        """
        if incoming.open:
            self.send_response(incoming, RESULT % (encode_id(incoming.id), result))

    def send_response(self, incoming: IncomingRequest, frame: bytes) -> None:
        """Send the response to a request that is still open. frame: the whole message."""
        self.unread.on_response(incoming, len(frame))
        self._answer(incoming, frame)

    def fail(
        self,
        incoming: IncomingRequest,
        code: int,
        message: str,
        data: object = None,
    ) -> None:
        """Answer a request with an error.

        Nothing is sent if it was already answered or cancelled. An error that exceeds
        max_message_bytes is sent without data, and with the beginning of its text only.
        """
        if incoming.open:
            frame = encode_error(encode_id(incoming.id), code, message, data)
            if len(frame) > self._limits.max_message_bytes:
                frame = encode_error(encode_id(incoming.id), code, message[:SHORT_ERROR_CHARS])
            self._answer(incoming, frame)

    def _answer(self, incoming: IncomingRequest, frame: bytes) -> None:
        self._leave_table(incoming)
        unread = self.unread
        is_large = len(frame) > LARGE_BYTES and incoming.batch is None
        if is_large and not unread.fits(len(frame)):
            if not unread.try_wait(incoming, frame):
                return self._drop_response(incoming, len(frame))
            # Until it is sent it can be cancelled, and its id is in use.
            return self.running.add(cast("R", incoming))
        incoming.open = False

        # The newest progress and log message, if they were not sent, precede the response.
        if incoming.throttle is not None:
            for suppressed in incoming.throttle.suppressed.values():
                self.send(suppressed, incoming.id)

        if incoming.batch is None:
            self.buffered_bytes = self.send(frame, incoming.id)
            if is_large:
                self._update_unread()
            return None
        limit = self._limits.max_message_bytes
        if self._batched_bytes + len(frame) > limit:
            text = (
                "Internal error: the answers of unfinished batches "
                f"would have more than {limit} bytes (limit)"
            )
            replacement = encode_error(encode_id(incoming.id), INTERNAL_ERROR, text)
            frame = min(frame, replacement, key=len)
        return self._finish_batch_item(incoming.batch, frame)

    def _drop_response(self, incoming: IncomingRequest, size: int) -> None:
        self.unread.dropped += 1
        text = f"result of {size} bytes dropped: {self.unread.describe_unread()}"
        self.fail(incoming, INTERNAL_ERROR, f"{text}; the call itself was carried out")

    def _send_waiting(self) -> None:
        """Send the responses that waited for room, as far as there is room now."""
        unread = self.unread
        while unread.waiting:
            incoming, frame = next(iter(unread.waiting.items()))
            if not unread.fits(len(frame)):
                return
            unread.pop_waiting(incoming)
            self._answer(incoming, frame)

    def drop_waiting_responses(self) -> None:
        """Answer the calls whose responses wait for room with an error, since nothing is read."""
        self._send_waiting()
        for incoming in list(self.unread.waiting):
            self._drop_response(incoming, len(self.unread.pop_waiting(incoming)))

    def _finish_batch_item(self, batch: Batch, answer: bytes | None) -> None:
        """Count one request of a batch as done and send the batch if it was the last.

        answer: None for a request that was cancelled.
        """
        if answer is not None:
            batch.answers.append(answer)
            batch.size += len(answer)
            self._batched_bytes += len(answer)
        batch.missing -= 1
        if not batch.missing:
            self._batched_bytes -= batch.size
            if batch.answers:
                self.buffered_bytes = self.send(b"[%b]" % b",".join(batch.answers), None)
        self._update_unread()

    def _update_unread(self) -> None:
        self.unread.update(self.buffered_bytes + self._batched_bytes)

    # Notifications and requests of ours

    def on_drain(self, buffered_bytes: int) -> None:
        """Send what waited for a slow reader: responses first, then notifications.

        buffered_bytes: output that the transport still buffers. Notifications are sent up to the
        high-water mark.
        """
        self.buffered_bytes = buffered_bytes
        self._update_unread()
        self._send_waiting()
        high = self._limits.high_water_bytes
        for incoming in self.running.values():
            suppressed = None if incoming.throttle is None else incoming.throttle.suppressed
            while suppressed and self.buffered_bytes < high:
                self.send_frame(suppressed.pop(next(iter(suppressed))), incoming.id)
        while self._coalesced and self.buffered_bytes < high:
            frame = next(iter(self._coalesced))
            self.send_frame(frame, self._coalesced.pop(frame))

    def send_frame(self, frame: bytes, about: Id | None) -> None:
        """Send a frame that is not a response. about: the id of the request it belongs to."""
        self.buffered_bytes = self.send(frame, about)

    def send_coalesced(self, frame: bytes, about: Id | None = None) -> None:
        """Send a notification that need not be repeated: equal ones become one while output waits.

        about: the id of the request it belongs to, see drop_coalesced().
        """
        if self.buffered_bytes < self._limits.high_water_bytes:
            self.send_frame(frame, about)
        else:
            self._coalesced[frame] = about

    def drop_coalesced(self, about: Id) -> None:
        """Drop the waiting notifications that belong to a request."""
        self._coalesced = {frame: id for frame, id in self._coalesced.items() if id != about}

    def notify(
        self,
        method: str,
        params: bytes,
        about: Id | None = None,
    ) -> None:
        """Send a notification. about: the id of the request it belongs to."""
        self.send_frame(encode_notification(method, params), about)

    def request(
        self,
        method: str,
        params: bytes,
        done: Callable[[Raw | Exception], object],
        deadline: float | None = None,
    ) -> OutgoingRequest:
        """Send a request.

        done: called once with the result, RpcError, ProtocolError, TimeoutError or Disconnected.
        deadline: time by the peer's clock; see next_deadline() and expire().
        """
        outgoing = self.outgoing.add(done, deadline)
        frame = encode_request(outgoing.id, method, params)
        self.buffered_bytes = self.send(frame, outgoing.id)
        return outgoing

    def abandon(self, outgoing: PendingRequest, reason: str) -> None:
        """Stop waiting for a response and send `notifications/cancelled`.

        `done` is not called. A response that still arrives counts as unsolicited.
        """
        if self.outgoing.pop(outgoing.id, None) is not None:
            params = encode({"requestId": outgoing.id, "reason": reason})
            self.notify("notifications/cancelled", params, outgoing.id)

    @property
    def next_deadline(self) -> float | None:
        """Return the time at which to call expire(); None if no request has a deadline."""
        return self.outgoing.next_deadline

    def expire(self, now: float) -> None:
        """Abandon the requests whose deadline is not after `now`; `done` gets a TimeoutError."""
        while (deadline := self.outgoing.next_deadline) is not None and deadline <= now:
            outgoing = self.outgoing.pop_first_deadline()
            self.abandon(outgoing, "timed out")
            outgoing.done(TimeoutError("no answer within the time limit"))

    def _on_response(self, message: Message) -> None:
        """Pass a response to the request it belongs to, or count it as unsolicited."""
        id = message.id
        # Our ids are integers; any other id is simply not in the table.
        outgoing = self.outgoing.pop(cast("int", id), None)
        if outgoing is None:
            self.invalid_input.unsolicited += 1
        elif message.error is ABSENT:
            outgoing.done(message.result)
        else:
            outgoing.done(parse_error(message.error))

    def _fail_outgoing(self, text: str) -> None:
        for outgoing in self.outgoing.take_all():
            outgoing.done(Disconnected(text))

    # Shutdown

    def close(self) -> list[R]:
        """Close this end after the connection was lost and return the unanswered requests.

        Our pending requests fail with Disconnected. Nothing is sent any more, and `send` is
        released.
        """
        self.send = _discard
        unanswered = [*self.running.values(), *self.waiting.values()]
        for incoming in unanswered:
            incoming.open = False
            incoming.table = None
        self.unread.close(unanswered)
        self.running.clear()
        self.waiting.clear()
        self._coalesced.clear()
        self._batched_bytes = 0
        self._fail_outgoing("the connection ended before the answer came")
        return unanswered


def _discard(frame: bytes, about: Id | None) -> int:
    """Take the place of `send` in a closed peer."""
    return 0
