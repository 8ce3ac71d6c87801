"""The parts of a Channel that belong to single requests.

- A PreparedRequest is a request that is to be sent.
- A PendingReply is a request that was sent and waits for its response.
- A ProgressTracker handles the progress notifications of a request.

The Channel (client/channel.py) sends prepared requests, and has one DeadlineTimer for all pending
requests. This module also has functions that name and quote requests in errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic
from typing import Any, Literal, Protocol

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.channel_ending import ChannelEnding
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import Disconnected, ProtocolError
from concertino.jsonrpc.messages import Id, Message
from concertino.jsonrpc.outgoing_requests import PendingTable
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.runtime.pending import PendingOutcome

FOREVER = float("inf")
# The reason in notifications/cancelled for a request whose caller has stopped waiting.
GIVEN_UP = "the caller gave up"
# Errors and logs quote at most this many characters of a frame.
MAX_QUOTE = 200
# The type of a user's function progress(done, total, message), whose arguments are the params of
# notifications/progress.
Progress = Callable[[float, float | None, str | None], object]


class Reply(Struct, gc=False, forbid_unknown_fields=True):
    """A successful response without unknown fields, as nearly all messages to a client are.

    The result is not decoded.
    """

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


decode_reply = Decoder(Reply).decode


class _SentRequest(Struct):
    id: int
    method: str


_decode_sent_request = Decoder(_SentRequest).decode


def request_ids(lines: Iterable[bytes]) -> frozenset[int]:
    """Return the ids of this client's requests among lines of output. Ignores other lines."""
    ids: set[int] = set()
    for line in lines:
        try:
            ids.add(_decode_sent_request(line).id)
        except DECODE_ERRORS:
            pass
    return frozenset(ids)


class PreparedRequest(Struct, eq=False):
    """A request that lacks its id and some or all of its params. It may be sent many times.

    template: the request as JSON, with gaps for the id and the missing params; made by
        request_template().
    method: the method of the request.
    subject: the name or URI in the request, such as the name of a tool, for errors; "" if there is
        none.
    decode: a function that decodes a successful response. It returns an object with `id` and
        `result`, and raises msgspec.DecodeError for other responses.
    """

    template: bytes
    method: str
    subject: str
    decode: Callable[[bytes], Any]

    def join(self, id: int, params: bytes) -> bytes:
        """Return the request as JSON. For long params, faster than `template % (id, params)`."""
        head, _, tail = self.template.rpartition(b"%b")
        # `tail % ()` turns each `%%` of the template into `%`.
        return b"".join((head % id, params, tail % ()))

    @property
    def label(self) -> str:
        """Return the name of the request for errors, such as `tools/call add`."""
        return request_label(self.method, self.subject)


class InputState:
    """The state of a Channel while it handles the messages that have arrived ("frames").

    outside_tasks: whether the task that waits for a response may be resumed at once, and not in the
        next loop iteration. asyncio does not allow this inside of another task, so this is True
        only if the event loop itself has called the Channel.
    frame: the frame that is being handled, which errors quote; b"" for a successful response.
    heard: whether any frame has arrived since the Conversation has sent its last regular ping.
    decode: the decoder of the request that was sent last, which is tried first for the next frame.
    """

    __slots__ = ("decode", "frame", "heard", "outside_tasks")

    def __init__(self) -> None:
        self.outside_tasks = False
        self.frame = b""
        self.heard = False
        self.decode: Callable[[bytes], Any] = decode_reply


class PendingReply(PendingOutcome, eq=False):
    """A request that waits for its response.

    Channel.ask() awaits this object in the task of the caller. The Channel calls done() when the
    response has arrived or the request has failed. PendingOutcome has the attributes `outcome`,
    `failed`, `callback` and `context`.

    input: the InputState of the Channel.
    id: the id of the request.
    request: the prepared request.
    sent_at: the time at which the request was sent, by the loop's clock.
    deadline: the time at which the request times out, by the loop's clock. Each progress
        notification moves the deadline.
    progress: the tracker of the request's progress; None if the caller has not requested progress.
    """

    # PendingOutcome declares this with the keyword-only fields. Declared here again, it becomes a
    # positional argument, which saves 50 ns.
    _loop: asyncio.AbstractEventLoop
    input: InputState
    id: int
    request: PreparedRequest
    sent_at: float
    deadline: float
    progress: ProgressTracker | None = None

    def done(self, outcome: object) -> None:
        """Set the result or the exception, and resume the caller. A second call does nothing.

        outcome: the decoded result, or an exception that the caller raises.
        """
        if self.outcome is not None:
            return
        state = self.input
        if isinstance(outcome, BaseException):
            self.failed = True
            if type(outcome) is ProtocolError:
                label = self.request.label
                outcome = ProtocolError(f"{label}: {outcome}: {quote_frame(state.frame)}")
        self.outcome = outcome

        if state.outside_tasks and self.callback is not None:
            self.context.run(self.callback, self)
        else:
            self.resume_soon()

    def __repr__(self) -> str:
        """Return the text that asyncio shows for a task that awaits this object."""
        return f"<PendingReply to {self.request.label}>"


