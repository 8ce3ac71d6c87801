"""One run of a proxy between simulated clients and simulated processes of its server.

The real Proxy, Client, Supervisor, Host, Session and Peer run on the virtual loop; the programs
(processes.py), the clients and what happens to both come from a seed: processes die at any step,
servers are replaced, restarted and ended when idle, and clients cancel, leave and do not answer.

What must hold: each request gets exactly one response, and one at most if it was cancelled; no call
is begun twice by any process; what a process has answered reaches its client; processes serve one
user; a call fails only if something has happened to it; and at the end nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest.mock import patch

from msgspec import Raw

from concertino.backend import Host
from concertino.client import supervision as supervision_module
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import BoundedNames
from concertino.composition.rules import CompositionRules
from concertino.errors import ConcertinoError
from concertino.proxy import proxy as proxy_module
from concertino.proxy.file_server import WithheldServer
from concertino.proxy.manifest_cache import Manifest
from concertino.proxy.manifests import Manifests
from concertino.proxy.parked_calls import ParkedCalls
from concertino.proxy.proxy import Proxy
from concertino.transports.memory import MemoryConnection, memory_pair
from concertino.types.results import Implementation
from simulation.dice import Dice
from simulation.loop import Poller, Stuck, VirtualLoop, dispose
from simulation.processes import LEGACY, MODERN, CallPlan, Program, ProgramPlan

__all__ = ["ClientPlan", "ProxySetting", "ProxyWorld", "make_setting", "run_proxy", "trace_proxy"]

TURNS = 200_000
# After how much virtual time every call must have its response.
PATIENCE_S = 400.0
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "io.modelcontextprotocol/clientInfo": {"name": "client", "version": "1"},
}
OPENING = {
    "protocolVersion": LEGACY,
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "client", "version": "1"},
}


@dataclass(slots=True)
class ClientPlan:
    """What a client does.

    user: the id of its user; 0 if it is not known.
    calls: the numbers of its calls, and the pause before each. cancels: which it cancels, and after
    how long. answer_s: how long it takes to answer a question; None: it never does. leaves_s: when
    it leaves; None: when everything is answered. lists: whether it asks for the tools first.
    """

    era: str = LEGACY
    user: int = 0
    begins_s: float = 0.0
    calls: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    cancels: dict[int, float] = field(default_factory=dict[int, float])
    answer_s: float | None = 0.0
    leaves_s: float | None = None
    lists: bool = False


@dataclass(slots=True)
class ProxySetting:
    """A world. kills: (when, which process); changes: (when, "renew", "replace" or "withhold").

    composed: whether the proxy is a part of a composition, as the servers of a file are.
    known: whether the proxy knows from an earlier run what the server offers.
    """

    program: ProgramPlan
    clients: list[ClientPlan]
    kills: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    changes: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    isolation: Any = "auto"
    idle_s: float | None = None
    is_lazy: bool = False
    known: bool = False
    composed: bool = False
    expiry_s: float = 600.0
    # Whether anything happens that may let a call fail that no process has begun.
    has_faults: bool = True


class _Client:
    """A client of the proxy. responses: how many came, by id."""

    def __init__(self, world: ProxyWorld, plan: ClientPlan, connection: MemoryConnection) -> None:
        self.world = world
        self.plan = plan
        self.name = f"client {len(world.clients)}"
        self.connection = connection
        self.sent: dict[int, tuple[str, int]] = {}
        self.cancelled: set[int] = set()
        self.responses: Counter[int] = Counter()
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.has_left = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        connection.open(self)

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            self.world.program.say(f"{self.name} gets {frame!r}")
            self._on_message(json.loads(frame))
        self._changed.set()

    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_disconnect(self, exc: Exception) -> None: ...

    def on_eof(self) -> None:
        self.has_left = True
        self._changed.set()

    def _on_message(self, message: dict[str, Any]) -> None:
        if message.get("method") == "elicitation/create":
            if self.plan.answer_s is not None:
                answer = {"id": message["id"], "result": {"action": "accept", "content": {}}}
                self._loop.call_later(self.plan.answer_s, self._send, answer)
            return
        if "method" in message:
            return
        id = message["id"]
        if id not in self.sent:
            self.world.wrong(f"a response to no request: {message}")
            return
        self.responses[id] += 1
        if self.responses[id] > 1:
            self.world.wrong(f"request {self.sent[id]} was answered twice")
        method, n = self.sent[id]
        result = message.get("result", {})
        if result.get("resultType") == "input_required":
            if self.plan.answer_s is not None:
                self._loop.call_later(self.plan.answer_s, self._answer, n, result)
            else:
                self.outcomes[n] = {"abandoned": True}
        elif method == "tools/call":
            self.outcomes[n] = message

    def _answer(self, n: int, result: Mapping[str, Any]) -> None:
        answers = {key: {"action": "accept", "content": {}} for key in result["inputRequests"]}
        self._call(n, inputResponses=answers, requestState=result["requestState"])

    # What it does

    def _send(self, message: Mapping[str, Any]) -> None:
        if not self.has_left:
            self.world.program.say(f"{self.name} sends {message}")
            self.connection.write(json.dumps({"jsonrpc": "2.0", **message}).encode(), None)
            self.connection.flush()

    def _request(self, method: str, n: int = 0, **params: Any) -> int:
        id = len(self.sent) + 1
        self.sent[id] = method, n
        if self.plan.era == MODERN:
            params["_meta"] = META
        self._send({"id": id, "method": method, "params": params})
        return id

    def _call(self, n: int, **more: Any) -> None:
        if not self.has_left:
            name = "p_t" if self.world.setting.composed else "t"
            id = self._request("tools/call", n, name=name, arguments={"n": n}, **more)
            if n in self.plan.cancels:
                self._loop.call_later(self.plan.cancels[n], self._cancel, id)

    def _cancel(self, id: int) -> None:
        if not self.responses[id]:
            self.cancelled.add(id)
            self._changed.set()
            self._send({"method": "notifications/cancelled", "params": {"requestId": id}})

    async def run(self) -> None:
        """Do everything, and wait for the responses."""
        plan = self.plan
        await asyncio.sleep(plan.begins_s)
        if plan.leaves_s is not None:
            self._loop.call_later(plan.leaves_s, self._leave)
        opening = "server/discover" if plan.era == MODERN else "initialize"
        id = self._request(opening, **({} if plan.era == MODERN else OPENING))
        await self._until(lambda: self.responses[id])
        if plan.era == LEGACY:
            self._send({"method": "notifications/initialized"})
        if plan.lists:
            self._request("tools/list")
        for n, pause_s in plan.calls:
            await asyncio.sleep(pause_s)
            self._call(n)
        await self._until(lambda: not self.open_requests() and not self.open_calls())
        if not self.has_left:
            await self.connection.close(1)
            self.has_left = True

    def _leave(self) -> None:
        self.has_left = True
        self._loop.create_task(self.connection.close(1))
        self._changed.set()

    def open_requests(self) -> list[tuple[str, int]]:
        """Return what has no response yet."""
        return [
            what
            for id, what in self.sent.items()
            if not self.responses[id] and id not in self.cancelled
        ]

    def open_calls(self) -> list[int]:
        """Return the calls without an outcome: the client will send them again."""
        cancelled = {self.sent[id][1] for id in self.cancelled}
        sent = {n for method, n in self.sent.values() if method == "tools/call"}
        return sorted(sent - self.outcomes.keys() - cancelled)

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition() and not self.has_left:
            self._changed.clear()
            await self._changed.wait()

    def check_end(self) -> None:
        """Check what has come, after everything is over."""
        world, program = self.world, self.world.program
        for n, outcome in self.outcomes.items():
            content = outcome.get("result", {}).get("structuredContent")
            if content is not None:
                if content["n"] != n:
                    world.wrong(f"call {n} got the result of another: {content}")
                program.processes[content["at"]].users.add(self.plan.user)
            if "error" in outcome:
                # A question that waits too long ends its call, which may be about to be answered.
                is_late = world.setting.expiry_s < 1 and outcome["error"]["code"] == -32602
                is_removed = {"replace", "withhold"} & {what for _, what in world.setting.changes}
                if n in program.answered and not is_late and not is_removed:
                    world.wrong(f"call {n} failed, although its answer was written: {outcome}")
                world.check_failure(n, outcome["error"])


class ProxyWorld:
    """One run. problems: what was wrong, in order, with the time."""

    def __init__(self, setting: ProxySetting, dice: Dice) -> None:
        self.setting = setting
        self.problems: list[str] = []
        self.poller = Poller(lambda descriptor: 0, dice)
        self.loop = VirtualLoop(self.poller, dice)
        self.loop.set_exception_handler(
            lambda _, what: self.wrong(
                f"the loop was told: {what.get('message')}: {what.get('exception')!r}"
            )
        )
        self.dice = dice
        self.program = Program(setting.program, dice, self.wrong)
        self.poller.turn = self._turn
        self.clients: list[_Client] = []

    def wrong(self, what: str) -> None:
        self.problems.append(f"{self.poller.now:.6f} {what}")

    def _turn(self) -> bool:
        if self.poller.turns > TURNS:
            raise Stuck(f"not over after {TURNS} turns of the loop")
        return False

    def run(self) -> Sequence[str]:
        """Run to the end. Returns the problems."""
        logger = logging.getLogger("concertino")
        level, logger_propagates = logger.level, logger.propagate
        logger.setLevel(logging.CRITICAL)
        logger.propagate = False
        try:
            with (
                patch.object(proxy_module, "guardian", _NoGuardian()),
                patch.object(supervision_module, "shorten_at_random", lambda pause_s: pause_s),
            ):
                main = self.loop.create_task(self._main())
                try:
                    self.loop.run_until_complete(main)
                    self._check_end()
                except Stuck as exc:
                    self.wrong(f"stuck: {exc}")
                dispose(self.loop, self.poller)
        finally:
            logger.setLevel(level)
            logger.propagate = logger_propagates
        return self.problems

    def _make_proxy(self) -> Proxy:
        setting = self.setting
        proxy = Proxy(
            self.program,
            isolation=setting.isolation,
            idle_s=setting.idle_s,
            lazy=setting.is_lazy,
            parked=ParkedCalls(setting.expiry_s),
        )
        if setting.known:
            # Files are kept of commands only.
            find: Any = _find_manifest
            proxy._manifests = Manifests("program", find, setting.is_lazy)  # pyright: ignore[reportPrivateUsage]
        return proxy

    async def _main(self) -> None:
        setting = self.setting
        proxy = self._make_proxy()
        backend: Any = proxy
        if setting.composed:
            parts = {"p": proxy}
            rules = CompositionRules(
                start_s=3.0,
                lists_s=3.0,
                may_be_empty=True,
                list_limit_s=3.0,
                maps_uris=True,
                retries_s=(1.0, 2.0),
            )
            info = Implementation("c", "1")
            backend = ComposedBackend(info, parts, BoundedNames(parts), rules)
        async with Host(backend) as host:
            host.connections = _OrderedSet()  # pyright: ignore[reportAttributeAccessIssue]
            clients = self.clients
            running: list[asyncio.Task[None]] = []
            for plan in setting.clients:
                ours, theirs = memory_pair()
                theirs.facts = {"transport": "memory"} | ({"uid": plan.user} if plan.user else {})
                host.attach(theirs)
                clients.append(_Client(self, plan, ours))
                running.append(self.loop.create_task(clients[-1].run()))
            events = [self.loop.create_task(self._kill(*kill)) for kill in setting.kills]
            events += [
                self.loop.create_task(self._change(at_s, what, proxy, backend))
                for at_s, what in setting.changes
            ]
            _, late = await asyncio.wait(running, timeout=PATIENCE_S)
            for task, client in zip(running, clients, strict=True):
                if task in late:
                    self.wrong(
                        f"no response after {PATIENCE_S:g} s: {client.open_requests()},"
                        f" {client.open_calls()}"
                    )
                    task.cancel()
            for event in events:
                event.cancel()
            await asyncio.wait([*running, *events])
            for task in (*running, *events):
                if not task.cancelled() and (exc := task.exception()) is not None:
                    self.wrong(f"raised: {exc!r}")
        for client in clients:
            client.check_end()

    async def _kill(self, at_s: float, number: int) -> None:
        await asyncio.sleep(at_s)
        alive = [process for process in self.program.processes if process.is_alive]
        if alive:
            alive[number % len(alive)].die()

    async def _change(self, at_s: float, what: str, proxy: Proxy, backend: Any) -> None:
        await asyncio.sleep(at_s)
        if what == "renew":
            try:
                await proxy.renew()
            except ConcertinoError:
                # As `concertino dev` does: the old process goes on.
                pass
        elif isinstance(backend, ComposedBackend):
            new = WithheldServer("p", "not approved") if what == "withhold" else self._make_proxy()
            await backend.change_parts({"p": new})

    def check_failure(self, n: int, error: Mapping[str, Any]) -> None:
        """Check that a call has failed for a reason."""
        process = self.program.by.get(n)
        has_died = process is not None and not process.is_alive
        if not has_died and not self.setting.has_faults:
            self.wrong(f"call {n} failed although nothing has happened: {error}")

    def _check_end(self) -> None:
        for process in self.program.processes:
            if process.is_alive:
                self.wrong(f"process {process.number} is left")
            if len(process.users) > 1 and self.setting.isolation != "shared":
                self.wrong(f"process {process.number} served several users: {process.users}")
        for task in asyncio.all_tasks(self.loop):
            self.wrong(f"a task is left: {task}")


class _NoGuardian:
    """In the place of the guardian, which is a process of its own."""

    def acquire(self) -> None: ...
    def release(self) -> None: ...


class _KnownManifest:
    """What a proxy knows of the program from an earlier run: see ManifestFile."""

    def __init__(self) -> None:
        info = Implementation("program", "0")
        tools = Raw(b'{"tools":[]}')
        self._manifest = Manifest(LEGACY, info, {"tools": {}}, None, {"tools/list": tools})

    def read(self) -> Manifest | None:
        return self._manifest

    def write(self, manifest: Manifest) -> None:
        self._manifest = manifest


def _find_manifest(principal: bytes) -> _KnownManifest:
    return _KnownManifest()


class _OrderedSet(dict[Any, None]):
    """What a set does, in order: that of a set is not the seed's."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


