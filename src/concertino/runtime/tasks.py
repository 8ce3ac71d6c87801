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
from types import CoroutineType, GeneratorType
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from concertino.loading import load

__all__ = [
    "DONE",
    "LoopWatch",
    "ReadBatch",
    "do_nothing",
    "eager_task_runner",
    "hide_from_all_tasks",
    "loop_watch_of",
    "read_batch_of",
    "subject_of",
]

Work = Coroutine[Any, Any, Any]
Subject = TypeVar("Subject")
Result = TypeVar("Result")
Start = Callable[[Work, Subject], "asyncio.Task[None] | None"]
OnDone = Callable[[Subject, Any, BaseException | None], None]
HasCalls = Callable[[], bool]


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
        return _start_on_3_11(loop, on_done, base)

    def start(work: Work, subject: Subject) -> asyncio.Task[None] | None:
        task = asyncio.Task(
            _run(work, subject, on_done), loop=loop, context=base.copy(), eager_start=True
        )
        return None if task.done() else task

    return start


def subject_of(task: asyncio.Task[Any]) -> object:
    """Return the subject that a task was started for; None for tasks of others.

    It is read from the coroutine's variables, so that starting a call need not note it anywhere.
    May be called from any thread.
    """
    work: object = task.get_coro()
    frame = None
    if isinstance(work, CoroutineType):
        frame = work.cr_frame
    elif isinstance(work, GeneratorType):
        frame = work.gi_frame
    functions = (_run, _steps, _run_later)
    if frame is None or all(frame.f_code is not function.__code__ for function in functions):
        return None
    values = frame.f_locals
    subject = values.get("subject")
    if sys.version_info < (3, 13):
        # A copy that the frame keeps. It may hold the exception that ends the coroutine, which
        # holds the frame: the call's result would stay until the garbage collector comes.
        values.clear()
    return subject


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


class LoopWatch:
    """Whether the calls on a loop are watched, so that one that holds the loop is noticed.

    is_asleep: whether the next call must call wake() before it starts. It stays False for a loop
    that nobody watches.
    """

    __slots__ = ("_sources", "_watcher", "is_asleep")

    def __init__(self) -> None:
        self.is_asleep = False
        self._sources: list[HasCalls] = []
        self._watcher: WatcherThread | None = None

    def begin(self, has_calls: HasCalls) -> None:
        """Watch the running loop until end(). has_calls: returns whether a call is under way."""
        self._sources.append(has_calls)
        if len(self._sources) == 1:
            self.is_asleep = True

    async def end(self, has_calls: HasCalls) -> None:
        """Watch no longer on behalf of the one that began it; the last one ends the thread."""
        self._sources.remove(has_calls)
        if not self._sources:
            self.is_asleep = False
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                await watcher.close()

    def wake(self) -> None:
        """Wake the thread that watches. On the loop, and only if is_asleep is true."""
        self.is_asleep = False
        if self._watcher is None:
            # With the first call: a server that starts has more urgent things to do. By name, since
            # the watcher's module needs this one.
            try:
                start: Callable[[HasCalls], WatcherThread]
                start = load("concertino.runtime.loop_watcher").LoopWatcher
                self._watcher = start(self._fall_asleep)
            except (RuntimeError, MemoryError):
                # The system allows no more threads: calls are not watched.
                return
            except OSError:
                # No descriptor is left to load the watcher: the next call tries again.
                self.is_asleep = True
                return
        self._watcher.wake()

    def _fall_asleep(self) -> bool:
        self.is_asleep = not any(has_calls() for has_calls in self._sources)
        return self.is_asleep


class WatcherThread(Protocol):
    """The thread that watches a loop: runtime/loop_watcher.py."""

    def wake(self) -> None: ...
    async def close(self) -> None: ...


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


def loop_watch_of(loop: asyncio.AbstractEventLoop) -> LoopWatch:
    """Return the LoopWatch of a loop; everything that starts calls on the loop shares it."""
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopWatch()
    return watch


