"""The starts of the parts of a composition: which serve, which are still starting, which failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from concertino.backend.interface import Backend, Notifier
from concertino.backend.start_failure import describe_failure, start_failure_text
from concertino.errors import INTERNAL_ERROR, ConcertinoError, RpcError

__all__ = ["PartStarts", "start_strictly"]

log = logging.getLogger("concertino.composition")

# How long a start waits for the slowest part ...
START_S = 0.5
# ... and how long, since its beginning, lists wait for it: some clients ask only once.
LISTS_S = 1.0


class PartStarts:
    """Starts parts, so that a slow one or one that fails does not hold up the others.

    on_late_part: called when a part has started or failed after start() had returned.
    starting: name -> the task that starts the part. failures: name -> why a part does not serve.
    """

    def __init__(
        self, parts: Mapping[str, Backend], on_late_part: Callable[[str], Awaitable[None]]
    ) -> None:
        self.starting: dict[str, asyncio.Task[None]] = {}
        self.failures: dict[str, str] = {}
        self._parts = parts
        self._on_late_part = on_late_part
        self._lists_by = 0.0
        # Also those that have started their part and report it.
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: dict[str, BaseException] = {}

    async def start(self, notifier: Notifier) -> None:
        """Start all parts concurrently, and wait a moment for all, but at least for one of them.

        Raises ConcertinoError if all fail.
        """
        self._lists_by = asyncio.get_running_loop().time() + LISTS_S
        is_late = asyncio.Event()
        for name, part in self._parts.items():
            task = asyncio.create_task(self._start_part(name, part, notifier, is_late))
            self.starting[name] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait(self._tasks, timeout=START_S)
            while self.starting and not self._parts.keys() - self.starting - self.failures.keys():
                await asyncio.wait(self.starting.values(), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        if len(self.failures) == len(self._parts):
            # In the order of the parts, not of their failures.
            texts = [f"{name}: {describe_failure(self._errors[name])}" for name in self._parts]
            raise ConcertinoError("; ".join(texts))
        is_late.set()
        if self.starting:
            log.warning("still starting: %s; the others are served", ", ".join(self.starting))

    async def cancel(self) -> None:
        """Cancel the starts that are not over."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def serves(self, name: str) -> bool:
        """Return whether a part takes calls."""
        return name not in self.starting and name not in self.failures

    async def wait_for(self, name: str) -> None:
        """Wait until a part has started. Raises RpcError if it fails or has failed."""
        if (task := self.starting.get(name)) is not None:
            # Without awaiting the task itself: a cancelled call must not cancel it.
            await asyncio.wait((task,))
        if (text := self.failures.get(name)) is not None:
            raise RpcError(INTERNAL_ERROR, text)

    async def wait_for_lists(self) -> None:
        """Wait for slow parts as long as a list may be held up."""
        left_s = self._lists_by - asyncio.get_running_loop().time()
        if self.starting and left_s > 0:
            await asyncio.wait(self.starting.values(), timeout=left_s)

    async def _start_part(
        self,
        name: str,
        part: Backend,
        notifier: Notifier,
        is_late: asyncio.Event,
    ) -> None:
        try:
            await part.start(notifier)
        # SystemExit too: no part ends the others.
        except BaseException as exc:
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
                self.starting.pop(name, None)
                raise
            self._errors[name] = exc
            self.failures[name] = start_failure_text(f"{name}: {describe_failure(exc)}")
            log.error(
                "%s",
                self.failures[name],
                exc_info=exc if log.isEnabledFor(logging.DEBUG) else None,
            )
        else:
            self.failures.pop(name, None)
        del self.starting[name]
        if is_late.is_set():
            await self._on_late_part(name)


async def start_strictly(parts: Mapping[str, Backend], notifier: Notifier) -> None:
    """Start all parts concurrently. Raises ConcertinoError with the name of one that fails."""
    starting = {asyncio.ensure_future(part.start(notifier)): name for name, part in parts.items()}
    try:
        await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
        failures = {
            name: error
            for start, name in starting.items()
            if start.done() and (error := _exception_of(start)) is not None
        }
    finally:
        # When one part has failed, the others are not waited for.
        for start in starting:
            start.cancel()
        await asyncio.wait(starting)
    if failures:
        name, error = next(iter(failures.items()))
        raise ConcertinoError(f"{name}: {type(error).__name__}: {error}") from error


def _exception_of(start: asyncio.Future[None]) -> BaseException | None:
    """Return the exception of a start that is over; None if it succeeded."""
    return asyncio.CancelledError() if start.cancelled() else start.exception()
