"""A thread pool that runs `def` handlers, so that they do not block the event loop.

    threads = Threads(32)
    result = await threads.run(lambda: handler(arguments))

Four things differ from concurrent.futures.ThreadPoolExecutor. The threads are daemon threads, so a
handler that never returns does not keep the process alive. The event loop is woken once for all
results that are ready, not once for each. When handlers occupy all threads for a second, a log
message names them. And a thread that has made a large result starts its next job only when the loop
has taken that result. Without this rule, the threads run ahead of a busy loop: of 100 calls that
return 10 MB each, all results were in memory at once (974 MiB instead of 411 MiB).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextvars import copy_context
from itertools import islice
from os import _exit, getpid
from typing import Any, cast
from weakref import WeakSet

from msgspec import Struct, structs

__all__ = ["Threads", "tasks_in_threads"]

log = logging.getLogger("concertino.host")

# When a job has waited this many seconds for a thread, the calls that occupy the threads are
# logged.
BLOCKED_S = 1.0
# How many different calls that log message names.
MAX_NAMED = 5
# A str or bytes of this length is a large result.
LARGE_BYTES = 256 * 1024
# A list or dict of this many items is a large result, too. Of a shorter one, the first SAMPLE items
# are checked, and their items, to a depth of SAMPLE_DEPTH.
LARGE_ITEMS = 1000
SAMPLE = 8
SAMPLE_DEPTH = 4
# How often, in seconds, a thread whose result was not taken checks whether the pool is closed.
CLOSED_CHECK_S = 1.0

# All pools of the process.
_pools: WeakSet[Threads] = WeakSet()


def tasks_in_threads(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """Return the tasks of an event loop for which a thread of a pool runs a function."""
    return [task for pool in _pools for task in pool.tasks_of(loop)]


class _Job:
    """One function to call in a thread.

    The thread stores the function's result in `value`, or its exception in `error`. Then the event
    loop sets the result of `future`, which wakes Threads.run().
    results: the queue that the job is put into when it has ended.
    task: the task that called Threads.run(), for the log.
    taken: an event that is set when Threads.run() has taken a large value; None if the value is not
        large, or not known yet.
    """

    __slots__ = ("context", "error", "function", "future", "results", "taken", "task", "value")

    def __init__(self, function: Callable[[], Any], results: _Results) -> None:
        self.function = function
        self.results = results
        self.future: asyncio.Future[Any] = results.loop.create_future()
        self.context = copy_context()
        self.task = asyncio.current_task(results.loop)
        self.value: Any = None
        self.error: BaseException | None = None
        self.taken: threading.Event | None = None


class _Results:
    """A queue of finished jobs, from the threads to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._jobs: deque[_Job] = deque()
        self._is_waking = False

    def add(self, job: _Job) -> None:
        """Pass a finished job to the loop, and wake the loop unless it will wake already.

        Called in the job's thread. Raises RuntimeError when the loop is closed.
        """
        # No lock is needed. This method appends the job and then reads the flag; _deliver() clears
        # the flag and then takes jobs. So if the flag is set here, the coming _deliver() will take
        # this job too. If two threads set the flag at once, the second _deliver() finds no jobs.
        self._jobs.append(job)
        if not self._is_waking:
            self._is_waking = True
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        """Resume the tasks that wait for the finished jobs. Runs on the event loop."""
        self._is_waking = False
        while self._jobs:
            job = self._jobs.popleft()
            # The future's result means only that the job has ended; run() then reads job.value or
            # job.error. set_exception() cannot be used: it rejects StopIteration, and a
            # GeneratorExit would close the coroutines that await the future. The future is done
            # already if its task was cancelled.
            if not job.future.done():
                job.future.set_result(None)
            if job.taken is not None:
                # The loop resumes run() before it calls this, so run() has taken the value by then.
                self.loop.call_soon(job.taken.set)