_read_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBatch] = WeakKeyDictionary()


def read_batch_of(loop: asyncio.AbstractEventLoop) -> ReadBatch:
    """Return the ReadBatch of a loop; every connection on the loop shares it."""
    batch = _read_batches.get(loop)
    if batch is None:
        batch = _read_batches[loop] = ReadBatch()
    return batch


class _Done:
    """An awaitable that is done. Unlike a coroutine, it needs not be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = _Done()


# Python 3.11 only


def _start_on_3_11(
    loop: asyncio.AbstractEventLoop, on_done: OnDone[Subject], base: Context
) -> Start[Subject]:
    """Return what starts a coroutine as an eager task would: its first step runs now, as a task's.

    asyncio documents _enter_task and _leave_task for those who implement tasks ("Extending").
    Inside another task's step they cannot be used: then the first step runs in the next iteration.
    """

    def start(work: Work, subject: Subject) -> asyncio.Task[None] | None:
        context = base.copy()
        if asyncio.current_task(loop) is not None:
            return _start_later(loop, work, subject, on_done, context)

        steps = _steps(work, subject, on_done)
        # The task's own first step, in the next iteration, finds the generator where this leaves
        # it: at its end, or at the end of the first step.
        task: asyncio.Task[None] = asyncio.Task(
            cast("Coroutine[Any, Any, None]", steps), loop=loop, context=context
        )
        _enter_task(loop, task)
        try:
            return None if context.run(next, steps, None) is None else task
        finally:
            _leave_task(loop, task)

    return start


def _steps(work: Work, subject: Subject, on_done: OnDone[Subject]) -> Generator[Any, Any, None]:
    """Drive `work` to its end and report it.

    Yields True once, after the first step if that was not the last one; then what `work` awaits.
    """
    try:
        waiting = work.send(None)
    except StopIteration as stop:
        return on_done(subject, stop.value, None)
    except BaseException as exc:
        return on_done(subject, None, exc)

    value, thrown = yield from _take_over(waiting)
    while True:
        try:
            waiting = work.send(value) if thrown is None else work.throw(thrown)
        except StopIteration as stop:
            return on_done(subject, stop.value, None)
        except BaseException as exc:
            return on_done(subject, None, exc)
        thrown = None
        try:
            value = yield waiting
        except BaseException as exc:
            thrown = exc


def _take_over(waiting: Any) -> Generator[Any, Any, tuple[Any, BaseException | None]]:
    """Wait in the task for what the first step awaits.

    Returns the value to send into the coroutine, or the exception to throw.
    """
    try:
        yield True
        # None asks for the next iteration, and this is it.
        return (None if waiting is None else (yield waiting)), None
    except asyncio.CancelledError as exc:
        # A task cancels by itself what it waits for, but here the cancel may have come before the
        # task knew of the future.
        if not asyncio.isfuture(waiting) or not waiting.cancel(*exc.args):
            return None, exc
    except BaseException as exc:
        return None, exc
    try:
        return (yield waiting), None
    except BaseException as exc:
        return None, exc


def _start_later(
    loop: asyncio.AbstractEventLoop,
    work: Work,
    subject: Subject,
    on_done: OnDone[Subject],
    context: Context,
) -> asyncio.Task[None]:
    """Start a coroutine as a plain task."""
    rest = _run_later(work, subject, on_done)

    # Run to the first yield, so that a cancel before the task's own first step finds its `try`.
    rest.send(None)
    return asyncio.Task(rest, loop=loop, context=context)


async def _run_later(work: Work, subject: Subject, on_done: OnDone[Subject]) -> None:
    """Do as _run(), one yield later. Nothing of `work` runs if it is cancelled before."""
    try:
        await asyncio.sleep(0)
    except BaseException as exc:
        work.close()
        # The loop was closed.
        if isinstance(exc, GeneratorExit):
            raise
        return on_done(subject, None, exc)
    return await _run(work, subject, on_done)


def do_nothing() -> None:
    """Do nothing: takes the place of a callback when its connection is closed."""
