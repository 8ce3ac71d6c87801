"""One request that waits for its answer, as its caller and the peer see it; and lines of a server's, as they are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from concertino.errors import ProtocolError

if TYPE_CHECKING:
    from concertino.client.channel import Channel

__all__ = ["SHOWN", "Progress", "Waiting", "shortened"]

SHOWN = 200  # characters of a line of the server's, in errors and logs
Progress = Callable[[float, float | None, str | None], object]


class Waiting:
    """A request that waits: what its caller awaits. done() is called by the peer with what came of it.

    It is a future, as far as a task asks for one (the asyncio documentation, "Extending"), but for this: the task goes on at once,
    inside of the reading of its answer, not a turn of the loop later: the selector is asked once a call, not twice.
    deadline: of this silence; until: of it all; patience_s: how long a silence may be.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_callback",
        "_channel",
        "_context",
        "_outcome",
        "deadline",
        "done_so_far",
        "id",
        "patience_s",
        "progress",
        "since",
        "until",
        "what",
    )

    def __init__(
        self,
        channel: Channel,
        id: int,
        what: str,
        since: float,
        patience_s: float,
        until: float,
        progress: Progress | None,
    ) -> None:
        self._asyncio_future_blocking = False
        self._channel = channel
        self._callback: Callable[[Waiting], object] | None = None
        self._context: Context | None = None
        self._outcome: Raw | BaseException | None = None
        self.id = id
        self.what = what
        self.since = since
        self.patience_s = patience_s
        self.until = until
        self.deadline = deadline if (deadline := since + patience_s) < until else until
        self.progress = progress
        self.done_so_far = float("-inf")

    def done(self, outcome: Raw | Exception) -> None:
        """What came of it; the first counts."""
        if self._outcome is None:
            channel = self._channel
            if type(outcome) is ProtocolError:
                outcome = ProtocolError(f"{self.what}: {outcome}: {shortened(channel.frame)}")
            self._outcome = outcome
            if channel.reading and self._callback is not None:
                self._context.run(self._callback, self)  # pyright: ignore[reportOptionalMemberAccess]  # set with the callback
            else:
                self._wake()

    @property
    def is_done(self) -> bool:
        """Whether it waits no more."""
        return self._outcome is not None

    def _wake(self) -> None:
        if self._callback is not None:
            self._channel.loop.call_soon(self._callback, self, context=self._context)

    # A future, as a task sees it

    def __await__(self) -> Generator[Waiting, None, Raw]:
        if self._outcome is None:
            self._asyncio_future_blocking = True
            yield self
        outcome = self._outcome
        return outcome if type(outcome) is Raw else self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._channel.loop

    def add_done_callback(self, callback: Callable[[Waiting], object], *, context: Context | None = None) -> None:
        """By the task that awaits this; nobody else does."""
        self._callback = callback
        self._context = copy_context() if context is None else context  # an empty one counts as false

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled."""
        if self._outcome is not None:
            return False
        self._outcome = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._wake()
        return True

    def result(self) -> Raw:
        outcome = self._outcome
        if type(outcome) is Raw:
            return outcome
        assert isinstance(outcome, BaseException)
        raise outcome


def shortened(frame: bytes | Raw | Any) -> str:
    """The beginning of a line, as text that can be shown: what commands a terminal is written as an escape."""
    from concertino.logs.formats import escaped
    from concertino.redact import redactor

    whole = bytes(frame)
    text = redactor().frame(whole[: 4 * SHOWN]).decode("utf-8", "backslashreplace")
    text = escaped(text)
    return text if len(whole) <= 4 * SHOWN and len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(whole)} bytes)"
