"""One run: clients, kernel, loop and model around the real Pipe, Host, Link, Session and Peer; and
what must hold, when.

After every turn of the loop: tables within their limits. At each write: the bytes that the
connection says it holds are those that the kernel did not take. At rest (nothing is ready, the
clock is about to jump): what could be done was done. At the end: all is closed, nothing is left.
`run(seed)` gives the violations; the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import get_ident
from typing import Any
from unittest.mock import patch

from concertino.jsonrpc.limits import Limits
from concertino.runtime import context as context_module
from concertino.runtime import host as host_module
from concertino.runtime import refusal as refusal_module
from concertino.runtime import server_connection as link_module
from concertino.runtime.connection_end import CLEANUP_S
from concertino.runtime.host import Host, serve
from concertino.transports import pipe as pipe_module
from concertino.transports.pipe import PipeConnection
from concertino.transports.pipe_capacity import PipeCapacities
from simulation.client import Client
from simulation.dice import Dice
from simulation.kernel import Channel, Kernel
from simulation.loop import OVERSHOOT_S, Poller, Stuck, VirtualLoop
from simulation.model import Model, Tap
from simulation.script import ClientLine, Script, make_script
from simulation.workshop import Handler, Workshop

__all__ = ["Line", "Setting", "World", "run", "setting"]

TURNS = 300_000  # of the loop; a run takes hundreds
SLACK_S = 10 * OVERSHOOT_S + 0.1


@dataclass(slots=True)
class Setting:
    """What a run is made of.

    serve: by serve(), else by a Host and attach(). kind: fifo, sockets (two), socket (one for
    both).
    """

    scripts: list[Script]
    limits: Limits = field(default_factory=Limits)
    kind: str = "fifo"
    capacity: int = 1 << 16
    unreliable: float = 0.0
    meddling: float = 0.0  # probability that a client acts in the middle of a system call
    serve: bool = True
    start_s: float = 0.0
    start_fails: bool = False
    attach_gap_s: float = 0.0
    reopens: bool = True  # /proc is there: pipes are opened anew


class Line:
    """One connection with all that belongs to it."""

    def __init__(self, world: World, script: Script, number: int) -> None:
        setting, kernel = world.setting, world.kernel
        self.up, self.down = Channel(setting.capacity), Channel(setting.capacity)
        self.world = world
        self.reads_above = 0  # reads since held output passed the high-water mark
        self.read_above_at = 0
        self.answers_above = 0  # of calls, since then
        self.late: set[bytes] = (
            set()
        )  # what was told above the mark: only more of its call, and its answer, may follow
        if setting.kind == "socket":
            descriptors = [
                kernel.descriptor(self.up, True, "socket", number, self.down),
                kernel.descriptor(self.down, False, "socket", number, self.up),
            ]
        else:
            unused = Channel(1) if setting.kind == "sockets" else None
            descriptors = [
                kernel.descriptor(self.up, True, setting.kind.rstrip("s"), 2 * number),
                kernel.descriptor(
                    self.down, False, setting.kind.rstrip("s"), 2 * number + 1, unused
                ),
            ]
        self.client = Client(world.loop, world.dice, script, self.up, self.down)
        self.model = Model(script, setting.limits, world.add_problem, world.loop.time)
        self.model.may_be_cut |= world.input_may_be_cut
        self.pipe = PipeConnection(*descriptors, setting.limits)
        self.descriptors = set(world.kernel.open_now) - {
            each for one in world.lines for each in one.descriptors
        }
        self.tap = Tap(self.pipe, self.model, setting.limits, world.loop.time)
        self.tap.on_written = self.on_written
        self.model.is_waiting = lambda id: id in self.peer.waiting
        self.tap.closing = self.closing
        self.script = script
        self.attached = False
        self.closed_at: float | None = None

    def client_lines(self) -> list[ClientLine]:
        """All that the client says, those of arrays one by one."""
        return [each for _, item in self.script.items for each in item.elements or (item,)]

    @property
    def peer(self) -> Any:
        return self.tap.to.session.peer

    @property
    def broken(self) -> bool:
        return (
            not self.down.reader_open
            or not self.down.writer_open
            or id(self.down) in self.world.kernel.failed_writes
        )

    @property
    def held(self) -> int:
        """Bytes of output that were written and that the kernel did not take."""
        return self.model.sent_bytes - self.down.passed

    def on_written(self, held: int) -> None:
        """One frame was given to the connection.

        Held output is bounded: below the high-water mark H anything may be written, so it passes it
        by one frame at most. Above it no call is started and nothing is told but progress kept
        back, right before its call's answer; so each of the F calls in flight adds its last
        progress and its answer (or the array that its answer completes). Reading goes on for one
        turn at most, and each of its lines adds the session's own answer. Together: H + (2 F + 1)
        messages + those answers.
        """
        if not self.broken and held != self.held:
            self.world.add_problem(
                f"the connection says that it holds {held} bytes; it holds {self.held}"
            )
        high = self.world.setting.limits.high_water_bytes
        before = held - len(self.model.sent[-1]) - 1
        if before < high:
            self.reads_above = self.answers_above = 0
            self.late = set()
            return
        self.answers_above += self.model.wrote_answer
        if self.answers_above > self.world.setting.limits.max_in_flight:
            self.world.add_problem(
                f"{self.answers_above} calls were answered above the high-water mark"
            )
        frame = self.model.sent[-1]
        if frame.startswith(b'{"jsonrpc":"2.0","method"'):
            # Before an answer: the last progress and the last log message of its call, if they were
            # held back.
            what = frame[:60].split(b'"')[7]
            if what in self.late or what not in (
                b"notifications/progress",
                b"notifications/message",
            ):
                self.world.add_problem(
                    f"{frame[:80]!r} was written with {before} bytes held; the high-water mark is"
                    f" {high}"
                )
            self.late.add(what)
            return
        self.late = set()

    def reading(self) -> None:
        """The server reads.

        Above the high-water mark that happens in one turn: when input was found beside what passed
        it.
        """
        if self.tap.held < self.world.setting.limits.high_water_bytes:
            self.reads_above = 0
            return
        turn = self.world.poller.turns
        if self.reads_above and turn != self.read_above_at:
            self.world.add_problem(f"one more read with {self.tap.held} bytes held")
        self.reads_above += 1
        self.read_above_at = turn

    def closing(self) -> None:
        self.model.cut()

    def turn(self) -> None:
        """After every turn of the loop."""
        if self.tap.to is None:
            return
        limits, peer = self.world.setting.limits, self.peer
        if len(peer.running) > limits.max_in_flight:
            self.world.add_problem(f"{len(peer.running)} calls in flight")
        if len(peer.waiting) > limits.max_waiting:
            self.world.add_problem(f"{len(peer.waiting)} calls waiting")

    def rest(self) -> None:
        """Nothing is ready and the clock will jump."""
        wrong, limits = self.world.add_problem, self.world.setting.limits
        model = self.model
        if not self.attached or self.tap.closed:
            return
        if not self.broken and self.held > 0 and self.down.room > 0:
            wrong(
                f"{self.held} bytes are held, although the client's pipe has room for"
                f" {self.down.room}"
            )
        if model.closing_at is not None:
            return
        model.at_rest()
        watched = self.world.poller.watched
        reading = self.pipe._reading_fd in watched  # pyright: ignore[reportPrivateUsage]
        low = min(limits.low_water_bytes, limits.high_water_bytes - 1)
        if (
            (self.up.data or not self.up.writer_open)
            and not reading
            and self.held < low
            and model.end_at is None
        ):
            wrong(f"input is there and nobody reads it; {self.held} bytes are held")
        waiting, running = self.peer.waiting, model.unfinished_calls()
        sizes = sum(len(entry.client_line.frame) for entry in running)
        if (
            waiting
            and self.world.workshop.up
            and self.held < low
            and len(running) < limits.max_in_flight
            and sizes < limits.max_in_flight_bytes
        ):
            wrong(f"{len(waiting)} calls wait, although only {len(running)} are in flight")
        handlers = self.world.workshop.handlers.values()
        if model.end_at is not None and not model.open and all(each.ended for each in handlers):
            wrong("the end was ordered, nothing is under way, and it does not come")

    def check_end(self) -> None:
        """The run is over."""
        wrong, model = self.world.add_problem, self.model
        limits = self.world.setting.limits
        sent = b"".join(frame + b"\n" for frame in model.sent)
        received = bytes(self.client.received) + bytes(self.down.data)
        if not sent.startswith(received):
            at = next(
                (i for i, (a, b) in enumerate(zip(sent, received, strict=False)) if a != b),
                len(sent),
            )
            wrong(
                f"other bytes came than were written, at {at}: {received[at : at + 80]!r}, not"
                f" {sent[at : at + 80]!r}"
            )
        model.check_direct_answers()
        if not self.attached:
            return None
        peer = self.peer
        for table in (peer.running, peer.waiting, peer.outgoing):
            if table:
                self.world.wrong(f"left in a table: {table}")
        if not self.tap.to.closed.done():
            return self.world.wrong("the link was not closed")
        if model.closing_at is None or model.end_at is None:
            return wrong("the connection was closed by nobody")
        closed_at = self.world.poller.now if self.closed_at is None else self.closed_at
        if not model.lost and closed_at < (model.drain_by or 0.0) - 1e-6:
            if received != sent:
                wrong(f"{len(sent) - len(received)} bytes were lost at the end")
            if not model.failed:
                model.check_garbage_answers()
        if closed_at > model.end_at + limits.drain_s + CLEANUP_S + SLACK_S:
            self.world.wrong(f"the end took {closed_at - model.end_at:g} s")
        return None


class World:
    """One simulated run.

    problems: what was wrong, in order, with the time; happened: a digest of what went over the
    wire.
    """

    def __init__(self, setting: Setting, dice: Dice) -> None:
        self.setting = setting
        self.dice = dice
        self.problems: list[str] = []
        self.kernel = Kernel(dice, self.wrong)
        self.kernel.unreliable = setting.unreliable
        self.kernel.reopens = setting.reopens
        self.poller = Poller(self.kernel.ready, dice)
        self.loop = VirtualLoop(self.poller, dice)
        self.kernel.watched = self.poller.watched.__contains__
        self.loop.set_exception_handler(
            lambda _, what: self.wrong(f"the loop was told: {_describe(what)}")
        )
        self.poller.turn = self._turn
        self.poller.rest = self._rest
        self.elsewhere = 0  # the thread that the code believes to run in, if not this
        plans = {n: plan for script in setting.scripts for n, plan in script.plans.items()}
        self.workshop = Workshop(
            plans, self._began, self._in_a_thread, setting.limits.max_message_bytes,
            setting.start_s, setting.start_fails,
            self._on_start_failed,
        )  # fmt: skip
        self.lenient = False  # only what the loop is told, and what is left, is wrong
        self.input_may_be_cut = False
        self.started = self.over = False
        self.turns = 0  # of the loop, in the run itself
        self.lines: list[Line] = []
        self.main: asyncio.Task[Any] | None = None

    def add_problem(self, what: str) -> None:
        """Note what model and lines find wrong."""
        if not self.lenient:
            self.wrong(what)

    def wrong(self, what: str) -> None:
        self.problems.append(f"{self.poller.now:.6f} {what}" if hasattr(self, "poller") else what)

    def run(self) -> Sequence[str]:
        """Run to the end. Returns the problems."""
        with self._patch_modules():
            for number, script in enumerate(self.setting.scripts):
                self.lines.append(Line(self, script, number))
            self.kernel.before = self._before
            self.kernel.reading = self._reading
            try:
                self.started = True
                self.main = self.loop.create_task(
                    self._serve() if self.setting.serve else self._host()
                )
                self.loop.run_until_complete(asyncio.wait([self.main]))
                self._result(self.main)
                self.turns = self.poller.turns
                self.loop.run_until_complete(self._aftermath())
            except Stuck as why:
                self.wrong(f"stuck: {why}")
            except _TooLong:
                self.wrong(f"not over after {TURNS} turns of the loop")
            else:
                self._check_end()
            self._dispose()
        return self.problems

    async def _serve(self) -> None:
        line = self.lines[0]
        self._begin(line)
        await serve(self.workshop, line.tap, self.setting.limits)

    async def _host(self) -> None:
        async with Host(self.workshop, self.setting.limits) as host:
            self.host = host
            host.connections = _OrderedSet()  # pyright: ignore[reportAttributeAccessIssue]  # a set's order is not the seed's
            links: list[Any] = []
            for line in self.lines:
                if links and self.setting.attach_gap_s:
                    await asyncio.sleep(self.setting.attach_gap_s)
                self._begin(line)
                links.append(host.attach(line.tap))
                line.attached = True
            await asyncio.wait([link.closed for link in links])

    def _begin(self, line: Line) -> None:
        line.client.start(0.0)
        leaving = self.setting.scripts[self.lines.index(line)].leaving
        if leaving.how in ("drain", "cancel"):
            self.loop.call_later(leaving.after_s, self._end, leaving.how)
        if self.setting.serve:
            self.loop.call_soon(self._on_attached, line)
        if self.workshop.up and self.setting.start_fails:
            line.model.failed = True
            line.tap.ending()

    def _on_attached(self, line: Line) -> None:
        line.attached = line.tap.to is not None
        if not line.attached and self.main is not None and not self.main.done():
            self.loop.call_soon(self._on_attached, line)

    def _end(self, how: str) -> None:
        """The process is told to end."""
        assert self.main is not None
        if (
            self.main.done() or self.main.cancelling()
        ):  # a second cancel would end the orderly end itself
            return
        for line in self.lines:
            if line.attached:
                line.tap.ending()
        if how == "cancel" or self.setting.serve:
            self.main.cancel()
        else:
            self.host.drain()

    def _on_start_failed(self) -> None:
        for line in self.lines:
            line.model.failed = True
            if line.attached or self.setting.serve:
                line.tap.ending()

    def _result(self, main: asyncio.Task[Any]) -> None:
        if main.cancelled() or main.exception() is None:
            return
        if not (self.setting.start_fails and isinstance(main.exception(), OSError)):
            self.wrong(f"serving raised {main.exception()!r}")

    async def _aftermath(self) -> None:
        """Handlers that did not listen end by themselves; then nobody is left."""
        await asyncio.sleep(5)

    def _check_end(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            self.wrong(f"a task is left: {task}")
        never = {number for line in self.lines if not line.attached for number in line.descriptors}
        if left := self.kernel.open_now.keys() - never:
            self.wrong(f"descriptors were left open: {sorted(left)}")
        if self.poller.watched:
            self.wrong(f"descriptors are still watched: {sorted(self.poller.watched)}")
        for line in self.lines:
            line.check_end()
        workshop = self.workshop
        if workshop.started > 1 or workshop.closed != workshop.started:
            self.wrong(
                f"the backend was started {workshop.started} times and closed {workshop.closed}"
                " times"
            )
        for handler in workshop.handlers.values():
            if not handler.ended:
                self.add_problem(f"the handler of call {handler.n} never ended")

    def _dispose(self) -> None:
        """Leave nothing behind that would speak up later, however the run ended."""
        self.loop.set_exception_handler(lambda _, what: None)
        self.over = True
        self.poller.rest = lambda: None
        self.poller.turns = 0
        self.kernel.before = lambda: None
        self.wrong = lambda what: None
        for line in self.lines:
            line.model._wrong = self.wrong  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            tasks = asyncio.all_tasks(self.loop)
            # Tasks of many runs before are still among all that asyncio knows: ask no more often
            # than needed.
            if not tasks:
                break
            for task in tasks:
                task.cancel()
                task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
            try:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=60))
            except (Stuck, OSError, _TooLong):
                pass
        self.loop.close()

    # What the parts call

    def _turn(self) -> None:
        for line in () if self.over else self.lines:
            if line.attached and not line.tap.closed:
                line.turn()
            elif line.attached and line.closed_at is None and line.tap.to.closed.done():
                line.closed_at = self.poller.now
        if self.poller.turns > TURNS:
            raise _TooLong

    def _rest(self) -> None:
        for line in self.lines:
            line.rest()

    def _before(self) -> None:
        if self.setting.meddling and self.dice.chance(self.setting.meddling):
            for line in self.lines:
                if line.attached:
                    line.client.interrupt()

    def _reading(self, way: Channel) -> None:
        for line in self.lines:
            if line.up is way:
                line.reading()

    def _began(self, handler: Handler) -> None:
        for line in self.lines:
            if handler.n in line.model.by_n:
                return line.model.began(handler, len(line.model.unfinished_calls()))
        return self.wrong(f"call {handler.n} was started, and nobody had sent it")

    @contextmanager
    def _in_a_thread(self) -> Iterator[None]:
        """What is called here finds itself in another thread than the loop's."""
        self.elsewhere = 1
        try:
            yield
        finally:
            self.elsewhere = 0

    def _ident(self) -> int:
        return get_ident() + self.elsewhere

    @contextmanager
    def _patch_modules(self) -> Iterator[None]:
        complaints = _Complaints(self)
        logger = logging.getLogger("concertino")
        level, propagate = logger.level, logger.propagate
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        logger.addHandler(complaints)
        try:
            with (
                patch.object(pipe_module, "os", self.kernel),
                patch.object(pipe_module, "select", self.kernel.select),
                # The simulated descriptors are no pipes of the system.
                patch.object(PipeCapacities, "enlarge", lambda self, descriptor: None),
                patch.object(context_module, "get_ident", self._ident),
                patch.object(host_module, "get_ident", self._ident),
                patch.object(link_module, "get_ident", self._ident),
                # The model knows no input that waits for the start, and no requests after a start
                # that failed: tests/runtime/test_opening.py has both.
                patch.object(link_module.ServerConnection, "_receive_early", _receive_at_once),
                patch.object(refusal_module, "RefusedInput", _DrainAtOnce),
            ):
                yield
        finally:
            logger.removeHandler(complaints)
            logger.setLevel(level)
            logger.propagate = propagate


