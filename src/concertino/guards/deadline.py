"""Deadline: the time limit of a call that Guard.handle() awaits.

Work that does not end when it is cancelled, because it catches CancelledError or cleans up slowly,
continues in a separate task. (asyncio.timeout() would wait for its end.) A handler that blocks the
event loop cannot be interrupted.

The timer is created when the work waits for the first time, so the limit takes no time for the many
calls that never wait. Calls that the runtime begins with Guard.call_starter() do not use this
class; TimedCall (runtime/guarded_calls.py) limits their time.
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
    """Raised by Deadline when the time limit of a call has passed.

    task: the task in which the call's work continues; None if the work has ended.
    is_cancelled: whether the task that awaits the Deadline was cancelled at the same time. The
        code that catches this exception must then raise CancelledError.
    """

    def __init__(self, task: asyncio.Task[None] | None, *, is_cancelled: bool) -> None:
        super().__init__()
        self.task = task
        self.is_cancelled = is_cancelled


class Deadline:
    """An awaitable that runs a call's work with a time limit.

        result = await Deadline(work, context, timeout_s)

    Returns the result of the work, or raises its exception. After timeout_s seconds, cancels the
    work and raises DeadlineExceeded at once. If the work does not end when it is cancelled, it
    continues in `DeadlineExceeded.task`.

    work: the coroutine of the call.
    context: the Context of the handler. After the time limit, `context.is_over` and
        `context.cancelled` are True.
    timeout_s: the time limit in seconds.
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

        # Run the first step without a timer. Most work ends here.
        try:
            waiting = work.send(None)
        except StopIteration as stop:
            return stop.value

        task: Any = asyncio.current_task()
        # Cancellations of this task before the call, which are not those of the timer.
        cancelling = task.cancelling()
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire, task)
        late: asyncio.Task[None] | None = None
        try:
            # Do for the work what `yield from` does (PEP 380), but stop after the time limit.
            while late is None:
                thrown: BaseException | None = None
                value: Any = None
                try:
                    value = yield waiting
                except BaseException as exc:
                    thrown = exc
                waiting = work.send(value) if thrown is None else work.throw(thrown)
                # The timer has cancelled this task, and the CancelledError was thrown into the
                # work. But the work has not ended: it waits for something again.
                if context.is_over:
                    late = asyncio.create_task(_run_late(work, waiting))
        # The work has ended. If the timer had cancelled it before, drop its result or exception,
        # because the client gets the error TIMED_OUT.
        except StopIteration as stop:
            if not context.is_over:
                return stop.value
        except BaseException:
            if not context.is_over:
                raise
        finally:
            timer.cancel()

        # The time limit has passed. Undo the cancellation by the timer, but no other one.
        raise DeadlineExceeded(late, is_cancelled=task.uncancel() > cancelling)

    def _expire(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task of the call, because the time limit has passed. The timer calls this."""
        self._context.is_over = True
        task.cancel()


async def _run_late(work: Work, waiting: object) -> None:
    """Run work to its end, although it was cancelled, and drop its result.

    waiting: the object that the work awaits now.
    """
    try:
        await _run_rest(work, waiting)
    except Exception:
        log.debug("a call whose time was over failed", exc_info=True)


@coroutine
def _run_rest(work: Work, waiting: object) -> Generator[Any, Any, None]:
    """Run a coroutine from its current `await` to its end.

    waiting: the object that the coroutine awaits now.
    """
    # This is what `yield from` does (PEP 380) after its first step.
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
