"""A thread pool that runs `def` handlers, so that they do not block the event loop.

    threads = Threads(32)
    result = await threads.run(lambda: handler(arguments))

Four things differ from concurrent.futures.ThreadPoolExecutor. The threads are daemon threads, so a
handler that never returns does not keep the process alive. The event loop is woken once for all
results that are ready, not once for each. When handlers occupy all threads for a second, a log
message names them. And large results are limited, see docs/decisions/0094:

- A thread that has made a large result starts its next job only when the loop has sent or dropped
  that result. So there are never more large results than threads.
- When the result of a call turns out to be large, other calls of the same tool may already wait for
  a thread: they were admitted before anything was known, or while results were small. They are kept
  back until their results will probably fit into the limits (UnreadResults.may_begin).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextvars import copy_context
from functools import partial
from itertools import islice
from os import _exit, getpid
from typing import Any, cast
from weakref import WeakSet

from msgspec import Struct, structs

from concertino.jsonrpc.requests import IncomingRequest, Kind, ResultCounter
from concertino.runtime.tasks import subject_of

__all__ = ["Threads", "tasks_in_threads"]

log = logging.getLogger("concertino.host")

# When a job has waited this many seconds for a thread, the calls that occupy the threads are
# logged.
BLOCKED_S = 1.0
# How many different calls that log message names.
MAX_NAMED = 5
# A str or bytes of this length is a large result.
LARGE_BYTES = 256 * 1024
# A list or dict of this many items is a large result, too. If it is shorter, its first SAMPLE items
# are checked, and the first SAMPLE items of each, down to a depth of SAMPLE_DEPTH.
LARGE_ITEMS = 1000
SAMPLE = 8
SAMPLE_DEPTH = 4
# How often, in seconds, to check whether calls that are kept back may start, because clients have
# read results meanwhile.
KEPT_CHECK_S = 0.05
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
    taken: an event that is set when a large value was taken by Threads.run() and sent; None if the
        value is not large, or not known yet.
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
    """A queue of finished jobs, from the threads to one event loop.

    on_large: called on the loop with each job that has a large result, before run() takes it.
    kept: the jobs whose calls are kept back, see Threads._keep_back().
    is_check_due: whether Threads._check_kept() will be called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_large: Callable[[_Job], object]) -> None:
        self.loop = loop
        self.kept: deque[_Job] = deque()
        self.is_check_due = False
        self._on_large = on_large
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
                self._on_large(job)


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
                self._results[loop] = _Results(loop, self._on_large)
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
                for waiting in (self._jobs, job.results.kept):
                    if job in waiting:
                        waiting.remove(job)
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
            queues = self._jobs, *(results.kept for results in self._results.values())
            dropped = [job for queue in queues for job in queue]
            for queue in queues:
                queue.clear()
            self._changed.notify_all()
        for job in dropped:
            job.future.cancel()

    # Large results. These methods run on the event loop.

    def _on_large(self, job: _Job) -> None:
        """Count a large result, and arrange that _on_sent() is called when it was sent.

        A result that is sent in a later iteration (ResultTurns) counts as expected until then.
        """
        call = _call_of(job)
        if call is not None and call.unread is not None:
            size = len(job.value) if isinstance(job.value, str | bytes) else LARGE_BYTES
            call.unread.expect(call, size)
        # Imported here, so that the server starts faster. At the first call, call_runner.py has
        # imported this module.
        from concertino.runtime.result_turns import result_turns_of

        loop = job.results.loop
        on_sent = partial(self._on_sent, job, call, None if call is None else call.kind)
        # Let two loop iterations pass. In the first one, run() takes the value, and its task sends
        # the result or passes it to ResultTurns. On Python 3.11, a task that began in this
        # iteration does so only in the second one, see _take_over() in tasks.py.
        after = partial(result_turns_of(loop).call_after_waiting, on_sent)
        loop.call_soon(loop.call_soon, after)

    def _on_sent(self, job: _Job, call: IncomingRequest | None, kind: Kind | None) -> None:
        """Keep back calls of the same kind if the result was large, and let the thread go on.

        call, kind: the call that has got the result, and its kind; None if the job belongs to none.
        """
        assert job.taken is not None
        try:
            if call is not None and call.unread is not None and kind is not None:
                # If the call has not ended, its handler has used the value for something else.
                call.unread.count_as_unknown(call)
                size = call.unread.known_size(kind)
                if size >= LARGE_BYTES:
                    self._keep_back(job.results, kind, size)
        finally:
            job.taken.set()

    def _keep_back(self, results: _Results, kind: Kind, size: int) -> None:
        """Keep back the calls of a kind that wait for a thread, until their results will fit.

        Calls that were started because a result of such a size will fit are not kept back.
        size: the size of the largest recent result of this kind.
        """
        with self._changed:
            running = list(self._running.values())
            waiting = list(self._jobs)
            self._jobs.clear()
            for job in waiting:
                call = _call_of(job) if job.results is results else None
                if call is not None and call.kind == kind and _is_unexpected(call, size):
                    results.kept.append(job)
                else:
                    self._jobs.append(job)
        for job in running:
            call = _call_of(job) if job.results is results else None
            if call is not None and call.kind == kind and _is_unexpected(call, size):
                assert call.unread is not None
                call.unread.count_as_unknown(call)
        for job in results.kept:
            call = _call_of(job)
            if call is not None and call.unread is not None:
                call.unread.keep_back(call)
        self._release(results)

    def _release(self, results: _Results) -> None:
        """Pass the calls that are kept back to the threads, as far as their results will fit."""
        ready: list[_Job] = []
        kept: list[_Job] = []
        # A call of one tool may wait for a call of another one, which therefore must not wait
        # behind it.
        full: set[tuple[ResultCounter, Kind | None]] = set()
        for job in results.kept:
            call = _call_of(job)
            counter = None if call is None else call.unread
            if call is None or counter is None:
                ready.append(job)
            elif (counter, call.kind) in full or not counter.may_begin(call):
                full.add((counter, call.kind))
                kept.append(job)
            else:
                ready.append(job)
        with self._changed:
            results.kept = deque(kept)
            self._jobs.extend(ready)
            notified = min(self._idle, len(ready))
            self._idle -= notified
            self._changed.notify(notified)
        if kept and not results.is_check_due:
            results.is_check_due = True
            results.loop.call_later(KEPT_CHECK_S, self._check_kept, results)

    def _check_kept(self, results: _Results) -> None:
        """Look again at the calls that are kept back."""
        results.is_check_due = False
        self._release(results)

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

            if _is_large_result(job.value):
                # The job counts as running until its result is counted.
                job.taken = threading.Event()
            else:
                del self._running[threading.get_ident()]
            try:
                job.results.add(job)
            except RuntimeError:
                # The job's event loop is closed. End this thread, unless other jobs wait.
                self._running.pop(threading.get_ident(), None)
                with self._changed:
                    if not self._jobs:
                        self._started -= 1
                        return
            else:
                if job.taken is not None:
                    self._wait_until_taken(job, job.taken)
                    del self._running[threading.get_ident()]

            # Without this, the variable would keep the job's result in memory until the next job.
            del job

    def _wait_until_taken(self, job: _Job, taken: threading.Event) -> None:
        """Wait until the loop has taken a large result, or is closed."""
        while not taken.wait(CLOSED_CHECK_S):
            if self._closed or job.results.loop.is_closed():
                return


def _call_of(job: _Job) -> IncomingRequest | None:
    """Return the call of a client that has put a job into the pool; None if there is none."""
    call = None if job.task is None else subject_of(job.task)
    return call if isinstance(call, IncomingRequest) else None


def _is_unexpected(call: IncomingRequest, size: int) -> bool:
    """Return whether a call was started although a result of this size may not fit."""
    return not call.has_begun and call.unread is not None and call.expected_bytes < size // 2


def _is_large_result(value: Any) -> bool:
    """Return whether a handler's result is probably large; True if it cannot be examined.

    Another thread may change a list or dict meanwhile, and classes may have methods that fail.
    """
    try:
        return _is_large(value)
    except Exception:
        return True


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
