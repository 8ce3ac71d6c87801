"""A thread pool that runs `def` handlers, so that they do not block the event loop.

    threads = Threads(32)
    result = await threads.run(lambda: handler(arguments))

Four things differ from concurrent.futures.ThreadPoolExecutor. The threads are daemon threads, so a
handler that never returns does not keep the process alive. The event loop is woken once for all
results that are ready, not once for each. When handlers occupy all threads for a second, a log
message names them. And large results are limited, see docs/decisions/0094 and 0110:

- While little is known about the results of a tool, it is "on trial": few calls of it run at once
  (ThreadTrials).
- A thread that has made a large result starts its next job only when the loop has sent or dropped
  that result. So there are never more large results than threads.
- When the result of a call turns out to be large, other calls of the same tool may already wait for
  a thread: they were admitted before anything was known, or while results were small. They are kept
  back until their results will probably fit into the limits (UnreadResults.try_begin).

A call goes this way: run() calls _try_admit(), and then puts the job into the queue (_queue) or
keeps it back (LoopJobs.kept). _release() puts the jobs that were kept back into the queue when
_try_release() allows it.

The *kind* of a call is its method and the name of its tool or prompt. `unread` of a call is the
UnreadResults of its connection, which counts the results that the client has not read.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from os import _exit, getpid
from typing import Any, cast
from weakref import WeakSet

from concertino.jsonrpc.incoming_requests import IncomingRequest, Kind, ResultCounter
from concertino.jsonrpc.unread_results import kind_of
from concertino.runtime.result_sizes import LARGE_BYTES, is_large_result
from concertino.runtime.result_turns import result_turns_of
from concertino.runtime.thread_jobs import (
    LoopJobs,
    ThreadJob,
    call_of_job,
    is_of_kind,
    is_unexpected,
)
from concertino.runtime.thread_trials import FIRST_CALLS, ThreadTrials

__all__ = ["Threads", "tasks_in_threads"]

log = logging.getLogger("concertino.host")

# A job is one function to call in a thread. When a job has waited this many seconds for a thread,
# the calls that occupy the threads are logged.
BLOCKED_S = 1.0
# How many different calls that log message names.
MAX_NAMED = 5
# How often, in seconds, to check whether calls that are kept back may start, because clients have
# read results meanwhile.
KEPT_CHECK_S = 0.05
# At most this many handlers are remembered whose tools are not on trial any more.
MAX_SETTLED = 4096
# How often, in seconds, a thread whose large result was not sent checks whether the pool is closed.
CLOSED_CHECK_S = 1.0

# All pools of the process.
_pools: WeakSet[Threads] = WeakSet()


def tasks_in_threads(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """Return the tasks of an event loop for which a thread of a pool runs a function."""
    return [task for pool in _pools for task in pool.tasks_of(loop)]


class Threads:
    """A pool of at most `limit` threads, which start when they are needed.

        threads = Threads(32)
        result = await threads.run(lambda: handler(arguments))

    Tasks on different event loops may use the same pool.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The jobs that wait for a thread.
        self._jobs: deque[ThreadJob] = deque()
        # Event loop -> the queue of its finished jobs.
        self._loop_jobs: dict[asyncio.AbstractEventLoop, LoopJobs] = {}
        # The lock for the queue and the two counters. Idle threads wait until it is notified.
        self._changed = threading.Condition()
        # The number of threads that wait for a job, without those that were notified of one.
        self._idle = 0
        # The number of threads that are alive.
        self._started = 0
        self._closed = False
        # The jobs that run now, by the identifier of their thread.
        self._running: dict[int, ThreadJob] = {}
        # Whether _report_blocked() will be called.
        self._is_report_due = False
        _pools.add(self)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` in a thread of the pool and return its result.

        The function runs with a copy of the calling task's context variables. It waits while all
        threads are busy, or while the results of other calls of the same tool take, or might take,
        too much memory. If the task is cancelled, a function that still waits is never called; a
        function that already runs continues, and its result is discarded.

        Raises the exception of `function`, or RuntimeError if that is a StopIteration, which a
        coroutine cannot raise. Raises RuntimeError after close(), and if the pool has no thread and
        the system does not let it start one.
        """
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._closed:
                raise RuntimeError("the thread pool is closed")
            if loop not in self._loop_jobs:
                # Remove closed loops whenever a new loop is added, so that they do not accumulate.
                self._loop_jobs = {
                    known: loop_jobs
                    for known, loop_jobs in self._loop_jobs.items()
                    if not known.is_closed()
                }
                trials = ThreadTrials(self._limit)
                self._loop_jobs[loop] = LoopJobs(loop, trials, self._on_large, self._on_trial_end)
            job = ThreadJob(function, self._loop_jobs[loop])
            # To find out whether the tool of a job is on trial takes 3 us. This is not necessary
            # while few jobs run, and for handlers in `settled`, whose trial has ended. A handler
            # comes as partial(handler, ...).
            handler = function.func if isinstance(function, partial) else None
            if (
                len(self._running) + len(self._jobs) < FIRST_CALLS
                or (handler is not None and job.loop_jobs.settled.get(id(handler)) is handler)
                or self._try_admit(job)
            ):
                self._queue(job)
            else:
                job.loop_jobs.kept.append(job)
                self._check_later(job.loop_jobs)
                self._report_later(job)

        try:
            await job.future
        except asyncio.CancelledError:
            with self._changed:
                is_waiting = job in self._jobs
                for waiting in (self._jobs, job.loop_jobs.kept):
                    if job in waiting:
                        waiting.remove(job)
            if is_waiting and job.trial_kind is not None:
                # The job will not run, so another job of the kind may take its place.
                job.loop_jobs.trials.end(job.trial_kind, is_large=None)
                self._release(job.loop_jobs)
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

    def _queue(self, job: ThreadJob) -> None:
        """Pass a job to an idle thread, or queue the job. The caller holds the lock."""
        self._jobs.append(job)
        if self._idle:
            # Decrease the number here and not in the thread that wakes up, so that another job does
            # not rely on the same idle thread meanwhile.
            self._idle -= 1
            self._changed.notify()
        elif self._started < self._limit:
            self._start_thread(job)
        else:
            self._report_later(job)

    def tasks_of(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
        """Return the tasks of an event loop for which a thread runs a function."""
        with self._changed:
            running = list(self._running.values())
        return [job.task for job in running if job.loop_jobs.loop is loop and job.task is not None]

    def close(self) -> None:
        """Cancel the jobs that wait for a thread, and end all threads.

        A busy thread ends after its job; this method does not wait for it. Call it on the loop.
        """
        with self._changed:
            self._closed = True
            queues = [self._jobs]
            queues += [loop_jobs.kept for loop_jobs in self._loop_jobs.values()]
            dropped = [job for queue in queues for job in queue]
            for queue in queues:
                queue.clear()
            self._changed.notify_all()
        for job in dropped:
            job.future.cancel()

    # Tools whose results are not known. These methods run on the event loop.

    def _try_admit(self, job: ThreadJob) -> bool:
        """Return whether a new job may wait for a thread. The caller holds the lock.

        Returns False for a call that must be kept back, because its tool is on trial, and the trial
        (ThreadTrials) allows no more calls now. Otherwise the trial counts the call.
        """
        call = call_of_job(job)
        if call is None:
            return True
        trials = job.loop_jobs.trials
        kind = kind_of(call)
        if trials.is_known(kind):
            if type(job.function) is partial:
                handler = cast("partial[Any]", job.function).func
                if len(job.loop_jobs.settled) >= MAX_SETTLED:
                    job.loop_jobs.settled.clear()
                job.loop_jobs.settled[id(handler)] = handler
            return True
        # While few jobs run, run() does not call this method. So the trial does not know of the
        # calls that began then.
        begun = [
            other
            for other in (*self._running.values(), *self._jobs)
            if other.trial_kind is None
            and other.loop_jobs is job.loop_jobs
            and is_of_kind(other, kind)
        ]
        for other in begun:
            other.trial_kind = kind
        trials.begin(kind, len(begun))
        if not trials.try_start(kind):
            return False
        job.trial_kind = kind
        return True

    def _on_trial_end(self, job: ThreadJob) -> None:
        """Let calls start that were kept back, because a call with a small result has ended."""
        assert job.trial_kind is not None
        job.loop_jobs.trials.end(job.trial_kind, is_large=False)
        if job.loop_jobs.kept:
            self._release(job.loop_jobs)

    def _is_waiting(self, loop_jobs: LoopJobs, kind: Kind) -> bool:
        """Return whether all running calls of a kind on trial wait for another thread."""
        from concertino.runtime.running_calls import waits_for_thread

        with self._changed:
            running = list(self._running.items())
        on_trial = [
            (thread, job)
            for thread, job in running
            if job.loop_jobs is loop_jobs and job.trial_kind == kind
        ]
        # A thread that has made a large result waits, too, but its call does not.
        return bool(on_trial) and all(
            job.sent is None and waits_for_thread(thread) for thread, job in on_trial
        )

    # Large results. These methods run on the event loop.

    def _on_large(self, job: ThreadJob) -> None:
        """Count a large result, and arrange that _on_sent() is called when it was sent.

        A result that is sent in a later iteration (ResultTurns) counts as expected until then.
        """
        call = call_of_job(job)
        if call is not None and call.unread is not None:
            size = len(job.value) if isinstance(job.value, str | bytes) else LARGE_BYTES
            call.unread.expect(call, size)
        loop = job.loop_jobs.loop
        on_sent = partial(self._on_sent, job, call, None if call is None else call.kind)
        # Call `after` when two loop iterations have passed. In the first one, run() takes the
        # value, and its task sends the result or passes it to ResultTurns. On Python 3.11, a task
        # that began in this iteration does so only in the second one, see _continue_in_task() in
        # tasks.py.
        after = partial(result_turns_of(loop).call_after_waiting, on_sent)
        loop.call_soon(loop.call_soon, after)

    def _on_sent(self, job: ThreadJob, call: IncomingRequest | None, kind: Kind | None) -> None:
        """Keep back calls of the same kind if the result was large, and let the thread continue.

        Called when the large result of `job` was sent or dropped.
        call, kind: the call that has got the result, and its kind; None if the job belongs to none.
        """
        assert job.sent is not None
        try:
            if job.trial_kind is not None:
                job.loop_jobs.trials.end(job.trial_kind, is_large=True)
            if call is not None and call.unread is not None and kind is not None:
                # If the call has not ended, its handler has used the value for something else, and
                # the size of the call's result is unknown again.
                call.unread.count_as_unknown(call)
                size = call.unread.known_size(kind)
                if size >= LARGE_BYTES:
                    self._keep_back(job.loop_jobs, kind, size)
        finally:
            job.sent.set()

    def _keep_back(self, loop_jobs: LoopJobs, kind: Kind, size: int) -> None:
        """Keep back the calls of a kind that wait for a thread, until their results will fit.

        Calls that were admitted in the expectation of a result of about this size are not kept
        back, because memory is reserved for them already (is_unexpected).
        size: the size of the largest recent result of this kind.
        """
        with self._changed:
            running = list(self._running.values())
            waiting = list(self._jobs)
            self._jobs.clear()
            # Divide the waiting jobs into those that go on waiting and `older`. These have come
            # before the jobs that are kept back already, so they go to the front of `kept`.
            older: list[ThreadJob] = []
            for job in waiting:
                call = call_of_job(job) if job.loop_jobs is loop_jobs else None
                if call is not None and call.kind == kind and is_unexpected(call, size):
                    if job.trial_kind is not None:
                        # The trial counts the job again when it may start.
                        loop_jobs.trials.end(job.trial_kind, is_large=None)
                        job.trial_kind = None
                    older.append(job)
                else:
                    self._jobs.append(job)
            loop_jobs.kept.extendleft(reversed(older))
        # Calls that run already cannot be kept back. Calls of other kinds must not wait for them,
        # which count_as_unknown() achieves.
        for job in running:
            call = call_of_job(job) if job.loop_jobs is loop_jobs else None
            if call is not None and call.kind == kind and is_unexpected(call, size):
                assert call.unread is not None
                call.unread.count_as_unknown(call)
        # Count no memory for calls that have not begun.
        for job in loop_jobs.kept:
            call = call_of_job(job)
            if call is not None and call.unread is not None and call.kind == kind:
                call.unread.keep_back(call)
        self._release(loop_jobs)

    def _release(self, loop_jobs: LoopJobs) -> None:
        """Pass the calls that were kept back, and that may start now, to the threads."""
        ready: list[ThreadJob] = []
        kept: list[ThreadJob] = []
        # The connections and kinds of the calls that must go on waiting. Later calls of the same
        # kind wait behind them. Calls of another kind do not, because a call of one tool may wait
        # for a call of another tool.
        blocked: set[tuple[ResultCounter, Kind | None]] = set()
        for job in loop_jobs.kept:
            call = call_of_job(job)
            counter = None if call is None else call.unread
            if call is None or counter is None:
                ready.append(job)
            elif (counter, call.kind) in blocked or not self._try_release(job, call, counter):
                blocked.add((counter, call.kind))
                kept.append(job)
            else:
                ready.append(job)
        with self._changed:
            loop_jobs.kept = deque(kept)
            for job in ready:
                self._queue(job)
        if kept:
            self._check_later(loop_jobs)

    def _try_release(self, job: ThreadJob, call: IncomingRequest, counter: ResultCounter) -> bool:
        """Return whether a call that is kept back may now wait for a thread.

        If its tool is on trial (ThreadTrials), the trial decides, and counts the call. Otherwise
        the call may start if its result is not known to be large, or if there is room for it.
        counter: counts the results of the call's connection that the client has not read.
        """
        kind = call.kind
        trials = job.loop_jobs.trials
        if kind is None or not trials.is_on_trial(kind):
            is_large = kind is not None and counter.known_size(kind) >= LARGE_BYTES
            return not is_large or counter.try_begin(call)
        if not trials.try_start(kind):
            return False
        job.trial_kind = kind
        return True

    def _check_later(self, loop_jobs: LoopJobs) -> None:
        """Arrange that _check_kept() looks at the calls that are kept back."""
        if not loop_jobs.is_check_due:
            loop_jobs.is_check_due = True
            loop_jobs.loop.call_later(KEPT_CHECK_S, self._check_kept, loop_jobs)

    def _check_kept(self, loop_jobs: LoopJobs) -> None:
        """Start the calls that were kept back and may start by now.

        Trials may permit more calls first, because all calls of the tool wait (ThreadTrials.grow).
        """
        loop_jobs.is_check_due = False
        try:
            loop_jobs.trials.grow(partial(self._is_waiting, loop_jobs))
        finally:
            # Do this even if grow() raises: _release() also arranges the next check.
            self._release(loop_jobs)

    def _report_later(self, job: ThreadJob) -> None:
        """Arrange that _report_blocked() is called, unless it will be called already."""
        if not self._is_report_due:
            self._is_report_due = True
            job.loop_jobs.loop.call_later(BLOCKED_S, self._report_blocked, job)

    def _report_blocked(self, job: ThreadJob) -> None:
        """Log which calls occupy the threads, if `job` still waits. Otherwise watch another job.

        The job waits for a free thread. If its tool is on trial, it waits for a result of this
        tool, and only the calls of this tool are logged.
        """
        kept = job.loop_jobs.kept
        with self._changed:
            self._is_report_due = False
            running = list(self._running.items())
            waiting = len(self._jobs) + len(kept)
            is_kept = job in kept
            is_waiting = job in self._jobs
            later = next(
                (other for other in (*self._jobs, *kept) if other.loop_jobs is job.loop_jobs), None
            )
        occupied = f"all {self._limit} threads have been taken"
        waiting_call = call_of_job(job) if is_kept else None
        if waiting_call is not None:
            kind = kind_of(waiting_call)
            # A call whose tool is not on trial is kept back until clients have read results. It
            # waits for no thread, so nothing is logged.
            is_waiting = job.loop_jobs.trials.is_on_trial(kind)
            running = [(thread, holder) for thread, holder in running if holder.trial_kind == kind]
            occupied = f"{len(running)} threads have been taken by calls of one tool"
        if not is_waiting:
            if later is not None:
                self._report_later(later)
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
            "%s for %g s, and %d calls wait; they are held by %s",
            occupied,
            BLOCKED_S,
            waiting,
            ", ".join(f"{text} ({count} calls)" for text, count in named),
        )

    def _start_thread(self, job: ThreadJob) -> None:
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

            if is_large_result(job.value):
                # The job counts as running until its result is counted.
                job.sent = threading.Event()
            else:
                del self._running[threading.get_ident()]
            try:
                job.loop_jobs.add(job)
            except RuntimeError:
                # The job's event loop is closed. End this thread, unless other jobs wait.
                self._running.pop(threading.get_ident(), None)
                with self._changed:
                    if not self._jobs:
                        self._started -= 1
                        return
            else:
                if job.sent is not None:
                    self._wait_until_sent(job, job.sent)
                    del self._running[threading.get_ident()]

            # Without this, the variable would keep the job's result in memory until the next job.
            del job

    def _wait_until_sent(self, job: ThreadJob, sent: threading.Event) -> None:
        """Wait until the loop has sent or dropped a large result, or is closed."""
        while not sent.wait(CLOSED_CHECK_S):
            if self._closed or job.loop_jobs.loop.is_closed():
                return
