"""One request that waits for its answer, as its caller and the peer see it; and lines of a server's, as they are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct

from concertino.errors import ProtocolError

if TYPE_CHECKING:
    from concertino.client.channel import Channel

__all__ = [
    "SHOWN",
    "PendingReply",
    "PreparedRequest",
    "Progress",
    "ProgressTimeout",
    "named",
    "shortened",
]

SHOWN = 200  # characters of a line of the server's, in errors and logs
Progress = Callable[[float, float | None, str | None], object]


class PreparedRequest(Struct, eq=False):
    """What is asked, apart from its params; may be asked again.

    template: of channel.request_template(). method, subject: its name, for errors. read: what takes a plain answer apart.
    """

    template: bytes
    method: str
    subject: str
    read: Callable[[bytes], Any]

    @property
    def name(self) -> str:
        return named(self.method, self.subject)


class PendingReply(Struct, eq=False):
    """A request that waits: what its caller awaits. done() is called by the peer with what came of it.

    It is a future, as far as a task asks for one (the asyncio documentation, "Extending"), but for this: the task goes on at once,
    inside of the reading of its answer, not a turn of the loop later: the selector is asked once a call, not twice.
    A Struct, for it is made in C: 1,400 instructions less.

    deadline: of this silence. outcome: the result, or what went wrong if it failed; None while it waits.
    """

    channel: Channel
    _loop: asyncio.AbstractEventLoop  # read by the task, where there is no get_loop()
    id: int
    question: PreparedRequest
    since: float
    deadline: float
    patience: ProgressTimeout | None = None
    outcome: Any = None
    failed: bool = False
    callback: Callable[[PendingReply], object] | None = None
    context: Any = None  # a contextvars.Context, with the callback
    _asyncio_future_blocking: bool = True

    result = tuple  # the task asks for it and ignores what comes, see Channel.ask; this is made without a frame

    def done(self, outcome: object) -> None:
        """What came of it: a result, or an exception. The first counts."""
        if self.outcome is None:
            channel = self.channel
            if isinstance(outcome, BaseException):
                self.failed = True
                if type(outcome) is ProtocolError:
                    outcome = ProtocolError(
                        f"{self.question.name}: {outcome}: {shortened(channel.frame)}"
                    )
            self.outcome = outcome
            if channel.reading and self.callback is not None:
                self.context.run(self.callback, self)
            else:
                self._wake()

    def _wake(self) -> None:
        if self.callback is not None:
            self._loop.call_soon(self.callback, self, context=self.context)

    # A future, as a task sees it

    def add_done_callback(
        self, callback: Callable[[PendingReply], object], *, context: Context | None = None
    ) -> None:
        """By the task that awaits this; nobody else does."""
        self.callback = callback
        self.context = (
            copy_context() if context is None else context
        )  # an empty one counts as false

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled."""
        if self.outcome is not None:
            return False
        self.failed = True
        self.outcome = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._wake()
        return True

    def __repr__(self) -> str:
        """What asyncio shows of a task that waits."""
        return f"<Waiting for the answer to {self.question.name}>"


class ProgressTimeout(Struct, eq=False):
    """Of a request that asks for progress: each may extend its deadline.

    silence_s: how long one may be; until: the end of it all; told: the last progress.
    """

    progress: Progress
    silence_s: float
    until: float
    told: float = float("-inf")


def named(method: str, subject: str) -> str:
    """A request's name, for errors."""
    return f"{method} {subject}" if subject else method


def shortened(frame: bytes | Raw | Any) -> str:
    """The beginning of a line, as text that can be shown: what commands a terminal is written as an escape."""
    from concertino.logs.formats import escape_controls
    from concertino.logs.redact import redactor

    whole = bytes(frame)
    text = redactor().frame(whole[: 4 * SHOWN]).decode("utf-8", "backslashreplace")
    text = escape_controls(text)
    return (
        text
        if len(whole) <= 4 * SHOWN and len(text) <= SHOWN
        else f"{text[:SHOWN]}... ({len(whole)} bytes)"
    )
