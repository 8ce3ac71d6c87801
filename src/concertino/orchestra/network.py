"""The thread that QUIC runs in, with an event loop of its own, beside that of the protocol; and the way between the two.

QUIC is Python here: a message of 10 MB takes a second of work. On the protocol's loop a ping would wait for it; beside another
thread it waits only for the interpreter's switch interval, 5 ms.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Across", "network", "run_there"]

log = logging.getLogger("concertino.orchestra")

T = TypeVar("T")

_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None  # of which process


def network() -> asyncio.AbstractEventLoop:
    """The loop that QUIC runs on, in a thread that is started with the first call and lives as long as the process."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():  # a forked child has the variable, and not the thread
            loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="quic", daemon=True).start()
            _running = os.getpid(), loop
        return _running[1]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def run_there(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the network's loop, and wait for it on this one. Cancelling this cancels it there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, network()))


class Across:
    """From one loop's thread into another loop: functions are called there in order, any number with one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._told = False

    def __call__(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function over there, soon. Nothing happens once that loop is closed."""
        self._steps.append((function, arguments))
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # closed
                self._steps.clear()

    def _run(self) -> None:
        self._told = False  # first: what is added from now on tells again
        steps = self._steps
        for _ in range(len(steps)):
            function, arguments = steps.popleft()
            try:
                function(*arguments)
            except Exception:
                log.exception("%s failed", getattr(function, "__qualname__", function))
        if steps and not self._told:
            self._told = True
            self._loop.call_soon(self._run)
