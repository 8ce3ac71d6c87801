"""A backend whose handlers do what the plan of their call says, and tell the model when they begin,
end and are cancelled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from concertino.backend.interface import Call, Context, Notifier, ServerFeatures
from concertino.errors import RpcError
from concertino.types.results import CallToolResult, Implementation, TextContent
from simulation.script import Plan

__all__ = ["Handler", "Workshop"]


class Handler:
    """One call's handler, as the model sees it.

    waits: it is at an await that a cancel must interrupt.
    """

    __slots__ = ("cancels", "ended", "n", "order", "plan", "waits")

    def __init__(self, n: int, plan: Plan, order: int) -> None:
        self.n = n
        self.plan = plan
        self.order = order
        self.waits = False
        self.cancels = 0  # CancelledErrors that reached it
        self.ended = False


class Workshop:
    """start_s: how long start() takes; fails: and that it then raises."""

    def __init__(
        self, plans: dict[int, Plan], began: Callable[[Handler], None], elsewhere: Callable[[],
            Any], limit: int,
        start_s: float, fails: bool, failed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.handlers: dict[int, Handler] = {}
        self.started = self.closed = 0
        self.up = False  # start() returned or raised
        self.gates: dict[int, asyncio.Future[None]] = {}  # by call: what its step "gate" waits for
        self._plans = plans
        self._began = began
        self._elsewhere = elsewhere
        self._limit = limit
        self._start_s = start_s
        self._fails = fails
        self._failed = failed
        self._outlet: Notifier

    async def start(self, outlet: Notifier) -> None:
        self._outlet = outlet
        self.started += 1
        try:
            if self._start_s:
                await asyncio.sleep(self._start_s)
            if self._fails:
                self._failed()
                raise OSError("the workshop does not open")
        finally:
            self.up = True

    def features(self) -> ServerFeatures:
        return ServerFeatures(Implementation("workshop", "1"), tools=True, logging=True)

    async def close(self) -> None:
        self.closed += 1

    def gate(self, n: int) -> asyncio.Future[None]:
        if n not in self.gates:
            self.gates[n] = asyncio.get_running_loop().create_future()
        return self.gates[n]

    def open_gate(self, n: int) -> None:
        """Let call n end; now or whenever it comes there."""
        if not self.gate(n).done():
            self.gate(n).set_result(None)

    async def handle(self, call: Call, context: Context) -> Any:
        n = json.loads(bytes(call.params["n"]))
        plan = self._plans[n]
        handler = self.handlers[n] = Handler(n, plan, len(self.handlers))
        self._began(handler)
        try:
            try:
                for step in plan.steps:
                    await self._step(handler, step, context)
            except asyncio.CancelledError:
                if plan.when_cancelled == "leave":
                    raise
                if plan.linger_s:
                    await asyncio.sleep(
                        plan.linger_s
                    )  # a second cancel, at the end of the connection, ends it
                context.progress(10**6)  # nobody may hear this
                context.log("error", f"late {n}")
                if plan.when_cancelled == "linger":
                    raise
                return Raw(b'{"content":[]}')
            return self._end(handler, plan.end, call.method == "tools/list")
        finally:
            handler.ended = True

    async def _step(self, handler: Handler, step: tuple[Any, ...], context: Context) -> None:
        kind = step[0]
        if kind == "wait":
            await self._wait(handler, asyncio.sleep(step[1]))
        elif kind == "yield":
            await self._wait(handler, asyncio.sleep(0))
        elif kind == "gate":
            await self._wait(handler, self.gate(handler.n))
        elif kind == "forever":
            await self._wait(handler, asyncio.get_running_loop().create_future())
        elif kind.endswith("progress"):
            for number in range(step[2]):
                if kind[0] == "p" and kind != "progress":
                    with self._elsewhere():
                        context.progress(
                            step[1] + number, 100, "w" * (step[3] if len(step) > 3 else 9)
                        )
                else:
                    telling = context.progress(
                        step[1] + number, 100, "w" * step[3] if len(step) > 3 else None
                    )
                    if kind == "awaited progress":
                        await self._wait(handler, telling)
        elif kind.endswith("log"):
            for _ in range(step[3]):
                if kind == "posted log":
                    with self._elsewhere():
                        context.log(step[1], "l" * step[2])
                else:
                    telling = context.log(step[1], "l" * step[2], "workshop")
                    if kind == "awaited log":
                        await self._wait(handler, telling)
        elif kind == "changed":
            self._outlet.report_change("tools")
        elif kind == "posted changed":
            with self._elsewhere():
                self._outlet.report_change("tools")
        else:
            raise AssertionError(f"no such step: {kind}")

    async def _wait(self, handler: Handler, awaitable: Any) -> None:
        handler.waits = True
        try:
            await awaitable
        except asyncio.CancelledError:
            handler.cancels += 1
            raise
        finally:
            handler.waits = False

    def _end(self, handler: Handler, end: tuple[Any, ...], listing: bool) -> Any:
        kind = end[0]
        if listing and kind in ("return", "struct", "lines"):
            return Raw(
                b'{"tools":[],"nextCursor":"n=%d;%b"}'
                % (handler.n, b"r" * (end[1] if len(end) > 1 else 0))
            )
        if kind == "return":
            return Raw(
                b'{"content":[{"type":"text","text":"n=%d;%b"}]}' % (handler.n, b"r" * end[1])
            )
        if kind == "struct":
            return CallToolResult([TextContent(f"n={handler.n};" + "s" * end[1])])
        if kind == "lines":
            return Raw(b'{\n "content": [\n {"type": "text",\n "text": "n=%d;"}\n]}' % handler.n)
        if kind == "too much":
            return Raw(b'{"content":[{"type":"text","text":"%b"}]}' % (b"m" * self._limit))
        if kind == "odd":
            return object()
        if kind == "raise":
            raise end[1]("as planned")
        if kind == "rpc":
            raise RpcError(
                end[1], f"n={handler.n};", object() if end[1] == "odd" else "d" * end[-1]
            )
        if kind == "cancelled":
            raise asyncio.CancelledError
        if kind == "cancel me":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if listing:
                return Raw(b'{"tools":[],"nextCursor":"n=%d;"}' % handler.n)
            return Raw(b'{"content":[{"type":"text","text":"n=%d;"}]}' % handler.n)
        raise AssertionError(f"no such end: {kind}")
