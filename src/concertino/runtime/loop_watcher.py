"""Warns about a handler that blocks the event loop, for example with time.sleep().

While calls run, a thread schedules a callback on the event loop every PERIOD_S seconds. The
callback only releases a lock. If the loop does not run the callback for BLOCKED_S seconds, and
executes the same task all that time, the thread logs which tool blocks the loop, and at which line.
Each tool and each function of resources is logged once.

While no call runs, the thread waits for a lock without a timeout, so an idle process uses no CPU.
The first call after such a pause wakes the thread, which first sleeps for PERIOD_S.

runtime/tasks.py (LoopWatch) starts the thread with the first call, and ends it with the last Host
on the loop. A timer could not do this work: timers do not fire while the loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from concertino.runtime.running_calls import call_of, place_of_thread

__all__ = ["LoopWatcher"]

log = logging.getLogger("concertino.host")

# A call that blocks the event loop for this long is logged.
BLOCKED_S = 0.25
# The time between two callbacks to the loop. While the loop is blocked, the thread checks this
# often which task the loop executes.
PERIOD_S = 0.05
# At most this many tools and functions are logged, which limits the memory for their names.
MAX_REPORTED = 1000


class LoopWatcher:
    """The thread that warns when a handler blocks the running event loop.

    The thread sleeps while no handler runs. LoopWatch (runtime/tasks.py) makes it, and wakes it
    before the first call.

    fall_asleep: called on the loop; returns whether no handler runs. If it returns True, the thread
        falls asleep, and LoopWatch must call wake() before the next handler starts.
    """

    def __init__(self, fall_asleep: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._fall_asleep = fall_asleep
        # Whether the thread sleeps until wake(), or will do so next.
        self._is_asleep = False
        # A future that close() makes; it is done when the thread is about to end.
        self._ended: asyncio.Future[None] | None = None
        # When this thread should wake up next, by time.monotonic(), and how much CPU time the
        # loop's thread had used when that time was set.
        self._due_s = self._used_s = 0.0
        # The thread sleeps while it waits for this lock; wake() and close() release the lock.
        self._wake = threading.Lock()
        self._wake.acquire()
        # The names of the tools, and of the functions of resources, that were logged.
        self._reported: set[str] = set()
        self._watching = threading.Thread(target=self._run, name="loop-watcher", daemon=True)
        self._watching.start()

    def wake(self) -> None:
        """Wake the thread before a call starts.

        Must be called only while the thread sleeps: before the first call, and before the next call
        each time fall_asleep() has returned True.
        """
        self._due_s, self._used_s = time.monotonic() + PERIOD_S, self._cpu_time_s()
        self._wake.release()

    async def close(self) -> None:
        """End the thread, and wait until it has ended."""
        ended = self._ended = self._loop.create_future()
        # Interrupt the thread's sleep, with a timeout or without.
        if self._wake.locked():
            self._wake.release()
        await ended
        self._watching.join()

    def _run(self) -> None:
        """Sleep and watch alternately until close() is called. The thread runs this."""
        try:
            while self._ended is None:
                self._wake.acquire()
                self._watch()
            self._loop.call_soon_threadsafe(_set_done, self._ended)
        except RuntimeError:
            # The loop is closed.
            pass

    def _watch(self) -> None:
        """Watch the loop until no call runs. Raises RuntimeError when the loop is closed."""
        self._is_asleep = False
        while not self._is_asleep and self._ended is None:
            # This is the pause before each callback. Only close() can end it early. The first
            # callback also comes after a pause, because most calls have ended by then. A callback
            # at once would take the GIL from the call, which would last 60 to 120 us longer.
            self._wake.acquire(timeout=max(0.0, self._due_s - time.monotonic()))
            if self._ended is None:
                self._check_loop()
            self._due_s, self._used_s = time.monotonic() + PERIOD_S, self._cpu_time_s()

    def _check_loop(self) -> None:
        """Schedule one callback on the loop and wait until it has run.

        If the callback does not run for BLOCKED_S seconds, log the task that blocks the loop.
        """
        callback_ran: threading.Lock | None = None
        # The task that the loop executes, and since when it has executed this task. The first time
        # is the one at which this thread should have woken up.
        current, since_s = self._running_task(), self._due_s
        while True:
            task, now_s, used_s = self._running_task(), time.monotonic(), self._cpu_time_s()

            # If this thread woke up late, there are two possible reasons. Either the loop's thread
            # kept the GIL, as a long search of a regular expression does. Or the whole process was
            # suspended, by SIGSTOP or on a sleeping laptop, which is not the fault of the task.
            # The loop's thread uses CPU time in the first case only. So do not count the part of
            # the delay in which that thread used none: move since_s forward by it.
            late_s = now_s - self._due_s
            if late_s > PERIOD_S:
                since_s += max(0.0, late_s - (used_s - self._used_s))

            wait_s = PERIOD_S
            if task is not current:
                current, since_s = task, now_s
            elif now_s - since_s >= BLOCKED_S:
                if current is not None:
                    self._report(current)
                # The task is logged. It may block the loop for ever, so check less often.
                wait_s = BLOCKED_S
            self._due_s, self._used_s = now_s + wait_s, used_s

            # Schedule the callback only after the first check of the task. Scheduling releases the
            # GIL, so a task that had kept the GIL until now could end before it was checked.
            if callback_ran is None:
                callback_ran = threading.Lock()
                callback_ran.acquire()
                self._loop.call_soon_threadsafe(self._on_loop, callback_ran)
            if callback_ran.acquire(timeout=wait_s):
                return

    def _on_loop(self, callback_ran: threading.Lock) -> None:
        """Release the lock `callback_ran`. Runs on the loop, as soon as the loop is not blocked."""
        self._is_asleep = self._fall_asleep()
        callback_ran.release()

    def _running_task(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self._loop)

    def _cpu_time_s(self) -> float:
        """Return the CPU time that the loop's thread has used, in seconds.

        On a system without a clock for each thread, the CPU time of the whole process is returned.
        """
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread))
        except (AttributeError, OSError):
            # This system has no clock for each thread.
            return time.process_time()

    def _report(self, task: asyncio.Task[Any]) -> None:
        """Log which call blocks the loop, unless its tool was logged before."""
        call, place = call_of(task), place_of_thread(self._thread)
        # The task may have ended while this thread searched for the line that it executes.
        if self._running_task() is not task:
            return
        if call is not None:
            name = call
        elif place is not None:
            name = f"{place.function}()"
        else:
            return
        # A resource template has one function for all its URIs, so remember the function.
        reported = name
        if place is not None and name.startswith("resource "):
            reported = place.function
        if reported in self._reported or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(reported)
        log.warning(
            "%s has blocked the event loop for %d ms, and stands at %s; other calls and pings "
            "wait. Make it a `def` without inline=True, or await what takes long",
            name,
            BLOCKED_S * 1000,
            place or "its end, after native code that kept the interpreter to itself",
        )


def _set_done(future: asyncio.Future[None]) -> None:
    """Set the result of a future, unless it is done already."""
    # close() was cancelled if the future is done already.
    if not future.done():
        future.set_result(None)