class _OrderedSet(dict[Any, None]):
    """What a set does, in order."""

    def add(self, each: Any) -> None:
        self[each] = None

    def discard(self, each: Any) -> None:
        self.pop(each, None)


class _TooLong(BaseException):
    pass


class _Complaints(logging.Handler):
    """What concertino logs as an error of its own."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._world.lenient:
            return
        if (
            "fault of concertino" in text
            or "could not be sent" in text
            or "failed to close" in text
        ):
            why = record.exc_info[1] if record.exc_info else None
            self._world.wrong(f"logged: {text}: {why!r}")


def _describe(what: dict[str, Any]) -> str:
    return (
        f"{what.get('message')}: {what.get('exception')!r}"
        f" {what.get('handle') or what.get('task') or what.get('future')}"
    )


def _receive_at_once(connection: Any, frame: bytes) -> None:
    """Pass input to the session although the backend has not started."""
    connection._receive = connection.session.receive
    connection._receive(frame)


class _DrainAtOnce(refusal_module.RefusedInput):
    """Answers only the calls that wait when the start fails."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        arguments[-1]()


def setting(seed: int) -> tuple[Setting, Dice]:
    """The world of a seed."""
    dice = Dice(seed)
    limits = Limits(
        max_message_bytes=dice.pick((3000, 6000, 20000)),
        high_water_bytes=dice.pick((200, 1000, 4000, 100_000)),
        low_water_bytes=dice.pick((1, 100, 900, 25_000)),
        max_in_flight=dice.pick((1, 2, 3, 10, 1024)),
        max_in_flight_bytes=dice.pick((300, 1000, 2**24)),
        max_waiting=dice.pick((1, 3, 4096, 4096)),
        max_waiting_bytes=dice.pick((300, 2**24)),
        max_batch=dice.pick((3, 1024)),
        drain_s=dice.pick((0.1, 2.0, 2.0)),
    )
    serial = count(1)
    alone = dice.chance(0.85)
    scripts = [
        make_script(dice, serial, limits.max_message_bytes, limits.max_batch)
        for _ in range(1 if alone else 2)
    ]
    return (
        Setting(
            scripts,
            limits,
            kind=dice.pick(("fifo", "fifo", "sockets", "socket")),
            capacity=dice.pick((64, 512, 4096, 1 << 16, 1 << 16)),
            unreliable=dice.pick((0.0, 0.0, 0.1)),
            meddling=dice.pick((0.0, 0.2)),
            serve=alone and dice.chance(0.5),
            start_s=dice.pick((0.0, 0.0, 0.0, 0.01, 1.0)),
            start_fails=dice.chance(0.03),
            attach_gap_s=dice.pick((0.0, 0.0, 0.1)),
            reopens=dice.chance(0.8),
        ),
        dice,
    )


