"""runtime/tasks.py: a call whose first step runs at once behaves as one in a plain asyncio.Task.

Each behaviour is run both ways, on asyncio's loop and on uvloop; what a plain task does is the
expected value.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from concertino.runtime.tasks import eager_task_runner, subject_of

Work = Coroutine[Any, Any, Any]
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Bench:
    """Starts coroutines from a callback, as a ServerConnection does, and collects how they ended.

    ours: by eager_task_runner(); else each in a plain task.
    """

    def __init__(self, ours: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended: list[tuple[str, Any]] = []
        self.tasks: list[asyncio.Task[Any] | None] = []
        self._start = eager_task_runner(self.loop, self._end) if ours else self._plain
        self.changed = asyncio.Event()

    def _end(self, name: str, value: Any, error: BaseException | None) -> None:
        self.ended.append((name, value if error is None else repr(error)))
        self.changed.set()

    def _plain(self, work: Work, name: str) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                self._end(name, await work, None)
            except BaseException as error:
                self._end(name, None, error)

        return self.loop.create_task(run(), context=contextvars.copy_context())

    async def start(self, *works: Work) -> list[asyncio.Task[Any] | None]:
        """Start each from a callback of its own, outside of any task."""
        begun: list[asyncio.Task[Any] | None] = []
        for number, work in enumerate(works):
            started: asyncio.Future[None] = self.loop.create_future()

            def begin(
                work: Work = work, number: int = number, started: asyncio.Future[None] = started
            ) -> None:
                begun.append(self._start(work, str(number)))
                started.set_result(None)

            self.loop.call_soon(begin)
            await started
        self.tasks += begun
        return begun

    async def all(self, count: int) -> list[tuple[str, Any]]:
        async with asyncio.timeout(10):
            while len(self.ended) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.ended


Scenario = Callable[[Bench], Coroutine[Any, Any, Any]]


async def returns_at_once(bench: Bench) -> Any:
    async def work(value: int) -> int:
        return value

    await bench.start(work(1), work(2))
    return await bench.all(2)


async def returns_later(bench: Bench) -> Any:
    async def work(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    await bench.start(work(1), work(5), work(0))
    return sorted(await bench.all(3))


async def raises(bench: Bench) -> Any:
    async def work(error: BaseException, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        raise error

    errors = [
        ValueError("x"),
        GeneratorExit(),
        asyncio.CancelledError("y"),
        TimeoutError(),
        MemoryError(),
    ]
    await bench.start(*(work(error, turns) for error in errors for turns in (0, 1, 2)))
    return sorted(await bench.all(15), key=lambda end: int(end[0]))


async def awaits_failing_futures(bench: Bench) -> Any:
    """Exceptions thrown in at each await are caught there, and the call goes on."""

    async def work() -> list[str]:
        seen = []
        for error in (
            ValueError("1"),
            KeyError("2"),
            asyncio.CancelledError("3"),
            TimeoutError("4"),
        ):
            future = bench.loop.create_future()
            bench.loop.call_soon(future.set_exception, error)
            try:
                await future
            except BaseException as caught:
                seen.append(repr(caught))
        return seen

    await bench.start(work())
    return await bench.all(1)


async def knows_its_task(bench: Bench) -> Any:
    async def work() -> tuple[bool, bool, str, bool]:
        first = asyncio.current_task()
        await asyncio.sleep(0)
        second = asyncio.current_task()
        return (
            first is second,
            first in asyncio.all_tasks(),
            type(first).__name__,
            first is not None,
        )

    await bench.start(work(), work())
    return sorted(await bench.all(2))


async def times_out(bench: Bench) -> Any:
    async def at_once() -> str:
        async with asyncio.timeout(30):
            return "in time"

    async def late() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "not reached"

    async def uncaught() -> str:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
        return "not reached"

    async def waits_for() -> str:
        return await asyncio.wait_for(at_once(), 1)

    await bench.start(at_once(), late(), uncaught(), waits_for(), at_once())
    return sorted(await bench.all(5))


async def groups(bench: Bench) -> Any:
    async def child(fails: bool) -> int:
        await asyncio.sleep(0)
        if fails:
            raise ValueError("child")
        return 1

    async def work(fails: bool) -> str:
        said = ""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(child(False)), group.create_task(child(fails))]
                if fails:
                    await asyncio.Event().wait()
        except* ValueError as errors:
            said = repr(errors.exceptions)
        return said or str(sum(task.result() for task in tasks))

    await bench.start(work(False), work(True))
    return sorted(await bench.all(2))


async def gathers(bench: Bench) -> Any:
    async def work() -> list[str]:
        return await asyncio.gather(
            asyncio.sleep(0, "a"), asyncio.sleep(0.001, "b"), asyncio.to_thread(lambda: "c")
        )

    await bench.start(work())
    return await bench.all(1)


async def sets_variables(bench: Bench) -> Any:
    """Set in the first step, seen in the later ones and in children, not by the next call."""

    async def child() -> str:
        return variable.get()

    async def work(value: str, turns: int) -> list[str]:
        seen = [variable.get()]
        variable.set(value)
        for _ in range(turns):
            await asyncio.sleep(0)
        seen.append(variable.get())
        seen.append(await asyncio.create_task(child()) if turns else "-")
        seen.append(await asyncio.to_thread(variable.get) if turns else "-")
        return seen

    await bench.start(*(work(f"value {n}", n % 3) for n in range(9)))
    return sorted(await bench.all(9)), variable.get()


async def resets_variables(bench: Bench) -> Any:
    async def work(turns: int) -> str:
        token = variable.set("mine")
        for _ in range(turns):
            await asyncio.sleep(0)
        variable.reset(token)
        return variable.get()

    await bench.start(work(0), work(1), work(2))
    return sorted(await bench.all(3))


async def is_cancelled_later(bench: Bench) -> Any:
    async def work(swallows: bool, turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            if not swallows:
                raise
            return f"swallowed {error}"
        return "not reached"

    tasks = await bench.start(work(False, 0), work(True, 0), work(False, 3), work(True, 3))
    await asyncio.sleep(0)
    for task in tasks:
        assert task is not None
        task.cancel("enough")
    ends = sorted(await bench.all(4))
    await asyncio.wait([task for task in tasks if task is not None])
    return ends


async def cancels_itself(bench: Bench) -> Any:
    async def work(awaits: bool) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if awaits:
            await asyncio.sleep(0)
        return "returned"

    async def uncancels() -> tuple[int, int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        requests = task.cancelling()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
        return requests, task.uncancel()

    async def after() -> int:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        return task.cancelling()

    await bench.start(work(True), after(), work(False), after(), uncancels(), after())
    return sorted(await bench.all(6))


async def is_cancelled_by_another_in_its_first_step(bench: Bench) -> Any:
    kept: list[asyncio.Task[Any]] = []

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        bench.loop.call_soon(task.cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cancelled"
        return "not reached"

    await bench.start(work())
    return await bench.all(1), kept


async def awaits_another_call(bench: Bench) -> Any:
    future: asyncio.Future[str] = bench.loop.create_future()

    async def first() -> str:
        return await future

    async def second() -> str:
        future.set_result("told")
        return "told it"

    await bench.start(first(), second())
    return sorted(await bench.all(2))


async def uses_locks_and_queues(bench: Bench) -> Any:
    lock, queue = asyncio.Lock(), asyncio.Queue[int](1)

    async def put() -> str:
        async with lock:
            for number in range(5):
                await queue.put(number)
        return "put"

    async def take() -> list[int]:
        return [await queue.get() for _ in range(5)]

    await bench.start(put(), take())
    return sorted(await bench.all(2))


async def closes_its_generators(bench: Bench) -> Any:
    closed: list[str] = []

    async def numbers() -> Any:
        try:
            for number in range(10):
                yield number
                await asyncio.sleep(0)
        finally:
            closed.append("closed")

    async def work() -> str:
        source = numbers()
        async for number in source:
            if number == 2:
                await source.aclose()
                break
        return f"{number} {closed}"

    await bench.start(work())
    return await bench.all(1)


SCENARIOS = [
    returns_at_once,
    returns_later,
    raises,
    awaits_failing_futures,
    knows_its_task,
    times_out,
    groups,
    gathers,
    sets_variables,
    resets_variables,
    is_cancelled_later,
    cancels_itself,
    is_cancelled_by_another_in_its_first_step,
    awaits_another_call,
    uses_locks_and_queues,
    closes_its_generators,
]


def run(scenario: Scenario, ours: bool, loop: str) -> Any:
    async def main() -> Any:
        return await scenario(Bench(ours))

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_call_that(scenario: Scenario, loop: str) -> None:
    assert run(scenario, True, loop) == run(scenario, False, loop)


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run_it() -> None:
        asyncio.run(test())

    run_it.__name__ = test.__name__
    run_it.__doc__ = test.__doc__
    return run_it


@on_a_loop
async def test_the_first_step_is_taken_at_once() -> None:
    bench = Bench(True)
    steps: list[str] = []

    async def work() -> None:
        steps.append("first")
        await asyncio.sleep(0)
        steps.append("second")

    def begin() -> None:
        assert bench._start(work(), "x") is not None
        steps.append("begun")

    bench.loop.call_soon(begin)
    await bench.all(1)
    assert steps == ["first", "begun", "second"]


@on_a_loop
async def test_a_call_that_ends_in_its_first_step_has_no_task() -> None:
    bench = Bench(True)

    async def work() -> int:
        return 1

    assert await bench.start(work(), work()) == [None, None]


@pytest.mark.parametrize(
    "keeps", ["reference", "weak reference", "callback", "variable", "cancel", "name in a set"]
)
def test_a_call_that_left_a_trace_on_its_task_leaves_none_on_the_next(keeps: str) -> None:
    async def main() -> None:
        bench = Bench(True)
        kept: list[Any] = []

        async def leaves() -> None:
            task = asyncio.current_task()
            assert task is not None
            kept.append(id(task))
            if keeps == "reference":
                kept.append(task)
            elif keeps == "weak reference":
                kept.append(weakref.ref(task))
            elif keeps == "callback":
                task.add_done_callback(kept.append)
                kept.append(task)
            elif keeps == "variable":
                variable.set("left")
                kept.append(task)
            elif keeps == "cancel":
                task.cancel()
            else:
                kept.append({task})

        async def looks() -> tuple[bool, str, int]:
            task = asyncio.current_task()
            assert task is not None
            same = bool(kept[1:]) and (
                task is kept[1] or task in (kept[1] if isinstance(kept[1], set) else ())
            )
            return same, variable.get(), task.cancelling()

        await bench.start(leaves(), looks())
        assert (await bench.all(2))[1][1] == (False, "unset", 0)

    asyncio.run(main())


def test_a_call_that_sets_a_variable_back_leaves_no_trace_in_the_next() -> None:
    async def main() -> None:
        bench = Bench(True)

        async def work() -> str:
            before = variable.get()
            token = variable.set("x")
            variable.reset(token)
            return before

        await bench.start(*(work() for _ in range(5)))
        assert {value for _, value in await bench.all(5)} == {"unset"}

    asyncio.run(main())


@on_a_loop
async def test_all_tasks_holds_no_task_of_ours_before_or_after_the_calls() -> None:
    bench = Bench(True)
    assert asyncio.all_tasks() == {asyncio.current_task()}

    async def work() -> None:
        await asyncio.sleep(0)

    await bench.start(work())
    await bench.all(1)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_a_loop
async def test_a_call_that_fails_inside_a_running_task_says_so_too() -> None:
    bench = Bench(True)

    async def work() -> None:
        raise SystemExit(3)

    bench._start(work(), "x")
    assert await bench.all(1) == [("x", "SystemExit(3)")]


@on_a_loop
async def test_a_task_is_done_after_its_end_was_told() -> None:
    bench = Bench(True)

    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 5

    (task,) = await bench.start(work())
    assert task is not None
    assert not task.done()
    gate.set()
    await asyncio.wait([task])
    assert bench.ended == [("0", 5)]
    assert task.done()
    assert not task.cancelled()


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_left_or_said_when_the_loop_ends(
    loop: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No hang, no "Task was destroyed", no "never awaited"; calls that still wait are cancelled as
    any task is.
    """
    ends: list[Any] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("finally")

    async def main() -> None:
        bench = Bench(True)
        await bench.start(waits(), waits())
        del bench

    with warnings.catch_warnings(), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        warnings.simplefilter("error")
        runner.run(main())
    gc.collect()
    assert ends == ["finally", "finally"]
    said = capfd.readouterr()
    assert said.err == ""