def make_setting(seed: int) -> tuple[ProxySetting, Dice]:
    """Return the world of a seed."""
    dice = Dice(seed)
    has_faults = dice.chance(0.75)
    serial = count(1)
    program = ProgramPlan(
        eras=dice.pick((frozenset((MODERN,)), frozenset((LEGACY,)), frozenset((MODERN, LEGACY)))),
        start_s=dice.pick((0.0, 0.01, 0.3, 20.0)),
        pace_s=dice.pick((0.0, 0.001, 0.1)),
        logging=dice.chance(0.3),
    )
    kills: list[tuple[float, int]] = []
    changes: list[tuple[float, str]] = []
    composed = dice.chance(0.3)
    if has_faults:
        steps = dice.pick(((None,), (None, 0, 1, 2, 3), (2, 4, 6, 9, 15, 40)))
        lives = [dice.pick(steps) for _ in range(12)]
        fails = {start for start in range(1, 13) if dice.chance(dice.pick((0.0, 0.0, 0.3)))}
        # In the end it lives, so that there is an end.
        program.steps = lambda number: lives[number] if number < len(lives) else None
        program.spawn_fails = fails.__contains__
        program.closes_output_first = dice.chance(0.2)
        kills = [(_some_time(dice), dice.below(10)) for _ in range(dice.pick((0, 0, 1, 3, 8)))]
        kinds = ("renew", "replace", "replace", "withhold") if composed else ("renew",)
        changes = [
            (_some_time(dice), dice.pick(kinds)) for _ in range(dice.pick((0, 0, 0, 1, 2, 4)))
        ]
    clients = [_make_client(dice, serial, program) for _ in range(dice.pick((1, 1, 2, 3)))]
    setting = ProxySetting(
        program, clients, kills, changes,
        isolation=dice.pick(("auto", "auto", "principal", "session", "shared")),
        idle_s=dice.pick((None, None, 0.02, 0.5, 5.0)),
        known=dice.chance(0.4),
        composed=composed,
        expiry_s=dice.pick((0.5, 60.0)),
        has_faults=has_faults,
    )  # fmt: skip
    setting.is_lazy = setting.known and dice.chance(0.5)
    return setting, dice