class ReplyOwner(Protocol):
    """The attributes of Channel that ForwardedReply uses."""

    @property
    def ending(self) -> ChannelEnding:
        """Return whether and why the channel has ended."""
        ...

    def abandon(self, id: Id, reason: str, cancels: bool) -> None:
        """Remove a pending request from its table, without an outcome.

        Does nothing if the request is not pending.

        reason: the reason in notifications/cancelled.
        cancels: whether to send notifications/cancelled.
        """
        ...


class ForwardedReply(PendingReply, eq=False):
    """A pending request that a proxy has forwarded. No task awaits it.

    When the request has an outcome, the Channel calls `callback` with this object. `outcome` is
    then the result. If `failed` is True, error() returns the exception.

    owner: the Channel that has sent the request.
    """

    # Always set. The default is needed after other fields with defaults.
    owner: ReplyOwner | None = None

    def give_up(self) -> None:
        """Cancel the request at the server. The callback is not called afterwards."""
        self.callback = None
        assert self.owner is not None
        self.owner.abandon(self.id, GIVEN_UP, cancels=True)

    def error(self, now: float) -> Exception:
        """Return the exception of a request that has failed.

        If the connection has ended, the text of the exception says how the server's process has
        ended. The exception is an UnreadRequest if the request may be sent again.
        now: the time by the loop's clock.
        """
        assert self.owner is not None
        outcome: Exception = self.outcome
        if not isinstance(outcome, Disconnected):
            return outcome
        return self.owner.ending.disconnected(self.request.label, now - self.sent_at, self.id)


class RequestCounts:
    """Counts the requests of a Channel.

    pending: the table of pending requests, which assigns the ids.

    Attribute:
    unanswered: how many requests timed out, were cancelled, or were pending when the connection
        ended. The Channel increments this number.
    """

    def __init__(self, pending: PendingTable) -> None:
        self.unanswered = 0
        self._pending = pending
        self._first_id = pending.next_id

    @property
    def sent(self) -> int:
        """Return the number of requests that were sent."""
        return self._pending.next_id - self._first_id

    @property
    def answered(self) -> int:
        """Return the number of requests that were answered, with a result or an error."""
        return self.sent - self.unanswered - len(self._pending)


class ProgressTracker(Struct, eq=False):
    """Passes the progress of one request to the caller's function, and moves its deadline.

    token: the progress token in the request's `_meta`.
    callback: the caller's function.
    idle_timeout_s: how many seconds may pass until the response arrives. Each progress notification
        starts this time again.
    total_s: how many seconds the request may take in all.
    pending: the request; None until it is sent.
    last: the last progress that was reported; minus infinity before the first.
    """

    token: int
    callback: Progress
    idle_timeout_s: float
    total_s: float
    pending: PendingReply | None = None
    last: float = float("-inf")

    def update(
        self,
        now: float,
        progress: float,
        total: float | None,
        message: str | None,
    ) -> None:
        """Handle a progress notification. Ignore it if the progress does not increase.

        now: the time of its arrival, by the loop's clock.
        progress, total, message: the params of the notification.
        """
        pending = self.pending
        if pending is None or not progress > self.last:
            return
        self.last = progress
        pending.deadline = min(now + self.idle_timeout_s, pending.sent_at + self.total_s)
        self.callback(progress, total, message)


class _Progress(Struct, rename="camel"):
    """The params of notifications/progress."""

    progress_token: Id
    # With `float` alone, an int would become a float.
    progress: int | float
    total: int | float | None = None
    message: str | None = None


_decode_progress = Decoder(_Progress).decode


