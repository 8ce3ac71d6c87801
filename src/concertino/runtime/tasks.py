"""Starts a task for each call, and defers output to the end of a read.

    start = eager_task_runner(loop, on_done)
    task = start(coroutine, subject)   # None if the coroutine has ended already

The first step of a coroutine, up to its first real wait, runs at once and not one loop iteration
later. Most handlers return in their first step, so the responses to all requests of one read can be
sent together, at the end of that read (ReadBatch). Python 3.12 and later have eager tasks for this.
On Python 3.11, _start_on_3_11() runs the first step itself; delete it when 3.11 is no longer
supported. Alternatives and measurements are in docs/decisions/0014-eager-tasks.md.

The subject is any object that belongs to the coroutine; the runtime passes the request. Warnings in
the log name the request of a task, which subject_of() returns. LoopWatch starts and stops the
thread that warns about handlers that block the loop (runtime/loop_watcher.py).
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
from contextvars import Context as ContextVariables
from contextvars import copy_context
from types import CoroutineType, GeneratorType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from concertino.loading import load

__all__ = [
    "LoopWatch",
    "ReadBatch",
    "busy_loops",
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
# The types of the function that eager_task_runner() returns, and of its argument `on_done`.
Start = Callable[[Work, Subject], "asyncio.Task[None] | None"]
OnDone = Callable[[Subject, Any, BaseException | None], None]
# The type of a function by which a Host says whether any of its calls runs or waits.
HasCalls = Callable[[], bool]


def eager_task_runner(
    loop: asyncio.AbstractEventLoop,
    on_done: OnDone[Subject],
    variables: ContextVariables | None = None,
) -> Start[Subject]:
    """Return a function start(work, subject) that runs the first step of a coroutine at once.

    `work` is the coroutine, and `subject` any object that belongs to it, such as its request.
    start() returns the coroutine's task, or None if the coroutine has ended in its first step.

    loop: the event loop. start() must be called on it.
    on_done: called when a coroutine ends, as on_done(subject, result, exception). If the coroutine
        has raised, `result` is None, otherwise `exception` is None. on_done() is called inside the
        coroutine's task and must not raise.
    variables: the context variables of which each coroutine gets a copy; None for those that are
        current when this function is called. Those that are current when start() is called may
        belong to another call.
    """
    base = copy_context() if variables is None else variables
    if sys.version_info < (3, 12):
        return _start_on_3_11(loop, on_done, base)

    def start(work: Work, subject: Subject) -> asyncio.Task[None] | None:
        task = asyncio.Task(
            _run(work, subject, on_done), loop=loop, context=base.copy(), eager_start=True
        )
        return None if task.done() else task

    return start


def subject_of(task: asyncio.Task[Any]) -> object:
    """Return the subject of a task: the object that start() has got together with its coroutine.

    Returns None for a task that was not started by a start() function of eager_task_runner(). May
    be called from any thread.
    """
    # Read the subject from a local variable in the coroutine's frame, so that start() need not
    # store it anywhere.
    work: object = task.get_coro()
    frame = None
    if isinstance(work, CoroutineType):
        frame = work.cr_frame
    elif isinstance(work, GeneratorType):
        frame = work.gi_frame
    if frame is None or frame.f_code not in (_run.__code__, _steps.__code__):
        return None
    values = frame.f_locals
    subject = values.get("subject")
    if sys.version_info < (3, 13):
        # Before Python 3.13 the frame keeps this dict. The dict may contain an exception that
        # refers to the frame: a reference cycle, which would keep the call's result in memory until
        # the next garbage collection.
        values.clear()
    return subject


async def _run(work: Work, subject: Any, on_done: OnDone[Any]) -> None:
    """Await `work` and call on_done() at once when it ends.

    A done callback of the task would be called one loop iteration later.
    """
    try:
        value = await work
    except BaseException as exc:
        on_done(subject, None, exc)
    else:
        on_done(subject, value, None)


def hide_from_all_tasks(task: asyncio.Task[Result]) -> asyncio.Task[Result]:
    """Remove a task of the runtime from asyncio.all_tasks(), and return the task.

    A handler that cancels all tasks then does not cancel tasks of the runtime.
    """
    _unregister_task(task)
    return task


# The loops on which large results are sent or converted in the current iteration, or wait for it
# (runtime/result_turns.py). While the set is empty, a call need not look for its loop, which takes
# half a microsecond.
busy_loops: set[asyncio.AbstractEventLoop] = set()


class ReadBatch:
    """The messages of one read from a connection, which an event loop processes together.

    The runtime defers flushes to the end of the read. The responses to the requests of the read are
    then sent together, with one write or two (flush_once), and no further loop iteration is needed.

    in_progress: whether the loop is processing the messages of a read now.
    single_id: if the current or last read has brought a single message, a number that no other read
        has; otherwise 0.
    """

    # Deferring the flushes saves 1.7 us for each read on Python 3.13.

    def __init__(self) -> None:
        self.in_progress = False
        # A link to a plugin (orchestra/unix_link.py) sends the first request that a read with a
        # single message causes at once, and not at the end of the read. The number tells the link
        # whether it has done so in this read.
        self.single_id = 0
        # Whether flush_once() was called in the current read.
        self._is_flushed = False
        # The last number that was used as a single_id.
        self._count = 0
        self._callbacks: list[Callable[[], object]] = []

    def begin(self, messages: int) -> None:
        """Begin to process a read. The caller must call end() after its last message.

        messages: the number of messages that the read has brought.
        """
        self.in_progress = True
        self._is_flushed = False
        if messages == 1:
            self.single_id = self._count = self._count + 1
        else:
            self.single_id = 0

    def defer(self, callback: Callable[[], object]) -> None:
        """Call `callback` at the end of the current read. Allowed only during a read."""
        self._callbacks.append(callback)

    def flush_once(self) -> None:
        """Call the functions that were passed to defer() now, before the end of the read.

        Only the first flush_once() in a read does this; later ones do nothing, so that a read
        causes two writes at most.
        """
        if not self._is_flushed:
            # Go on with the same read. begin() also sets single_id to 0.
            self.end()
            self.begin(0)
            self._is_flushed = True

    def end(self) -> None:
        """End the read, and call the functions that were passed to defer()."""
        self.in_progress = False
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
    """Starts, wakes and ends the thread that warns about handlers that block the loop.

    The thread is a LoopWatcher (runtime/loop_watcher.py); each loop has at most one. All Hosts
    (runtime/host.py) on the loop share the LoopWatch of the loop.

    is_asleep: whether wake() must be called before the next call starts. It is always False on a
        loop without Hosts.
    """

    __slots__ = ("_sources", "_watcher", "is_asleep")

    def __init__(self) -> None:
        self.is_asleep = False
        # The function has_calls() of each Host on the loop.
        self._sources: list[HasCalls] = []
        # The thread; None until a call has started it.
        self._watcher: WatcherThread | None = None

    def begin(self, has_calls: HasCalls) -> None:
        """Watch the running loop on behalf of one Host, until end() is called for this Host.

        has_calls: returns whether any call of the Host's clients runs or waits.
        """
        self._sources.append(has_calls)
        if len(self._sources) == 1:
            self.is_asleep = True

    async def end(self, has_calls: HasCalls) -> None:
        """Stop watching on behalf of one Host. After the last Host, the thread ends.

        has_calls: the function that was passed to begin().
        """
        self._sources.remove(has_calls)
        if not self._sources:
            self.is_asleep = False
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                await watcher.close()

    def wake(self) -> None:
        """Wake the thread that watches the loop, or start it, because a call is about to start.

        Called on the loop, and only if is_asleep is true.
        """
        self.is_asleep = False
        if self._watcher is None:
            # The thread starts with the first call, so that the server starts faster. Its module is
            # loaded by name, because that module imports this one.
            try:
                start: Callable[[HasCalls], WatcherThread]
                start = load("concertino.runtime.loop_watcher").LoopWatcher
                self._watcher = start(self._fall_asleep)
            except (RuntimeError, MemoryError):
                # The system allows no more threads, so handlers that block are not noticed.
                return
            except OSError:
                # The module cannot be loaded: this process has no file descriptors left. The next
                # call tries again.
                self.is_asleep = True
                return
        self._watcher.wake()

    def _fall_asleep(self) -> bool:
        """Record whether the thread may sleep, because no call runs, and return it.

        Runs on the event loop.
        """
        self.is_asleep = not any(has_calls() for has_calls in self._sources)
        return self.is_asleep


class WatcherThread(Protocol):
    """The methods of LoopWatcher in runtime/loop_watcher.py that this module calls."""

    def wake(self) -> None: ...
    async def close(self) -> None: ...


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


def loop_watch_of(loop: asyncio.AbstractEventLoop) -> LoopWatch:
    """Return the LoopWatch of a loop; all Hosts and connections on the loop share it."""
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


def do_nothing() -> None:
    """Do nothing. Replaces the callbacks of a connection that is closed."""


# Python 3.11 only


def _start_on_3_11(
    loop: asyncio.AbstractEventLoop, on_done: OnDone[Subject], base: ContextVariables
) -> Start[Subject]:
    """Return a function start(work, subject) that imitates the eager tasks of Python 3.12.

    The returned function is described at eager_task_runner().
    base: the context variables of which each coroutine gets a copy.
    """

    # During the first step, asyncio.current_task() must return the coroutine's task. _enter_task()
    # and _leave_task() achieve this (asyncio documentation, "Extending"). If a task calls start(),
    # that task is left during the first step, as eager tasks do.
    def start(work: Work, subject: Subject) -> asyncio.Task[None] | None:
        context = base.copy()
        caller = asyncio.current_task(loop)
        # The type is Any, because type checkers do not know that a task accepts generators too, and
        # a call of cast() would take time.
        steps: Any = _steps(work, subject, on_done)
        # The task runs the generator from the next loop iteration on. By then the code below has
        # executed the generator's first step, so the task continues after that step.
        task: asyncio.Task[None] = asyncio.Task(steps, loop=loop, context=context)
        if caller is not None:
            _leave_task(loop, caller)
        _enter_task(loop, task)
        try:
            return None if context.run(next, steps, None) is None else task
        finally:
            _leave_task(loop, task)
            if caller is not None:
                _enter_task(loop, caller)

    return start


def _steps(work: Work, subject: Subject, on_done: OnDone[Subject]) -> Generator[Any, Any, None]:
    """Run the coroutine `work` to its end and call on_done().

    If `work` does not end in its first step, the generator yields True once, and afterwards
    everything that `work` yields.
    """
    try:
        waiting = work.send(None)
    except StopIteration as stop:
        return on_done(subject, stop.value, None)
    except BaseException as exc:
        return on_done(subject, None, exc)

    value, thrown = yield from _continue_in_task(waiting)
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


def _continue_in_task(waiting: Any) -> Generator[Any, Any, tuple[Any, BaseException | None]]:
    """Wait in the task for the future that the coroutine's first step has yielded.

    waiting: that future; None if the coroutine has yielded None, to let one loop iteration pass.
    Returns the value to send into the coroutine and the exception to throw; one of them is None.
    """
    try:
        yield True
        # The task executes the next line one loop iteration later. If the coroutine has yielded
        # None, it has waited for no more than that.
        return (None if waiting is None else (yield waiting)), None
    except asyncio.CancelledError as exc:
        # Task.cancel() cancels the future that the task waits for. If it was called before the task
        # got this future, cancel the future here.
        if not asyncio.isfuture(waiting) or not waiting.cancel(*exc.args):
            return None, exc
    except BaseException as exc:
        return None, exc
    try:
        return (yield waiting), None
    except BaseException as exc:
        return None, exc
