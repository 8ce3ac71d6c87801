"""Notices a call that holds the event loop, and warns once for each tool.

A thread asks the loop every PERIOD_S for a sign of life, as long as calls are under way. If the
same task still runs when the sign is HELD_S late, the thread logs whose call it is and where it
stands. With no call under way the thread waits for a lock, without a timeout, so that an idle
process is not woken. The first call after a pause releases the lock: a few microseconds, once.

The thread starts with the first call, not with the process, and ends with the last host on the
loop. It is a thread and not a timer, since nothing else of the process runs on while the loop is
held.
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

# How long a call may hold the event loop before it is logged.
HELD_S = 0.25
# How often the loop is asked, and how often its task is looked at while the loop does not answer.
PERIOD_S = 0.05
# How many different tools and functions are logged; a safeguard, since few servers have as many.
MAX_REPORTED = 1000


class LoopWatcher:
    """The thread that watches the running event loop, on behalf of a LoopWatch.

    fall_asleep: called on the loop; returns whether no call is under way, in which case the next
    call must call wake().
    """

    def __init__(self, fall_asleep: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._fall_asleep = fall_asleep
        self._is_asleep = False
        # Done when the thread is about to end; None until close().
        self._ended: asyncio.Future[None] | None = None
        # When the thread should look next, and the processor time before that.
        self._due_s = self._used_s = 0.0
        self._wake = threading.Lock()
        self._wake.acquire()
        self._reported: set[str] = set()
        self._watching = threading.Thread(target=self._run, name="loop-watcher", daemon=True)
        self._watching.start()

    def wake(self) -> None:
        """Watch the loop from now on. Called once at first, and once after each fall_asleep()."""
        self._due_s, self._used_s = time.monotonic(), self._processor_s()
        self._wake.release()

    async def close(self) -> None:
        """End the thread, and wait until it has ended."""
        ended = self._ended = self._loop.create_future()
        # Whether it waits for a call or for the time to look again.
        if self._wake.locked():
            self._wake.release()
        await ended
        self._watching.join()

    def _run(self) -> None:
        try:
            while self._ended is None:
                self._wake.acquire()
                self._watch()
            self._loop.call_soon_threadsafe(_set_done, self._ended)
        except RuntimeError:
            # The loop is closed.
            pass

    def _watch(self) -> None:
        """Watch until no call is under way. Raises RuntimeError when the loop is closed."""
        self._is_asleep = False
        may_sleep = False
        while not self._is_asleep and self._ended is None:
            self._ask(may_sleep)
            if not self._is_asleep and self._ended is None:
                self._due_s, self._used_s = time.monotonic() + PERIOD_S, self._processor_s()
                # Only close() releases it while the thread is awake.
                self._wake.acquire(timeout=PERIOD_S)
            # Not at the first answer: under load, nearly every call would have to wake the thread.
            may_sleep = True

    def _ask(self, may_sleep: bool) -> None:
        """Ask the loop for a sign of life and wait for it; log what holds the loop meanwhile."""
        answered: threading.Lock | None = None
        held, since_s = self._running_task(), self._due_s
        while True:
            task, now_s, used_s = self._running_task(), time.monotonic(), self._processor_s()

            # If this thread itself was late, then either the loop's thread was busy and did not let
            # go of the interpreter, as a regular expression does; or the process was stopped, which
            # is no fault of the task. So only the processor time counts.
            late_s = now_s - self._due_s
            if late_s > PERIOD_S:
                since_s += max(0.0, late_s - (used_s - self._used_s))

            wait_s = PERIOD_S
            if task is not held:
                held, since_s = task, now_s
            elif now_s - since_s >= HELD_S:
                if held is not None:
                    self._report(held)
                # It may hold the loop for ever.
                wait_s = HELD_S
            self._due_s, self._used_s = now_s + wait_s, used_s

            # Only now: this lets go of the interpreter, and a task that kept it would go on.
            if answered is None:
                answered = threading.Lock()
                answered.acquire()
                self._loop.call_soon_threadsafe(self._answer, answered, may_sleep)
            if answered.acquire(timeout=wait_s):
                return

    def _answer(self, answered: threading.Lock, may_sleep: bool) -> None:
        """Say that the loop is alive; runs on the loop."""
        self._is_asleep = may_sleep and self._fall_asleep()
        answered.release()

    def _running_task(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self._loop)

    def _processor_s(self) -> float:
        """Return the processor time of the loop's thread; where there is none, of the process."""
        try:
            return time.clock_gettime(time.pthread_getcpuclockid(self._thread))
        except (AttributeError, OSError):
            return time.process_time()

    def _report(self, task: asyncio.Task[Any]) -> None:
        """Log which call holds the loop, unless its tool was logged before."""
        call, place = call_of(task), place_of_thread(self._thread)
        if self._running_task() is not task or (call is None and place is None):
            # It has just ended.
            return
        name = f"{place.function}()" if call is None and place is not None else call
        if name is None or name in self._reported or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(name)
        log.warning(
            "%s has blocked the event loop for %d ms, and stands at %s; other calls and pings "
            "wait. Make it a `def` without inline=True, or await what takes long",
            name,
            HELD_S * 1000,
            place or "its end, after native code that kept the interpreter to itself",
        )


def _set_done(future: asyncio.Future[None]) -> None:
    # Whoever awaited it may have been cancelled.
    if not future.done():
        future.set_result(None)
