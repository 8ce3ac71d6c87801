"""Requests of a client: prepared ones, those that wait for a response, and their progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import lru_cache
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.errors import ProtocolError
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor

__all__ = [
    "MAX_QUOTE",
    "InputState",
    "PendingReply",
    "PreparedRequest",
    "Progress",
    "ProgressTracker",
    "ProgressTrackers",
    "Reply",
    "decode_reply",
    "quote_frame",
    "request_label",
    "request_template",
]

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


class PendingReply(Struct, eq=False):
    """A request that waits for its response. Its caller awaits it; Channel calls done().

    It implements as much of a future as asyncio.Task uses (asyncio documentation, "Extending"),
    with one difference: done() resumes the task at once, inside the read callback, instead of one
    loop iteration later. On Python 3.13 that saves 1.1 of 4.5 us CPU time for each of many
    concurrent calls, and 1.4 of 9.0 us for a single one (bench/clients.py). It is a Struct because
    msgspec creates those in C, which saves 1,400 instructions.

    sent_at, deadline: times of the loop's clock; progress moves the deadline. outcome: the result,
    or the exception if failed is True; None while it waits.
    """

    input: InputState
    # asyncio.Task reads this attribute where there is no get_loop().
    _loop: asyncio.AbstractEventLoop
    id: int
    request: PreparedRequest
    sent_at: float
    deadline: float
    progress: ProgressTracker | None = None
    outcome: Any = None
    failed: bool = False
    callback: Callable[[PendingReply], object] | None = None
    # A contextvars.Context, set together with the callback.
    context: Any = None
    _asyncio_future_blocking: bool = True

    # The task calls result() and ignores the value, see Channel.ask(). A builtin needs no frame.
    result = tuple

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
            self._schedule_callback()

    def _schedule_callback(self) -> None:
        if self.callback is not None:
            self._loop.call_soon(self.callback, self, context=self.context)

    # The part of asyncio.Future that a task uses

    def add_done_callback(
        self, callback: Callable[[PendingReply], object], *, context: Context | None = None
    ) -> None:
        """Set the callback of the one task that awaits this."""
        self.callback = callback
        # An empty Context is false, so compare with None.
        self.context = copy_context() if context is None else context

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait, because the task that awaits this is cancelled."""
        if self.outcome is not None:
            return False
        self.failed = True
        self.outcome = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._schedule_callback()
        return True

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

    def update(self, now: float, progress: float, total: float | None, message: str | None) -> None:
        """Handle a progress notification that came at `now`.

        Progress that does not increase is ignored.
        """
        pending = self.pending
        if pending is None or not progress > self.last:
            return
        self.last = progress
        pending.deadline = min(now + self.idle_timeout_s, pending.sent_at + self.total_s)
        self.callback(progress, total, message)


class ProgressTrackers:
    """The progress trackers of the requests in flight, by progress token."""

    def __init__(self) -> None:
        self.by_token: dict[object, ProgressTracker] = {}
        self.last_token = 1

    @contextmanager
    def track(
        self, callback: Progress, idle_timeout_s: float, total_s: float
    ) -> Generator[ProgressTracker]:
        """Provide a tracker with a new token, until the end of the `with` block."""
        self.last_token += 1
        tracker = ProgressTracker(self.last_token, callback, idle_timeout_s, total_s)
        self.by_token[tracker.token] = tracker
        try:
            yield tracker
        finally:
            del self.by_token[tracker.token]


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
