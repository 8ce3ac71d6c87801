"""Threads for `def` handlers: ours, few, daemonic, so that none of them can hold the process at its end.

Results go back to the loop together: one wake-up for all that are ready. A job that is cancelled before its turn is never run.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from os import _exit, getpid
from typing import Any

__all__ = ["Threads"]


class _Job:
    __slots__ = ("context", "error", "function", "future", "results", "value")

    def __init__(self, function: Callable[[], Any], results: _Results) -> None:
        self.function = function
        self.results = results
        self.future: asyncio.Future[Any] = results.loop.create_future()
        self.context = copy_context()
        self.value: Any = None
        self.error: BaseException | None = None


class _Results:
    """Jobs that threads are done with, on their way to the loop they came from: one wake-up for all that are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: deque[_Job] = deque()
        self._waking = False

    def add(self, job: _Job) -> None:
        """From a thread. Raises RuntimeError when the loop is closed.

        Append before the flag is read here, and lower it before the first popleft in _deliver: whoever finds it raised is
        taken by the delivery that has not yet lowered it. Two threads may both raise it; the second delivery finds nothing.
        """
        self._jobs.append(job)
        if not self._waking:
            self._waking = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.value)
            elif isinstance(job.error, StopIteration):  # a future refuses it
                job.future.set_exception(RuntimeError(f"StopIteration: {job.error}"))
            else:
                job.future.set_exception(job.error)


class Threads:
    """At most `limit` threads, started as they are needed. Any number of loops may share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: deque[_Job] = deque()
        self._results: dict[asyncio.AbstractEventLoop, _Results] = {}
        self._wanted = threading.Condition()
        self._idle = 0  # threads that wait, and were not told of a job
        self._started = 0  # threads that live
        self._closed = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call function in a thread, with this task's context variables, and return what it returns or raise what it raises.

        When the task is cancelled a job that has not begun is dropped; one that runs goes on, and its result is dropped.
        Raises RuntimeError when no thread can be started and none runs, else the job waits for one that does; and after close().
        """
        loop = asyncio.get_running_loop()
        with self._wanted:
            if self._closed:
                raise RuntimeError("the threads are closed: no more functions are called")
            if loop not in self._results:
                self._results = {
                    old: held for old, held in self._results.items() if not old.is_closed()
                }
                self._results[loop] = _Results(loop)
            job = _Job(function, self._results[loop])
            self._jobs.append(job)
            if self._idle:
                self._idle -= 1  # here, not when it wakes: the next job needs another thread
                self._wanted.notify()
            elif self._started < self._limit:
                self._start_thread(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            with self._wanted:
                if job in self._jobs:
                    self._jobs.remove(job)
            raise

    def close(self) -> None:
        """Idle threads end; busy ones after their job. Jobs that have not begun are cancelled. Call it on the loop."""
        with self._wanted:
            self._closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._wanted.notify_all()
        for job in dropped:
            job.future.cancel()

    def _start_thread(self, job: _Job) -> None:
        """One more for this job, which is in the queue. The lock is held, so the thread cannot take it before this returns."""
        try:
            threading.Thread(
                target=self._work, name=f"concertino-{self._started + 1}", daemon=True
            ).start()
        except (RuntimeError, MemoryError):  # the system allows no more
            if not self._started:
                self._jobs.remove(job)
                raise
        else:
            self._started += 1

    def _work(self) -> None:
        pid = getpid()
        while True:
            with self._wanted:
                while not self._jobs:
                    if self._closed:
                        return
                    self._idle += 1
                    self._wanted.wait()
                job = self._jobs.popleft()
            try:
                job.value = job.context.run(job.function)
            except (
                BaseException
            ) as error:  # SystemExit and its like must reach the caller, not end the thread
                job.error = error
            if getpid() != pid:
                _exit(
                    0
                )  # a forked child came back out of its function: nobody is here to take the result
            try:
                job.results.add(job)
            except RuntimeError:  # its loop is closed
                with self._wanted:
                    if not self._jobs:
                        self._started -= 1
                        return
            del job
