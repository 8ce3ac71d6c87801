"""runtime/threads.py: jobs in daemon threads of our own."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from loops import on_a_loop

from concertino.runtime import threads as threads_module
from concertino.runtime.thread_jobs import LoopJobs, ThreadJob
from concertino.runtime.thread_trials import ThreadTrials
from concertino.runtime.threads import Threads
from concertino.types.results import CallToolResult, TextContent

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def until_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(10):
        while not caplog.records:
            await asyncio.sleep(0.01)


def test_a_job_runs_elsewhere_and_its_value_comes_back() -> None:
    async def main() -> tuple[int, bool]:
        threads = Threads(2)
        try:
            ident, daemon = await threads.run(
                lambda: (threading.get_ident(), threading.current_thread().daemon)
            )
        finally:
            threads.close()
        return ident, daemon

    ident, daemon = asyncio.run(main())
    assert ident != threading.get_ident()
    assert daemon


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
    ],
)
def test_what_a_job_raises_is_raised_and_the_thread_lives(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def main() -> Any:
        threads = Threads(1)
        try:
            await threads.run(fail)
        except BaseException as raised:
            caught = raised
        value = await threads.run(lambda: "alive")
        threads.close()
        return caught, value

    caught, value = asyncio.run(main())
    assert type(caught) is type(error)
    assert value == "alive"


def test_a_result_that_cannot_be_examined_comes_back_and_the_thread_lives() -> None:
    class Broken(list[int]):
        def __len__(self) -> int:
            raise LookupError

    async def main() -> Any:
        threads = Threads(1)
        async with asyncio.timeout(30):
            broken = await threads.run(Broken)
            value = await threads.run(lambda: "alive")
        threads.close()
        return type(broken), value

    assert asyncio.run(main()) == (Broken, "alive")


def test_a_stop_iteration_becomes_a_runtime_error() -> None:
    async def main() -> None:
        threads = Threads(1)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(lambda: next(iter(())))
        assert await threads.run(lambda: 1) == 1
        threads.close()

    asyncio.run(main())


def test_no_more_threads_than_the_limit_and_no_more_than_are_needed() -> None:
    async def main() -> None:
        threads = Threads(3)
        for _ in range(10):
            await threads.run(lambda: None)
            while not threads._idle:
                await asyncio.sleep(0)
        assert threads._started == 1
        gate, begun = threading.Event(), threading.Semaphore(0)

        def job() -> str:
            begun.release()
            gate.wait(10)
            return threading.current_thread().name

        jobs = [asyncio.create_task(threads.run(job)) for _ in range(12)]
        await asyncio.sleep(0)
        for _ in range(3):
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        assert not begun.acquire(blocking=False)
        gate.set()
        assert len(set(await asyncio.gather(*jobs))) == 3
        threads.close()

    asyncio.run(main())


def test_a_job_that_blocks_does_not_hold_up_the_one_that_came_with_it() -> None:
    """One thread is idle and two jobs come in one turn of the loop: the second must get a thread of
    its own.
    """

    async def main() -> str:
        threads, gate = Threads(2), threading.Event()
        await threads.run(lambda: None)
        while not threads._idle:
            await asyncio.sleep(0)
        blocked = asyncio.create_task(threads.run(lambda: gate.wait(10)))
        free = asyncio.create_task(threads.run(gate.set))
        await free
        assert await blocked is True
        threads.close()
        return "both"

    assert asyncio.run(main()) == "both"


def test_the_log_names_what_holds_the_threads_and_not_what_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("concertino.runtime.threads.BLOCKED_S", 0.05)
    gate = threading.Event()

    def holder() -> None:
        gate.wait(10)

    def waiter() -> None:
        pass

    async def main() -> None:
        threads = Threads(2)
        jobs = [asyncio.create_task(threads.run(job)) for job in (holder, holder, waiter)]
        await until_logged(caplog)
        gate.set()
        await asyncio.gather(*jobs)
        threads.close()

    asyncio.run(main())
    [text] = caplog.messages
    assert text.startswith("all 2 threads have been taken for 0.05 s, and 1 calls wait; ")
    assert "holder at test_threads.py:" in text
    assert "(2 calls)" in text
    assert "waiter" not in text


def test_the_log_names_what_holds_the_threads_also_after_other_jobs_have_waited_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("concertino.runtime.threads.BLOCKED_S", 0.05)
    gate = threading.Event()

    async def main() -> None:
        threads = Threads(2)
        # One of these jobs waits for a thread for less than BLOCKED_S, so a check is due.
        await asyncio.gather(*(threads.run(lambda: None) for _ in range(3)))
        jobs = [asyncio.create_task(threads.run(lambda: gate.wait(10))) for _ in range(3)]
        await until_logged(caplog)
        gate.set()
        await asyncio.gather(*jobs)
        threads.close()

    asyncio.run(main())
    assert caplog.messages[0].startswith("all 2 threads have been taken for 0.05 s, and 1 calls")


def test_jobs_begin_in_order() -> None:
    async def main() -> list[int]:
        threads, seen = Threads(1), []
        await asyncio.gather(*(threads.run(lambda n=n: seen.append(n)) for n in range(50)))
        threads.close()
        return seen

    assert asyncio.run(main()) == list(range(50))


def test_a_job_sees_the_context_of_its_task_and_leaves_nothing_in_it() -> None:
    def swap() -> str:
        before = variable.get()
        variable.set("by the job")
        return before

    async def main() -> None:
        threads = Threads(1)
        variable.set("by the task")
        assert await threads.run(swap) == "by the task"
        assert await threads.run(swap) == "by the task"
        assert variable.get() == "by the task"
        threads.close()

    asyncio.run(main())


def test_a_job_cancelled_before_its_turn_is_never_run() -> None:
    async def main() -> None:
        threads, gate, ran = Threads(1), threading.Event(), []
        first = asyncio.create_task(threads.run(lambda: gate.wait(10)))
        second = asyncio.create_task(threads.run(lambda: ran.append("second")))
        third = asyncio.create_task(threads.run(lambda: ran.append("third")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        await asyncio.gather(first, third)
        assert ran == ["third"]
        threads.close()

    asyncio.run(main())


def test_the_result_of_a_job_cancelled_while_it_runs_is_dropped() -> None:
    async def main() -> None:
        threads, gate, begun = Threads(1), threading.Event(), threading.Event()

        def job() -> str:
            begun.set()
            gate.wait(10)
            raise ValueError("nobody hears")

        task = asyncio.create_task(threads.run(job))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        assert await threads.run(lambda: "next") == "next"
        threads.close()

    asyncio.run(main())


def test_thousands_of_quick_jobs_all_come_back() -> None:
    async def main() -> list[int]:
        threads = Threads(8)
        values = await asyncio.gather(*(threads.run(lambda n=n: n) for n in range(5000)))
        threads.close()
        return values

    assert asyncio.run(main()) == list(range(5000))


@pytest.mark.parametrize(
    "value",
    [
        "x" * 2**20,
        {"rows": list(range(5000))},
        CallToolResult(content=[TextContent(text="x" * 2**20)]),
    ],
    ids=["text", "list", "struct"],
)
def test_threads_do_not_make_large_results_that_a_busy_loop_has_not_taken(value: object) -> None:
    async def main() -> int:
        threads, made = Threads(2), 0
        alive = most_alive = 0
        two_made, lock = threading.Event(), threading.Lock()

        def make() -> object:
            nonlocal alive, made, most_alive
            with lock:
                made, alive = made + 1, alive + 1
                most_alive = max(most_alive, alive)
                if made == 2:
                    two_made.set()
            return value

        async def call() -> None:
            nonlocal alive
            assert await threads.run(make) is value
            with lock:
                alive -= 1

        calls = asyncio.gather(*(call() for _ in range(20)))
        await asyncio.sleep(0)
        # The loop is busy. The threads would have the time to make all twenty.
        assert two_made.wait(20)
        time.sleep(0.1)
        await calls
        threads.close()
        return most_alive

    assert asyncio.run(main()) == 2


def test_a_thread_whose_large_result_is_never_taken_ends_with_its_pool() -> None:
    async def main() -> threading.Thread:
        threads, made = Threads(1), asyncio.Event()
        loop, maker = asyncio.get_running_loop(), threading.current_thread()

        def make() -> str:
            nonlocal maker
            maker = threading.current_thread()
            loop.call_soon_threadsafe(made.set)
            return "x" * 2**20

        call = asyncio.create_task(threads.run(make))
        await made.wait()
        threads.close()
        call.cancel()
        return maker

    thread = asyncio.run(main())
    thread.join(20)
    assert not thread.is_alive()


def test_close_ends_idle_threads_and_busy_ones_after_their_job() -> None:
    async def main() -> list[threading.Thread]:
        threads, gate, begun = Threads(4), threading.Event(), threading.Event()

        def job() -> threading.Thread:
            begun.set()
            gate.wait(10)
            return threading.current_thread()

        busy = asyncio.create_task(threads.run(job))
        await asyncio.to_thread(begun.wait, 10)
        idle = await threads.run(threading.current_thread)
        threads.close()
        gate.set()
        return [idle, await busy]

    idle, busy = asyncio.run(main())
    assert idle is not busy
    for thread in (idle, busy):
        thread.join(10)
        assert not thread.is_alive()


def test_close_cancels_the_jobs_that_have_not_begun() -> None:
    async def main() -> None:
        threads, gate = Threads(1), threading.Event()
        busy = asyncio.create_task(threads.run(lambda: gate.wait(10)))
        waiting = [asyncio.create_task(threads.run(lambda: None)) for _ in range(3)]
        while not threads._jobs or len(threads._jobs) > 3:
            await asyncio.sleep(0)
        threads.close()
        gate.set()
        async with asyncio.timeout(10):
            assert await busy is True
            await asyncio.wait(waiting)
        assert all(task.cancelled() for task in waiting)

    asyncio.run(main())


def test_a_job_given_after_the_close_is_refused_at_once() -> None:
    async def main() -> None:
        threads = Threads(1)
        threads.close()
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="closed"):
                await threads.run(lambda: 1)

    asyncio.run(main())


def test_a_job_that_ends_after_its_loop_is_closed_harms_nobody() -> None:
    gate = threading.Event()
    seen: list[threading.Thread] = []

    def job() -> None:
        seen.append(threading.current_thread())
        gate.wait(10)

    async def main() -> None:
        threads = Threads(1)
        task = asyncio.create_task(threads.run(job))
        while not seen:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())
    gate.set()
    seen[0].join(10)
    assert not seen[0].is_alive()


def test_a_forked_child_that_returns_from_a_job_ends() -> None:
    """It has no loop to give its result to; it must not wait in the pool for ever."""
    main_pid = os.getpid()

    async def main() -> int:
        threads = Threads(1)
        pid = await threads.run(os.fork)
        assert os.getpid() == main_pid, "the child came back"
        threads.close()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert asyncio.run(main()) == 0


def test_two_jobs_that_end_together_both_come_back() -> None:
    """The second one's append may come between the first one's append and its look at whether to
    wake the loop.
    """
    both = threading.Barrier(2)

    class Slow(deque[Any]):
        def append(self, item: Any, /) -> None:
            super().append(item)
            both.wait(10)

    async def main() -> list[int]:
        threads, loop = Threads(2), asyncio.get_running_loop()
        loop_jobs = LoopJobs(loop, ThreadTrials(2), threads._on_large, threads._on_trial_end)
        threads._loop_jobs[loop] = loop_jobs
        loop_jobs._jobs = Slow()
        async with asyncio.timeout(10):
            values = await asyncio.gather(threads.run(lambda: 1), threads.run(lambda: 2))
        threads.close()
        return values

    assert asyncio.run(main()) == [1, 2]


def test_each_of_two_loops_gets_the_results_of_its_own_jobs() -> None:
    threads = Threads(2)
    seen: list[list[int]] = []

    async def others() -> None:
        async with asyncio.timeout(10):
            seen.append([await threads.run(lambda n=n: n) for n in range(20)])

    async def main() -> None:
        assert await threads.run(lambda: 1) == 1
        other = threading.Thread(target=lambda: asyncio.run(others()))
        other.start()
        async with asyncio.timeout(10):
            assert [await threads.run(lambda n=n: n) for n in range(20)] == list(range(20))
            while other.is_alive():
                await asyncio.sleep(0)
        assert await threads.run(lambda: 2) == 2
        threads.close()

    asyncio.run(main())
    assert seen == [list(range(20))]


def test_a_thread_whose_loop_is_closed_goes_on_for_another_loop() -> None:
    threads, gate, begun = Threads(1), threading.Event(), threading.Event()

    async def first() -> None:
        job = asyncio.create_task(threads.run(lambda: (begun.set(), gate.wait(10))))
        while not begun.is_set():
            await asyncio.sleep(0)
        job.cancel()

    async def second() -> int:
        job = asyncio.create_task(threads.run(lambda: 5))
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(10):
            return await job

    asyncio.run(first())
    assert asyncio.run(second()) == 5
    assert threads._started == 1
    threads.close()


def refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_job_for_which_no_thread_can_be_started_fails_and_is_never_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        threads, ran = Threads(2), []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                await threads.run(lambda: ran.append("first"))
        assert threads._started == 0
        await threads.run(lambda: ran.append("second"))
        assert (ran, threads._started) == (["second"], 1)
        threads.close()

    asyncio.run(main())


def test_a_job_for_which_no_second_thread_can_be_started_waits_for_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        threads, gate = Threads(2), threading.Event()
        busy = asyncio.create_task(threads.run(lambda: gate.wait(10)))
        await asyncio.sleep(0)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        waiting = asyncio.create_task(threads.run(lambda: "run"))
        await asyncio.sleep(0)
        assert threads._started == 1
        gate.set()
        async with asyncio.timeout(10):
            assert await busy is True
            assert await waiting == "run"
        threads.close()

    asyncio.run(main())


KIND = ("tools/call", b'"report"')


@on_a_loop
async def test_a_job_that_ends_while_the_running_jobs_are_examined_harms_nobody() -> None:
    threads = Threads(2)
    loop_jobs = LoopJobs(asyncio.get_running_loop(), ThreadTrials(2), print, print)

    class Ending:
        """A job which ends when it is looked at."""

        @property
        def loop_jobs(self) -> LoopJobs:
            threads._running.pop(1, None)
            return loop_jobs

        trial_kind = KIND
        sent = None

    threads._running = {1: cast("Any", Ending()), 2: cast("Any", Ending())}
    # The threads 1 and 2 do not exist, so they wait for no other thread.
    assert not threads._is_waiting(loop_jobs, KIND)
    assert list(threads._running) == [2]


@on_a_loop
async def test_a_call_on_trial_that_is_kept_back_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = SimpleNamespace(kind=KIND, unread=Mock(), has_begun=False, expected_bytes=0)
    monkeypatch.setattr(threads_module, "call_of_job", lambda job: call)
    threads, trials = Threads(1), ThreadTrials(32)
    loop = asyncio.get_running_loop()
    loop_jobs = LoopJobs(loop, trials, threads._on_large, threads._on_trial_end)
    # With this one, eight calls have started, as many as may.
    trials.begin(KIND, 7)
    job = ThreadJob(lambda: None, loop_jobs)
    assert trials.try_start(KIND)
    job.trial_kind = KIND
    threads._jobs.append(job)

    # A call which was not counted has had a large result.
    threads._keep_back(loop_jobs, KIND, 2**20)
    assert not loop_jobs.kept
    async with asyncio.timeout(20):
        await job.future
    threads.close()
