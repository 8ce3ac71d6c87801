"""PartStarts: starts the parts of a composition, and knows the state of each.

A composition serves several backends, its parts, as one. A part is starting, serves calls, or has
failed to start. CompositionRules.retries_s says when a part that has failed is started again.
start_strictly() is for compositions in which no part may fail.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from itertools import chain, repeat

from concertino.backend.interface import Backend, Notifier
from concertino.backend.start_failure import describe_failure, start_failure_text
from concertino.composition.rules import CompositionRules
from concertino.errors import INTERNAL_ERROR, ConcertinoError, RpcError

__all__ = ["PartStarts", "make_removed_error", "start_strictly"]

log = logging.getLogger("concertino.composition")

NUMBER = re.compile(r"\d+")
# The shortest time until a part that failed is started again, in seconds, however often calls need
# it.
LEAST_RETRY_S = 1.0


class PartStarts:
    """Starts the parts of a composition, which serves several backends as one.

    A part that is slow or fails does not delay other parts.
    parts: name -> backend. The owner of this mapping may change it later: after adding an item it
        calls begin(), and after removing an item forget().
    rules: the settings: how long to wait, and when to start a part again.
    on_late_start: awaited with the name of a part when the part has started or failed after start()
        has returned.

    Attributes:
    starting: name of each part that is still starting -> a future that is done when the part has
        started or failed, or was removed.
    failures: name of each part that has failed to start -> the reason.
    """

    def __init__(
        self,
        parts: Mapping[str, Backend],
        rules: CompositionRules,
        on_late_start: Callable[[str], Awaitable[None]],
    ) -> None:
        # A part is starting (in `starting`), has failed (in `failures` and `_errors`), or serves
        # calls (in none of them).
        self.starting: dict[str, asyncio.Future[None]] = {}
        self.failures: dict[str, str] = {}
        self._parts = parts
        self._rules = rules
        self._on_late_start = on_late_start
        # Until this time by the loop's clock, lists wait for parts that are still starting.
        self._lists_until = 0.0
        # Whether start() has returned, so that later starts are reported.
        self._has_returned = False
        # Name -> the task that starts the part, reports its start, and retries after a failure.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Name -> an event that is set when a call needs a part that has failed, so that the part is
        # started again soon.
        self._needed: dict[str, asyncio.Event] = {}
        # Name -> the exception with which the part has failed.
        self._errors: dict[str, BaseException] = {}

    async def start(self, notifier_of: Callable[[str], Notifier]) -> None:
        """Start all parts concurrently, and wait for them.

        - Waits `rules.start_s` seconds, or less if all parts have started or failed.
        - If no part has started by then, waits longer: until one part has started, or all have
          failed. If `rules.may_be_empty` is True, does not wait longer.

        Parts that are slower go on starting in the background.
        notifier_of: called with the name of a part; returns the Notifier that the part gets.
        Raises ConcertinoError if all parts have failed, unless `rules.may_be_empty` is True.
        """
        self._lists_until = asyncio.get_running_loop().time() + self._rules.lists_s
        for name in self._parts:
            self.begin(name, notifier_of(name))
        try:
            if self.starting:
                await asyncio.wait(self.starting.values(), timeout=self._rules.start_s)
            while not self._rules.may_be_empty and self.starting and not self._any_serves():
                await asyncio.wait(self.starting.values(), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        if not self._rules.may_be_empty and len(self.failures) == len(self._parts):
            # Name the parts in their order, not in the order of their failures.
            texts = [f"{name}: {describe_failure(self._errors[name])}" for name in self._parts]
            raise ConcertinoError("; ".join(texts))
        self._has_returned = True
        if self.starting:
            log.warning("still starting: %s; the others are served", ", ".join(self.starting))

    def begin(self, name: str, notifier: Notifier) -> None:
        """Begin to start one part in the background. Returns at once.

        name: the name of the part, which is in `parts` already.
        notifier: the Notifier that the part gets.
        """
        first_start = asyncio.get_running_loop().create_future()
        self._needed[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._keep_trying(name, notifier, first_start))
        self.starting[name] = first_start

    def forget(self, name: str) -> asyncio.Task[None] | None:
        """Discard the state of a part that has been removed, and cancel its start.

        Returns the task that starts the part; None if the part was never started. Wait for this
        task before closing the part.
        """
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        if (first_start := self.starting.pop(name, None)) is not None:
            # The task cannot do this, because a task that is cancelled before its first step runs
            # none of its code.
            first_start.set_result(None)
        for table in (self._needed, self.failures, self._errors):
            table.pop(name, None)
        return task

    def _any_serves(self) -> bool:
        return any(self.serves(name) for name in self._parts)

    async def cancel(self) -> None:
        """Cancel all starts and retries, and wait until they have ended."""
        await _cancel(list(self._tasks.values()))

    def serves(self, name: str) -> bool:
        """Return whether a part has started and can handle calls."""
        return name not in self.starting and name not in self.failures

    async def wait_for(self, name: str) -> None:
        """Wait until a part has started.

        Raises RpcError with the reason if the part has failed to start, or is removed meanwhile. If
        `rules.retries_s` is not empty, a failed part is started again soon after this error, so
        that a later call may succeed.
        """
        # While this call waits, the part may be removed, and a new part of the same name may be
        # added. Then wait for the new part.
        while (first_start := self.starting.get(name)) is not None:
            # Do not await the future itself: a cancelled call would cancel it for all calls.
            await asyncio.wait((first_start,))
        if name not in self._parts:
            raise make_removed_error(name)
        if (text := self.failures.get(name)) is not None:
            self._needed[name].set()
            raise RpcError(INTERNAL_ERROR, text)

    async def wait_for_lists(self) -> None:
        """Wait until all parts have started or failed, so that a list is complete.

        The wait ends at the latest `rules.lists_s` seconds after start() was called.
        """
        left_s = self._lists_until - asyncio.get_running_loop().time()
        if self.starting and left_s > 0:
            await asyncio.wait(self.starting.values(), timeout=left_s)

    async def _keep_trying(
        self,
        name: str,
        notifier: Notifier,
        first_start: asyncio.Future[None],
    ) -> None:
        """Start a part. If it fails, start it again after the delays in `rules.retries_s`.

        first_start: a future; this method sets it when the first start has succeeded or failed.
        """
        part = self._parts[name]
        try:
            has_started = await self._start_part(name, part, notifier)
            self._finish_first_start(name, first_start)
            await self._report_late(name)
            if has_started:
                return
            delays_s = self._rules.retries_s
            # The last delay is repeated.
            for delay_s in chain(delays_s, repeat(delays_s[-1]) if delays_s else ()):
                await self._pause(name, delay_s)
                if await self._start_part(name, part, notifier):
                    await self._report_late(name)
                    return
        finally:
            # If this task is cancelled during the first start, nothing has woken the waiting calls.
            self._finish_first_start(name, first_start)

    def _finish_first_start(self, name: str, first_start: asyncio.Future[None]) -> None:
        """Wake the tasks that wait for the first start of a part, which has succeeded or failed."""
        if not first_start.done():
            # If the part was removed, a new part may have its name now.
            if self.starting.get(name) is first_start:
                del self.starting[name]
            first_start.set_result(None)

    async def _report_late(self, name: str) -> None:
        if self._has_returned:
            await self._on_late_start(name)

    async def _pause(self, name: str, delay_s: float) -> None:
        """Wait delay_s seconds before a part that has failed is started again.

        The wait is shorter if a call needs the part, but then at least LEAST_RETRY_S.
        """
        needed = self._needed[name]
        needed.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + delay_s
        await asyncio.sleep(min(delay_s, LEAST_RETRY_S))
        try:
            async with asyncio.timeout_at(until):
                await needed.wait()
        except TimeoutError:
            pass

    async def _start_part(
        self,
        name: str,
        part: Backend,
        notifier: Notifier,
    ) -> bool:
        """Start a part once, and return whether it has started.

        A failure is logged, unless the previous start has failed in the same way.
        """
        try:
            await part.start(notifier)
        except BaseException as exc:
            # BaseException includes SystemExit: no part may end the process in which other parts
            # run.
            task = asyncio.current_task()
            # A CancelledError counts as a failure of the part if nobody has cancelled this task.
            if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            # The part was removed while it was starting.
            if self._parts.get(name) is not part:
                return False
            self._errors[name] = exc
            text = start_failure_text(f"{name}: {describe_failure(exc)}")
            # Compare without numbers, since process ids and times differ from try to try.
            is_new = NUMBER.sub("", self.failures.get(name, "")) != NUMBER.sub("", text)
            self.failures[name] = text
            log.log(
                logging.ERROR if is_new else logging.DEBUG,
                "%s",
                text,
                exc_info=exc if log.isEnabledFor(logging.DEBUG) else None,
            )
            return False
        self.failures.pop(name, None)
        self._errors.pop(name, None)
        return True


def make_removed_error(name: str) -> RpcError:
    """Return the error for a call whose part was removed while the call waited.

    name: the name of the part.
    """
    return RpcError(INTERNAL_ERROR, f"{name} was removed while the call waited for it")


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def start_strictly(
    parts: Mapping[str, Backend], notifier_of: Callable[[str], Notifier]
) -> None:
    """Start all parts concurrently, and wait for all of them without a time limit.

    parts: name -> backend.
    notifier_of: called with the name of a part; returns the Notifier that the part gets.
    If a part fails, cancels all other starts, and raises ConcertinoError with the part's name and
    exception.
    """
    starting = {
        asyncio.ensure_future(part.start(notifier_of(name))): name for name, part in parts.items()
    }
    try:
        await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
        failures = {
            name: error
            for start, name in starting.items()
            if start.done() and (error := _exception_of(start)) is not None
        }
    finally:
        # If one part has failed, stop waiting for the other parts.
        for start in starting:
            start.cancel()
        await asyncio.wait(starting)
    if failures:
        name, error = next(iter(failures.items()))
        raise ConcertinoError(f"{name}: {type(error).__name__}: {error}") from error


def _exception_of(start: asyncio.Future[None]) -> BaseException | None:
    """Return the exception of a start that has ended; None if it succeeded.

    A start that has cancelled itself has failed: nobody else has cancelled it yet.
    """
    return asyncio.CancelledError() if start.cancelled() else start.exception()