class ProgressTrackers:
    """The progress trackers of all pending requests of a Channel.

    Attributes:
    by_token: progress token -> tracker.
    last_token: the progress token that was assigned last.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.by_token: dict[object, ProgressTracker] = {}
        self.last_token = 1
        self._log = log

    @contextmanager
    def track(
        self,
        callback: Progress,
        idle_timeout_s: float,
        total_s: float,
    ) -> Generator[ProgressTracker]:
        """Provide a tracker with a new progress token, until the end of the `with` block.

        callback: a function callback(done, total, message) for the progress notifications.
        idle_timeout_s: how many seconds may pass until the response arrives. Each progress
            notification starts this time again.
        total_s: how many seconds the request may take in all.
        """
        self.last_token += 1
        tracker = ProgressTracker(self.last_token, callback, idle_timeout_s, total_s)
        self.by_token[tracker.token] = tracker
        try:
            yield tracker
        finally:
            del self.by_token[tracker.token]

    def on_notification(self, message: Message, now: float) -> None:
        """Pass a progress notification to the tracker that has its token.

        Ignores a malformed notification, and a token that belongs to no tracker.
        message: the notification.
        now: the time by the loop's clock.
        """
        if not self.by_token:
            return
        try:
            report = _decode_progress(encode(message.params))
        except DECODE_ERRORS:
            return
        tracker = self.by_token.get(report.progress_token)
        if tracker is None:
            return
        try:
            tracker.update(now, report.progress, report.total, report.message)
        except Exception:
            self._log.exception("the progress function of a call failed")


class DeadlineTimer:
    """One timer for the deadlines of all pending requests of a Channel.

    All times are those of the loop's clock.
    expire: a function that is called with the current time when the timer fires. It returns the
        time at which the timer must fire next; infinite for never.

    Attributes:
    loop: the running event loop.
    time: a function that returns the current time.
    wakes_at: the time that was passed to the last wake_at(); infinite before the first. stop() does
        not change it.
    """

    def __init__(self, expire: Callable[[float], float]) -> None:
        self.loop = loop = asyncio.get_running_loop()
        # asyncio's own loops return monotonic(). Call it directly, without a Python frame.
        is_standard = type(loop).time is asyncio.BaseEventLoop.time
        self.time: Callable[[], float] = monotonic if is_standard else loop.time
        self.wakes_at = FOREVER
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    def wake_at(self, at: float) -> None:
        """Set the timer to this time, instead of the time that was set before."""
        self.stop()
        self.wakes_at = at
        self._handle = None if at == FOREVER else self.loop.call_at(at, self._run)

    def _run(self) -> None:
        """Call `expire`, and set the timer to the time that it returns."""
        self._handle = None
        self.wake_at(self._expire(self.time()))

    def stop(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


# A client uses few methods, but users may pass any number of them to Client.request().
@lru_cache(64)
def request_template(method: str, before: bytes = b"", after: bytes = b"") -> bytes:
    """Return a request as JSON with gaps for its id and params: use `template % (id, params)`.

    method: the method of the request.
    before, after: the beginning and the end of the params, if these are the same for all requests
        with this template, such as `{"name":"add","arguments":` and `}`. Then only the JSON between
        `before` and `after` is filled in.
    """
    # The result is itself a template, so a `%` in the fixed parts must be escaped.
    fixed = (part.replace(b"%", b"%%") for part in (encode(method), before, after))
    return b'{"jsonrpc":"2.0","id":%%d,"method":%b,"params":%b%%b%b}' % tuple(fixed)


def request_label(method: str, subject: str) -> str:
    """Return the name of a request for errors, such as `tools/call add`.

    subject: the name or URI in the request; "" if there is none.
    """
    return f"{method} {subject}" if subject else method


def quote_frame(frame: bytes | Raw | Any) -> str:
    """Return the beginning of a message for errors and logs, with secrets redacted.

    Control characters are escaped. If the message has more than MAX_QUOTE characters, the text ends
    with the size of the message in bytes.
    """
    # MAX_QUOTE characters have at most four times as many bytes in UTF-8.
    whole = bytes(frame)
    text = redactor().frame(whole[: 4 * MAX_QUOTE]).decode("utf-8", "backslashreplace")
    text = escape_controls(text)
    if len(whole) <= 4 * MAX_QUOTE and len(text) <= MAX_QUOTE:
        return text
    return f"{text[:MAX_QUOTE]}... ({len(whole)} bytes)"
