"""Channel: sends a client's requests, matches the responses, and enforces time limits.

A request gets an id and a PendingReply in the table of pending requests (peer.outgoing). The caller
of the request awaits the PendingReply. When JSON-RPC messages have arrived ("frames", one line of
JSON each), the Connection calls on_frames(). on_frames() sets the `outcome` of the PendingReply and
calls its `callback`, which the awaiting task has set, to resume this task at once
(runtime/pending.py). Messages that are not responses go to the ChannelDelegate, which is the
Conversation (client/conversation.py).

Requests do not have separate timers. One timer fires at the earliest deadline and checks all
pending requests, which takes a few microseconds for a thousand. asyncio.timeout() would cost 3.9 us
for each call, asyncio.wait_for() 11 us.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import copy_context
from types import coroutine
from typing import Any, Protocol, cast

from msgspec import Raw

from concertino.client.channel_ending import ChannelEnding
from concertino.client.connection_output import ConnectionOutput
from concertino.client.pending_request import (
    FOREVER,
    GIVEN_UP,
    DeadlineTimer,
    ForwardedReply,
    InputState,
    PendingReply,
    PreparedRequest,
    ProgressTracker,
    ProgressTrackers,
    RequestCounts,
    decode_reply,
    request_template,
)
from concertino.client.server_messages import MessageHandler, ServerMessages
from concertino.client.skipped_lines import OversizeWatch, SkippedLines
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError, Disconnected, TimedOut
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import JOINED_BYTES, NEWLINE, Id, one_line
from concertino.jsonrpc.peer import Peer
from concertino.runtime.tasks import read_batch_of
from concertino.transports.connection import Connection

# The first id is random. Otherwise a JSON line that a tool prints, with a small id, could be taken
# for a response.
MAX_FIRST_ID = 2**30


class ChannelDelegate(MessageHandler, Protocol):
    """Handles the requests and notifications of a server, and the end of the connection to it.

    Conversation implements it. The Channel itself handles the responses.
    """

    def on_eof(self) -> None:
        """Release the connection, which has ended, and the server's process if there is one."""
        ...

    def explain(self, error: ConcertinoError) -> ConcertinoError:
        """Return an error of the same class, whose text also describes the server's process."""
        ...