def run(seed: int) -> Sequence[str]:
    """Simulate one seed. Returns what was wrong; nothing is what it should be."""
    return World(*setting(seed)).run()


def trace(seed: int, say: Callable[[str], None]) -> None:
    """Run a seed and tell what passes: for looking at a failure."""
    world = World(*setting(seed))
    say(
        f"{world.setting.limits}\n{world.setting.kind} {world.setting.capacity}"
        f" serve={world.setting.serve}"
    )
    original_on_read, original_on_written, original_began = (
        Model.on_read,
        Model.on_written,
        World._began,
    )

    def on_read(model: Model, frame: bytes) -> None:
        say(f"{world.poller.now:.6f} <- {frame[:160]!r}")
        original_on_read(model, frame)

    def on_written(model: Model, frame: bytes, about: Any) -> None:
        say(f"{world.poller.now:.6f} -> {about!r} {frame[:160]!r}")
        original_on_written(model, frame, about)

    def wrong(world: World, what: str) -> None:
        say(f"{world.poller.now:.6f} WRONG {what}")

    def began(world: World, handler: Handler) -> None:
        say(f"{world.poller.now:.6f}    call {handler.n}: {handler.plan}")
        original_began(world, handler)

    world.kernel._wrong = lambda what: wrong(world, what)  # pyright: ignore[reportPrivateUsage]
    with (
        patch.object(World, "wrong", wrong),
        patch.object(Model, "on_read", on_read),
        patch.object(Model, "on_written", on_written),
        patch.object(World, "_began", began),
    ):
        for script in world.setting.scripts:
            say(f"{script.leaving} stalls {script.stalls} chunk {script.chunk}")
        world.run()
    gc.collect()
