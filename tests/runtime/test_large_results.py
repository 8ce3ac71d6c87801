"""runtime/threads.py: calls whose results turn out to be large, and a client that does not read."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from loops import on_a_loop

from concertino.jsonrpc.incoming_requests import IncomingRequest
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.peer import Peer
from concertino.runtime.result_turns import result_turns_of
from concertino.runtime.tasks import eager_task_runner
from concertino.runtime.thread_trials import WAIT_S
from concertino.runtime.threads import Threads

MIB = 2**20
LARGE = "x" * MIB


class Served:
    """A peer whose calls run in threads. What it sends is kept until the test reads it."""

    def __init__(self, threads: int, **limits: Any) -> None:
        self.threads = Threads(threads)
        self.frames: list[bytes] = []
        self.begun: list[object] = []
        self.peer = Peer(self._send, Limits(**limits), lambda: 0.0)
        self.peer.unread.on_blocked = lambda: None
        self._loop = asyncio.get_running_loop()
        self._start = eager_task_runner(self._loop, self._on_done)
        self._tasks: set[asyncio.Task[None]] = set()
        self.changed = asyncio.Event()

    def _send(self, frame: bytes, about: object) -> int:
        self.frames.append(frame)
        self.changed.set()
        return sum(map(len, self.frames))

    def _on_done(self, request: IncomingRequest, value: Any, error: BaseException | None) -> None:
        if error is None:
            self.peer.respond(request, b'{"x":"%b"}' % value.encode())

    def call(self, id: int, tool: str, function: Callable[[], str]) -> asyncio.Task[None]:
        """Start a call of a tool, which runs `function` in a thread."""
        line = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool}}
        request = self.peer.receive(json.dumps(line).encode())
        assert isinstance(request, IncomingRequest)
        assert self.peer.admit(request)

        def run() -> str:
            self._loop.call_soon_threadsafe(self._on_begun, id)
            return function()

        task = self._start(self.threads.run(run), request)
        assert task is not None
        self._tasks.add(task)
        self.peer.add_running(request)
        return task

    def _on_begun(self, id: int) -> None:
        self.begun.append(id)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def rest(self) -> None:
        """Wait long enough that calls which may begin would have begun and ended."""
        for _ in range(3):
            await self.threads.run(lambda: None)
            self.threads._release(self.threads._loop_jobs[self._loop])
            for _ in range(5):
                await asyncio.sleep(0)

    def read(self) -> list[int]:
        frames, self.frames = self.frames, []
        self.peer.on_drain(0)
        self.threads._release(self.threads._loop_jobs[self._loop])
        return [json.loads(frame)["id"] for frame in frames]


def know_small(served: Served, tool: str) -> None:
    served.peer.unread.budget.record_size(("tools/call", b'"%b"' % tool.encode()), 100)


@on_a_loop
async def test_calls_begin_only_when_their_results_fit_once_a_result_was_large() -> None:
    served = Served(2, max_unread_bytes=4 * MIB)
    # All calls start, because the tool has returned a small result before.
    know_small(served, "a")
    for id in range(20):
        served.call(id, "a", lambda: LARGE)
    # Three results of a little more than 1 MiB fit into 4 MiB. Two calls began before it was known.
    await served.until(lambda: len(served.frames) == 3)
    await served.rest()
    assert len(served.begun) == 3
    assert served.peer.unread.budget.held < 4 * MIB

    answered: list[int] = []
    while len(answered) < 20:
        await served.until(lambda: len(served.frames) > 0)
        assert sum(map(len, served.frames)) < 4 * MIB
        answered += served.read()
    assert sorted(answered) == list(range(20))
    assert served.peer.unread.budget.expected == 0
    assert not served.peer.unread.budget.unknown
    served.threads.close()


@on_a_loop
async def test_the_first_calls_of_a_tool_count_when_one_of_them_returns_a_large_result() -> None:
    served = Served(
        2,
        max_message_bytes=4 * MIB,
        max_unread_bytes=8 * MIB,
        max_unread_bytes_total=64 * MIB,
    )
    for id in range(8):
        served.call(id, "a", lambda: "x" * 3 * MIB)
    await served.until(lambda: len(served.frames) == 2)
    await served.rest()
    assert len(served.begun) == 2
    answered: list[int] = []
    while len(answered) < 8:
        await served.until(lambda: len(served.frames) > 0)
        answered += served.read()
    assert sorted(answered) == list(range(8))
    served.threads.close()


@on_a_loop
async def test_calls_of_other_tools_do_not_wait_and_may_wait_for_one_another() -> None:
    served = Served(7, max_unread_bytes=4 * MIB, high_water_bytes=8 * MIB)
    know_small(served, "a")
    know_small(served, "b")
    may_end = threading.Event()
    # One call of the tool returns a large result, five block, and the others wait for a thread.
    all_run = threading.Event()
    served.call(0, "a", lambda: LARGE if all_run.wait(20) else "late")
    for id in range(1, 6):
        served.call(id, "a", lambda: LARGE if may_end.wait(20) else "late")
    # The seventh thread blocks, too, until the size of the first result is known.
    is_known = threading.Event()
    served.call(50, "b", lambda: "b" if is_known.wait(20) else "late")
    for id in range(6, 20):
        served.call(id, "a", lambda: LARGE if may_end.wait(20) else "late")
    await served.until(lambda: len(served.begun) == 7)
    all_run.set()
    await served.until(lambda: len(served.frames) == 1)
    is_known.set()
    await served.until(lambda: len(served.frames) == 2)
    await served.rest()
    # None of the calls that waited for a thread has begun.
    assert len(served.begun) == 7

    # Two calls of the other tool need each other, and then end those that block.
    both = threading.Barrier(2, timeout=20)

    def meet() -> str:
        both.wait()
        may_end.set()
        return "met"

    await asyncio.wait([served.call(id, "b", meet) for id in (100, 101)])
    assert {100, 101} <= {json.loads(frame)["id"] for frame in served.frames}
    served.threads.close()


@on_a_loop
async def test_small_results_keep_no_call_back() -> None:
    served = Served(32)
    all_run = threading.Barrier(32, timeout=20)
    know_small(served, "a")

    def meet() -> str:
        all_run.wait()
        return "small"

    await asyncio.wait([served.call(id, "a", meet) for id in range(64)])
    assert len(served.frames) == 64
    served.threads.close()


@on_a_loop
async def test_a_call_that_is_kept_back_can_be_cancelled_and_ends_with_the_pool() -> None:
    served = Served(1, max_unread_bytes=2 * MIB)
    know_small(served, "a")
    tasks = [served.call(id, "a", lambda: LARGE) for id in range(4)]
    await served.until(lambda: len(served.frames) == 1)
    await served.rest()
    assert served.begun == [0]
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    assert not tasks[3].done()
    served.threads.close()
    await asyncio.wait(tasks)
    assert served.begun == [0]


@on_a_loop
async def test_a_call_that_has_made_a_large_result_is_not_kept_back_before_its_end() -> None:
    """It may still have to close what it has opened, in another job."""
    served = Served(1, max_unread_bytes=2 * MIB)
    know_small(served, "a")
    line = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}}
    request = served.peer.receive(json.dumps(line).encode())
    assert isinstance(request, IncomingRequest)
    steps: list[str] = []

    async def work() -> str:
        value = await served.threads.run(lambda: LARGE)
        await served.threads.run(lambda: steps.append("closed"))
        served.changed.set()
        return value

    task = served._start(work(), request)
    assert task is not None
    served.peer.add_running(request)
    served.call(2, "a", lambda: LARGE)
    # The second result tells that results of this tool are large, while the first call still runs.
    await served.until(lambda: len(served.frames) == 1)
    await served.until(lambda: steps == ["closed"])
    served.threads.close()


@on_a_loop
async def test_a_thread_begins_its_next_call_when_its_large_result_was_sent() -> None:
    loop = asyncio.get_running_loop()
    turns = result_turns_of(loop)
    threads = Threads(2)
    alive = most_alive = 0
    lock = threading.Lock()

    def make() -> str:
        nonlocal alive, most_alive
        with lock:
            alive += 1
            most_alive = max(most_alive, alive)
        return LARGE

    def send() -> None:
        nonlocal alive
        with lock:
            alive -= 1

    async def call() -> None:
        await threads.run(make)
        # As CallRunner does with large results: each of them is sent in an iteration of its own.
        if turns.may_send(10 * MIB):
            send()
        else:
            turns.send_later(10 * MIB, send)

    await asyncio.gather(*(call() for _ in range(20)))
    while alive:
        await asyncio.sleep(0)
    assert most_alive <= 2
    threads.close()


@pytest.mark.parametrize("waiting", [0, 2])
@on_a_loop
async def test_what_follows_large_results_is_called_after_them(waiting: int) -> None:
    turns = result_turns_of(asyncio.get_running_loop())
    seen: list[str] = []
    assert turns.may_send(8 * MIB)
    for _ in range(waiting):
        turns.send_later(8 * MIB, lambda: seen.append("sent"))
    turns.call_after_waiting(lambda: seen.append("after"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert seen == ["sent"] * waiting + ["after"]


@pytest.mark.parametrize("small", [0, 32])
@on_a_loop
async def test_no_more_than_eight_calls_of_a_tool_make_their_first_large_results_at_once(
    small: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(32, max_unread_bytes=4 * MIB)
    know_small(served, "a")
    release = os.pipe()
    monkeypatch.setattr("concertino.runtime.threads.BLOCKED_S", 0.05)
    # After a few small results at once, nothing more is known.
    first = [
        served.call(id, "a", lambda: os.read(release[0], 1).decode())
        for id in range(100, 100 + small)
    ]
    os.write(release[1], b"x" * small)
    await asyncio.gather(*first)
    served.frames.clear()
    served.begun.clear()

    def make() -> str:
        # Unlike threading.Event, this does not look like a call that waits for another one.
        os.read(release[0], 1)
        return LARGE

    caplog.clear()
    tasks = [served.call(id, "a", make) for id in range(40)]
    await served.until(lambda: len(served.begun) == 8)
    while not caplog.records:
        await asyncio.sleep(0.01)
    assert (
        caplog.records[0]
        .getMessage()
        .startswith(
            "8 threads have been taken by calls of one tool for 0.05 s, and 32 calls wait; "
        )
    )
    os.write(release[1], b"x" * 40)
    # Three results of a little more than 1 MiB fit, and the other ones wait for room. The threads
    # that have made those do not count as calls that wait for another one.
    await served.until(lambda: len(served.frames) == 3)
    await asyncio.sleep(2 * WAIT_S)
    assert len(served.begun) == 8
    answered: list[int] = []
    while len(answered) < 40:
        await served.until(lambda: len(served.frames) > 0)
        answered += served.read()
    await asyncio.wait(tasks)
    served.threads.close()
    for descriptor in release:
        os.close(descriptor)


@on_a_loop
async def test_a_cancelled_call_on_trial_lets_another_one_begin() -> None:
    served = Served(8)
    release = threading.Event()
    know_small(served, "a")
    know_small(served, "b")
    # Calls of another tool hold all threads.
    holding = [served.call(id, "b", lambda: str(release.wait(20))) for id in range(8)]
    tasks = [served.call(id, "a", lambda: "x") for id in range(100, 110)]
    assert len(served.threads._jobs) == 8 + 8 - len(served.threads._running)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert [len(results.kept) for results in served.threads._loop_jobs.values()] == [1]
    release.set()
    await asyncio.wait([*holding, *tasks])
    assert len(served.frames) == 17
    served.threads.close()
