"""One run of plugins that call each other over simulated NATS servers.

The real NatsCluster, NatsConnection, NatsLink and NatsListener run on the virtual loop. Callers,
workers, servers (nats_server_model.py) and what happens to them (nats_network.py) come from a seed:
servers, workers and callers are killed, leave, and are cut off; requests are large, slow, late and
cancelled.

What must hold: no call is run twice; each has one outcome, within its time limit, and soon after
its worker has answered or was lost; an error that does not say that the call may have been executed
is true; a result is that of its call, whole and in order; a call fails only if something has
happened; limits hold; calls pass soon after everything works again; and at the end nothing is left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from concertino.errors import ConcertinoError, TimedOut
from concertino.nats import cluster as cluster_module
from concertino.nats import connection as connection_module
from concertino.nats.cluster import NatsCluster
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.orchestra import nats_link as link_module
from concertino.orchestra import nats_messages as messages_module
from concertino.orchestra import nats_pieces as pieces_module
from concertino.orchestra import nats_worker as worker_module
from concertino.orchestra import rpc_client as client_module
from concertino.orchestra import worker_places as places_module
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.plugin_messages import (
    PluginRequest,
    PluginResponse,
    StreamChunk,
    StreamEnd,
    StreamStart,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.streams import WINDOW_BYTES
from simulation.dice import Dice
from simulation.loop import Poller, Stuck, VirtualLoop, dispose
from simulation.nats_network import Network, ProcessModel
from simulation.nats_server_model import LAME_S, Delivery

__all__ = ["NatsSetting", "NatsWorld", "make_nats_setting", "run_nats", "trace_nats"]

TURNS = 300_000
PLUGIN = "tools.p"
CALLER = "tools.c"
MAX_WHOLE_BYTES, PIECE_BYTES = 400, 256
# The time limit for the next piece of a long message, which is 30 s in production.
PIECE_S = 2.0
# How much later than allowed something may be: latency, and timers that are late.
SLACK_S = 0.3
# After which time the caller knows that its worker was killed.
LOST_S = 1.2
# How long a call may go on after its worker has answered, or without being run, whatever is lost.
HANG_S = 10.0
# How long everything may take to find together again after the last fault; then calls must pass.
SETTLE_S = 7.0
# The longest time limit of a call, with the time after it in which a worker drops it.
LONGEST_S = 60.0 + SLACK_S
EXECUTED = "may have been executed"


@dataclass(slots=True)
class CallPlan:
    """A call. pause_s: the time before it. limit_s: its time limit.

    size, result_size: of the request and of the result, in bytes. work_s: how long the tool takes.
    chunks: how many chunks it sends; None for a plain call. cancel_s: when the caller cancels it.
    """

    n: int
    pause_s: float = 0.0
    limit_s: float = 60.0
    size: int = 10
    result_size: int = 10
    work_s: float = 0.0
    chunks: int | None = None
    cancel_s: float | None = None


@dataclass(slots=True)
class NatsSetting:
    """A world. faults: (when, what, which one, for how long).

    window: how many pieces of a long message may be on their way. window_bytes: the same for the
        chunks of a stream, in bytes.
    """

    servers: int = 1
    workers: int = 1
    callers: list[list[CallPlan]] = field(default_factory=list[list[CallPlan]])
    faults: list[tuple[float, str, int, float]] = field(
        default_factory=list[tuple[float, str, int, float]]
    )
    max_in_flight: int = 1024
    socket_bytes: int = 1 << 16
    window: int = 2
    window_bytes: int = WINDOW_BYTES

    def has(self, *kinds: str) -> bool:
        return any(kind in kinds for _, kind, _, _ in self.faults)


# Faults after which calls may fail. After the others (a worker that leaves in peace, a server in
# lame-duck mode) none may.
HARMFUL = (
    "kill server", "full server", "kill worker", "end worker", "cut off", "cut route",
    "shaky route",
)  # fmt: skip


class _Member:
    """A process with a connection to the servers: a caller or a worker."""

    def __init__(self, world: NatsWorld, name: str, plugin: str) -> None:
        self.name = name
        self.process: ProcessModel = world.network.add_process(name)
        options = NatsOptions(plugin)
        self.cluster = NatsCluster(parse_servers(world.network.address_for(name)), options)
        self.killed_at: float | None = None
        self.link: NatsLink | None = None
        self.listener: NatsListener | None = None

    async def close(self, drain_s: float = 0.0) -> None:
        if self.listener is not None:
            await self.listener.close(drain_s)
        if self.link is not None:
            await self.link.close()
        await self.cluster.close()


@dataclass(slots=True)
class _Outcome:
    """How a call has ended. kind: ok, busy, cancelled, timeout or error."""

    kind: str
    at: float
    text: str = ""
    result: bytes = b""
    chunks: list[bytes] = field(default_factory=list[bytes])


class NatsWorld:
    """One run. problems: what was wrong, in order, with the time."""

    def __init__(self, setting: NatsSetting, dice: Dice) -> None:
        self.setting = setting
        self.problems: list[str] = []
        self.poller = Poller(lambda descriptor: 0, dice)
        self.poller.turn = self._turn
        self.poller.rest = self._check_limits
        self.loop = VirtualLoop(self.poller, dice)
        self.loop.set_exception_handler(
            lambda _, what: self.wrong(
                f"the loop was told: {what.get('message')}: {what.get('exception')!r}"
            )
        )
        self.dice = dice
        self.network = Network(self.loop, dice, [f"s{n}" for n in range(setting.servers)])
        self.network.socket_bytes = setting.socket_bytes
        self.loop.create_connection = self.network.create_connection  # type: ignore[assignment]
        self.workers: list[_Member] = []
        self.callers: list[_Member] = []
        self.plans: dict[int, CallPlan] = {}
        self.started: dict[int, float] = {}
        self.caller_of: dict[int, _Member] = {}
        self.outcomes: dict[int, _Outcome] = {}
        # By call: who has begun it, and when; and when its handler has ended or was cancelled.
        self.begun: dict[int, list[tuple[_Member, float]]] = {}
        self.ended: dict[int, float] = {}
        self.cancelled: dict[int, float] = {}
        # By reply subject and whether it is of the response: the pieces without a receipt.
        self.unread_pieces: Counter[tuple[str, bool]] = Counter()
        if not setting.has(*HARMFUL):
            for server in self.network.servers.values():
                server.on_publish = self._count_pieces

    def wrong(self, what: str) -> None:
        self.problems.append(f"{self.poller.now:.6f} {what}")

    def _turn(self) -> bool:
        if self.poller.turns > TURNS:
            raise Stuck(f"not over after {TURNS} turns of the loop")
        return False

    def _check_limits(self) -> None:
        for member in self.workers:
            if member.listener is None:
                continue
            for worker in member.listener._workers.values():  # pyright: ignore[reportPrivateUsage]
                accepted = len(worker._accepted)  # pyright: ignore[reportPrivateUsage]
                if accepted > self.setting.max_in_flight:
                    self.wrong(f"{member.name} has accepted {accepted} requests")

    def _count_pieces(self, delivery: Delivery) -> None:
        """Check the window of long messages, as the servers see it."""
        headers, subject = delivery.headers, delivery.subject
        is_caller = not subject.startswith("i.")
        key = delivery.reply or subject
        if b"\r\nCall:" in headers:
            key = headers.partition(b"\r\nCall:")[2].partition(b"\r\n")[0].decode()
        if subject.startswith("o.") and b"\r\nSize:" in headers:
            self.unread_pieces[key, False] = 1
        elif b"Kind:piece" in headers:
            self.unread_pieces[key, not is_caller] += 1
            if self.unread_pieces[key, not is_caller] > self.setting.window:
                self.wrong(f"{self.unread_pieces[key, not is_caller]} pieces are on their way")
        elif b"Kind:receipt" in headers or b"Kind:ack" in headers:
            self.unread_pieces[key, is_caller] -= 1

    # The run

    def run(self) -> Sequence[str]:
        """Run to the end. Returns the problems."""
        with _silent_logs(), self._patched():
            main = self.loop.create_task(self._main())
            try:
                self.loop.run_until_complete(main)
            except Stuck as exc:
                self.wrong(f"stuck: {exc}")
            dispose(self.loop, self.poller)
        return self.problems

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Let the code under test use the seed's chance and clock, and small limits."""
        chance = Random(self.dice.below(1 << 30))
        clock = SimpleNamespace(time=lambda: 1e9 + self.poller.now)
        numbers = itertools.count()
        with ExitStack() as stack:
            for module in (cluster_module, link_module, worker_module):
                stack.enter_context(patch.object(module, "random", chance))
            secret = SimpleNamespace(
                token_hex=lambda size: f"{chance.getrandbits(8 * size):0{2 * size}x}"
            )
            stack.enter_context(patch.object(messages_module, "secrets", secret))
            # Not from `chance`, so that the seeds that tests name mean the same runs as before.
            ids = SimpleNamespace(token_hex=lambda size: f"{next(numbers):0{2 * size}x}")
            stack.enter_context(patch.object(cluster_module, "secrets", ids))
            for module in (link_module, worker_module):
                stack.enter_context(patch.object(module, "MAX_WHOLE_BYTES", MAX_WHOLE_BYTES))
            stack.enter_context(patch.object(pieces_module, "PIECE_BYTES", PIECE_BYTES))
            stack.enter_context(patch.object(pieces_module, "MAX_WINDOW", self.setting.window))
            window_bytes = self.setting.window_bytes
            stack.enter_context(patch.object(client_module, "WINDOW_BYTES", window_bytes))
            stack.enter_context(patch.object(client_module, "CREDIT_BYTES", window_bytes // 2))
            limit = self.setting.max_in_flight
            stack.enter_context(patch.object(messages_module, "time", clock))
            stack.enter_context(patch.object(worker_module, "PIECE_S", PIECE_S))
            stack.enter_context(patch.object(places_module, "MAX_IN_FLIGHT", limit))
            stack.enter_context(patch.object(connection_module, "HIGH_WATER_BYTES", 4096))
            yield

    async def _main(self) -> None:
        setting = self.setting
        for _ in range(setting.workers):
            await self._start_worker()
        for number in range(len(setting.callers)):
            member = _Member(self, f"caller{number}", CALLER)
            await member.cluster.open()
            member.link = NatsLink(member.cluster, CALLER, PLUGIN)
            self.callers.append(member)
        # The servers tell each other of subscriptions.
        await asyncio.sleep(0.2)
        faults = [self.loop.create_task(self._cause(*fault)) for fault in setting.faults]
        running = [
            self.loop.create_task(self._run_caller(member, plans))
            for member, plans in zip(self.callers, setting.callers, strict=True)
        ]
        _, late = await asyncio.wait(running, timeout=400)
        for task in late:
            self.wrong(f"calls go on for ever: {self.started.keys() - self.outcomes.keys()}")
            task.cancel()
        await asyncio.wait([*running, *faults]) if faults else None
        for task in (*running, *faults):
            if not task.cancelled() and (exc := task.exception()) is not None:
                self.wrong(f"raised: {exc!r}")
        await self._check_recovery()
        await asyncio.sleep(HANG_S)
        for n, outcome in self.outcomes.items():
            self._check(self.plans[n], outcome)
        if self.setting.has("kill caller"):
            # Nobody has cancelled its calls.
            await asyncio.sleep(LONGEST_S)
            self._check_workers_idle()
        for member in (*self.callers, *self.workers):
            await member.close()
        self._check_end()

    async def _start_worker(self) -> None:
        member = _Member(self, f"worker{len(self.workers)}", PLUGIN)
        self.workers.append(member)
        await member.cluster.open(60)

        listener = NatsListener(member.cluster, PLUGIN, self._answers(member))
        if member.killed_at is None:
            member.listener = listener

    # The worker's side

    def _answers(self, member: _Member) -> Callable[[PluginRequest, object], Any]:
        async def answer(request: PluginRequest, peer: object) -> Any:
            return await self._answer(member, request)

        return answer

    async def _answer(self, member: _Member, request: PluginRequest) -> Any:
        is_stream = request.HasField("stream_start")
        call = request.stream_start if is_stream else request.tool_call
        n = int(call.tool_name)
        plan = self.plans[n]
        now = self.loop.time()
        self.network.say(f"call {n} begins at {member.name}")
        self.begun.setdefault(n, []).append((member, now))
        if now > self.started[n] + plan.limit_s + SLACK_S:
            self.wrong(f"call {n} was begun after its time limit")
        wanted = b"" if is_stream else b"q" * plan.size
        if not is_stream and call.arguments != wanted:
            self.wrong(f"call {n} has arrived with other arguments")
        if is_stream:
            return self._stream(n, call.stream_id, plan)
        try:
            await _work(plan.work_s)
        except asyncio.CancelledError:
            self.cancelled[n] = self.loop.time()
            raise
        self.ended[n] = self.loop.time()
        return PluginResponse(tool_call=ToolResponse(success=True, result=_result(plan)))

    async def _stream(
        self, n: int, id: str, plan: CallPlan
    ) -> AsyncGenerator[PluginResponse, None]:
        count = plan.chunks or 0
        try:
            for number in range(count):
                await _work(plan.work_s / count)
                data = b"%d.%d" % (n, number)
                yield PluginResponse(stream_chunk=StreamChunk(stream_id=id, data=data))
            yield PluginResponse(stream_end=StreamEnd(stream_id=id, success=True))
        finally:
            self.ended[n] = self.loop.time()

    # The caller's side

    async def _run_caller(self, member: _Member, plans: Sequence[CallPlan]) -> None:
        calls: list[asyncio.Task[None]] = []
        for plan in plans:
            await asyncio.sleep(plan.pause_s)
            calls.append(self.loop.create_task(self._call(member, plan)))
        if calls:
            await asyncio.wait(calls)
        for call in calls:
            call.result()

    async def _call(self, member: _Member, plan: CallPlan) -> None:
        n = plan.n
        self.plans[n] = plan
        self.started[n] = self.loop.time()
        self.caller_of[n] = member
        task = self.loop.create_task(self._request(member, plan))
        if plan.cancel_s is not None:
            await asyncio.wait((task,), timeout=plan.cancel_s)
            task.cancel()
        else:
            await asyncio.wait((task,))
        try:
            outcome = await task
        except asyncio.CancelledError:
            outcome = _Outcome("cancelled", self.loop.time())
        self.network.say(f"call {n} has ended: {outcome.kind} {outcome.text}")
        if n in self.outcomes:
            self.wrong(f"call {n} has a second outcome")
        self.outcomes[n] = outcome

    async def _request(self, member: _Member, plan: CallPlan) -> _Outcome:
        link = member.link
        assert link is not None
        chunks: list[bytes] = []
        name = str(plan.n)
        try:
            if plan.chunks is not None:
                start = PluginRequest(stream_start=StreamStart(tool_name=name))
                response = PluginResponse()
                async with aclosing(link.stream(start, plan.limit_s)) as responses:
                    async for response in responses:
                        if response.HasField("stream_chunk"):
                            chunks.append(response.stream_chunk.data)
            else:
                call = ToolRequest(tool_name=name, arguments=b"q" * plan.size)
                response = await link.request(PluginRequest(tool_call=call), plan.limit_s)
        except TimedOut as exc:
            return _Outcome("timeout", self.loop.time(), str(exc))
        except ConcertinoError as exc:
            return _Outcome("error", self.loop.time(), str(exc))
        answer, now = response.tool_call, self.loop.time()
        if answer.error_code:
            return _Outcome(answer.error_code, now, answer.error_message)
        return _Outcome("ok", now, "", answer.result, chunks)

    # Faults

    async def _cause(self, at_s: float, what: str, which: int, for_s: float) -> None:
        await asyncio.sleep(at_s)
        servers = list(self.network.servers)
        server = servers[which % len(servers)]
        alive = [member for member in self.workers if member.listener is not None]
        worker = alive[which % len(alive)] if alive else None
        self.network.say(f"fault: {what}")
        if what == "kill server":
            if self.network.servers[server].is_alive:
                self.network.kill_server(server)
                await asyncio.sleep(for_s)
                self.network.start_server(server)
        elif what == "full server":
            self.network.kill_server(server)
            self.network.start_server(server)
            self.network.servers[server].is_full = True
            await asyncio.sleep(for_s)
            self.network.servers[server].is_full = False
        elif what == "lame duck":
            if self.network.servers[server].is_listening:
                self.network.servers[server].begin_lame_duck(self.network.kill_server)
        elif what == "kill caller":
            caller = self.callers[which % len(self.callers)]
            caller.killed_at = self.loop.time()
            caller.process.kill()
        elif what == "cut off":
            members = [item for item in (*self.callers, *alive) if item.killed_at is None]
            if not members:
                return
            name = members[which % len(members)].name
            others = servers if which % 3 == 0 else [server]
            for other in others:
                self.network.partition(name, other)
            await asyncio.sleep(for_s)
            for other in others:
                self.network.heal(name, other)
        elif what == "cut route":
            other = servers[(which + 1) % len(servers)]
            self.network.partition(server, other)
            await asyncio.sleep(for_s)
            self.network.heal(server, other)
        elif what == "shaky route":
            # Messages are lost now and then, while both servers work.
            other = servers[(which + 1) % len(servers)]
            for _ in range(30):
                self.network.partition(server, other)
                await asyncio.sleep(0.02)
                self.network.heal(server, other)
                await asyncio.sleep(0.03 + 0.2 * self.dice.fraction())
        elif worker is not None:
            await self._end_worker(worker, what)

    async def _end_worker(self, worker: _Member, what: str) -> None:
        """Let a worker die or leave, and start another one."""
        listener, worker.listener = worker.listener, None
        assert listener is not None
        if what == "leave":
            # The new one first, as an operator does who wants no interruption.
            await self._start_worker()
            await asyncio.sleep(0.2)
            await listener.close(100)
            await worker.cluster.close()
            return
        if what == "kill worker":
            worker.killed_at = self.loop.time()
            worker.process.kill()
        await listener.close()
        await worker.cluster.close()
        await self._start_worker()

    # What must hold

    def _check(self, plan: CallPlan, outcome: _Outcome) -> None:
        n, started = plan.n, self.started[plan.n]
        begun = self.begun.get(n, [])
        if len(begun) > 1:
            self.wrong(f"call {n} was begun {len(begun)} times")
        if self.caller_of[n].killed_at is not None:
            return
        if outcome.at > started + plan.limit_s + SLACK_S:
            self.wrong(f"call {n} has ended {outcome.at - started:.2f} s after its start")
        if outcome.kind == "ok":
            self._check_result(plan, outcome)
        elif outcome.kind in ("error", "busy"):
            is_unsure = EXECUTED in outcome.text
            if begun and not is_unsure:
                self.wrong(f"call {n} was begun, although the error is {outcome.text!r}")
            self._check_failure(plan, outcome)
        elif outcome.kind == "timeout" and not self.setting.has(*HARMFUL):
            if self.ended.get(n, inf) < started + plan.limit_s - SLACK_S:
                self.wrong(f"call {n} has timed out, although it was answered")
        elif outcome.kind == "cancelled" and begun and not self.setting.has(*HARMFUL, "lame duck"):
            end = self.ended.get(n, self.cancelled.get(n))
            if end is None or end > outcome.at + SLACK_S:
                self.wrong(f"call {n} was cancelled, and its tool goes on")
        self._check_delay(plan, outcome)

    def _check_result(self, plan: CallPlan, outcome: _Outcome) -> None:
        if not self.begun.get(plan.n):
            self.wrong(f"call {plan.n} has a result, although nobody has run it")
        if plan.chunks is None:
            if outcome.result != _result(plan):
                self.wrong(f"call {plan.n} has another result than its tool has returned")
        elif outcome.chunks != [b"%d.%d" % (plan.n, number) for number in range(plan.chunks)]:
            self.wrong(f"chunks of stream {plan.n} are missing: {outcome.chunks}")

    def _check_failure(self, plan: CallPlan, outcome: _Outcome) -> None:
        """Check that a call has failed for a reason."""
        setting = self.setting
        if outcome.kind == "busy":
            is_harmed = setting.max_in_flight < 100 or setting.has("leave", *HARMFUL)
            if plan.limit_s > 2 * SLACK_S and not is_harmed:
                self.wrong(f"call {plan.n} was refused: {outcome.text}")
            return
        # A server in lame-duck mode waits for its clients, but not for ever.
        is_too_long = setting.has("lame duck") and plan.work_s > LAME_S - SLACK_S
        if setting.workers and not is_too_long and not setting.has(*HARMFUL):
            # What a server drops since the worker has just left, no client can mend.
            for server in self.network.servers.values():
                if server.lost_requests and "no worker has answered" in outcome.text:
                    server.lost_requests -= 1
                    return
            self.wrong(f"call {plan.n} failed although nothing has happened: {outcome.text}")

    def _check_delay(self, plan: CallPlan, outcome: _Outcome) -> None:
        n, started = plan.n, self.started[plan.n]
        begun = self.begun.get(n, [])
        took_s = outcome.at - started
        if not self.setting.workers and took_s > SLACK_S:
            self.wrong(f"call {n} took {took_s:.2f} s, although there is no worker")
        if outcome.kind == "cancelled":
            return
        if not begun:
            if took_s > HANG_S:
                self.wrong(f"call {n} took {took_s:.2f} s, and nobody has run it")
            return
        end = self.ended.get(n, self.cancelled.get(n))
        worker, _ = begun[0]
        killed_at = worker.killed_at
        is_cut = self.setting.has("cut off", "cut route", "shaky route")
        if killed_at is not None and not is_cut and (end is None or end >= killed_at):
            late_s = outcome.at - max(started, killed_at) - LOST_S
            if late_s > SLACK_S:
                self.wrong(f"call {n} has noticed {late_s:.2f} s too late that its worker died")
        if end is not None and outcome.at > max(end, started) + HANG_S:
            self.wrong(f"call {n} has ended {outcome.at - end:.2f} s after its tool")

    async def _check_recovery(self) -> None:
        """Check that calls pass again when everything works."""
        for name, server in self.network.servers.items():
            for other in (*self.network.servers, *self.network.processes):
                if other != name:
                    self.network.heal(name, other)
            if server.is_lame and server.is_alive:
                await asyncio.sleep(LAME_S)
            if not server.is_alive:
                self.network.start_server(name)
        if not any(member.listener is not None for member in self.workers):
            return
        await asyncio.sleep(SETTLE_S)
        for number, member in enumerate(self.callers):
            if member.killed_at is not None:
                continue
            plan = CallPlan(100_000 + number, limit_s=5.0)
            await self._call(member, plan)
            outcome = self.outcomes.pop(plan.n)
            # Tools go on whose cancellation was lost.
            if outcome.kind != "ok" and (outcome.kind != "busy" or self.setting.max_in_flight > 99):
                self.wrong(f"{member.name} cannot call when all is well again: {outcome.text}")

    def _check_workers_idle(self) -> None:
        """Check that nothing is left at the workers of callers that were killed."""
        for member in self.workers:
            workers = member.listener._workers.values() if member.listener is not None else ()  # pyright: ignore[reportPrivateUsage]
            for worker in workers:
                left = (list(worker._accepted), worker._incoming, worker._outgoing)  # pyright: ignore[reportPrivateUsage]
                busy = [name for name, rpc in worker._servers.items() if rpc.in_progress]  # pyright: ignore[reportPrivateUsage]
                if any(left) or busy:
                    self.wrong(f"{member.name} has left something: {left}, {busy}")

    def _check_end(self) -> None:
        for member in (*self.callers, *self.workers):
            if member.cluster._uses:  # pyright: ignore[reportPrivateUsage]
                self.wrong(f"{member.name} still counts uses of connections")
            link = member.link
            if link is not None:
                left = (link._calls, link._pending, link._heard, link._inboxes)  # pyright: ignore[reportPrivateUsage]
                if any(left):
                    self.wrong(f"{member.name} has left something: {left}")
        current = asyncio.current_task(self.loop)
        for task in asyncio.all_tasks(self.loop):
            if task is not current:
                self.wrong(f"a task is left: {task}")


async def _work(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


def _result(plan: CallPlan) -> bytes:
    return b"%d=" % plan.n + b"r" * plan.result_size


@contextmanager
def _silent_logs() -> Iterator[None]:
    logger = logging.getLogger("concertino")
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagates


# Seeds


def make_nats_setting(seed: int) -> tuple[NatsSetting, Dice]:
    """Return the world of a seed."""
    dice = Dice(seed)
    setting = NatsSetting(
        servers=dice.pick((1, 1, 2, 3)),
        workers=dice.pick((1, 1, 2, 3)),
        max_in_flight=dice.pick((1, 3, 1024, 1024)),
        socket_bytes=dice.pick((1 << 16, 1 << 16, 0)),
    )
    setting.window = (2, 6)[seed % 2]
    if dice.chance(0.03):
        setting.workers = 0
    numbers = iter(range(1000))
    for _ in range(dice.pick((1, 1, 2))):
        plans = [_make_call(dice, next(numbers)) for _ in range(dice.pick((1, 2, 5, 10)))]
        setting.callers.append(plans)
    kinds = dice.pick(
        (
            (),
            ("leave",),
            ("lame duck",) if setting.servers > 1 else ("leave",),
            ("kill worker", "kill worker", "end worker"),
            ("kill server", "kill server", "full server"),
            ("cut off",),
            ("cut route", "shaky route", "shaky route"),
            ("cut off", "cut route", "kill server", "kill worker", "end worker", "leave"),
        )
    )
    if kinds and setting.workers:
        for _ in range(dice.pick((1, 1, 2, 3))):
            kind = dice.pick(kinds)
            if kind.endswith("route") and setting.servers == 1:
                kind = "cut off"
            for_s = dice.pick((0.05, 0.5, 1.5, 5.0)) * (0.5 + dice.fraction())
            setting.faults.append((_some_time(dice), kind, dice.below(12), for_s))
    # By the seed itself, so that this changes no other world.
    if seed % 16 == 5:
        setting.window_bytes = 600
        kinds = ("kill caller", "kill caller", "kill server")
        setting.faults = [
            (_some_time(dice), dice.pick(kinds), dice.below(12), 0.5) for _ in range(2)
        ]
    if setting.has("lame duck"):
        # One server stays.
        setting.faults = setting.faults[:1]
    return setting, dice


def _some_time(dice: Dice) -> float:
    return dice.pick((0.001, 0.01, 0.3, 2.0)) * dice.fraction()


def _make_call(dice: Dice, n: int) -> CallPlan:
    plan = CallPlan(
        n,
        pause_s=dice.pick((0.0, 0.0, 0.0, 0.002, 0.05, 0.8)),
        limit_s=dice.pick((0.02, 0.3, 2.0, 60.0, 60.0, 60.0)),
        size=dice.pick((5, 5, 5, 700, 3000)),
        result_size=dice.pick((5, 5, 5, 700, 3000)),
        work_s=dice.pick((0.0, 0.0, 0.001, 0.1, 1.0, 3.0)),
    )
    if dice.chance(0.05):
        # The heartbeats for this call go on, whatever happens to others.
        plan.work_s = 25.0
    if dice.chance(0.2):
        plan.chunks = dice.pick((0, 1, 5, 12))
    if dice.chance(0.15):
        plan.cancel_s = dice.pick((0.0, 0.0005, 0.01, 0.4))
    return plan


def run_nats(seed: int) -> Sequence[str]:
    """Simulate one seed. Returns what was wrong."""
    return NatsWorld(*make_nats_setting(seed)).run()


def trace_nats(seed: int, say: Callable[[str], None]) -> None:
    """Run a seed and tell what passes: for looking at a failure."""
    world = NatsWorld(*make_nats_setting(seed))
    say(f"{world.setting}")
    world.network.say = lambda text: say(f"{world.poller.now:.6f} {text}")
    for problem in world.run():
        say(f"WRONG {problem}")
