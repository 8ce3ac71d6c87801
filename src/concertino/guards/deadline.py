"""Calls with a time limit that something stands around: answered in time whatever their handler does, and their work is cancelled.

What a driver calls itself has runtime/call_hooks.py instead. A limit must cost nothing for the call that is done at once, which is
nearly every call: so its first step is taken before there is any timer. When the time is over the task is cancelled, as its caller
would do it. Work that does not end by that (it catches CancelledError, or takes its time to clean up) goes on in a task of its own,
and the caller is answered.
What holds the loop itself cannot be interrupted: a `def` handler, which runs in a thread, does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from typing import Any

from concertino.guards.guard_context import GuardContext

__all__ = ["TimeIsOver", "Timed"]

log = logging.getLogger("concertino.guards")

Work = Coroutine[Any, Any, Any]


class TimeIsOver(Exception):
    """task: where the work goes on, if it does."""

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        super().__init__()
        self.task = task


class Timed:
    """A call's work, as an awaitable. Raises TimeIsOver after limit_s seconds; `seen` then says that the call was cancelled."""

    def __init__(self, work: Work, seen: GuardContext, limit_s: float) -> None:
        self._work = work
        self._seen = seen
        self._limit_s = limit_s

    def __await__(self) -> Generator[Any, Any, Any]:
        work, seen = self._work, self._seen
        try:
            waiting = work.send(None)
        except StopIteration as done:
            return done.value
        task: Any = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire, task)
        left: asyncio.Task[None] | None = None
        try:
            while left is None:
                thrown: BaseException | None = None
                value: Any = None
                try:
                    value = yield waiting
                except BaseException as error:
                    thrown = error
                waiting = work.send(value) if thrown is None else work.throw(thrown)
                if seen.over:
                    left = asyncio.create_task(_left_over(work, waiting))
        except StopIteration as stop:
            if not seen.over:
                return stop.value
        except BaseException:
            if not seen.over:
                raise
        finally:
            timer.cancel()
        # As asyncio.timeout() does. If the caller gave up as well, nobody waits for an answer.
        task.uncancel()
        raise TimeIsOver(left)

    def _expire(self, task: asyncio.Task[Any]) -> None:
        self._seen.over = True
        task.cancel()


async def _left_over(work: Work, waiting: object) -> None:
    """The rest of work that was cancelled and goes on. What becomes of it interests nobody any more."""
    try:
        await _Rest(work, waiting)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.debug("a call whose time was over failed", exc_info=True)


class _Rest:
    def __init__(self, work: Work, waiting: object) -> None:
        self._work = work
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, Any]:
        work, waiting = self._work, self._waiting
        try:
            while True:
                thrown: BaseException | None = None
                value: Any = None
                try:
                    value = yield waiting
                except BaseException as error:
                    thrown = error
                waiting = work.send(value) if thrown is None else work.throw(thrown)
        except StopIteration as stop:
            return stop.value
