"""The thread that QUIC runs in, with an event loop of its own, beside that of the protocol; the way between the two; its sockets.

QUIC is Python here: a message of 10 MB takes a second of work. On the protocol's loop a ping would wait for it; beside another
thread it waits only for the interpreter's switch interval, 5 ms.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["Across", "enlarge", "network", "resolved", "run_there"]

log = logging.getLogger("concertino.orchestra")

T = TypeVar("T")
SOCKET_BYTES = 4 * 2**20  # of a socket's buffers; the system may give less

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


async def resolved(host: str, port: int, flags: int = 0) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """The UDP address that a name stands for: the first of IPv4, else the first. flags: of getaddrinfo. Raises OSError.

    As Go chooses, who must be found, and find us, at `localhost`. Source: Go's net.ResolveUDPAddr.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


def enlarge(transport: asyncio.DatagramTransport) -> None:
    """Give a UDP socket room for what comes while Python is at work."""
    sock = transport.get_extra_info("socket")
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
