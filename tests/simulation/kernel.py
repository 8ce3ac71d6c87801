"""The operating system under transports/pipe.py: what it calls as `os` and `select`, over
descriptors that are not real.

Linux semantics: a write end whose readers are gone is ready for everything and EPIPE; a read end
without writers gives what is left, then b"". Reads and writes may fall short, be interrupted, and
find nothing although they were announced.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from simulation.dice import Dice

__all__ = ["Channel", "Kernel"]

READABLE, WRITABLE = 1, 2


class Channel:
    """Bytes on their way in one direction.

    passed: how many were ever put in; wake: tells the client that something changed.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.passed = 0
        self.writer_open = True
        self.reader_open = True
        self.wake: Callable[[], None] = lambda: None

    @property
    def room(self) -> int:
        return self.capacity - len(self.data)

    def put(self, data: bytes | memoryview) -> None:
        self.data += data
        self.passed += len(data)

    def take(self, size: int) -> bytes:
        taken = bytes(self.data[:size])
        del self.data[:size]
        return taken


class Descriptor:
    """One number. way: the channel behind it; reads: the end it is of."""

    __slots__ = ("blocking", "mode", "node", "other", "reads", "way")

    def __init__(
        self, way: Channel, reads: bool, mode: int, node: int, other: Channel | None
    ) -> None:
        self.way = way
        self.reads = reads
        self.mode = mode
        self.node = node
        self.other = other  # a socket's other direction
        self.blocking = True


class Kernel:
    """Stands in the place of the module `os` in transports/pipe.py.

    faults: (call, n) -> what the n-th call of that name does instead: an OSError is raised; for
    `read`, b"" is returned; for `write`, an int is the most bytes taken. before: called before each
    read, write and close: the client may act meanwhile.
    """

    O_RDONLY, O_WRONLY, O_NONBLOCK, O_CLOEXEC, O_NOCTTY = (
        os.O_RDONLY, os.O_WRONLY, os.O_NONBLOCK, os.O_CLOEXEC, os.O_NOCTTY,
    )  # fmt: skip
    path = os.path

    def __init__(self, dice: Dice, wrong: Callable[[str], None]) -> None:
        self.open_now: dict[int, Descriptor] = {}
        self.counts: Counter[str] = Counter()
        self.faults: dict[tuple[str, int], Any] = {}
        self.before: Callable[[], None] = lambda: None
        self.reading: Callable[[Channel], None] = lambda channel: None
        self.watched: Callable[[int], bool] = lambda descriptor: False
        self.select = SimpleNamespace(
            poll=lambda: _Poll(self)
        )  # the module `select` of transports/pipe.py
        self.unreliable = 0.0  # probability of EINTR, and of EAGAIN where there was something
        self.reopens = True  # /proc is there
        self.failed_writes: set[int] = (
            set()
        )  # channels by id, whose writing end was told of an error
        self._dice = dice
        self._wrong = wrong
        self._next = 100

    def descriptor(
        self, way: Channel, reads: bool, kind: str, node: int, other: Channel | None = None
    ) -> int:
        """A new descriptor, as a process inherits it. kind: fifo or socket."""
        mode = (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK) | 0o600
        return self._number(Descriptor(way, reads, mode, node, other))

    def ready(self, descriptor: int) -> int:
        each = self.open_now[descriptor]
        way = each.way
        if each.reads:
            return READABLE if way.data or not way.writer_open else 0
        events = WRITABLE if way.room > 0 else 0
        if not way.reader_open:
            return READABLE | WRITABLE
        if each.other is not None and (each.other.data or not each.other.writer_open):
            events |= READABLE
        return events

    # The module os

    def fstat(self, descriptor: int) -> Any:
        self._fault("fstat")
        each = self._get(descriptor)
        return SimpleNamespace(st_mode=each.mode, st_ino=each.node, st_dev=1)

    def isatty(self, descriptor: int) -> bool:
        return False

    def open(self, path: str, flags: int) -> int:
        self._fault("open")
        if not self.reopens:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        each = self._get(int(path.rpartition("/")[2]))
        fresh = Descriptor(each.way, each.reads, each.mode, each.node, each.other)
        fresh.blocking = not flags & os.O_NONBLOCK
        return self._number(fresh)

    def get_blocking(self, descriptor: int) -> bool:
        return self._get(descriptor).blocking

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        self._fault("set_blocking")
        self._get(descriptor).blocking = blocking

    def read(self, descriptor: int, size: int) -> bytes:
        self.before()
        each = self._get(descriptor)
        way = each.way
        self.reading(way)
        fault = self._fault("read")
        if fault is not None:
            way.writer_open = False  # what failed once stays over
            way.data.clear()
            return fault
        if self.unreliable and self._dice.chance(self.unreliable):
            raise self._dice.pick((InterruptedError(), BlockingIOError()))
        if not way.data:
            if way.writer_open:
                self._block(each)
            return b""
        taken = way.take(self._dice.upto(min(size, len(way.data))))
        way.wake()
        return taken

    def write(self, descriptor: int, data: memoryview) -> int:
        self.before()
        each = self._get(descriptor)
        way = each.way
        most = len(data)
        fault = self._fault("write", id(way))
        if fault is not None:
            most = min(most, fault)
        if not way.reader_open:
            self.failed_writes.add(id(way))
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if self.unreliable and self._dice.chance(self.unreliable):
            raise self._dice.pick((InterruptedError(), BlockingIOError()))
        if way.room <= 0:
            self._block(each)
        size = self._dice.upto(min(most, way.room))
        way.put(data[:size])
        way.wake()
        return size

    def writev(self, descriptor: int, parts: Sequence[bytes]) -> int:
        return self.write(descriptor, memoryview(b"".join(parts)))

    def close(self, descriptor: int) -> None:
        self.before()
        each = self._get(descriptor)
        if self.watched(descriptor):
            self._wrong(f"descriptor {descriptor} was closed while the loop watched it")
        del self.open_now[descriptor]
        if not any(
            one.way is each.way and one.reads is each.reads for one in self.open_now.values()
        ):
            if each.reads:
                each.way.reader_open = False
            else:
                each.way.writer_open = False
            each.way.wake()
        self._fault("close")

    def _get(self, descriptor: int) -> Descriptor:
        each = self.open_now.get(descriptor)
        if each is None:
            self._wrong(f"descriptor {descriptor} was used after it was closed")
            raise OSError(errno.EBADF, "Bad file descriptor")
        return each

    def _block(self, each: Descriptor) -> None:
        if each.blocking:
            self._wrong("a blocking descriptor made the loop wait")
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def _number(self, each: Descriptor) -> int:
        self._next += 1
        self.open_now[self._next] = each
        return self._next

    def _fault(self, call: str, channel: int | None = None) -> Any:
        self.counts[call] += 1
        fault = self.faults.get((call, self.counts[call]))
        if isinstance(fault, BaseException):
            if channel is not None and not isinstance(fault, (BlockingIOError, InterruptedError)):
                self.failed_writes.add(channel)
            raise fault
        return fault

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the simulated kernel has no os.{name}: teach it in tests/simulation/kernel.py"
        )


class _Poll:
    """select.poll, for the question whether the other side of a socket is gone."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._asked: list[int] = []

    def register(self, descriptor: int, events: int) -> None:
        self._asked.append(descriptor)

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        return [
            (each, select.POLLHUP)
            for each in self._asked
            if not self._kernel.open_now[each].way.reader_open
        ]
