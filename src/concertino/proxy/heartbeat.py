"""Heartbeat: sends progress to a client while its server is silent.

Some hosts (MCP client applications) cancel a call if they get no message about it for 60 s.
Progress notifications prevent that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from concertino.backend.interface import Context

__all__ = ["Heartbeat"]

# The default of `step`. Even hours of heartbeats add less than a server's usual step of 1.
STEP = 1e-6


def _describe_wait(waited_s: float) -> str:
    return f"still running after {waited_s:.0f} s"


class Heartbeat:
    """Forwards the progress of one call, and sends additional progress while the server is silent.

    Use it as a `with` block around the call, and pass each progress of the server to report():

        with Heartbeat(context, every_s=15.0) as heartbeat:
            result = await client.forward(call, context.client, progress=heartbeat.report)

    context: the Context of the call.
    every_s: the time of silence after which progress is sent, in seconds.
    describe: returns the message of the progress. Its argument is how long the call has waited, in
        seconds.
    step: each heartbeat increases the progress by this number, or by this share of the progress if
        that is more. Keep it small: MCP requires that progress increases, so the sum must stay
        below the server's next progress.
    """

    def __init__(
        self,
        context: Context,
        every_s: float,
        describe: Callable[[float], str] = _describe_wait,
        step: float = STEP,
    ) -> None:
        self._context = context
        self._every_s = every_s
        self._describe = describe
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        # The progress that the client has got last.
        self._last: float = 0
        # The total that the server has sent last.
        self._total: float | None = None
        # The timer of the next heartbeat; None outside the `with` block.
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Heartbeat:
        self._restart()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def report(self, done: float, total: float | None, message: str | None) -> None:
        """Forward the server's progress to the client, and wait again for `every_s` seconds.

        done, total, message: as the server has sent them; None for what it has not sent.
        """
        self._last, self._total = done, total
        self._context.progress(done, total, message)
        self._restart()

    def _restart(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._every_s, self._beat)

    def _beat(self) -> None:
        self._last += self._step * max(1.0, abs(self._last))
        waited_s = self._loop.time() - self._began
        self._context.progress(self._last, self._total, self._describe(waited_s))
        self._restart()