class Threads:
    """A pool of at most `limit` threads, which start when they are needed.

    Tasks on different event loops may use the same pool.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: deque[_Job] = deque()
        self._results: dict[asyncio.AbstractEventLoop, _Results] = {}
        self._changed = threading.Condition()
        # The number of threads that wait for a job and were not notified of one yet.
        self._idle = 0
        # The number of threads that are alive.
        self._started = 0
        self._closed = False
        # The jobs that run now, by the identifier of their thread.
        self._running: dict[int, _Job] = {}
        self._is_report_due = False
        _pools.add(self)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` in a thread of the pool and return its result.

        The function runs with a copy of this task's context variables. If all threads are busy, it
        waits for a free one. If this task is cancelled, a function that still waits is never
        called; a function that already runs continues, and its result is discarded.

        Raises the exception of `function`, or RuntimeError if that is a StopIteration, which a
        coroutine cannot raise. Raises RuntimeError after close(), and if the pool has no thread and
        the system does not let it start one.
        """
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._closed:
                raise RuntimeError("the thread pool is closed")
            if loop not in self._results:
                # Remove closed loops whenever a new loop is added, so that they do not accumulate.
                self._results = {
                    known: results
                    for known, results in self._results.items()
                    if not known.is_closed()
                }
                self._results[loop] = _Results(loop)
            job = _Job(function, self._results[loop])
            self._jobs.append(job)
            if self._idle:
                # Decrease the number here and not in the thread that wakes up, so that another job
                # does not rely on the same idle thread meanwhile.
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
            value, job.value = job.value, None
            return value
        if isinstance(error, StopIteration):
            # Python turns a StopIteration that leaves a coroutine into a RuntimeError anyway.
            raise RuntimeError(f"StopIteration: {error}") from None
        try:
            raise error
        finally:
            # The exception's traceback refers to this frame, and this frame to the exception. Break
            # this reference cycle, which would keep both until the next garbage collection.
            del error, job

    def tasks_of(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the tasks of an event loop for which a thread runs a function."""
        with self._changed:
            running = list(self._running.values())
        return [job.task for job in running if job.results.loop is loop and job.task is not None]

    def close(self) -> None:
        """Cancel the jobs that wait for a thread, and end all threads.

        A busy thread ends after its job; this method does not wait for it. Call it on the loop.
        """
        with self._changed:
            self._closed = True
            dropped = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            job.future.cancel()

    def _report_blocked(self, job: _Job) -> None:
        """Log which calls occupy the threads, if `job` still waits for a thread."""
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
        """Start a thread for `job`, which is in the queue. The caller holds the lock.

        Raises RuntimeError or MemoryError if the pool has no thread and cannot start one.
        """
        try:
            threading.Thread(
                target=self._work, name=f"concertino-{self._started + 1}", daemon=True
            ).start()
        except (RuntimeError, MemoryError):
            # The system allows no more threads. If the pool has one, the job can wait for it.
            # The lock is held, so the job is still in the queue.
            if not self._started:
                self._jobs.remove(job)
                raise
        else:
            self._started += 1

    def _work(self) -> None:
        """Run jobs until the pool is closed. Each thread of the pool executes this method."""
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
            # Catch SystemExit and KeyboardInterrupt as well: run() raises them in its task, and
            # this thread goes on.
            except BaseException as exc:
                job.error = exc

            # If the function has called os.fork(), this may be the child process. It has no event
            # loop that could take the result, so end it.
            if getpid() != pid:
                _exit(0)

            del self._running[threading.get_ident()]
            if _is_large(job.value):
                job.taken = threading.Event()
            try:
                job.results.add(job)
            except RuntimeError:
                # The job's event loop is closed. End this thread, unless other jobs wait.
                with self._changed:
                    if not self._jobs:
                        self._started -= 1
                        return
            else:
                self._wait_until_taken(job)

            # Without this, the variable would keep the job's result in memory until the next job.
            del job

    def _wait_until_taken(self, job: _Job) -> None:
        """If a job's result is large, wait until the loop has taken it or is closed."""
        while job.taken is not None and not job.taken.wait(CLOSED_CHECK_S):
            if self._closed or job.results.loop.is_closed():
                return


def _is_large(value: Any, depth: int = SAMPLE_DEPTH) -> bool:
    """Return whether a handler's result is probably large. Takes a microsecond."""
    if isinstance(value, str | bytes):
        return len(value) >= LARGE_BYTES
    items: Collection[Any]
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).values()
    elif isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
    elif isinstance(value, Struct):
        items = structs.astuple(value)
    else:
        return False
    if len(items) >= LARGE_ITEMS:
        return True
    return depth > 0 and any(_is_large(item, depth - 1) for item in islice(items, SAMPLE))
