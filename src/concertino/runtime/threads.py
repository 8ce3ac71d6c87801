"""A thread pool for `def` handlers.

Its threads are daemonic, so a handler that never returns cannot keep the process alive, as it could
in a ThreadPoolExecutor. One wake-up of the event loop delivers all results that are ready. A job
that is cancelled before a thread takes it is never run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from os import _exit, getpid
from typing import Any

__all__ = ["Threads"]

log = logging.getLogger("concertino.host")

# How long a job waits for a thread before the log says which calls hold the threads.
BLOCKED_S = 1.0
# How many different calls that line names.
MAX_NAMED = 5


class _Job:
    """A function to call in a thread, then its outcome, and the future that gets it."""

    __slots__ = ("context", "error", "function", "future", "results", "task", "value")

    def __init__(self, function: Callable[[], Any], results: _Results) -> None:
        self.function = function
        self.results = results
        self.future: asyncio.Future[Any] = results.loop.create_future()
        self.context = copy_context()
        self.task = asyncio.current_task(results.loop)
        self.value: Any = None
        self.error: BaseException | None = None


class _Results:
    """Finished jobs of one event loop, which is woken once for all that are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: deque[_Job] = deque()
        self._is_waking = False

    def add(self, job: _Job) -> None:
        """Hand a finished job to the loop. Called in the job's thread.

        Raises RuntimeError when the loop is closed.
        """
        # This works without a lock. A job is appended before the flag is read, and _deliver clears
        # the flag before it takes the first job; so if the flag is set here, that delivery will
        # still take this job. If two threads both set it, the second delivery finds no jobs.
        self._jobs.append(job)
        if not self._is_waking:
            self._is_waking = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Set the outcome of all finished jobs; runs on the event loop."""
        self._is_waking = False
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.done():
                continue
            # run() raises job.error. In a future, a GeneratorExit would be thrown into the awaiting
            # coroutines, which closes them, and a StopIteration is not accepted.
            job.future.set_result(None)


class Threads:
    """A pool of at most `limit` threads, started when needed; usable from several event loops."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: deque[_Job] = deque()
        self._results: dict[asyncio.AbstractEventLoop, _Results] = {}
        self._changed = threading.Condition()
        # Threads that wait and have not been notified of a job.
        self._idle = 0
        # Threads that are alive.
        self._started = 0
        self._closed = False
        # Jobs that a thread runs, by the thread's identifier.
        self._running: dict[int, _Job] = {}
        self._is_report_due = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` in a thread, with this task's context variables; return what it returns.

        If this task is cancelled, a job that has not begun is dropped. One that has begun runs on,
        and its result is dropped.
        Raises what `function` raises, and RuntimeError after close(), or when no thread runs and
        none can be started. If one runs, the job waits for it.
        """
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._closed:
                raise RuntimeError("the thread pool is closed")
            if loop not in self._results:
                # Forget closed loops whenever a new one comes, so that they do not pile up.
                self._results = {
                    known: results
                    for known, results in self._results.items()
                    if not known.is_closed()
                }
                self._results[loop] = _Results(loop)
            job = _Job(function, self._results[loop])
            self._jobs.append(job)
            if self._idle:
                # Count it here, not when the thread wakes: the next job needs another thread.
                self._idle -= 1
                self._changed.notify()
            elif self._started < self._limit:
                self._start_thread(job)
            elif not self._is_report_due:
                self._is_report_due = True
                loop.call_later(BLOCKED_S, self._report_blocked, job)

        try:
            await job.future
        except asyncio.CancelledError:
            with self._changed:
                if job in self._jobs:
                    self._jobs.remove(job)
            raise
        error = job.error
        if error is None:
            return job.value
        if isinstance(error, StopIteration):
            # A coroutine cannot raise StopIteration.
            raise RuntimeError(f"StopIteration: {error}") from None
        try:
            raise error
        finally:
            # The traceback refers to this frame: without this, both would wait for a collection.
            del error, job

    def close(self) -> None:
        """Cancel the jobs that have not begun, and let the threads end, busy ones after their job.

        Call it on the event loop.
        """
        with self._changed:
            self._closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            job.future.cancel()

    def _report_blocked(self, job: _Job) -> None:
        """Log which calls hold the threads, if a job still waits for one."""
        with self._changed:
            self._is_report_due = False
            is_waiting = job in self._jobs
            waiting, running = len(self._jobs), list(self._running.items())
        if not is_waiting:
            return

        from concertino.runtime.running_calls import call_of, place_of_thread

        holders: dict[str, int] = {}
        for thread, holder in running:
            place = place_of_thread(thread)
            call = None if holder.task is None else call_of(holder.task)
            name = call or (place.function if place is not None else "a function")
            text = name if place is None else f"{name} at {place}"
            holders[text] = holders.get(text, 0) + 1
        named = sorted(holders.items(), key=lambda item: -item[1])[:MAX_NAMED]
        log.warning(
            "all %d threads have been taken for %g s, and %d calls wait; they are held by %s",
            self._limit,
            BLOCKED_S,
            waiting,
            ", ".join(f"{text} ({count} calls)" for text, count in named),
        )

    def _start_thread(self, job: _Job) -> None:
        """Start a thread for a job that is in the queue.

        The caller holds the lock, so no thread can take the job before this returns.
        """
        try:
            threading.Thread(
                target=self._work, name=f"concertino-{self._started + 1}", daemon=True
            ).start()
        except (RuntimeError, MemoryError):
            # The system allows no more threads. Those that run will get to the job.
            if not self._started:
                self._jobs.remove(job)
                raise
        else:
            self._started += 1

    def _work(self) -> None:
        """Run jobs until the pool is closed; the body of each thread."""
        pid = getpid()
        while True:
            with self._changed:
                while not self._jobs:
                    if self._closed:
                        return
                    self._idle += 1
                    self._changed.wait()
                job = self._jobs.popleft()
                self._running[threading.get_ident()] = job

            try:
                job.value = job.context.run(job.function)
            # Also SystemExit and the like: they concern the caller and must not end the thread.
            except BaseException as exc:
                job.error = exc

            # The function has forked, and this is the child: no loop runs here to take the result.
            if getpid() != pid:
                _exit(0)

            del self._running[threading.get_ident()]
            try:
                job.results.add(job)
            except RuntimeError:
                # The job's loop is closed. End this thread, unless jobs of another loop wait.
                with self._changed:
                    if not self._jobs:
                        self._started -= 1
                        return

            # An idle thread must not keep the last job's result alive.
            del job
