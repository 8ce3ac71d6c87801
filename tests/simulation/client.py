"""The client's process: it sends its script, reads, stalls, closes and dies, at moments of the
dice's choosing.

It acts on timers of its own, and now and then in the middle of a system call of the server's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

from simulation.dice import Dice
from simulation.kernel import Channel
from simulation.script import ClientLine, Script

__all__ = ["Client"]


class Client:
    """up: from it to the server; down: from the server to it. received: all that came."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dice: Dice,
        script: Script,
        up: Channel,
        down: Channel,
    ) -> None:
        self.received = bytearray()
        self.saw_end = False
        self.up = up
        self.down = down
        self.stalled_until = -inf
        self.done_saying_at: float | None = None
        self._loop = loop
        self._dice = dice
        self._script = script
        self._items: deque[tuple[float, ClientLine]] = deque(
            () if script.leaving.how == "by hand" else script.items
        )
        self._stalls = deque(script.stalls)
        self._unsent = bytearray()
        self._sent = 0
        self._say_at = 0.0
        self._answers_wanted = -1  # while it waits for answers: how many bytes had come
        self._timer: asyncio.TimerHandle | None = None
        self._acting = False
        up.wake = down.wake = self.wake

    def start(self, after_s: float) -> None:
        self._say_at = self._loop.time() + after_s
        self._next_gap()
        self.wake()

    def wake(self) -> None:
        """Something changed: act soon."""
        if not self._acting:
            self._act_at(self._loop.time() + self._script.pace_s * self._dice.fraction())

    def interrupt(self) -> None:
        """Act now: a system call of the server's lets other processes run."""
        if not self._acting and self._say_at <= self._loop.time():
            self.act()

    @property
    def stalled(self) -> bool:
        return self._loop.time() < self.stalled_until

    def act(self) -> None:
        self._acting = True
        self._say()
        self._send()
        self._read()
        self._leave()
        self._acting = False

    def _tick(self) -> None:
        self._timer = None
        self.act()
        now = self._loop.time()
        soon = now + self._script.pace_s * self._dice.fraction()
        if (self._unsent and self.up.room > 0 and self.up.writer_open) or (
            self.down.data and self._reads()
        ):
            self._act_at(soon)
        if self._items:
            self._act_at(max(soon, self._say_at))
        if self.stalled_until > now and self.down.reader_open:
            self._act_at(self.stalled_until)

    def _act_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        if when < inf:
            self._timer = self._loop.call_at(when, self._tick)

    def _next_gap(self) -> None:
        if not self._items:
            return
        gap_s = self._items[0][0]
        if gap_s < 0:
            gap_s = self._dice.pick((1.0, 0.001, 0.05))
        self._say_at = max(self._say_at, self._loop.time()) + gap_s

    def _say(self) -> None:
        now = self._loop.time()
        while self._items and self._say_at <= now:
            self._unsent += self._items.popleft()[1].line
            self._next_gap()

    def _send(self) -> None:
        if not self.up.writer_open:
            return
        if not self.up.reader_open:  # EPIPE: nobody reads it any more
            self._unsent.clear()
            self._items.clear()
            self.up.writer_open = False
            return
        size = min(len(self._unsent), self.up.room, self._script.chunk)
        leaving = self._script.leaving
        if leaving.how in ("cut", "kill"):
            size = min(size, leaving.at - self._sent)
        if size > 0:
            size = self._dice.upto(size)
            self.up.put(self._unsent[:size])
            del self._unsent[:size]
            self._sent += size

    def _reads(self) -> bool:
        return self.down.reader_open and not self.stalled

    def _read(self) -> None:
        down = self.down
        if not self._reads():
            return
        size = min(len(down.data), self._script.chunk)
        leaving = self._script.leaving
        if leaving.how == "deaf":
            size = min(size, leaving.at - len(self.received))
        if size > 0:
            self.received += down.take(self._dice.upto(size))
        if self._stalls and len(self.received) >= self._stalls[0][0]:
            self.stalled_until = self._loop.time() + self._stalls.popleft()[1]
        elif not down.data and not down.writer_open and not self.saw_end:
            self.saw_end = True
            down.reader_open = False
            self.up.writer_open = False

    def _leave(self) -> None:
        leaving = self._script.leaving
        said_all = not self._items and not self._unsent
        if leaving.how == "end" and said_all:
            if self.done_saying_at is None:
                self.done_saying_at = self._loop.time()
            if self._loop.time() >= self.done_saying_at + leaving.after_s:
                self.up.writer_open = False
            else:
                self._act_at(self.done_saying_at + leaving.after_s)
        elif leaving.how in ("cut", "kill") and self._sent >= leaving.at:
            self.up.writer_open = False
            if leaving.how == "kill":
                self.down.reader_open = False
        elif leaving.how == "deaf":
            if len(self.received) >= leaving.at:
                self.down.reader_open = False
            if said_all:
                self.up.writer_open = False
