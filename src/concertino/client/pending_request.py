"""Requests of a client: prepared ones, those that wait, their progress and their deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic
from typing import Any, Literal

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.errors import Disconnected, ProtocolError
from concertino.jsonrpc.messages import Id, Message
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.runtime.pending import PendingOutcome

FOREVER = float("inf")
# Characters of a frame that errors and logs quote.
MAX_QUOTE = 200
# Called with the work done, the total and a message, as in notifications/progress.
Progress = Callable[[float, float | None, str | None], object]


class Reply(Struct, gc=False, forbid_unknown_fields=True):
    """A response with a result and no other members, as nearly every frame to a client is."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


decode_reply = Decoder(Reply).decode


class UnreadRequest(Disconnected):
    """Raised when the connection ended before the server read the request.

    The server has done nothing for the request, so it may be sent again.
    waited_s: seconds that the request had waited when the connection ended.
    """

    def __init__(self, error: Disconnected, waited_s: float) -> None:
        super().__init__(str(error), error.exit_status, error.stderr)
        self.waited_s = waited_s

    def time_left(self, timeout_s: float) -> float:
        """Return what is left of a time limit; always positive."""
        return max(0.001, timeout_s - self.waited_s)


class _SentRequest(Struct):
    id: int
    method: str


_decode_sent_request = Decoder(_SentRequest).decode


def request_ids(lines: Iterable[bytes]) -> frozenset[int]:
    """Return the ids of the requests among lines. Other lines, also incomplete ones, have none."""
    ids: set[int] = set()
    for line in lines:
        try:
            ids.add(_decode_sent_request(line).id)
        except (DecodeError, RecursionError):
            pass
    return frozenset(ids)


class PreparedRequest(Struct, eq=False):
    """A request without its id and params; it may be sent many times.

    template: from request_template(). method, subject: for errors. decode: decodes the usual
    response to this request, a struct with `id` and `result`, and raises msgspec.DecodeError for
    others.
    """

    template: bytes
    method: str
    subject: str
    decode: Callable[[bytes], Any]

    @property
    def label(self) -> str:
        return request_label(self.method, self.subject)


class InputState:
    """What a Channel is reading at the moment. One object for each Channel, which its requests
    share.

    outside_tasks: frames are being handled in a callback of the loop, outside of any task. frame:
    the frame in hand, unless it is a plain response. heard: a frame came since this was set to
    False.
    decode: the decoder that most likely fits the next response.
    """

    __slots__ = ("decode", "frame", "heard", "outside_tasks")

    def __init__(self) -> None:
        self.outside_tasks = False
        self.frame = b""
        self.heard = False
        self.decode: Callable[[bytes], Any] = decode_reply


class PendingReply(PendingOutcome, eq=False):
    """A request that waits for its response. Its caller awaits it; Channel calls done().

    sent_at, deadline: times of the loop's clock; progress moves the deadline.
    """

    # Declared again as a positional field, which saves 50 ns.
    _loop: asyncio.AbstractEventLoop
    input: InputState
    id: int
    request: PreparedRequest
    sent_at: float
    deadline: float
    progress: ProgressTracker | None = None

    def done(self, outcome: object) -> None:
        """Set the result, or the exception, and resume the caller. Only the first call counts."""
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
        """Return the text that asyncio shows for a task that waits for this."""
        return f"<PendingReply to {self.request.label}>"


class ProgressTracker(Struct, eq=False):
    """Passes the progress of one request to its caller and extends its deadline.

    idle_timeout_s: how long the server may report nothing. total_s: how long the request may take
    in all. last: the progress reported last.
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
        """Handle a progress notification that came at `now`.

        Progress that does not increase is ignored.
        """
        pending = self.pending
        if pending is None or not progress > self.last:
            return
        self.last = progress
        pending.deadline = min(now + self.idle_timeout_s, pending.sent_at + self.total_s)
        self.callback(progress, total, message)


class _Progress(Struct, rename="camel"):
    progress_token: Id
    progress: float
    total: float | None = None
    message: str | None = None


_decode_progress = Decoder(_Progress).decode


class ProgressTrackers:
    """The progress trackers of the requests in flight, by progress token."""

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
        """Pass progress on. Malformed progress, or that of an unknown request, is ignored."""
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
    """One timer for all requests.

    expire: called with the current time; returns the time of its next call.
    wakes_at: the time of the next call; infinite if there is none.
    """

    def __init__(self, expire: Callable[[float], float]) -> None:
        self.loop = loop = asyncio.get_running_loop()
        # The standard loop's time() only calls monotonic(); calling that directly saves a frame.
        is_standard = type(loop).time is asyncio.BaseEventLoop.time
        self.time: Callable[[], float] = monotonic if is_standard else loop.time
        self.wakes_at = FOREVER
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    def wake_at(self, at: float) -> None:
        """Call expire at this time instead of the one set before."""
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


# One client uses few methods, but users may invent any number of them.
@lru_cache(64)
def request_template(method: str, before: bytes = b"", after: bytes = b"") -> bytes:
    """Return a bytes template of a request, to be filled in with `template % (id, params)`.

    before, after: parts of the params that stay the same; then the gap between them is filled in.
    """
    fixed = (part.replace(b"%", b"%%") for part in (encode(method), before, after))
    return b'{"jsonrpc":"2.0","id":%%d,"method":%b,"params":%b%%b%b}' % tuple(fixed)


def request_label(method: str, subject: str) -> str:
    """Return how errors name a request, such as `tools/call add`."""
    return f"{method} {subject}" if subject else method


def quote_frame(frame: bytes | Raw | Any) -> str:
    """Return the beginning of a frame for errors and logs, without secrets and escape codes."""
    whole = bytes(frame)
    text = redactor().frame(whole[: 4 * MAX_QUOTE]).decode("utf-8", "backslashreplace")
    text = escape_controls(text)
    if len(whole) <= 4 * MAX_QUOTE and len(text) <= MAX_QUOTE:
        return text
    return f"{text[:MAX_QUOTE]}... ({len(whole)} bytes)"
