"""Small fixed dialogues, without chance, in which one thing fails: the n-th system call,
allocation, step or turn, for every n.

As SQLite tests itself: run once and count, then once for every point with a failure there. What
must hold is what always holds (world.py), and that every call that came was answered, or the
connection was closed.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from concertino.jsonrpc.limits import Limits
from simulation.dice import Calm
from simulation.script import Leaving, Plan, Script, batch, call, cancel, initialize, ping
from simulation.world import Setting, World

__all__ = [
    "ALLOCATIONS",
    "SCENARIOS",
    "SYSTEM_CALLS",
    "allocations",
    "cancelled_at",
    "failing_call",
    "out_of_memory",
    "quiet_world",
]


def _calls(
    script: Script, plans: Mapping[int, Plan], gap_s: float = 0.0, token: bool = True
) -> None:
    for n, plan in plans.items():
        script.plans[n] = plan
        script.add(call(n, n, modern=n % 2 == 0, token=f"t{n}" if token else None), gap_s)


def _handshake_calls_end() -> Setting:
    script = Script()
    script.add(initialize(0))
    plans = {
        1: Plan(),
        2: Plan((("wait", 0.01), ("awaited progress", 1, 3)), ("return", 300)),
        3: Plan((("log", "error", 20, 2), ("wait", 0.02)), ("struct", 10)),
        4: Plan((), ("raise", ValueError)),
        5: Plan((("wait", 0.01),), ("rpc", 7)),
    }
    _calls(script, plans)
    script.add(ping(100))
    return Setting([script], kind="fifo")


def _a_batch() -> Setting:
    script = Script()
    script.add(initialize(0, "2025-03-26"))
    script.plans |= {
        1: Plan(),
        2: Plan((("wait", 0.01),)),
        3: Plan((("wait", 0.02),), ("raise", KeyError)),
    }
    script.add(batch([call(1, 1), ping(100), call(2, 2, token="t2"), call(3, 3, modern=True)]))
    return Setting([script], Limits(max_in_flight=1), kind="sockets")


def _a_slow_reader() -> Setting:
    script = Script(stalls=[(300, 0.3), (1200, 0.3)])
    script.add(initialize(0))
    plans = {
        n: Plan(
            (("progress", 1, 2), ("wait", 0.01), ("progress", 5, 2), ("changed",)), ("return", 200)
        )
        for n in range(1, 7)
    }
    _calls(script, plans, 0.001)
    return Setting(
        [script], Limits(high_water_bytes=300, low_water_bytes=100, max_in_flight=3), capacity=150
    )


def _cancels() -> Setting:
    script = Script()
    script.add(initialize(0))
    _calls(
        script,
        {
            1: Plan((("forever",),)),
            2: Plan((("wait", 5.0),), when_cancelled="linger", linger_s=0.1),
        },
    )
    script.add(cancel(1), 0.05)
    script.add(cancel(2), 0.05)
    script.add(cancel(3))
    _calls(script, {4: Plan((("wait", 0.01),))})
    return Setting([script], kind="socket", reopens=False)


def _a_drain() -> Setting:
    script = Script(leaving=Leaving("drain", after_s=0.05))
    script.add(initialize(0))
    _calls(
        script,
        {
            1: Plan((("wait", 0.2),)),
            2: Plan((("forever",),)),
            3: Plan((("posted progress", 1, 2), ("wait", 0.1))),
        },
    )
    return Setting([script], serve=False)


SCENARIOS: Mapping[str, Callable[[], Setting]] = {
    "handshake, calls, end": _handshake_calls_end,
    "a batch": _a_batch,
    "a slow reader": _a_slow_reader,
    "cancels": _cancels,
    "a drain": _a_drain,
}

# What the system may say, and says on some day.
SYSTEM_CALLS: Mapping[str, Sequence[Any]] = {
    "read": (InterruptedError(), BlockingIOError(), OSError(errno.EIO, "I/O error"),
             ConnectionResetError(), b""),
    "write": (
        InterruptedError(), BlockingIOError(), BrokenPipeError(), OSError(errno.EIO, "I/O error"),
        OSError(errno.ENOSPC, "full"), 1,
    ),
    "open": (OSError(errno.ENOENT, "no /proc"), OSError(errno.EMFILE, "too many")),
    "close": (OSError(errno.EIO, "I/O error"), InterruptedError()),
    "set_blocking": (OSError(errno.EBADF, "bad"),),
}  # fmt: skip

# Where concertino makes something new on the way of a call. Each is looked up under this name when
# it is used.
ALLOCATIONS = (
    "concertino.jsonrpc.peer:decode",
    "concertino.jsonrpc.peer:decode_batch",
    "concertino.jsonrpc.peer:Batch",
    "concertino.jsonrpc.peer:encode_error",
    "concertino.jsonrpc.batches:encode_error",
    "concertino.jsonrpc.invalid_input:encode_error",
    "concertino.jsonrpc.peer:encode_id",
    "concertino.jsonrpc.peer:encode",
    "concertino.jsonrpc.peer:Peer.respond",
    "concertino.jsonrpc.peer:Peer.fail",
    "concertino.protocol.session:decode_request",
    "concertino.protocol.session:SessionRequest",
    "concertino.protocol.session:Call",
    "concertino.protocol.request_profile:RequestProfile",
    "concertino.protocol.call_notifications:encode_notification",
    "concertino.protocol.session:encode",
    "concertino.protocol.session_methods:encode",
    "concertino.protocol.session:Decoder",
    "concertino.protocol.session_methods:Decoder",
    "concertino.protocol.request_profile:Decoder",
    "concertino.protocol.call_notifications:encode",
    "concertino.protocol.wire_results:ResultEncoder.encode",
    "concertino.protocol.wire_results:decode",
    "concertino.protocol.wire_results:encode",
    "concertino.jsonrpc.framing:Framer.feed",
    "concertino.jsonrpc.framing:Framer.end",
    "concertino.runtime.call_runner:CallContext",
    "concertino.runtime.server_connection:Session.respond",
    "concertino.runtime.server_connection:Session.receive",
    "concertino.runtime.tasks:copy_context",
    "concertino.transports.pipe:PipeConnection.write",
    "simulation.workshop:Raw",
    "simulation.workshop:Workshop.handle",
    "simulation.workshop:json.loads",
)


class Failing:
    """A function that raises `error` when it is called for the n-th time; n = 0: never, it only
    counts.
    """

    def __init__(self, function: Any, at: int, error: type[BaseException] = MemoryError) -> None:
        self.function = function
        self.at = at
        self.error = error
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error(f"call {self.at} of {self.function}")
        return self.function(*args, **kwargs)


@contextmanager
def allocations(name: str, at: int) -> Iterator[Failing]:
    """The named function or class fails when it is used for the n-th time."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *way, last = path.split(".")
    for item in way:
        owner = getattr(owner, item)
    failing = Failing(getattr(owner, last), at)
    stand_in: Any = failing
    if isinstance(owner, type):  # a method: found through its class it must bind

        def method(*args: Any, **kwargs: Any) -> Any:
            return failing(*args, **kwargs)

        stand_in = method
    with ExitStack() as stack:
        stack.enter_context(patch.object(owner, last, stand_in))
        yield failing


