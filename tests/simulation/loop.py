"""An asyncio loop with a virtual clock, over a selector that asks the simulated kernel.

What asyncio promises is kept: callbacks run in the order in which they were scheduled, timers not
before their time and in its order. What it does not promise is up to the dice: in which order
descriptors are found ready, whether one that becomes ready beside a timer is found before or after
it, the order of timers with one due time, and how late a timer is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from selectors import SelectorKey
from typing import Any

from concertino.runtime import tasks
from concertino.runtime.tasks import LoopWatch
from simulation.dice import Dice

__all__ = ["OVERSHOOT_S", "Poller", "Stuck", "VirtualLoop", "dispose"]

OVERSHOOT_S = 0.02  # how late a timer may be
TIE_S = 1e-7  # timers this near to each other have no order


class Stuck(Exception):
    """Nothing is ready, no timer runs, and the run is not over: it would hang."""


class Poller:
    """In the place of a selector. ready: the events (EVENT_READ 1, EVENT_WRITE 2) that a descriptor
    has now.

    turn: called at each turn of the loop; true: it made something ready. rest: called when nothing
    is ready, before the clock jumps. registering: called with each descriptor that is to be
    watched.
    """

    def __init__(self, ready: Callable[[int], int], dice: Dice) -> None:
        self.watched: dict[int, SelectorKey] = {}
        self.now = 0.0
        self.turns = 0
        self.turn: Callable[[], object] = lambda: None
        self.rest: Callable[[], None] = lambda: None
        self.registering: Callable[[int], None] = lambda descriptor: None
        self._ready = ready
        self._dice = dice

    # As asyncio's SelectorEventLoop uses it

    def get_key(self, descriptor: int) -> SelectorKey:
        return self.watched[descriptor]

    def get_map(self) -> dict[int, SelectorKey]:
        return self.watched

    def register(self, descriptor: int, events: int, data: Any = None) -> SelectorKey:
        self.registering(descriptor)
        if descriptor in self.watched:
            raise KeyError(descriptor)
        return self._set(descriptor, events, data)

    def modify(self, descriptor: int, events: int, data: Any = None) -> SelectorKey:
        self.registering(descriptor)
        if descriptor not in self.watched:
            raise KeyError(descriptor)
        return self._set(descriptor, events, data)

    def unregister(self, descriptor: int) -> SelectorKey:
        return self.watched.pop(descriptor)

    def close(self) -> None:
        pass

    def _set(self, descriptor: int, events: int, data: Any) -> SelectorKey:
        key = self.watched[descriptor] = SelectorKey(descriptor, descriptor, events, data)
        return key

    def select(self, timeout: float | None) -> list[tuple[SelectorKey, int]]:
        """timeout: seconds until the next timer; 0: callbacks are ready; None: there is neither."""
        self.turns += 1
        if self.turn():
            return []
        found = [
            (key, events)
            for key in self.watched.values()
            if (events := self._ready(key.fd) & key.events)
        ]
        if found:
            self._dice.shuffle(found)
            if self._dice.chance(0.3):
                self.now += self._dice.pick((1e-6, 1e-4, 2e-3))  # what runs takes time
            if (timeout == 0 or (timeout is not None and timeout < 1e-3)) and self._dice.chance(
                0.2
            ):
                del found[
                    self._dice.below(len(found)) :
                ]  # they become ready a moment too late for this turn
            if found or timeout == 0:
                return found
        elif timeout != 0:
            self.rest()
        if timeout == 0:
            return []
        if timeout is None:
            raise Stuck("nothing is ready and no timer runs")
        self.now += timeout
        if self._dice.chance(0.2):
            self.now += OVERSHOOT_S * self._dice.fraction()
        return []


class _Unwatched(LoopWatch):
    def begin(self, has_calls: Callable[[], bool]) -> None:
        pass

    async def end(self, has_calls: Callable[[], bool]) -> None:
        pass


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; made for one run, in one thread, without any descriptor of the system."""

    def __init__(self, poller: Poller, dice: Dice) -> None:
        self._poller = poller
        self._dice = dice
        super().__init__(poller)  # pyright: ignore[reportArgumentType]  # the part of a selector that the loop uses
        self._clock_resolution = 1e-9
        # The watcher of calls that hold a loop would be a thread, which goes by the real clock.
        tasks._watches[self] = _Unwatched()

    def time(self) -> float:
        return self._poller.now

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(
            when + TIE_S * self._dice.fraction(), callback, *args, context=context
        )

    # No descriptor to wake the loop by: nobody else could.

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _check_closed(self) -> None:
        """Nothing: what a failed run leaves behind may be thrown away in any order."""


def dispose(loop: asyncio.AbstractEventLoop, poller: Poller) -> None:
    """Close a loop, and leave nothing behind, however the run ended."""
    loop.set_exception_handler(lambda _, what: None)
    poller.turns = 0
    for _ in range(3):
        tasks = asyncio.all_tasks(loop)
        # Tasks of many runs before are still among all that asyncio knows: ask no more often than
        # needed.
        if not tasks:
            break
        for task in tasks:
            task.cancel()
            task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
        try:
            loop.run_until_complete(asyncio.wait(tasks, timeout=60))
        except Stuck:
            pass
    loop.close()