def _some_time(dice: Dice) -> float:
    return dice.pick((0.001, 0.03, 0.4, 3.0, 25.0)) * dice.fraction()


def _make_client(dice: Dice, serial: Iterator[int], program: ProgramPlan) -> ClientPlan:
    plan = ClientPlan(
        era=dice.pick((LEGACY, MODERN)),
        user=dice.pick((0, 1, 1, 2)),
        begins_s=dice.pick((0.0, 0.0, 0.01, 1.0)),
        answer_s=dice.pick((0.0, 0.01, 1.0, 1.0, None)),
        leaves_s=_some_time(dice) if dice.chance(0.2) else None,
        lists=dice.chance(0.5),
    )
    for _ in range(dice.pick((1, 2, 5, 12))):
        n = next(serial)
        plan.calls.append((n, dice.pick((0.0, 0.0, 0.0, 0.01, 0.6, 6.0))))
        # A question that is never answered ends when the client leaves.
        asks = dice.chance(0.3) and (plan.answer_s is not None or plan.leaves_s is not None)
        program.calls[n] = CallPlan(dice.pick((0.0, 0.0, 0.01, 0.5, 3.0)), asks)
        if dice.chance(0.15):
            plan.cancels[n] = dice.pick((0.0, 0.001, 0.1, 1.0))
    return plan


def trace_proxy(seed: int, say: Callable[[str], None]) -> None:
    """Run a seed and tell what passes: for looking at a failure."""
    world = ProxyWorld(*make_setting(seed))
    say(f"{world.setting}")
    world.program.say = lambda text: say(f"{world.poller.now:.6f} {text}")
    for problem in world.run():
        say(f"WRONG {problem}")


def run_proxy(seed: int) -> Sequence[str]:
    """Simulate one seed. Returns what was wrong."""
    return ProxyWorld(*make_setting(seed)).run()
