"""A client's requests: PreparedRequest (to be sent), PendingReply (waits for its response).

Channel (client/channel.py) sends prepared requests and owns the pending ones. ProgressTracker
passes on the progress of a request, and DeadlineTimer is one timer for the deadlines of all pending
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

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.channel_ending import ChannelEnding
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
# progress(done, total, message): the params of notifications/progress.
Progress = Callable[[float, float | None, str | None], object]


class Reply(Struct, gc=False, forbid_unknown_fields=True):
    """A response with a result and no unknown members. Nearly all frames to a client are one."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


decode_reply = Decoder(Reply).decode


class _SentRequest(Struct):
    id: int
    method: str


_decode_sent_request = Decoder(_SentRequest).decode


def request_ids(lines: Iterable[bytes]) -> frozenset[int]:
    """Return the ids of the requests among lines; ignore all other lines."""
    ids: set[int] = set()
    for line in lines:
        try:
            ids.add(_decode_sent_request(line).id)
        except (DecodeError, RecursionError):
            pass
    return frozenset(ids)


class PreparedRequest(Struct, eq=False):
    """A request that lacks its id and some or all of its params. It may be sent many times.

    template: the frame, with gaps for the id and the params; made by request_template().
    method: the method of the request.
    subject: the name or URI in the request, such as the name of a tool, for errors.
    decode: decodes a successful response: returns an object with `id` and `result`, and raises
        msgspec.DecodeError for other responses.
    """

    template: bytes
    method: str
    subject: str
    decode: Callable[[bytes], Any]

    def join(self, id: int, params: bytes) -> bytes:
        """Return the frame of a long request: the same as `template % (id, params)`, but faster."""
        head, _, tail = self.template.rpartition(b"%b")
        return b"".join((head % id, params, tail % ()))

    @property
    def label(self) -> str:
        return request_label(self.method, self.subject)


class InputState:
    """The state of reading in a Channel, which it shares with its pending requests.

    outside_tasks: whether frames are being handled in a callback of the loop, and not in a task.
        Only then a waiting task may be resumed at once.
    frame: the frame that is being handled; not set in the fast path of Channel.on_frames().
    heard: set to True when frames arrive. The regular ping sets it to False.
    decode: the decoder of the last request, which is tried first for the next response.
    """

    __slots__ = ("decode", "frame", "heard", "outside_tasks")

    def __init__(self) -> None:
        self.outside_tasks = False
        self.frame = b""
        self.heard = False
        self.decode: Callable[[bytes], Any] = decode_reply


class PendingReply(PendingOutcome, eq=False):
    """A request that waits for its response.

    The caller of Channel.ask() awaits it; the Channel calls done().
    input: the Channel's state of reading.
    id: the id of the request.
    request: the prepared request.
    sent_at, deadline: times of the loop's clock. Progress moves the deadline.
    progress: tracks the request's progress; None if the caller does not want it.
    """

    # Declared again here, to make it a positional argument, which saves 50 ns.
    _loop: asyncio.AbstractEventLoop
    input: InputState
    id: int
    request: PreparedRequest
    sent_at: float
    deadline: float
    progress: ProgressTracker | None = None

    def done(self, outcome: object) -> None:
        """Set the result or the exception, and resume the caller. Further calls do nothing."""
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
    """The Channel that a pending request belongs to, as ForwardedReply uses it."""

    @property
    def ending(self) -> ChannelEnding:
        """Return whether and why the channel has ended."""
        ...

    def abandon(self, id: Id, reason: str, cancels: bool) -> None:
        """Stop waiting for the response to a request. See Channel.abandon()."""
        ...


