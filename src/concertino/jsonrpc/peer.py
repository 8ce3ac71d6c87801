"""Peer: one end of a JSON-RPC connection, without I/O.

Requests of the other side are "incoming", our own are "outgoing". The peer matches responses to
outgoing requests, and collects the responses of a batch. It decides whether an incoming request may
start within the limits, and queues the request if not. Each incoming request gets exactly one
response, or none after it was cancelled. The peer does not know what a method means;
protocol/session.py (server) and client/channel.py (client) do.

`send` returns how many bytes of output the transport still buffers, because the other side has not
read them. At Limits.high_water_bytes or more, no incoming request starts, and notifications of
send_coalesced() wait, until on_drain() reports a lower number.
Spec: JSON-RPC 2.0; 2026-07-28 basic/patterns/cancellation; 2025-03-26 basic "Batching".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from msgspec import UNSET, Raw

from concertino.errors import BUSY, INTERNAL_ERROR, INVALID_REQUEST
from concertino.jsonrpc.batches import Batch, Batches
from concertino.jsonrpc.incoming_requests import IncomingRequest, RequestTable, TokenBucket
from concertino.jsonrpc.invalid_input import InvalidInput
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import (
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
    reject_oversize,
)
from concertino.jsonrpc.outgoing_requests import OutgoingRequest, PendingTable
from concertino.jsonrpc.unread_results import LARGE_BYTES, ProcessBudget, UnreadResults

if TYPE_CHECKING:
    from concertino.jsonrpc.outgoing_requests import PendingRequest

__all__ = ["Peer", "Send"]

# If an error is too long for a message, this many characters of its text are sent.
SHORT_ERROR_CHARS = 256

# The template of a response: the id and the result as JSON.
RESULT = b'{"jsonrpc":"2.0","id":%b,"result":%b}'

# The type of a function that sends a frame. Its second argument is the id of the request that the
# frame belongs to, or None: an id of the other side, or of our own request if it belongs to no
# other. It returns how many bytes of output the transport buffers.
Send = Callable[[bytes, Id | None], int]

R = TypeVar("R", bound=IncomingRequest)


class Peer(Generic[R]):
    """One end of a JSON-RPC connection. The transport passes every received frame to receive().

        peer = Peer(send, Limits(), time.monotonic)
        event = peer.receive(frame)          # a request, a notification, a list of them, or None
        peer.respond(request, b'{"ok":1}')   # calls send(frame, id)
        peer.request("ping", b"{}", done)    # later calls done(result or exception)

    A frame is one JSON text, without the newline.

    send: called with each frame to be sent, and the id of the request that it belongs to, or None.
        It must return how many bytes of output are buffered. The attribute `send` may be replaced.
    limits: how many requests may run and wait, and how much memory messages may take.
    clock: returns the time in seconds; must not go backwards.
    first_id: the id of the first outgoing request.
    request_type: the class of incoming requests, a subclass of IncomingRequest with more fields.
    budget: the memory that unread responses may take, in all peers that share the budget; by
        default the peer has one of its own.

    Attributes:
    running: incoming requests whose handlers are at work, and those whose response waits until the
        other side reads. The owner of the peer adds a request with add_running() if the request's
        handler has to wait.
    waiting: incoming requests that admit() has queued, before they start.
    outgoing: requests that this end has sent and that wait for a response.
    buffered_bytes: how many bytes of output the transport buffers.
    unread: limits the memory for responses that the other side has not read.
    ready: False while the backend starts; incoming requests are queued then.
    batches: which batches are accepted, and the responses to unfinished ones. A batch is an array
        of messages in one frame (revision 2025-03-26).
    invalid_input: counts the frames that are not JSON-RPC messages, and makes the error responses.
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
        self.batches = Batches(limits)
        self.invalid_input = InvalidInput(TokenBucket(limits.garbage_answers_per_s, clock))
        self.send = send
        self.unread = UnreadResults(limits, budget)
        self._request_type = request_type
        self._limits = limits
        # Notifications that wait until more output has been read: frame -> id of the request that
        # it belongs to, or None.
        self._coalesced: dict[bytes, Id | None] = {}

    # Input

    def receive(self, frame: bytes) -> R | Message | list[R | Message] | None:
        """Process one frame, and return the request or notification in it.

        What it returns depends on the frame:

        - a request: an object of request_type. The caller must pass it to admit(), respond() or
          fail().
        - a notification: a Message.
        - a batch: a list of requests and notifications.
        - a response, or an invalid frame: None. The peer has called the `done` of our request, or
          has sent an error response.

        Raises nothing, whatever the frame contains.
        """
        message = decode(frame)
        if type(message) is Message:
            return self._classify(message, len(frame), None)
        if message.id is UNSET and (elements := decode_batch(frame)) is not None:
            return self._receive_batch(elements, frame)
        # The frame is neither a message nor a batch: decode() has returned an InvalidMessage.
        self._reject(message, frame, batch=None)  # pyright: ignore[reportArgumentType]
        return None

    def on_frame_too_long(self, size: int, head: bytes = b"") -> None:
        """Send the error response for a frame that the transport has discarded as too long.

        If the frame is a response, the outgoing request that it answers fails instead.
        size: how many bytes of the frame had arrived when it exceeded the limit.
        head: the beginning of the frame; empty if the transport does not keep it.
        """
        self.invalid_input.oversize += 1
        self.invalid_input.has_news = True
        limit = self._limits.max_message_bytes
        invalid = reject_oversize(head, f"a message longer than {limit} bytes (limit)")
        sizes = {"limitBytes": limit, "receivedBytes": size}
        self._reject(invalid, batch=None, frame=None, data=sizes)

    def on_eof(self) -> None:
        """Fail all outgoing requests with Disconnected. Called when the input has ended."""
        self.outgoing.disconnect("the input ended before the answer came")

    def cancel(self, id: Id, reason: str) -> None:
        """Cancel an incoming request. Called when the other side sends `notifications/cancelled`.

        The request gets no response, and its on_cancel() is called with the reason. Does nothing if
        no open request has this id.
        """
        incoming = self.running.get(id) or self.waiting.get(id)
        if incoming is None:
            return

        self._leave_table(incoming)
        incoming.open = False
        if incoming in self.unread.waiting:
            self.unread.pop_waiting(incoming)
        try:
            if incoming.batch is not None:
                self._finish_batch_item(incoming.batch)
        finally:
            # Do this even if sending the batch raises: the request is in no table any more, so
            # nothing else could cancel its handler.
            if incoming.on_cancel is not None:
                incoming.on_cancel(reason)

    def _receive_batch(self, elements: list[Raw], frame: bytes) -> list[R | Message] | None:
        """Process a batch, and return the requests and notifications in it.

        elements: the undecoded elements of the batch; `frame` is the whole batch.
        Returns None if the batch is refused as a whole: it is empty or too long, or the revision
        has no batches.
        """
        refusal = self.batches.refuse(elements)
        if refusal is not None:
            # The batch may contain responses to requests of ours, which must fail. In a client
            # (`answered` is False), _reject() lets them fail. In a server it sends the refusal as
            # an error response instead, so let them fail here.
            if self.invalid_input.answered:
                self.outgoing.fail_answered(refusal)
            self._reject(refusal, frame, batch=None)
            return None

        batch = Batch()
        # Count one response more than there will be requests, until all elements are read.
        # Otherwise an error response to the first request could complete the batch too early.
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
        self._finish_batch_item(batch)
        return events

    def _classify(
        self,
        message: Message,
        size: int,
        batch: Batch | None,
    ) -> R | Message | None:
        """Process one well-formed message, and return it if it is a request or a notification.

        Returns None for a response, and for a request whose id is in use, which is answered here.
        size: the length of the message in bytes.
        batch: the batch that contains the message, or None.
        """
        method = message.method
        id = message.id
        if method is UNSET:
            if not self.outgoing.receive(message):
                self.invalid_input.unsolicited += 1
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
            # The request is not handled, so its params are not needed.
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
        """Process an invalid frame: fail the requests of ours that it answers, or respond to it.

        frame: the frame; None if it was too long and was discarded.
        batch: the batch that contains it, or None.
        data: the data of the error response.
        """
        invalid_input = self.invalid_input
        # Code 0 means that nothing may be sent in answer, as to a malformed response. A client
        # (`answered` is False) never answers an invalid frame. So if the frame may be a request or
        # a response, a client treats it as a response.
        is_response = invalid.code == 0 or not invalid_input.answered
        if is_response and self.outgoing.fail_answered(invalid):
            return
        response = invalid_input.answer(invalid, frame, data, in_batch=batch is not None)
        if response is None:
            return
        if batch is not None:
            batch.responses.append(response)
        else:
            self.buffered_bytes = self.send(response, None)

    # Admission

    def admit(self, incoming: R) -> bool:
        """Return True if an incoming request may start now. Otherwise queue it and return False.

        pop_waiting() returns a queued request later. If the queue is full, the request is answered
        with the error -31001 (busy) instead: False is returned, too, and `incoming.open` is False.
        """
        limits = self._limits
        # In the order of the conditions: Requests start in order of arrival, but a call may
        # overtake the queue if the first queued call waits only because results of its own tool are
        # large. The backend must be ready, and the other side must read. While nothing runs, one
        # request may start whatever its size is, unless the memory for the unread responses of the
        # whole process is nearly used up (is_strained).
        if (
            (not self.waiting or self.unread.may_overtake(incoming))
            and self.ready
            and self.buffered_bytes < limits.high_water_bytes
            and (
                not (self.running or self.unread.budget.is_strained) or self._has_capacity(incoming)
            )
        ):
            return True

        # A single request may be longer than max_waiting_bytes, so the first request in the queue
        # may have any size.
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
        """Remove the first queued request and return it, for the caller to start it.

        Returns None if no request is queued, or if the first request may not start yet.
        """
        if not (
            self.waiting and self.ready and self.buffered_bytes < self._limits.high_water_bytes
        ):
            return None
        incoming = next(iter(self.waiting.values()))
        # The kind (method and tool) of the first queued call, if it waits because its result would
        # probably not fit. _has_capacity() sets it again if the request must still wait.
        self.unread.blocked_kind = None
        is_limited = self.running or self.unread.budget.is_strained
        if is_limited and not self._has_capacity(incoming):
            return None
        self.waiting.remove(incoming)
        return incoming

    def add_running(self, incoming: R, has_result: bool = True) -> None:
        """Add an incoming request to `running`. Call this if its handler has to wait.

        From now on the request counts against the limits, and the other side can cancel it.
        has_result: False for a subscription. It never has a large result, so no memory is reserved
            for the result.
        """
        self.running.add(incoming)
        if has_result:
            self.unread.on_start(incoming)

    def _has_capacity(self, incoming: R) -> bool:
        """Return whether the limits allow one more running request."""
        limits = self._limits
        running = self.running
        return (
            len(running) < limits.max_in_flight
            and running.size < limits.max_in_flight_bytes
            and self.unread.has_room_for(incoming, is_alone=not running)
        )

    def _leave_table(self, incoming: IncomingRequest) -> None:
        """Remove a request from `running` or `waiting`, if it is in one of them."""
        if incoming.table is not None:
            incoming.table.remove(incoming)
            # `kind` is set while `unread` counts the probable size of the request's result.
            if incoming.kind is not None:
                self.unread.on_end(incoming)

    # Responses to the other side

    def respond(self, incoming: IncomingRequest, result: bytes) -> None:
        """Answer an incoming request with a result, unless it was answered or cancelled before.

        result: a JSON object without newlines.
        """
        if incoming.open:
            self.send_response(incoming, RESULT % (encode_id(incoming.id), result))

    def send_response(self, incoming: IncomingRequest, frame: bytes) -> None:
        """Send the response to an incoming request that is open.

        A large response is kept while the limits for unread output do not allow it.
        frame: the whole message.
        """
        self.unread.on_response(incoming, len(frame))
        self._answer(incoming, frame)

    def fail(
        self,
        incoming: IncomingRequest,
        code: int,
        message: str,
        data: object = None,
    ) -> None:
        """Answer an incoming request with an error, unless it was answered or cancelled before.

        If the error response exceeds max_message_bytes, it is sent without data and with a
        shortened text.
        """
        if incoming.open:
            frame = encode_error(encode_id(incoming.id), code, message, data)
            if len(frame) > self._limits.max_message_bytes:
                frame = encode_error(encode_id(incoming.id), code, message[:SHORT_ERROR_CHARS])
            self._answer(incoming, frame)

    def _answer(self, incoming: IncomingRequest, frame: bytes) -> None:
        """Send a response, or keep it until the other side reads, if it is large and does not fit.

        If too many responses are kept already, an error is sent instead. A response to a request in
        a batch is sent with the batch.
        frame: the whole message.
        """
        self._leave_table(incoming)
        unread = self.unread
        is_large = len(frame) > LARGE_BYTES and incoming.batch is None
        if is_large and not unread.fits(len(frame)):
            if not unread.try_wait(incoming, frame):
                return self._drop_response(incoming, len(frame))
            # The request goes back to `running` until the response is sent, because it can still be
            # cancelled, and its id is in use. Its size is counted in `waiting` of the budget, so
            # unread.on_start() is not called.
            return self.running.add(cast("R", incoming))
        incoming.open = False

        # If the limit of notifications per second has held back progress or log messages, send the
        # newest of each before the response. After it the client would ignore them.
        if incoming.throttle is not None:
            for suppressed in incoming.throttle.suppressed.values():
                self.send(suppressed, incoming.id)

        if incoming.batch is None:
            self.buffered_bytes = self.send(frame, incoming.id)
            # To save time, a small response is counted only with the next large one, or by
            # on_drain().
            if is_large:
                self._update_unread()
            return None
        self.batches.add_response(incoming.batch, incoming.id, frame)
        return self._finish_batch_item(incoming.batch)

    def _drop_response(self, incoming: IncomingRequest, size: int) -> None:
        """Send an error in place of a response that did not fit into the limits.

        size: the length of the response in bytes.
        """
        self.fail(incoming, INTERNAL_ERROR, self.unread.drop(size))

    def _send_waiting(self) -> None:
        """Send waiting responses, oldest first, until one does not fit into the limits."""
        unread = self.unread
        while unread.waiting:
            incoming, frame = next(iter(unread.waiting.items()))
            if not unread.fits(len(frame)):
                return
            unread.pop_waiting(incoming)
            self._answer(incoming, frame)

    def settle_waiting_responses(self) -> None:
        """Send the waiting responses that fit into the limits, and errors in place of the rest.

        Called when the other side has read nothing for some time, and before a connection closes.
        """
        self._send_waiting()
        for incoming in list(self.unread.waiting):
            self._drop_response(incoming, len(self.unread.pop_waiting(incoming)))

    def _finish_batch_item(self, batch: Batch) -> None:
        """Count one request of a batch as done. After the last one, send the array of responses."""
        frame = self.batches.finish_item(batch)
        if frame:
            self.buffered_bytes = self.send(frame, None)
        self._update_unread()

    def _update_unread(self) -> None:
        """Tell `unread` how many bytes are buffered, with the responses of unfinished batches."""
        self.unread.update(self.buffered_bytes + self.batches.size)

    # Our notifications and requests

    def on_drain(self, buffered_bytes: int) -> None:
        """Send frames that were kept back, because the other side has read some output.

        Sends waiting responses first, until one exceeds a limit of UnreadResults. Then sends
        notifications, until high_water_bytes are buffered again.
        buffered_bytes: how many bytes the transport still buffers.
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
        """Send a frame that is not a response.

        about: the id of the request that the frame belongs to; None if there is none.
        """
        self.buffered_bytes = self.send(frame, about)

    def send_coalesced(self, frame: bytes, about: Id | None = None) -> None:
        """Send a notification, or keep it while too much output is buffered.

        Of equal notifications, such as several about the same changed list, only one is kept.
        about: the id of the request that the notification belongs to; None if there is none.
        """
        if self.buffered_bytes < self._limits.high_water_bytes:
            self.send_frame(frame, about)
        else:
            self._coalesced[frame] = about

    def drop_coalesced(self, about: Id) -> None:
        """Drop the notifications that send_coalesced() has kept for a request."""
        self._coalesced = {frame: id for frame, id in self._coalesced.items() if id != about}

    def notify(
        self,
        method: str,
        params: bytes,
        about: Id | None = None,
    ) -> None:
        """Send a notification.

        params: a JSON object, as bytes.
        about: the id of the request of the other side to which the notification belongs; None if
            there is none.
        """
        self.send_frame(encode_notification(method, params), about)

    def request(
        self,
        method: str,
        params: bytes,
        done: Callable[[Raw | Exception], object],
        deadline: float | None = None,
        about: Id | None = None,
    ) -> OutgoingRequest:
        """Send a request, and return the pending request.

        params: a JSON object, as bytes.
        done: called once: with the result as undecoded JSON, or with an RpcError, ProtocolError,
            TimeoutError or Disconnected. Not called after abandon().
        deadline: the time until which to wait for the response, by the peer's clock; None to wait
            for ever. The peer has no timer: the caller must call expire() at the time that
            `peer.outgoing.next_deadline` returns.
        about: the id of the other side's request to which this one belongs; None if there is none.
        """
        outgoing = self.outgoing.add(done, deadline)
        frame = encode_request(outgoing.id, method, params)
        self.buffered_bytes = self.send(frame, outgoing.id if about is None else about)
        return outgoing

    def abandon(self, outgoing: PendingRequest, reason: str, about: Id | None = None) -> None:
        """Stop waiting for the response to our request, and send `notifications/cancelled`.

        The request's `done` is not called. A response that arrives later counts as unsolicited.
        Does nothing if the request has ended already.
        about: the id of the other side's request to which our request belongs; None if there is
            none.
        """
        if self.outgoing.pop(outgoing.id, None) is not None:
            params = encode({"requestId": outgoing.id, "reason": reason})
            self.notify("notifications/cancelled", params, outgoing.id if about is None else about)

    def expire(self, now: float) -> None:
        """Abandon our requests whose deadline has passed, and pass a TimeoutError to their `done`.

        now: the current time by the peer's clock.
        """
        while (deadline := self.outgoing.next_deadline) is not None and deadline <= now:
            outgoing = self.outgoing.take_first_deadline()
            self.abandon(outgoing, "timed out")
            outgoing.done(TimeoutError("no answer within the time limit"))

    # Shutdown

    def close(self) -> list[R]:
        """Close this end, because the connection is closed.

        Our requests fail with Disconnected. Nothing is sent any more.
        Returns the incoming requests that have no response; they will get none.
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
        self.batches.size = 0
        self.outgoing.disconnect("the connection ended before the answer came")
        return unanswered


def _discard(frame: bytes, about: Id | None) -> int:
    """Send nothing. Replaces `send` in a closed peer."""
    return 0