def test_an_unused_starter_leaves_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        for _ in range(10):
            eager_task_runner(asyncio.get_running_loop(), lambda *_: None)

    asyncio.run(main())
    gc.collect()
    assert capfd.readouterr().err == ""


def test_debug_mode_of_asyncio_works_too() -> None:
    async def main() -> list[Any]:
        bench = Bench(True)

        async def work() -> str:
            await asyncio.sleep(0)
            return "x"

        await bench.start(work())
        return await bench.all(1)

    assert asyncio.run(main(), debug=True) == [("0", "x")]


def test_ten_thousand_calls_leave_no_objects_behind() -> None:
    async def main() -> None:
        bench = Bench(True)

        async def work(turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        def count() -> int:
            gc.collect()
            return sum(isinstance(each, asyncio.Task) for each in gc.get_objects())

        await bench.start(*(work(n % 2) for n in range(100)))
        await bench.all(100)
        bench.tasks.clear()
        before = count()
        await bench.start(*(work(n % 2) for n in range(2000)))
        await bench.all(2100)
        bench.tasks.clear()
        assert count() <= before + 2

    asyncio.run(main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("ours", [True, False])
def test_what_hangs_on_a_call_of_one_step_hears_of_its_end(ours: bool, loop: str) -> None:
    """A callback, a waiter and an uncancelled cancel, as with a plain task; the next call is none
    the wiser.
    """

    async def main() -> None:
        bench = Bench(ours)
        told: list[str] = []
        waiters: list[asyncio.Task[Any]] = []

        async def calls_back() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(lambda done: told.append(f"callback {done.cancelled()}"))

        async def is_awaited() -> None:
            waiters.append(asyncio.create_task(asyncio.wait([asyncio.current_task()])))  # type: ignore[list-item]

        async def renames() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.set_name("secret")

        async def uncancels() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            task.uncancel()

        async def waits() -> bool:
            await asyncio.sleep(0)
            task = asyncio.current_task()
            assert task is not None
            return task.get_name() == "secret"

        for number, work in enumerate((calls_back, is_awaited, renames, uncancels)):
            await bench.start(work(), waits())
            ends = await bench.all(2 * number + 2)
            assert ends[-1][1] is False
        async with asyncio.timeout(5):
            await waiters[0]
        assert told == ["callback False"]

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.mark.parametrize("answer", ["raises", "equal"])
def test_a_variable_is_kept_from_the_next_call_whatever_its_value_says_of_equality(
    answer: str,
) -> None:
    class Value:
        def __eq__(self, other: object) -> bool:
            if answer == "raises":
                raise ValueError("ambiguous")
            return True

        __hash__ = None  # type: ignore[assignment]

    held: contextvars.ContextVar[Value] = contextvars.ContextVar("held")

    async def main() -> None:
        before = Value()
        held.set(before)
        bench = Bench(True)

        async def sets() -> bool:
            seen = held.get()
            held.set(Value())
            return seen is before

        await bench.start(sets(), sets())
        assert [seen for _, seen in await bench.all(2)] == [True, True]

    asyncio.run(main())


@on_a_loop
async def test_a_call_started_inside_a_running_task_has_a_task_of_its_own() -> None:
    bench = Bench(True)

    async def work() -> str:
        task = asyncio.current_task()
        return "another" if task is not None and task is not outer else "the same"

    outer = asyncio.current_task()
    task = bench._start(work(), "x")
    assert task is None
    assert await bench.all(1) == [("x", "another")]
    assert asyncio.current_task() is outer


@on_a_loop
async def test_a_cancel_right_after_the_first_step_cancels_the_future_that_the_call_awaits() -> (
    None
):
    bench = Bench(True)
    awaited: asyncio.Future[None] = bench.loop.create_future()

    async def work() -> None:
        await awaited

    def begin_and_cancel() -> None:
        task = bench._start(work(), "x")
        assert task is not None
        task.cancel()

    bench.loop.call_soon(begin_and_cancel)
    assert await bench.all(1) == [("x", "CancelledError()")]
    assert awaited.cancelled()


@on_a_loop
async def test_a_cancel_right_after_the_first_step_waits_until_the_awaited_task_has_ended() -> None:
    bench = Bench(True)
    release = asyncio.Event()

    async def slow_to_end() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
        return "ended"

    inner = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)

    async def work() -> str:
        return await inner

    def begin_and_cancel() -> None:
        task = bench._start(work(), "x")
        assert task is not None
        task.cancel()

    bench.loop.call_soon(begin_and_cancel)
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.ended == []
    release.set()
    assert await bench.all(1) == [("x", "ended")]


class _Value:
    """A result that tells whether it is still alive."""


@pytest.mark.parametrize("later", [False, True], ids=["first step", "later"])
@pytest.mark.parametrize("loop", LOOPS)
def test_asking_for_the_subject_of_a_task_keeps_no_result_alive(later: bool, loop: str) -> None:
    async def work() -> _Value:
        if later:
            await asyncio.sleep(0)
        return _Value()

    async def main() -> None:
        running = asyncio.get_running_loop()
        ended: asyncio.Future[weakref.ref[_Value]] = running.create_future()

        def on_done(subject: str, value: _Value, error: BaseException | None) -> None:
            task = asyncio.current_task()
            assert task is not None
            assert subject_of(task) == subject == "call"
            ended.set_result(weakref.ref(value))

        start = eager_task_runner(running, on_done)
        running.call_soon(start, work(), "call")
        result = await ended
        for _ in range(3):
            await asyncio.sleep(0)
        assert result() is None

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(main())
    finally:
        gc.enable()