class Channel:
    """The client's end of one Connection.

    The Channel is the Receiver of the Connection: the Connection calls its on_... methods.

    connection: a Connection that is not open yet; the Channel opens it.
    limits: the limits for the size of a message, and for the bytes of output that are buffered.
    delegate: handles all messages that are not responses.
    log: the logger for faults of the server.

    Attributes:
    ending: whether and why the connection has ended.
    skipped: the counter of the server's lines that are no messages or match no request.
    input: facts about the messages that are arriving; the PendingReply objects read them.
    progress: the progress trackers of pending requests.
    peer: the JSON-RPC layer, with the table of pending requests.
    counts: the numbers of requests that were sent and answered.
    """

    def __init__(
        self,
        connection: Connection,
        limits: Limits,
        delegate: ChannelDelegate,
        log: logging.Logger,
    ) -> None:
        self.ending = ChannelEnding(delegate.explain)
        self.skipped = SkippedLines(log)
        self.input = InputState()
        self.progress = ProgressTrackers(log)
        self._delegate = delegate
        self._log = log
        self._deadlines = DeadlineTimer(self._expire)
        self._read_batch = read_batch_of(self._deadlines.loop)
        self._output = ConnectionOutput(connection, limits)
        # The module random would delay the start by 0.7 ms.
        first_id = 1 + int.from_bytes(os.urandom(4)) % MAX_FIRST_ID
        self.peer = Peer(self._output.queue, limits, self._deadlines.time, first_id)
        # JSON-RPC lets only servers answer a message that cannot be parsed.
        self.peer.invalid_input.answered = False
        self.counts = RequestCounts(self.peer.outgoing)
        self._messages = ServerMessages(
            peer=self.peer,
            input=self.input,
            handler=delegate,
            progress=self.progress,
            skipped=self.skipped,
            oversize=OversizeWatch(connection),
            max_message_bytes=limits.max_message_bytes,
            time=self._deadlines.time,
            log=log,
        )
        connection.open(self)

    # Requests

    def request(
        self,
        method: str,
        params: bytes,
        subject: str,
        idle_timeout_s: float,
        total_s: float,
        progress: ProgressTracker | None = None,
        cancels: bool = True,
    ) -> Awaitable[Raw]:
        """Return an awaitable that sends a request and returns its result, undecoded.

        The other arguments and the exceptions are those of ask().
        params: a JSON object.
        subject: the name or URI in the request, for errors; "" if there is none.
        """
        # Requests other than tool calls are rare, so prepare the request each time.
        prepared = PreparedRequest(request_template(method), method, subject, decode_reply)
        return self.ask(prepared, params, idle_timeout_s, total_s, progress, cancels)

    @coroutine
    def ask(
        self,
        prepared: PreparedRequest,
        params: bytes,
        idle_timeout_s: float,
        total_s: float,
        progress: ProgressTracker | None = None,
        cancels: bool = True,
    ) -> Generator[Any, None, Any]:
        """Return an awaitable that sends a prepared request and returns its result.

        prepared: the request without its id and without some of its params.
        params: the JSON to fill in for the missing params, such as an object of arguments.
        idle_timeout_s: how many seconds may pass until the response arrives; may be infinite. Each
            progress notification starts this time again.
        total_s: how many seconds the request may take in all; may be infinite.
        progress: the tracker from self.progress.track(), whose token must be in the params; None if
            the request has no progress token.
        cancels: whether to send notifications/cancelled after a timeout, or if the caller stops
            waiting.
        The result is decoded by prepared.decode(), or Raw if the response does not have the form
        that prepared.decode() expects.
        Raises RpcError for an error response, TimedOut, Disconnected, ProtocolError for a malformed
        response, and ValueError if the request is too long or idle_timeout_s is not positive.
        """
        # This is a generator with types.coroutine, because awaiting it takes one Python frame. An
        # `async def` that awaits a PendingReply would take two coroutines and an iterator.
        output = self._output
        deadlines = self._deadlines
        peer = self.peer
        now = deadlines.time()

        # `not x > 0` instead of `x <= 0`, which would accept NaN.
        if (
            self.ending.over
            or peer.buffered_bytes >= output.high_water_bytes
            or not idle_timeout_s > 0
        ):
            yield from self._wait_until_writable(
                prepared.label, idle_timeout_s, total_s
            ).__await__()
        pending_requests = peer.outgoing
        id = pending_requests.next_id
        pending_requests.next_id = id + 1

        # Two rare cases need more work: params with a newline, which would end the frame too early,
        # and a frame that has more bytes than a frame may have.
        is_long = len(params) > JOINED_BYTES
        frame = prepared.join(id, params) if is_long else prepared.template % (id, params)
        if NEWLINE in params or len(frame) > output.max_message_bytes:
            frame = self._build_unusual_frame(prepared, id, params)

        # If no other request is pending, write at once, which saves a loop iteration. A Connection
        # that supports polling then returns the next line of the server, if it has arrived already.
        # Otherwise `polled` is the number of buffered bytes, or None if nothing was written.
        is_alone = not pending_requests and not output.flush_scheduled
        polled = output.send_and_poll(frame, id) if is_alone else None
        if isinstance(polled, bytes):
            reply = self._match_polled(prepared, id, polled)
            if reply is not None:
                return reply.result
            # Everything was written, so no bytes are buffered.
            polled = 0

        deadline = now + (idle_timeout_s if idle_timeout_s < total_s else total_s)
        pending = PendingReply(deadlines.loop, self.input, id, prepared, now, deadline, progress)
        if progress is not None:
            progress.pending = pending
        if deadline < deadlines.wakes_at:
            deadlines.wake_at(deadline)
        # Register the request before it is written: a Connection may deliver the response inside
        # flush().
        self.input.decode = prepared.decode
        pending_requests[id] = pending
        if polled is None:
            polled = output.write(frame, id) if is_alone else output.queue(frame, id)
        peer.buffered_bytes = polled

        try:
            if pending.outcome is None:
                yield pending
            outcome: Any = pending.outcome
            if pending.failed:
                raise outcome
            return outcome
        except (asyncio.CancelledError, TimedOut) as exc:
            reason = "timed out" if isinstance(exc, TimedOut) else GIVEN_UP
            self.abandon(id, reason, cancels)
            raise
        except Disconnected:
            raise self.ending.disconnected(prepared.label, deadlines.time() - now, id) from None

    def begin(
        self,
        prepared: PreparedRequest,
        params: bytes,
        callback: Callable[[Any], object],
    ) -> ForwardedReply | None:
        """Send a prepared request without a time limit, and pass its outcome to a function.

        prepared: the request without its id and without some of its params.
        params: the JSON to fill in for the missing params.
        callback: called once with the returned ForwardedReply, whose outcome is then a result or an
            exception. Must not raise. It may be called before begin() returns.
        Returns None, and sends nothing, in the cases that only ask() handles:

        - The connection has ended, or too much output is buffered.
        - The params are long, or contain a newline.
        """
        output = self._output
        peer = self.peer
        if (
            self.ending.over
            or peer.buffered_bytes >= output.high_water_bytes
            or len(params) > output.longest_usual_params
            or NEWLINE in params
        ):
            return None
        pending_requests = peer.outgoing
        id = pending_requests.next_id
        pending_requests.next_id = id + 1
        frame = prepared.template % (id, params)
        deadlines = self._deadlines
        reply = ForwardedReply(
            deadlines.loop, self.input, id, prepared, deadlines.time(), FOREVER, None, self
        )
        reply.callback = callback
        reply.context = copy_context()

        # The following steps are those of ask(), where comments explain them.
        is_alone = not pending_requests and not output.flush_scheduled
        polled = output.send_and_poll(frame, id) if is_alone else None
        if isinstance(polled, bytes):
            matched = self._match_polled(prepared, id, polled)
            if matched is not None:
                reply.outcome = matched.result
                callback(reply)
                return reply
            polled = 0
        self.input.decode = prepared.decode
        pending_requests[id] = reply
        if polled is None:
            polled = output.write(frame, id) if is_alone else output.queue(frame, id)
        peer.buffered_bytes = polled
        return reply

    async def _wait_until_writable(
        self,
        label: str,
        idle_timeout_s: float,
        total_s: float,
    ) -> None:
        """Wait while too much output is buffered, because the server does not read its input.

        label: the method and subject of the request that is to be sent, for errors.
        Raises TimedOut after idle_timeout_s or total_s, Disconnected if the connection has ended or
        ends, and ValueError if idle_timeout_s is not positive.
        """
        if not idle_timeout_s > 0:
            raise ValueError(
                f"timeout_s: expected a positive number of seconds, got {idle_timeout_s!r}"
            )
        within_s = min(idle_timeout_s, total_s)
        now = self._deadlines.time()
        until = now + within_s
        while self.peer.buffered_bytes >= self._output.high_water_bytes and not self.ending.over:
            left = until - self._deadlines.time()
            await self._output.wait_for_drain(None if left == FOREVER else max(0.0, left))
            if self._deadlines.time() >= until:
                text = f"{label}: could not be sent within {within_s:g} s"
                raise self.ending.explain(TimedOut(f"{text}: the server does not read its input"))
        if self.ending.over:
            raise self.ending.disconnected(label, self._deadlines.time() - now)

    def _build_unusual_frame(
        self,
        prepared: PreparedRequest,
        id: int,
        params: bytes,
    ) -> bytes:
        """Return the frame of a request whose params contain newlines or are very long.

        Newlines between JSON tokens are removed.
        prepared: the request without its id and without some of its params.
        Raises ValueError if the frame has more than max_message_bytes.
        """
        frame = prepared.template % (id, one_line(params))
        limit = self._output.max_message_bytes
        if len(frame) > limit:
            raise ValueError(
                f"{prepared.label}: the request has {len(frame)} bytes, and a message may have "
                f"{limit} (max_message_bytes)"
            )
        return frame

    def _match_polled(
        self,
        prepared: PreparedRequest,
        id: int,
        line: bytes,
    ) -> Any:
        """Return the decoded response to a request, if the server's next line is this response.

        Otherwise return None, and deliver the line to on_frames() later.
        prepared: the request, whose decode() is tried.
        id: the id of the request.
        line: the line that send_and_poll() has returned.
        """
        try:
            reply = prepared.decode(line)
            # msgspec does not check that fields which it skips or leaves undecoded are UTF-8.
            if not line.isascii():
                str(line, "utf-8")
            if reply.id == id:
                return reply
        except DECODE_ERRORS:
            pass
        self._output.defer_line(line)
        return None

    def abandon(
        self,
        id: Id,
        reason: str,
        cancels: bool,
    ) -> None:
        """Remove a pending request from its table, without an outcome.

        Does nothing if the request is not pending.

        reason: the reason in notifications/cancelled.
        cancels: whether to send notifications/cancelled.
        """
        # The ids of this client's requests are integers. For a str, get() returns None.
        pending = self.peer.outgoing.get(cast("int", id))
        if pending is None:
            return
        self.counts.unanswered += 1
        self.skipped.expect_late(id)
        if cancels:
            self.peer.abandon(pending, reason)
        else:
            del self.peer.outgoing[pending.id]

    @property
    def pending_method(self) -> str:
        """Return the method of the oldest request without a response; "" if there is none."""
        for pending in self.peer.outgoing.values():
            if isinstance(pending, PendingReply):
                return pending.request.method
        return ""

    def fail_pending(self, error: ConcertinoError) -> None:
        """Set this error as the outcome of all pending requests but subscriptions."""
        for pending in list(self.peer.outgoing.values()):
            if isinstance(pending, PendingReply):
                pending.done(error)

    def end_with(self, error: ConcertinoError) -> None:
        """Set this error as the outcome of all pending requests, and end the channel."""
        self.fail_pending(error)
        self.end()

    # Time limits

    def _expire(self, now: float) -> float:
        """Fail the requests whose deadline has passed, with TimedOut. The timer calls this.

        Also ends the connection if the server sends a line that is too long and does not end.
        now: the time by the loop's clock.
        Returns the time of the next call: the earliest deadline of the remaining requests.
        """
        if self._messages.oversize.expire(now):
            limit = self._output.max_message_bytes
            self.give_up(f"it sends a line without an end: more than {limit} bytes")
        earliest = self._messages.oversize.checks_at
        for pending in list(self.peer.outgoing.values()):
            if not isinstance(pending, PendingReply):
                continue
            if pending.deadline > now:
                earliest = min(earliest, pending.deadline)
            elif pending.outcome is None:
                pending.done(self.ending.explain(TimedOut(self._describe_timeout(pending, now))))
        return earliest

    def _describe_timeout(self, pending: PendingReply, now: float) -> str:
        """Return the text of the error for a request that has timed out."""
        text = f"{pending.request.label}: no answer within {now - pending.sent_at:.3g} s"
        progress = pending.progress
        if progress is not None and progress.last > float("-inf"):
            text += f" (its last progress was {progress.last:g})"
        if discarded := self._messages.oversize.discarded_bytes:
            text += (
                f"; a message of {discarded} bytes or more was discarded, which may have been "
                f"the answer: max_message_bytes is {self._output.max_message_bytes}"
            )
        return text

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        """Handle all frames of one read, and resume the callers whose responses have arrived."""
        state = self.input
        state.heard = True
        # asyncio cannot run a step of one task inside another task. So callers are resumed at once
        # only if the event loop itself, and not a task, has called on_frames().
        state.outside_tasks = outside = asyncio.current_task(self._deadlines.loop) is None
        pending_requests = self.peer.outgoing
        # In a proxy, these responses end calls of the proxy's own clients. read_batch.end() sends
        # the responses to these clients together, one loop iteration earlier than otherwise. The
        # argument of begin(), the number of messages, matters only to links to plugins.
        read_batch = self._read_batch
        is_batch = outside and not read_batch.in_progress
        if is_batch:
            read_batch.begin(0)
        try:
            for frame in batch:
                if not pending_requests:
                    self._receive(frame)
                    continue

                # Try the decoder of the request that was sent last, because its response will
                # probably come next.
                decode = state.decode
                try:
                    reply = decode(frame)
                    # Check for UTF-8; _match_polled() says why.
                    if not frame.isascii():
                        str(frame, "utf-8")
                    pending = pending_requests.pop(reply.id)
                except (KeyError, *DECODE_ERRORS):
                    # This frame is no successful response. Handle it after the `except` block, and
                    # not inside: there, exceptions of a resumed caller would get this exception as
                    # their __context__.
                    pass
                else:
                    # Comparing the type is faster than isinstance(). The next branch handles the
                    # subclass ForwardedReply.
                    if type(pending) is PendingReply and pending.request.decode is decode:
                        # This does the same as pending.done(), without a function call.
                        if pending.callback is not None and pending.outcome is None and outside:
                            pending.outcome = reply.result
                            pending.context.run(pending.callback, pending)
                        else:
                            pending.done(reply.result)
                    elif decode is decode_reply:
                        pending.done(reply.result)
                    else:
                        # `decode` is that of another request, so the result may have a wrong type.
                        pending.done(decode_reply(frame).result)
                    continue
                self._receive(frame)
        finally:
            state.outside_tasks = False
            if is_batch:
                read_batch.end()

    def _receive(self, frame: bytes) -> None:
        """Handle a frame that the fast path in on_frames() has not handled."""
        # An earlier frame of the same read may have ended the channel.
        if not self.ending.over:
            self._messages.receive(frame)

    def on_frame_too_long(self, size: int) -> None:
        """Fail the request whose response is too long; count any other such line as skipped.

        size: how many bytes of the line had arrived when it exceeded the limit.
        """
        self._messages.on_frame_too_long(size, self._deadlines.time())
        self._deadlines.wake_at(min(self._deadlines.wakes_at, self._messages.oversize.checks_at))

    def on_drain(self, held: int) -> None:
        self.peer.on_drain(held)
        self._output.report_drain()

    def on_eof(self) -> None:
        if not self.ending.over:
            self.end()
            self._delegate.on_eof()

    def on_disconnect(self, exc: Exception) -> None:
        self.ending.reason = str(exc)
        self.on_eof()

    # The end. on_eof(), on_disconnect() and give_up() tell the delegate of the end; end() and
    # end_with() do not. All of them fail the pending requests.

    def give_up(self, fault: str) -> None:
        """End the connection, because the server misbehaves.

        fault: a clause that says what the server has done, for logs and errors.
        """
        if not self.ending.over:
            self.ending.fault = fault
            self._log.error("the connection is closed: %s", fault)
            self.on_eof()

    def end(self) -> None:
        """Fail all pending requests with Disconnected. Does not close the Connection."""
        if self.ending.over:
            return
        self.ending.over = True
        self._deadlines.stop()
        # Requests may wait in _wait_until_writable(). Wake them, so that they raise Disconnected.
        self.on_drain(0)
        self.counts.unanswered += len(self.peer.outgoing)
        # peer.close() fails the pending requests, and returns the server's requests that have no
        # response.
        for incoming in self.peer.close():
            if incoming.on_cancel is not None:
                incoming.on_cancel("the connection ended")
