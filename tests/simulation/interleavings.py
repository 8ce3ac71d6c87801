"""Every order of {the answer is ready, the caller cancels, input ends, time runs out}, and every
closeness of one to the next.

On both sides: a server's calls, where time runs out when the drain does, and a caller's requests,
where it is their own limit. One request and two; two also with room for one at a time, and in one
batch. What must hold of a server is in model.py and world.py; what a request must come to is
written here.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import permutations, product
from typing import Any
from unittest.mock import patch

from concertino import Disconnected, Limits
from concertino.client import RawClient
from concertino.transports import connect
from concertino.transports import pipe as pipe_module
from concertino.transports.pipe import PipeConnection
from concertino.transports.pipe_capacity import PipeCapacities
from simulation.dice import Calm
from simulation.kernel import Channel, Kernel
from simulation.loop import Poller, VirtualLoop
from simulation.script import ClientLine, Leaving, Plan, Script, batch, call, cancel, initialize
from simulation.world import Setting, World

# Between two events: all that the first one causes has happened. Else: so many turns of the loop.
SETTLED = -1
CLOSENESS = (0, 1, 2, SETTLED)
DRAIN_S = 2.0
# What may happen first when there are two calls.
FIRST = ("answer 1", "cancel 1", "answer 2", "cancel 2", "end", "time")
# (how many calls run at a time, whether they come in one batch)
WAYS_TO_SERVE = ((2, False), (1, False), (2, True), (1, True))
Event = Callable[[], object]


class Gaps(Enum):
    """Which combinations of closeness are tried with an order of the events.

    PRODUCT: all that there are. ODD: all alike, and each one unlike the others. ONE_ODD: with each
    order one of these, in turn.
    """

    PRODUCT = 0
    ODD = 1
    ONE_ODD = 2


def gaps_of(events: int, gaps: Gaps, number: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield how close the events of an order follow one another. number: of the order."""
    if gaps is Gaps.PRODUCT:
        yield from product(CLOSENESS, repeat=events - 1)
        return

    alike = [(gap,) * (events - 1) for gap in CLOSENESS]
    odd = [
        tuple(one if at == place else other for at in range(events - 1))
        for place in range(events - 1)
        for one, other in ((0, SETTLED), (SETTLED, 0))
    ]
    all_odd = alike + odd
    if gaps is Gaps.ODD:
        yield from all_odd
    else:
        yield all_odd[number % len(all_odd)]


def play(loop: asyncio.AbstractEventLoop, events: Sequence[Event], gaps: Sequence[int]) -> None:
    """Let the events happen, from now on."""

    def happen(at: int) -> None:
        while True:
            events[at]()
            at += 1
            if at == len(events):
                return
            if gaps[at - 1] == SETTLED:
                loop.call_later(1e-3, happen, at)
                return
            if gaps[at - 1]:
                hop(gaps[at - 1], at)
                return

    def hop(turns: int, at: int) -> None:
        loop.call_soon(happen, at) if turns == 1 else loop.call_soon(hop, turns - 1, at)

    loop.call_later(0.5, happen, 0)  # when all calls have come


class Server:
    """A world with calls that wait at their gates, and a client that is played by hand."""

    def __init__(self, calls: int, order: Sequence[str], in_flight: int, batched: bool) -> None:
        requests = [call(n, n, token=f"t{n}") for n in range(1, calls + 1)]
        script = Script(leaving=Leaving("by hand"))
        script.add(initialize(0, "2025-03-26"))
        for item in [batch(requests)] if batched else requests:
            script.add(item)
        self.opening = [item for _, item in script.items]
        self.cancels = {f"cancel {n}": cancel(n) for n in range(1, calls + 1)}
        for event in order:
            if event in self.cancels and ("end" not in order[: order.index(event)]):
                script.add(self.cancels[event])
        for n in range(1, calls + 1):
            script.plans[n] = Plan((("progress", 1, 1), ("gate",), ("progress", 2, 1)))
        self.world = World(
            Setting([script], Limits(max_in_flight=in_flight, drain_s=DRAIN_S)), Calm()
        )

    def say(self, client_line: ClientLine) -> None:
        up = self.world.lines[0].up
        if up.writer_open:
            up.put(client_line.line)

    def end(self) -> None:
        self.world.lines[0].up.writer_open = False

    def run(self, order: Sequence[str], gaps: Sequence[int]) -> Sequence[str]:
        world = self.world

        def happen(event: str) -> None:
            if event.startswith("answer"):
                world.workshop.open_gate(int(event.split()[1]))
            elif event in self.cancels:
                self.say(self.cancels[event])
            elif event == "end":
                self.end()
            else:
                world.poller.now += DRAIN_S

        def open() -> None:
            for item in self.opening:
                self.say(item)

        world.loop.call_later(0.1, open)
        play(world.loop, [lambda event=event: happen(event) for event in order], gaps)
        return world.run()


def orders(calls: int, first: str) -> list[tuple[str, ...]]:
    """Return the orders of all events that begin with this one."""
    names = [f"{what} {n}" for n in range(1, calls + 1) for what in ("answer", "cancel")]
    return [order for order in permutations([*names, "end", "time"]) if order[0].startswith(first)]


def serve_calls(
    calls: int, tried: Gaps, in_flight: int = 2, batched: bool = False, first: str = ""
) -> int:
    """Serve calls in every order of events that begins with first; return how many runs.

    in_flight: how many calls run at a time. batched: whether they come in one batch.
    """
    runs = 0
    for number, order in enumerate(orders(calls, first)):
        for gaps in gaps_of(len(order), tried, number):
            runs += 1
            assert Server(calls, order, in_flight, batched).run(order, gaps) == [], (order, gaps)
    return runs


