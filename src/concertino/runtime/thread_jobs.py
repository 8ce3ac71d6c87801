"""ThreadJob: one function that a thread of a pool calls, and LoopJobs: the jobs of one event loop.

Threads (runtime/threads.py) makes the jobs. This module also finds the call of a client that a job
belongs to.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from concertino.jsonrpc.incoming_requests import IncomingRequest, Kind
from concertino.jsonrpc.unread_results import kind_of
from concertino.runtime.tasks import subject_of
from concertino.runtime.thread_trials import ThreadTrials

__all__ = [
    "LoopJobs",
    "ThreadJob",
    "call_of_job",
    "is_of_kind",
    "is_unexpected",
]


class ThreadJob:
    """One function to call in a thread.

    The thread stores the function's result in `value`, or its exception in `error`. Then the event
    loop sets the result of `future`, which wakes Threads.run().
    loop_jobs: the LoopJobs of the event loop that waits for the job.
    context: the context variables with which the function runs.
    task: the task that called Threads.run(), for the log.
    sent: for a large value, an event that the loop sets when it has sent or dropped the value. The
        thread waits for it. None for other values.
    trial_kind: the kind of the job's call, while ThreadTrials counts the call; otherwise None.
    """

    __slots__ = (
        "context",
        "error",
        "function",
        "future",
        "loop_jobs",
        "sent",
        "task",
        "trial_kind",
        "value",
    )

    def __init__(self, function: Callable[[], Any], loop_jobs: LoopJobs) -> None:
        self.function = function
        self.loop_jobs = loop_jobs
        self.future: asyncio.Future[Any] = loop_jobs.loop.create_future()
        self.context = copy_context()
        self.task = asyncio.current_task(loop_jobs.loop)
        self.value: Any = None
        self.error: BaseException | None = None
        self.sent: threading.Event | None = None
        self.trial_kind: Kind | None = None


class LoopJobs:
    """The jobs that run for one event loop: those that are kept back, and those that have ended.

    add() passes a job that has ended to the loop. Threads changes the attributes.
    trials: limits the calls of tools while little is known about their results.
    on_large: called on the loop with each job that has a large result, before run() takes the
        result.
    on_trial_end: called on the loop with each job that has a small result or none, and whose call
        `trials` has counted.

    Attributes:
    settled: a cache of handlers whose tools are not on trial any more: id(handler) -> handler. It
        saves 3 us for each call while many calls run.
    kept: the jobs that are kept back: no thread may take them yet, because their tool is on trial
        or because there is no room for their large results.
    is_check_due: whether a timer will call Threads._check_kept(), which starts jobs in `kept`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        trials: ThreadTrials,
        on_large: Callable[[ThreadJob], object],
        on_trial_end: Callable[[ThreadJob], object],
    ) -> None:
        self.loop = loop
        self.trials = trials
        self.settled: dict[int, object] = {}
        self.kept: deque[ThreadJob] = deque()
        self.is_check_due = False
        self._on_large = on_large
        self._on_trial_end = on_trial_end
        # The jobs that have ended and that the loop has not taken yet.
        self._jobs: deque[ThreadJob] = deque()
        # Whether _deliver() is scheduled on the loop.
        self._is_waking = False

    def add(self, job: ThreadJob) -> None:
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
            if job.sent is not None:
                self._on_large(job)
            elif job.trial_kind is not None:
                self._on_trial_end(job)


def call_of_job(job: ThreadJob) -> IncomingRequest | None:
    """Return the client's call whose handler a job runs; None if it runs something else."""
    call = None if job.task is None else subject_of(job.task)
    return call if isinstance(call, IncomingRequest) else None


def is_of_kind(job: ThreadJob, kind: Kind) -> bool:
    """Return whether a job runs a call of this kind.

    kind: the method of the call and the name of its tool or prompt.
    """
    call = call_of_job(job)
    return call is not None and kind_of(call) == kind


def is_unexpected(call: IncomingRequest, size: int) -> bool:
    """Return whether a result of `size` bytes would be more than twice as large as a call expects.

    Returns False if the handler of the call is known to run, because such a call cannot be kept
    back any more.
    """
    return not call.has_begun and call.unread is not None and call.expected_bytes < size // 2
