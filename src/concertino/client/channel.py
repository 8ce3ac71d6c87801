"""The client's end of one connection: sends requests, matches responses, and enforces time limits.

Every request takes the same path: an id, an entry in the table of outgoing requests, an awaitable.
Requests have no timers of their own. One timer for the channel wakes at the earliest deadline,
checks all pending requests (a few microseconds for a thousand) and sleeps until the next deadline.
`asyncio.timeout` would cost 3.9 us a call, `wait_for` 11 us.
This module does not interpret requests or results; client/conversation.py does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from random import SystemRandom
from types import coroutine
from typing import Any, Protocol, cast

from msgspec import UNSET, DecodeError, Raw

from concertino.client.pending_request import (
    FOREVER,
    DeadlineTimer,
    InputState,
    PendingReply,
    PreparedRequest,
    ProgressTracker,
    ProgressTrackers,
    UnreadRequest,
    decode_reply,
    request_template,
)
from concertino.client.skipped_lines import OversizeWatch, SkippedLines, parse_head
from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import NEWLINE, Id, Message, decode, one_line
from concertino.jsonrpc.peer import Peer
from concertino.jsonrpc.requests import IncomingRequest
from concertino.transports.connection import Connection, SupportsDirectSend, SupportsPolling

# The first id is random, so that a line that a tool prints cannot pass for a response by chance.
MAX_FIRST_ID = 2**30


class ChannelDelegate(Protocol):
    """Receives everything that is not a response."""

    def on_request(self, incoming: IncomingRequest) -> None:
        """Handle a request of the server. Answer it with peer.respond() or peer.fail()."""
        ...

    def on_notification(self, message: Message) -> None:
        """Handle a notification of the server."""
        ...

    def on_eof(self) -> None:
        """Release what belongs to the connection: it ended by itself."""
        ...

    def explain(self, error: ConcertinoError) -> ConcertinoError:
        """Return the error with what is known about the server process added."""
        ...


class Channel:
    """The Receiver of a client's Connection. Keeps nothing alive after end().

    over: whether the connection has ended.
    fault: the reason why this client ended it; "" if it did not.
    unread: the ids of the requests that nobody had read when it ended, if they may be sent again;
    None if none may. skipped: lines of the server that were ignored. input: the state of reading.
    progress: see Conversation.call().
    """

    def __init__(
        self,
        connection: Connection,
        limits: Limits,
        delegate: ChannelDelegate,
        log: logging.Logger,
    ) -> None:
        self.over = False
        self.fault = ""
        self.unread: frozenset[int] | None = None
        self.skipped = SkippedLines(log)
        self.input = InputState()
        self.progress = ProgressTrackers(log)
        self._delegate = delegate
        self._log = log
        self._deadlines = DeadlineTimer(self._expire)
        self._output = _Output(connection, limits)
        self._oversize = OversizeWatch(connection)
        first_id = SystemRandom().randrange(1, MAX_FIRST_ID)
        self.peer = Peer(self._output.queue, limits, self._deadlines.time, first_id)
        self.peer.invalid_input.answered = False
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
        """Send a request and return its result undecoded.

        params: a JSON object. subject: what the request is about, for errors. For the other
        parameters, and what it raises, see ask().
        """
        # Requests other than tool calls are rare, so they are prepared anew each time.
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
        """Send a prepared request and return its result.

        The result is as prepared.decode() returns it, or Raw if that cannot decode the response.
        idle_timeout_s: how long the server may stay silent; progress restarts it. total_s: how long
        the request may take in all. Both may be infinite. progress: from self.progress.track(), if
        params ask for progress. cancels: whether to tell the server when the request is abandoned.
        Raises RpcError, TimedOut, Disconnected and ProtocolError; ValueError if it cannot be sent.

        This is a generator for types.coroutine, because it makes a request one frame instead of two
        coroutines and an iterator.
        """
        output = self._output
        deadlines = self._deadlines
        peer = self.peer
        now = deadlines.time()

        # `not x > 0` instead of `x <= 0`, which would accept NaN.
        if self.over or peer.buffered_bytes >= output.high_water_bytes or not idle_timeout_s > 0:
            yield from self._wait_until_writable(
                prepared.label, idle_timeout_s, total_s
            ).__await__()
        outgoing = peer.outgoing
        id = outgoing.next_id
        outgoing.next_id = id + 1

        # One check for two rare cases: a newline would end the frame, and a frame may be too long.
        frame = prepared.template % (id, params)
        if NEWLINE in params or len(frame) > output.max_message_bytes:
            frame = self._fit(prepared, id, params)

        # If nothing else is in flight, write at once, which saves a loop iteration. The response
        # may be there by the time the write returns.
        is_alone = not outgoing and not output.flush_scheduled
        polled = output.send_and_poll(frame, id) if is_alone else None
        if isinstance(polled, bytes):
            reply = self._match_polled(prepared, id, polled)
            if reply is not None:
                return reply.result
            polled = 0

        deadline = now + (idle_timeout_s if idle_timeout_s < total_s else total_s)
        pending = PendingReply(deadlines.loop, self.input, id, prepared, now, deadline, progress)
        if progress is not None:
            progress.pending = pending
        if deadline < deadlines.wakes_at:
            deadlines.wake_at(deadline)
        # Register first: a Connection may deliver the response inside flush().
        self.input.decode = prepared.decode
        outgoing[id] = pending
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
            reason = "timed out" if isinstance(exc, TimedOut) else "the caller gave up"
            self.abandon(id, reason, cancels)
            raise
        except Disconnected:
            raise self.disconnected(prepared.label, deadlines.time() - now, id) from None

    async def _wait_until_writable(
        self,
        label: str,
        idle_timeout_s: float,
        total_s: float,
    ) -> None:
        """Wait until the server reads its input, at most as long as the response may take."""
        if not idle_timeout_s > 0:
            raise ValueError(
                f"timeout_s: expected a positive number of seconds, got {idle_timeout_s!r}"
            )
        within_s = min(idle_timeout_s, total_s)
        now = self._deadlines.time()
        until = now + within_s
        while self.peer.buffered_bytes >= self._output.high_water_bytes and not self.over:
            left = until - self._deadlines.time()
            await self._output.wait_for_drain(None if left == FOREVER else max(0.0, left))
            if self._deadlines.time() >= until:
                text = f"{label}: could not be sent within {within_s:g} s"
                raise self.explain(TimedOut(f"{text}: the server does not read its input"))
        if self.over:
            raise self.disconnected(label, self._deadlines.time() - now)

    def _fit(
        self,
        prepared: PreparedRequest,
        id: int,
        params: bytes,
    ) -> bytes:
        """Return the frame of a request on one line. Raises ValueError if it is too long."""
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
        """Return a polled line as the decoded response to a request.

        Any other line is deferred to on_frames(); then returns None.
        """
        try:
            reply = prepared.decode(line)
            # msgspec does not check UTF-8 in everything it skips or returns as Raw.
            if not line.isascii():
                str(line, "utf-8")
            if reply.id == id:
                return reply
        except (DecodeError, UnicodeDecodeError, RecursionError):
            pass
        self._output.defer_line(line)
        return None

    def abandon(
        self,
        id: Id,
        reason: str,
        cancels: bool,
    ) -> None:
        """Stop waiting for a response. cancels: whether to tell the server."""
        # Our ids are integers; any other id is simply not in the table.
        outgoing = self.peer.outgoing.get(cast("int", id))
        if outgoing is None:
            return
        self.skipped.expect_late(id)
        if cancels:
            self.peer.abandon(outgoing, reason)
        else:
            del self.peer.outgoing[outgoing.id]

    def fail_pending(self, error: ConcertinoError) -> None:
        """Fail all requests that wait for a response."""
        for pending in list(self.peer.outgoing.values()):
            if isinstance(pending, PendingReply):
                pending.done(error)

    def refuse(self, error: ConcertinoError) -> None:
        """Fail all requests that wait for a response, and ignore whatever comes from now on."""
        self.fail_pending(error)
        self.end()

    # Time limits

    def _expire(self, now: float) -> float:
        """Fail the requests whose deadline has passed. Returns the earliest remaining deadline."""
        if self._oversize.is_endless(now):
            limit = self._output.max_message_bytes
            self.give_up(f"it sends a line without an end: more than {limit} bytes")
        earliest = self._oversize.checks_at
        for pending in list(self.peer.outgoing.values()):
            if not isinstance(pending, PendingReply):
                continue
            if pending.deadline > now:
                earliest = min(earliest, pending.deadline)
            elif pending.outcome is None:
                pending.done(self.explain(TimedOut(self._describe_timeout(pending, now))))
        return earliest

    def _describe_timeout(self, pending: PendingReply, now: float) -> str:
        text = f"{pending.request.label}: no answer within {now - pending.sent_at:.3g} s"
        progress = pending.progress
        if progress is not None and progress.last > float("-inf"):
            text += f" (its last progress was {progress.last:g})"
        if self._oversize.discarded_bytes:
            text += (
                f"; a message of {self._oversize.discarded_bytes} bytes or more was discarded, "
                "which may have been the answer: max_message_bytes is "
                f"{self._output.max_message_bytes}"
            )
        return text

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        state = self.input
        state.heard = True
        # asyncio cannot run a step of a task inside another task.
        state.outside_tasks = outside = asyncio.current_task(self._deadlines.loop) is None
        outgoing = self.peer.outgoing
        try:
            for frame in batch:
                if not outgoing:
                    self._receive(frame)
                    continue

                # The next response most likely belongs to the request that was sent last.
                read = state.decode
                try:
                    reply = read(frame)
                    if not frame.isascii():
                        str(frame, "utf-8")
                    pending = outgoing.pop(reply.id)
                except (DecodeError, UnicodeDecodeError, RecursionError, KeyError):
                    # Handled below: a caller that is resumed in here would get this exception as
                    # the context of its own.
                    pass
                else:
                    if type(pending) is PendingReply and pending.request.decode is read:
                        # The same as pending.done(), without the call.
                        if pending.callback is not None and pending.outcome is None and outside:
                            pending.outcome = reply.result
                            pending.context.run(pending.callback, pending)
                        else:
                            pending.done(reply.result)
                    elif read is decode_reply:
                        pending.done(reply.result)
                    else:
                        pending.done(decode_reply(frame).result)
                    continue
                self._receive(frame)
        finally:
            state.outside_tasks = False

    def _receive(self, frame: bytes) -> None:
        """Handle a frame that is not a plain response to a pending request."""
        # There may be very many of them.
        if self.over:
            return
        peer = self.peer
        unmatched = peer.invalid_input.unsolicited
        self.input.frame = frame
        event = peer.receive(frame)
        self.input.frame = b""
        if isinstance(event, list):
            for message in event:
                self._dispatch(message)
        elif event is not None:
            self._dispatch(event)
        elif peer.invalid_input.unsolicited != unmatched:
            self._on_unmatched(frame)

    def _dispatch(self, event: IncomingRequest | Message) -> None:
        try:
            if isinstance(event, IncomingRequest):
                self._delegate.on_request(event)
            elif event.method == "notifications/progress":
                # Handled here, because progress moves the deadline of a request.
                self.progress.on_notification(event, self._deadlines.time())
            else:
                self._delegate.on_notification(event)
        except Exception:
            self._log.exception("a message of the server could not be handled")

    def _on_unmatched(self, frame: bytes) -> None:
        """Skip a line that is not a message, or a response to no pending request."""
        message = decode(frame)
        if type(message) is not Message:
            self.skipped.add(frame, "not a JSON-RPC message")
        elif message.id is UNSET or not self.skipped.is_late(message.id):
            self.skipped.add(frame, "a response to no request of this client")

    def on_frame_too_long(self, size: int) -> None:
        limit = self._output.max_message_bytes
        head = self.input.frame = self._oversize.on_oversize(self._deadlines.time())
        self._deadlines.wake_at(min(self._deadlines.wakes_at, self._oversize.checks_at))
        is_response, id = parse_head(head)

        # Some servers write the id last. Then it is known only if a single request is pending.
        if is_response and id is None:
            pending = [
                item.id for item in self.peer.outgoing.values() if isinstance(item, PendingReply)
            ]
            id = pending[0] if len(pending) == 1 else None

        outgoing = self.peer.outgoing.pop(id, None) if id is not None else None
        if outgoing is not None:
            self._log.warning("an answer of more than %d bytes was discarded", limit)
            outgoing.done(
                ProtocolError(f"the answer has more than {limit} bytes, which is max_message_bytes")
            )
        elif id is None or not self.skipped.is_late(id):
            self._oversize.discarded_bytes = size
            self.skipped.add(head, f"longer than {limit} bytes")

    def on_drain(self, held: int) -> None:
        self.peer.on_drain(held)
        self._output.report_drain()

    def on_eof(self) -> None:
        if not self.over:
            self.end()
            self._delegate.on_eof()

    def on_disconnect(self, exc: Exception) -> None:
        self.on_eof()

    # The end

    def give_up(self, fault: str) -> None:
        """End the connection because the server misbehaves. fault: what it did."""
        if not self.over:
            self.fault = fault
            self._log.error("the connection is closed: %s", fault)
            self.on_eof()

    def end(self) -> None:
        """Fail all pending requests and stop sending. Does not close the Connection below."""
        if self.over:
            return
        self.over = True
        self._deadlines.stop()
        self.on_drain(0)
        # peer.close() fails the pending requests and returns the server's unanswered ones.
        for incoming in self.peer.close():
            if incoming.on_cancel is not None:
                incoming.on_cancel("the connection ended")

    def explain(self, error: ConcertinoError) -> ConcertinoError:
        """Return the error with what is known about the server process added."""
        return self._delegate.explain(error)

    def disconnected(
        self,
        label: str,
        waited_s: float = 0.0,
        id: Id | None = None,
    ) -> Disconnected:
        """Return the error for a request that will not be answered because the connection ended.

        id: None if it was not sent. Returns an UnreadRequest if it may be sent again.
        """
        text = f"{label}: the connection ended before the answer came"
        if waited_s:
            text += f", after {waited_s:.3g} s"
        error = self._delegate.explain(Disconnected(text))
        if not isinstance(error, Disconnected):
            error = Disconnected(str(error))
        if self.unread is not None and (id is None or id in self.unread):
            return UnreadRequest(error, waited_s)
        return error


class _Output:
    """Writes frames to a Connection in the fastest way it supports.

    queue() and write() return the number of buffered bytes.
    send_and_poll: see SupportsPolling. For a Connection with direct sends only it never returns a
    line; for any other it does nothing and returns None. defer_line: takes back a polled line.
    flush_scheduled: queued frames are flushed at the end of this loop iteration.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self.high_water_bytes = limits.high_water_bytes
        self.max_message_bytes = limits.max_message_bytes
        self.flush_scheduled = False
        self._connection = connection
        self._drained: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

        self.send_and_poll: Callable[[bytes, Id | None], bytes | int | None] = _cannot_poll
        self.defer_line: Callable[[bytes], object] = bytes
        if isinstance(connection, SupportsPolling):
            self.send_and_poll = connection.send_and_poll
            self.defer_line = connection.defer_line
        elif isinstance(connection, SupportsDirectSend):
            self.send_and_poll = connection.send

    def queue(self, frame: bytes, request_id: Id | None) -> int:
        """Queue a frame; all queued frames are flushed at the end of this loop iteration."""
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self._loop.call_soon(self._flush)
        return self._connection.write(frame, request_id)

    def _flush(self) -> None:
        self.flush_scheduled = False
        self._connection.flush()

    def write(self, frame: bytes, request_id: Id | None) -> int:
        """Write a frame and flush at once."""
        held = self._connection.write(frame, request_id)
        self._connection.flush()
        return held

    async def wait_for_drain(self, within_s: float | None) -> None:
        """Wait for report_drain(), at most that long."""
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.wait([self._drained], timeout=within_s)

    def report_drain(self) -> None:
        """Wake all tasks that wait for room in the output buffer."""
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None


def _cannot_poll(frame: bytes, request_id: Id | None) -> None:
    return None
