"""Time limits of calls that a guard handles in a coroutine.

Calls that a runtime begins use TimedCall (runtime/call_hooks.py) instead. Both answer in time
whatever the handler does, and cancel its work.
Nearly all calls end without ever waiting. A limit costs them nothing, since the timer is made when
the work waits for the first time. Work that does not end when it is cancelled, because it catches
CancelledError or cleans up slowly, continues in a task of its own. A handler that blocks the event
loop cannot be interrupted; a `def` handler runs in a thread and does not block it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from types import coroutine
from typing import Any

from concertino.backend.call_hooks import Work
from concertino.guards.guard_context import GuardContext

__all__ = ["Deadline", "DeadlineExceeded"]

log = logging.getLogger("concertino.guards")


class DeadlineExceeded(Exception):
    """Raised by Deadline when a call's time is over.

    task: the task in which the call's work continues; None if the work has ended.
    """

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        super().__init__()
        self.task = task


class Deadline:
    """Awaitable that runs a call's work and raises DeadlineExceeded after timeout_s seconds.

    From then on `context` reports the call as cancelled.
    """

    def __init__(
        self,
        work: Work,
        context: GuardContext,
        timeout_s: float,
    ) -> None:
        self._work = work
        self._context = context
        self._timeout_s = timeout_s

    def __await__(self) -> Generator[Any, Any, Any]:
        work, context = self._work, self._context

        # The first step, without a timer: most work ends here.
        try:
            waiting = work.send(None)
        except StopIteration as stop:
            return stop.value

        task: Any = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, task)
        late: asyncio.Task[None] | None = None
        try:
            while late is None:
                thrown: BaseException | None = None
                value: Any = None
                try:
                    value = yield waiting
                except BaseException as exc:
                    thrown = exc
                waiting = work.send(value) if thrown is None else work.throw(thrown)
                # The work got the timer's cancellation but waits for something again.
                if context.is_over:
                    late = asyncio.create_task(_run_late(work, waiting))
        except StopIteration as stop:
            if not context.is_over:
                return stop.value
        except BaseException:
            if not context.is_over:
                raise
        finally:
            timer.cancel()

        # The cancellation was this timer's: undo it, as asyncio.timeout() does.
        task.uncancel()
        raise DeadlineExceeded(late)

    def _expire(self, task: asyncio.Task[Any]) -> None:
        self._context.is_over = True
        task.cancel()


async def _run_late(work: Work, waiting: object) -> None:
    """Run the rest of work that was cancelled but continues. Nobody awaits its result."""
    try:
        await _run_rest(work, waiting)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.debug("a call whose time was over failed", exc_info=True)


@coroutine
def _run_rest(work: Work, waiting: object) -> Generator[Any, Any, None]:
    """Run the rest of a coroutine. waiting: what the coroutine awaits now."""
    while True:
        thrown: BaseException | None = None
        value: Any = None
        try:
            value = yield waiting
        except BaseException as exc:
            thrown = exc
        try:
            waiting = work.send(value) if thrown is None else work.throw(thrown)
        except StopIteration:
            return