class Client:
    """A RawClient over a real Pipe, and the server's ends of it, played by hand."""

    def __init__(self) -> None:
        dice = Calm()
        self.problems: list[str] = []
        self.kernel = Kernel(dice, self.problems.append)
        self.poller = Poller(self.kernel.ready, dice)
        self.kernel.watched = self.poller.watched.__contains__
        self.loop = VirtualLoop(self.poller, dice)
        self.loop.set_exception_handler(lambda _, what: self.problems.append(str(what)))
        self.up, self.down = Channel(1 << 16), Channel(1 << 16)
        self.caller: RawClient

    def run(self, count: int, order: Sequence[str], gaps: Sequence[int]) -> list[Any]:
        """What each request came to."""
        with (
            patch.object(pipe_module, "os", self.kernel),
            patch.object(pipe_module, "select", self.kernel.select),
            # The simulated descriptors are no pipes of the system.
            patch.object(PipeCapacities, "enlarge", lambda self, descriptor: None),
        ):
            result = self.loop.run_until_complete(self._run(count, order, gaps))
        self.problems += [f"a task is left: {task}" for task in asyncio.all_tasks(self.loop)]
        self.problems += [f"left open: {item}" for item in self.kernel.open_now]
        self.loop.close()
        return result

    async def _run(self, count: int, order: Sequence[str], gaps: Sequence[int]) -> list[Any]:
        reading = self.kernel.descriptor(self.up, True, "fifo", 1)
        writing = self.kernel.descriptor(self.down, False, "fifo", 2)
        self.caller = connect(PipeConnection(reading, writing, Limits()))
        tasks = [
            asyncio.create_task(self.caller.request("x", {"n": n}, timeout_s=2.0))
            for n in range(1, count + 1)
        ]

        def happen(event: str) -> None:
            what, _, n = event.partition(" ")
            if what == "answer" and self.up.writer_open:
                self.up.put(
                    b'{"jsonrpc":"2.0","id":%b,"result":{"n":%b}}\n' % (n.encode(), n.encode())
                )
            elif what == "cancel":
                tasks[int(n) - 1].cancel()
            elif what == "end":
                self.up.writer_open = False
            elif what == "time":
                self.poller.now += 2.0

        play(self.loop, [lambda event=event: happen(event) for event in order], gaps)
        await asyncio.wait(tasks)
        await asyncio.sleep(10)
        await self.caller.aclose()
        return await asyncio.gather(*tasks, return_exceptions=True)


OUTCOME = {
    "answer": dict,
    "cancel": asyncio.CancelledError,
    "end": Disconnected,
    "time": TimeoutError,
}


def make_requests(count: int, tried: Gaps, first: str = "") -> int:
    """Make requests in every order of events that begins with first; return how many runs."""
    runs = 0
    for number, order in enumerate(orders(count, first)):
        for gaps in gaps_of(len(order), tried, number):
            runs += 1
            client = Client()
            outcomes = client.run(count, order, gaps)
            case = (order, gaps, outcomes, client.problems)
            assert client.problems == [], case
            assert not client.caller.peer.outgoing, case
            assert client.caller.peer.outgoing.next_deadline is None, case
            told = [json.loads(line) for line in bytes(client.down.data).splitlines()]
            given_up = [
                item["params"]["requestId"]
                for item in told
                if item["method"] == "notifications/cancelled"
            ]
            assert len(given_up) == len(set(given_up)), case
            for n, outcome in enumerate(outcomes, 1):
                assert type(outcome) in OUTCOME.values(), case
                assert type(outcome) is not dict or outcome == {"n": n}, case
                # An answer, or the end, is nothing to tell the other side; that nobody waits any
                # more is.
                assert (n in given_up) <= (not isinstance(outcome, (dict, Disconnected))), case
                ours = [
                    (at, item)
                    for at, item in enumerate(order)
                    if item in (f"answer {n}", f"cancel {n}", "end", "time")
                ]
                (first, what), (second, _) = ours[:2]
                if all(
                    gap == SETTLED for gap in gaps[first:second]
                ):  # then the first of them alone decides
                    assert type(outcome) is OUTCOME[what.split()[0]], case
                    assert (n in given_up) is (what.split()[0] in ("cancel", "time")), case
    return runs


def run_all(jobs: int) -> int:
    """Try what Gaps.ODD names with two calls and two requests; return the exit code."""
    began = time.monotonic()
    pieces = [
        *(
            partial(serve_calls, 2, Gaps.ODD, in_flight, batched, first)
            for in_flight, batched in WAYS_TO_SERVE
            for first in FIRST
        ),
        *(partial(make_requests, 2, Gaps.ODD, first) for first in FIRST),
    ]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        results = pool.map(_failure_or_runs, pieces, chunksize=1)
    failures = [result for result in results if isinstance(result, str)]
    runs = sum(result for result in results if isinstance(result, int))
    print(*failures, sep="\n")
    print(
        f"{runs} runs in {time.monotonic() - began:.0f} s: {len(failures)} of {len(pieces)} failed"
    )
    return 1 if failures else 0


def _failure_or_runs(piece: Callable[[], int]) -> int | str:
    try:
        return piece()
    except AssertionError as why:
        return f"{piece}: {why}"
