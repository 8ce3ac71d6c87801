"""Simulated processes of an MCP server, as a proxy starts them: they read, work, ask and die.

A Program stands in the place of a command: it is a TargetLocation, and each open() of it starts a
Process, which is a Connection. What a process has not read when it ends is what take_unread() of a
real child process gives.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from concertino.client.pending_request import request_ids
from concertino.client.targets import OpenTarget
from concertino.errors import SpawnError
from concertino.jsonrpc.limits import Limits
from concertino.transports.connection import Receiver
from simulation.dice import Dice

__all__ = ["CallPlan", "OpenProcess", "Process", "Program", "ProgramPlan"]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
# What a call is refused with while it waits for an answer that its client does not give.
ASKED = {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": {}}}


@dataclass(slots=True, frozen=True)
class CallPlan:
    """What a tool does with one call. work_s: how long it takes; asks: whether it asks first."""

    work_s: float = 0.0
    asks: bool = False
    reports: bool = False


@dataclass(slots=True)
class ProgramPlan:
    """How the processes of a program behave.

    eras: those that it speaks. steps: how many steps each process lives, in the order of their
    starts; None for ever. A step is a message that is read or written. spawn_fails: which starts
    fail. start_s, pace_s: until it reads its first message, and between two. logging: whether it
    declares log levels. closes_output_first: it ends by closing its output, and lives on.
    """

    eras: frozenset[str] = frozenset((MODERN, LEGACY))
    steps: Callable[[int], int | None] = lambda number: None
    spawn_fails: Callable[[int], bool] = lambda number: False
    start_s: float = 0.0
    pace_s: float = 0.0
    logging: bool = False
    closes_output_first: bool = False
    calls: dict[int, CallPlan] = field(default_factory=dict[int, CallPlan])


class Program:
    """What a proxy starts: a TargetLocation. wrong: told of what must not happen.

    processes: all that were started. begun: (number of a call, round) -> how often a process has
    begun it. answered: the calls whose answer a process has written. by: call -> its process.
    """

    can_reopen = True
    name = "program"

    def __init__(self, plan: ProgramPlan, dice: Dice, wrong: Callable[[str], None]) -> None:
        self.plan = plan
        self.dice = dice
        self.wrong = wrong
        self.processes: list[Process] = []
        self.begun: Counter[tuple[int, int]] = Counter()
        self.answered: set[int] = set()
        self.by: dict[int, Process] = {}
        self.starts = 0
        # Told of what the processes do, for looking at a failure.
        self.say: Callable[[str], object] = lambda text: None

    async def open(self, limits: Limits, stderr: Callable[[bytes], object] | None) -> OpenTarget:
        """Start a process."""
        self.starts += 1
        if self.plan.spawn_fails(self.starts):
            raise SpawnError("no such program")
        process = Process(self, len(self.processes))
        self.processes.append(process)
        return OpenProcess(process)


class OpenProcess(OpenTarget):
    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._process = process

    @property
    def exit_status(self) -> int | None:
        return None if self._process.is_alive else -9

    def take_unread(self) -> frozenset[int]:
        return request_ids(self._process.take_unread())


class Process:
    """One process, and the pipes to it: a Connection."""

    def __init__(self, program: Program, number: int) -> None:
        self.facts: Mapping[str, object] = {"transport": "simulated"}
        self.number = number
        self.is_alive = True
        self.users: set[int] = set()
        self._program = program
        self._plan = program.plan
        self._steps = program.plan.steps(number)
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._era = ""
        self._written: list[bytes] = []
        self._inbox: deque[bytes] = deque()
        self._outbox: deque[bytes] = deque()
        self._is_output_open = True
        self._is_paused = self._is_closed = self._is_reading = self._is_delivering = False
        self._timers: dict[object, asyncio.TimerHandle] = {}
        # The id of a question -> the call that asks, with its id.
        self._questions: dict[int, tuple[Any, int]] = {}

    # As a Connection

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop.call_later(self._plan.start_s, self._read_soon)

    def write(self, frame: bytes, request_id: object) -> int:
        self._written.append(frame)
        return 0

    def flush(self) -> None:
        self._inbox += self._written
        self._written = []
        self._read_soon()

    def pause(self, paused: bool) -> None:
        self._is_paused = paused
        self._deliver_soon()

    async def close(self, within_s: float) -> None:
        self._is_closed = True
        await asyncio.sleep(self._program.dice.pick((0.0, 0.01, 0.5)))
        self.die()

    def take_unread(self) -> list[bytes]:
        """Return what was written and not read; nobody can read it any more."""
        unread = [*self._inbox, *self._written]
        self._inbox.clear()
        self._written = []
        return unread

    # As a process

    def die(self) -> None:
        """End. What was written arrives, then the end of output."""
        if self.is_alive:
            self._program.say(f"process {self.number} ends")
            self.is_alive = False
            for timer in self._timers.values():
                timer.cancel()
            self._end_output()

    def _end_output(self) -> None:
        self._is_output_open = False
        self._deliver_soon()

    def _step(self) -> bool:
        """Return whether the process lives on: this was one step of its life."""
        if not self.is_alive:
            return False
        if self._steps is not None:
            self._steps -= 1
            if self._steps < 0:
                if self._plan.closes_output_first and self._is_output_open:
                    self._end_output()
                    return True
                self.die()
                return False
        return True

    def _read_soon(self) -> None:
        if self.is_alive and self._inbox and not self._is_reading and self._receiver is not None:
            self._is_reading = True
            pace_s = self._plan.pace_s * self._program.dice.fraction()
            self._loop.call_later(pace_s, self._read)

    def _read(self) -> None:
        self._is_reading = False
        if self.is_alive and self._inbox:
            if self._step():
                frame = self._inbox.popleft()
                self._program.say(f"process {self.number} reads {frame!r}")
                self._act(json.loads(frame))
                # It may die right after it has read.
                self._step()
            self._read_soon()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.is_alive and self._is_output_open and self._step() and self._is_output_open:
            self._program.say(f"process {self.number} writes {message}")
            self._outbox.append(json.dumps({"jsonrpc": "2.0", **message}).encode())
            answer = message.get("result", {}).get("structuredContent")
            if answer is not None:
                self._program.answered.add(answer["n"])
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        is_due = (self._outbox or not self._is_output_open) and not self._is_paused
        if is_due and not self._is_delivering and self._receiver is not None:
            self._is_delivering = True
            self._loop.call_later(self._program.dice.pick((0.0, 0.0, 0.003)), self._deliver)

    def _deliver(self) -> None:
        self._is_delivering = False
        if self._is_paused or self._is_closed or self._receiver is None:
            return
        if self._outbox:
            frames = [
                self._outbox.popleft() for _ in range(self._program.dice.upto(len(self._outbox)))
            ]
            self._receiver.on_frames(frames)
            self._deliver_soon()
        elif not self._is_output_open:
            self._receiver.on_eof()

    # What it does with a message

    def _act(self, message: dict[str, Any]) -> None:
        method, id = message.get("method"), message.get("id")
        if method is None:
            self._on_answer(message)
        elif method == "notifications/cancelled":
            self._cancel(message["params"]["requestId"])
        elif id is not None:
            self._on_request(id, method, message.get("params", {}))

    def _on_request(self, id: Any, method: str, params: dict[str, Any]) -> None:
        meta = params.get("_meta", {})
        is_modern = "io.modelcontextprotocol/protocolVersion" in meta
        era = MODERN if is_modern else LEGACY
        # The first message decides.
        if not self._era and era in self._plan.eras:
            self._era = era
        if era != self._era:
            code = -32022 if self._era == MODERN or method == "initialize" else -32601
            self._send({"id": id, "error": {"code": code, "message": "the other era"}})
            return
        if method == "tools/call":
            self._call(id, params, is_modern)
            return
        capabilities = {"tools": {}} | ({"logging": {}} if self._plan.logging else {})
        results: dict[str, dict[str, Any]] = {
            "initialize": {
                "protocolVersion": LEGACY,
                "capabilities": capabilities,
                "serverInfo": {"name": "program", "version": "1"},
            },
            "server/discover": {"supportedVersions": [MODERN], "capabilities": capabilities}
            | {"ttlMs": 0, "cacheScope": "public"},
            "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
            "ping": {},
            "logging/setLevel": {},
        }
        if method in results:
            result = results[method] | ({"resultType": "complete"} if is_modern else {})
            if is_modern and method == "tools/list":
                result |= {"ttlMs": 1000, "cacheScope": "public"}
            self._send({"id": id, "result": result})
        else:
            self._send({"id": id, "error": {"code": -32601, "message": "method not found"}})

    def _call(self, id: Any, params: dict[str, Any], is_modern: bool) -> None:
        program, n = self._program, params["arguments"]["n"]
        plan = self._plan.calls[n]
        number = 1 if "inputResponses" in params else 0
        program.begun[n, number] += 1
        if program.begun[n, number] > 1:
            program.wrong(f"call {n} was begun twice")
        program.by[n] = self
        if plan.asks and is_modern and not number:
            question = {"method": "elicitation/create", "params": ASKED}
            asked = {"resultType": "input_required", "inputRequests": {"q": question}}
            self._send({"id": id, "result": asked | {"requestState": f"state {n}"}})
        elif plan.asks and not is_modern:
            self._questions[n] = id, n
            self._send({"id": n, "method": "elicitation/create", "params": ASKED})
        else:
            self._work(id, n)

    def _on_answer(self, message: dict[str, Any]) -> None:
        asked = self._questions.pop(message["id"], None)
        if asked is None:
            self._program.wrong(f"an answer to no question: {message}")
        elif asked[0] is not None:
            # None if the call was cancelled meanwhile.
            self._work(*asked)

    def _cancel(self, id: Any) -> None:
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()
        for question, (asking, _) in list(self._questions.items()):
            if asking == id:
                self._questions[question] = None, 0

    def _work(self, id: Any, n: int) -> None:
        plan = self._plan.calls[n]
        self._timers[id] = self._loop.call_later(plan.work_s, self._finish, id, n)

    def _finish(self, id: Any, n: int) -> None:
        self._timers.pop(id, None)
        result: dict[str, Any] = {"content": [], "structuredContent": {"n": n, "at": self.number}}
        if self._era == MODERN:
            result["resultType"] = "complete"
        self._send({"id": id, "result": result})