def quiet_world(scenario: str) -> World:
    return World(SCENARIOS[scenario](), Calm())


def failing_call(scenario: str, call: str, n: int, fault: Any) -> Sequence[str]:
    """The n-th system call of that name does something else."""
    world = quiet_world(scenario)
    world.kernel.faults[call, n] = fault
    world.input_may_be_cut = call == "read"
    try:
        return world.run()
    except OSError as why:
        # The pipe cannot even be made: its maker is told, and still owns what it gave.
        return [] if why is fault and not world.started else [f"raised out of the loop: {why!r}"]


def cancelled_at(scenario: str, turn: int) -> Sequence[str]:
    """The task that serves is cancelled at this turn of the loop, if the end has not begun."""
    world = quiet_world(scenario)
    ordinary = world.poller.turn

    def told() -> bool:
        ordinary()
        main = world.main
        if world.poller.turns != turn or main is None or main.done():
            return False
        if any(line.model.end_at is not None for line in world.lines):
            return False
        world.loop.call_soon(cancel_now, main)
        return True

    def cancel_now(main: asyncio.Task[Any]) -> None:
        for line in world.lines:
            if line.tap.to is not None:
                line.tap.ending()
        main.cancel()

    world.poller.turn = told
    return world.run()


STAYS_S = 20.0  # seconds that a client waits for its answers


def out_of_memory(scenario: str, name: str, n: int) -> Sequence[str]:
    """The n-th use of a function finds no memory. The client, which waits, gets an answer to each
    call or the end.

    What the answer says is free; the model's other rules do not know what memory is and are not
    asked.
    """
    setting = SCENARIOS[scenario]()
    leaving = setting.scripts[0].leaving
    if leaving.how == "end":
        leaving.after_s = STAYS_S
    world = World(setting, Calm())
    world.lenient = True
    unanswered: list[str] = []

    def look() -> None:
        line = world.lines[0]
        if not line.down.writer_open:
            return
        answered = [item.get("id") for item in answers(bytes(line.client.received))]
        gone = {
            client_line.target
            for client_line in line.client_lines()
            if client_line.kind == "cancel"
        }
        unanswered.extend(
            f"{client_line.kind} {client_line.id!r} was neither answered nor was the connection"
            " closed"
            for client_line in line.client_lines()
            if client_line.id is not None
            and client_line.id not in answered
            and client_line.id not in gone
        )

    world.loop.call_later(STAYS_S - 1, look)
    try:
        with allocations(name, n):
            problems = list(world.run())
    except Exception as why:
        return [f"raised out of the loop: {why!r}"]
    if not world.lines[0].attached:  # no memory to begin with: who serves is told
        problems = [item for item in problems if "serving raised MemoryError" not in item]
    answered = Counter(item.get("id") for item in answers(bytes(world.lines[0].client.received)))
    twice = [
        f"{id!r} was answered {times} times"
        for id, times in answered.items()
        if id is not None and times > 1
    ]
    return [*problems, *unanswered, *twice]


def answers(received: bytes) -> list[dict[str, Any]]:
    """All answers among the whole lines that came, those of arrays too.

    Raises ValueError for a line that is no JSON.
    """
    found: list[dict[str, Any]] = []
    for line in received.split(b"\n")[:-1]:
        message = json.loads(line)
        found += [
            item
            for item in (message if isinstance(message, list) else [message])
            if "method" not in item
        ]
    return found