class ForwardedReply(PendingReply, eq=False):
    """A forwarded request that waits for its response, and is awaited by no task.

    `callback` is called with this object once it has an outcome.
    owner: the Channel that has sent the request.
    """

    owner: ReplyOwner | None = None

    def give_up(self) -> None:
        """Cancel the request at the server. The callback is not called any more."""
        self.callback = None
        assert self.owner is not None
        self.owner.abandon(self.id, GIVEN_UP, cancels=True)

    def error(self, now: float) -> Exception:
        """Return the error of a request that has failed. It has the facts about the server.

        It is an UnreadRequest if the request may be sent again.
        now: the time of the loop's clock.
        """
        assert self.owner is not None
        outcome: Exception = self.outcome
        if not isinstance(outcome, Disconnected):
            return outcome
        return self.owner.ending.disconnected(self.request.label, now - self.sent_at, self.id)


class RequestCounts:
    """Counts the requests of a Channel.

    pending: the table of pending requests, which assigns the ids.

    Attributes:
    unanswered: how many requests were given up, or were pending at the end.
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
    """Passes the progress of one request to the caller's function, and extends the deadline.

    token: the progress token.
    callback: the caller's function.
    idle_timeout_s: how many seconds the server may report nothing.
    total_s: how many seconds the request may take in all.
    pending: the request, when it is sent.
    last: the last progress that was reported.
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
        """
        pending = self.pending
        if pending is None or not progress > self.last:
            return
        self.last = progress
        pending.deadline = min(now + self.idle_timeout_s, pending.sent_at + self.total_s)
        self.callback(progress, total, message)


class _Progress(Struct, rename="camel"):
    progress_token: Id
    # Not only float: an int stays one when it is passed on.
    progress: int | float
    total: int | float | None = None
    message: str | None = None


_decode_progress = Decoder(_Progress).decode


class ProgressTrackers:
    """The progress trackers of all pending requests of a Channel, by progress token."""

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
        """Provide a tracker with a new token, until the end of the `with` block."""
        self.last_token += 1
        tracker = ProgressTracker(self.last_token, callback, idle_timeout_s, total_s)
        self.by_token[tracker.token] = tracker
        try:
            yield tracker
        finally:
            del self.by_token[tracker.token]

    def on_notification(self, message: Message, now: float) -> None:
        """Pass a progress notification to its tracker. Ignore it if malformed or unknown."""
        if not self.by_token:
            return
        try:
            report = _decode_progress(encode(message.params))
        except DecodeError:
            return
        tracker = self.by_token.get(report.progress_token)
        if tracker is None:
            return
        try:
            tracker.update(now, report.progress, report.total, report.message)
        except Exception:
            self._log.exception("the progress function of a call failed")


class DeadlineTimer:
    """One timer for the deadlines of all pending requests.

    expire: called with the current time when the timer fires. Returns the time of the next call.

    Attributes:
    time: returns the time of the loop's clock.
    wakes_at: when the timer fires; infinite if it is not set.
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
        """Set the timer to this time. This replaces the time that was set before."""
        self.stop()
        self.wakes_at = at
        self._handle = None if at == FOREVER else self.loop.call_at(at, self._run)

    def _run(self) -> None:
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
    """Return the template of a request, to be filled in with `template % (id, params)`.

    before, after: the beginning and the end of the params, if these are always the same. Then only
        the JSON between them is filled in.
    """
    fixed = (part.replace(b"%", b"%%") for part in (encode(method), before, after))
    return b'{"jsonrpc":"2.0","id":%%d,"method":%b,"params":%b%%b%b}' % tuple(fixed)


def request_label(method: str, subject: str) -> str:
    """Return the name of a request for errors, such as `tools/call add`."""
    return f"{method} {subject}" if subject else method


def quote_frame(frame: bytes | Raw | Any) -> str:
    """Return the beginning of a frame for errors and logs, without secrets and control codes."""
    whole = bytes(frame)
    text = redactor().frame(whole[: 4 * MAX_QUOTE]).decode("utf-8", "backslashreplace")
    text = escape_controls(text)
    if len(whole) <= 4 * MAX_QUOTE and len(text) <= MAX_QUOTE:
        return text
    return f"{text[:MAX_QUOTE]}... ({len(whole)} bytes)"
