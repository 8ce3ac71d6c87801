"""Starting a call's task, and deferring output to the end of a read.

A call's first step runs at once, not one loop iteration later: most calls finish in it, so their
responses leave together with the read that brought the requests. Python 3.12 and later have eager
tasks for this. Python 3.11 does not; `_start_on_3_11` runs the first step itself, and goes when
3.11 goes. Options and figures: docs/decisions/0014-eager-tasks.md.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.tasks import (
    _enter_task,  # pyright: ignore[reportPrivateUsage]
    _leave_task,  # pyright: ignore[reportPrivateUsage]
    _unregister_task,  # pyright: ignore[reportPrivateUsage]
)
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

__all__ = ["ReadBatch", "eager_task_runner", "hide_from_all_tasks", "read_batch_of"]

Work = Coroutine[Any, Any, Any]
Subject = TypeVar("Subject")
Result = TypeVar("Result")
Start = Callable[[Work, Subject], "asyncio.Task[None] | None"]
OnDone = Callable[[Subject, Any, BaseException | None], None]


def eager_task_runner(loop: asyncio.AbstractEventLoop, on_done: OnDone[Subject]) -> Start[Subject]:
    """Return a function that starts a coroutine on `loop` and runs its first step at once.

    on_done: called once per coroutine, from inside its task, with the subject that it was started
    for and its result or its exception; it must not raise.
    The returned function gives None if the first step was also the last one, else the task. Each
    coroutine sees the context variables of now, not those of the callback that starts it, which
    may run in the context of another call.
    """
    base = copy_context()
    if sys.version_info < (3, 12):
        return lambda work, subject: _start_on_3_11(loop, work, subject, on_done, base.copy())

    def start(work: Work, subject: Subject) -> asyncio.Task[None] | None:
        task = asyncio.Task(
            _run(work, subject, on_done), loop=loop, context=base.copy(), eager_start=True
        )
        return None if task.done() else task

    return start


async def _run(work: Work, subject: Any, on_done: OnDone[Any]) -> None:
    """Await `work` and report its end in the same step, one loop iteration before callbacks."""
    try:
        value = await work
    except BaseException as exc:
        on_done(subject, None, exc)
    else:
        on_done(subject, value, None)


def hide_from_all_tasks(task: asyncio.Task[Result]) -> asyncio.Task[Result]:
    """Remove a task of the runtime from asyncio.all_tasks() and return it.

    Handlers that cancel everything in all_tasks() mean their own tasks.
    """
    _unregister_task(task)
    return task


class ReadBatch:
    """The read that a loop is processing, if any: output is deferred to its end.

    Responses caused by one read leave together, and without another loop iteration (1.7 us
    on Python 3.13).
    on: whether a read is being processed.
    lone: a number that identifies the current or last read if it brought a single message, else 0.
    """

    def __init__(self) -> None:
        self.on = False
        self.lone = 0
        self._count = 0
        self._callbacks: list[Callable[[], object]] = []

    def begin(self, messages: int) -> None:
        """Mark the start of a read of `messages` messages. The reader must call end()."""
        self.on = True
        if messages == 1:
            self.lone = self._count = self._count + 1
        else:
            self.lone = 0

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the current read ends. Only while `on` is true."""
        self._callbacks.append(callback)

    def end(self) -> None:
        """Mark the end of the read and run the deferred callbacks."""
        self.on = False
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                try:
                    callback()
                except Exception as exc:
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": f"{callback} failed", "exception": exc}
                    )


_read_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBatch] = WeakKeyDictionary()


def read_batch_of(loop: asyncio.AbstractEventLoop) -> ReadBatch:
    """Return the ReadBatch of a loop; every connection on the loop shares it."""
    batch = _read_batches.get(loop)
    if batch is None:
        batch = _read_batches[loop] = ReadBatch()
    return batch


# Python 3.11 only


def _start_on_3_11(
    loop: asyncio.AbstractEventLoop,
    work: Work,
    subject: Any,
    on_done: OnDone[Any],
    context: Context,
) -> asyncio.Task[None] | None:
    """Start a coroutine as an eager task would: its first step runs now, as a task's step.

    asyncio documents _enter_task and _leave_task for those who implement tasks ("Extending").
    Inside another task's step they cannot be used: then the first step runs in the next iteration.
    """
    resumed = _Resumed(work, subject, on_done)
    rest = _await_resumed(resumed)

    # Run to the first yield, so that a cancel before the task's own first step finds its `try`.
    rest.send(None)
    task = asyncio.Task(rest, loop=loop, context=context)
    try:
        _enter_task(loop, task)
    except RuntimeError:
        return task

    resumed.is_begun = True
    try:
        resumed.waiting = context.run(work.send, None)
    except BaseException as exc:
        _leave_task(loop, task)
        resumed.work = None
        if isinstance(exc, StopIteration):
            on_done(subject, exc.value, None)
        else:
            on_done(subject, None, exc)
        return None
    _leave_task(loop, task)
    return task


async def _await_resumed(resumed: _Resumed) -> None:
    try:
        await resumed
    except GeneratorExit:
        # A future that failed with GeneratorExit throws it here too; the call has handled it.
        if not resumed.is_begun:
            raise


class _Resumed:
    """Awaitable that drives a coroutine from wherever its first step left it to its end.

    work: None if the first step was the last one; then there is nothing left to do.
    waiting: the future that the first step awaits.
    """

    def __init__(self, work: Work, subject: Any, on_done: OnDone[Any]) -> None:
        self.work: Work | None = work
        self.is_begun = False
        self.waiting: object = None
        self._subject = subject
        self._on_done = on_done

    def __await__(self) -> Generator[Any, Any, None]:
        value: Any = None
        thrown: BaseException | None = None
        try:
            yield
            if self.work is None:
                return
            if self.is_begun:
                value = yield self.waiting
        except BaseException as exc:
            if self.work is None:
                return
            if not self.is_begun:
                # Cancelled before the first step, or the loop was closed: nothing of it ever runs.
                self.work.close()
                if isinstance(exc, GeneratorExit):
                    raise
                return self._on_done(self._subject, None, exc)
            thrown = exc
        if isinstance(thrown, asyncio.CancelledError):
            value, thrown = yield from self._cancel_waiting(thrown)
        yield from self._drive(value, thrown)

    def _cancel_waiting(
        self, error: asyncio.CancelledError
    ) -> Generator[Any, Any, tuple[Any, BaseException | None]]:
        """Cancel the future that the first step awaits, and wait for its end.

        A task does this by itself, but here the cancel may have come before the task knew of the
        future. Returns the value to send into the coroutine, or the exception to throw.
        """
        future = self.waiting
        if not asyncio.isfuture(future) or not future.cancel(*error.args):
            return None, error
        try:
            return (yield future), None
        except BaseException as exc:
            return None, exc

    def _drive(self, value: Any, thrown: BaseException | None) -> Generator[Any, Any, None]:
        """Run the coroutine to its end and report it."""
        work = self.work
        assert work is not None
        while True:
            try:
                waiting = work.send(value) if thrown is None else work.throw(thrown)
            except StopIteration as stop:
                return self._on_done(self._subject, stop.value, None)
            except BaseException as exc:
                return self._on_done(self._subject, None, exc)
            thrown = None
            try:
                value = yield waiting
            except BaseException as exc:
                thrown = exc
