"""A server that ends by itself is started again: after pauses that grow, and not for ever.

What was under way is never repeated: nobody but its caller knows whether it may be. What is asked while the server is down waits
for it, as long as its own time limit lets it.
Spec: 2026-07-28 basic/transports/stdio "Unexpected exit"; 2025-11-25 basic/utilities/ping for what hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import uniform
from typing import Literal

from msgspec import Struct

from concertino.errors import ConcertinoError, Disconnected, TimedOut

__all__ = ["Restart", "State", "Supervisor"]

State = Literal["new", "running", "backing-off", "starting", "failed", "closed"]


class Restart(Struct, frozen=True):
    """When a server that ended is started again, in seconds.

    first_s: the pause before it; after each further end twice as long, up to longest_s. Each is shortened at random by up to a
    quarter, so that many servers do not start together. tries: starts in a row, after which it is given up. steady_s: a server that
    stayed for so long begins anew with both.
    """

    first_s: float = 0.5
    longest_s: float = 60.0
    tries: int = 10
    steady_s: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:  # not a number is neither
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)!r}")


class Supervisor:
    """Of one client. bring_down: what is left of a server; bring_up: a new one; prepare: what it was told to remember.

    failure: what ended the server last. restarts: how often it was started again.
    """

    def __init__(
        self,
        rules: Restart,
        bring_down: Callable[[], Awaitable[None]],
        bring_up: Callable[[], Awaitable[None]],
        prepare: Callable[[], Awaitable[None]],
        log: logging.Logger,
    ) -> None:
        self.state: State = "running"
        self.failure: ConcertinoError | None = None
        self.restarts = 0
        self._rules = rules
        self._bring_down = bring_down
        self._bring_up = bring_up
        self._prepare = prepare
        self._log = log
        self._ended = asyncio.Event()
        self._settled = asyncio.Event()  # it runs, or never will again
        self._settled.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="supervise a server")

    def ended(self, why: ConcertinoError) -> None:
        """The server ended by itself."""
        self.failure = why
        self.state = "backing-off"
        self._settled.clear()
        self._ended.set()

    async def until_it_runs(self, what: str, within_s: float) -> None:
        """Wait for the next start. Raises TimedOut; Disconnected when there will be none, and to the one who is to start it."""
        if asyncio.current_task() is self._task:
            raise Disconnected(f"{what}: the server ended again while it was set up")
        try:
            async with asyncio.timeout(None if within_s == float("inf") else within_s):
                await self._settled.wait()
        except TimeoutError:
            text = f"{what}: not sent, for the server ({self.state}) did not come back within {within_s:.3g} s"
            raise TimedOut(f"{text}; {self.failure}") from None
        if self.state == "closed":
            raise Disconnected(f"{what}: this client was closed")
        if self.state == "failed":
            raise self._given_up(what)

    async def close(self) -> None:
        """No more starts. Whoever waits for one is told."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.state = "closed"
        self._settled.set()

    async def _run(self) -> None:
        time = asyncio.get_running_loop().time
        rules = self._rules
        tried, pause = 0, rules.first_s
        up_since = time()
        while True:
            await self._ended.wait()
            if time() - up_since >= rules.steady_s:
                tried, pause = 0, rules.first_s
            up = False
            while not up:
                self._ended.clear()
                if tried >= rules.tries:
                    self.state = "failed"
                    self._settled.set()
                    self._log.error("%s", self._given_up("the server"))
                    await self._bring_down()
                    return
                tried += 1
                self.state = "backing-off"
                await self._bring_down()  # first of all: it may hold what the next one needs
                wait = uniform(0.75, 1) * pause
                pause = min(rules.longest_s, 2 * pause)
                self._log.warning(
                    "the server ended; start %d follows in %.3g s: %s", tried, wait, self.failure
                )
                await asyncio.sleep(wait)
                self.state = "starting"
                up = await self._is_brought_up()
            self.restarts += 1
            up_since = time()
            if not self._ended.is_set():
                self.state = "running"
                self._settled.set()
                await self._prepare()

    async def _is_brought_up(self) -> bool:
        try:
            await self._bring_up()
        except ConcertinoError as why:
            self.failure = why
            return False
        except (
            Exception
        ) as why:  # no fault of the server's: but whoever waits must not wait for ever
            self._log.exception("the server could not be started again")
            self.failure = Disconnected(f"{type(why).__name__}: {why}")
            return False
        return True

    def _given_up(self, what: str) -> Disconnected:
        text = f"{what}: the server was started {self._rules.tries} times in a row and did not stay; it is given up"
        cause = self.failure
        if isinstance(cause, Disconnected):
            return Disconnected(f"{text}; {cause}", cause.exit_status, cause.stderr)
        return Disconnected(f"{text}; {cause}")
