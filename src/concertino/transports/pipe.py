"""A Connection over two descriptors, of whatever kind: pipe, socket, terminal, regular file, /dev/null.

Descriptors are read and written with os.read and os.write, not through asyncio's transports: those read 256 KiB at a time, which
costs 12-15 us per message (measured). Nothing here may assume pipe semantics: Node gives its child a Unix
socket as stdin. Regular files and /dev/null cannot be polled; a thread reads those, and writing them does not block for long.

A pipe's end is opened anew through /proc, so that O_NONBLOCK is ours alone: on the inherited one it would also change the parent's
terminal, or a sibling. Where that cannot be done the flag is set on what was given, and taken back at the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import threading
from collections.abc import Callable, Mapping

from concertino.jsonrpc.framing import Framer, OversizeFrame
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver

__all__ = ["PipeConnection"]

log = logging.getLogger("concertino.pipe")

READ_BYTES = (
    65536  # above 128 KiB CPython maps and unmaps the buffer at each read: 9.6 us instead of 0.55
)
READS = range(8)  # in a row before other callbacks get their turn; 9.4 -> 7.2 us per call
WRITES = 16


class PipeConnection:
    """Reads frames from one descriptor and writes them to another, or to the same; owned from now on and closed at the end."""

    outside_tasks = True  # frames are delivered by the loop itself, never inside of a task

    def __init__(
        self, reading: int, writing: int, limits: Limits, facts: Mapping[str, object] | None = None
    ) -> None:
        self.facts: Mapping[str, object] = facts or {}
        self._restore: list[int] = []  # descriptors whose O_NONBLOCK we set
        ways = os.fstat(reading), os.fstat(writing)
        self._fifo = stat.S_ISFIFO(ways[1].st_mode)
        # Whether somebody is there to read can be asked of a pipe, and of a socket that is not the one we read from too.
        self._one_way = self._fifo or (
            stat.S_ISSOCK(ways[1].st_mode) and not os.path.samestat(*ways)
        )
        self._in = self._own(reading, os.O_RDONLY)
        self._out = self._own(writing, os.O_WRONLY)
        self._high_water_bytes = limits.high_water_bytes
        self._low = min(
            limits.low_water_bytes, limits.high_water_bytes - 1
        )  # each can be set alone
        self._framer = Framer(limits.max_message_bytes)
        self.overlong_head = b""  # the first bytes of the last line that passed the limit
        self._to: Receiver | None = None
        self._queue: list[bytes] = []
        self._held = 0
        self._rest = memoryview(b"")  # of the last flush, not yet taken by the other side
        self._high = False  # held output passed the high-water mark and has not drained since
        self._watching = False  # for writability
        self._paused = False
        self._read = False  # something, since somebody set this back
        self._over = False  # no more input, or closed
        self._broken = False
        self._released = False
        self._thread: _FileReader | None = None
        self._emptied: asyncio.Future[None] | None = None

    def open(self, to: Receiver) -> None:
        self._to = to
        self._loop = asyncio.get_running_loop()
        self._resume()
        # When the reader is gone a pipe reports an error, and a socket its end. A reading watch on ours sees it, nothing else does.
        if self._one_way and isinstance(self._loop, asyncio.SelectorEventLoop):
            self._loop.add_reader(self._out, self._reader_gone)

    # Reading

    def pause(self, paused: bool) -> None:
        if paused is self._paused or self._to is None:
            return
        self._paused = paused
        if self._over:
            return
        if self._thread is not None:
            self._thread.pause(paused)
        elif paused:
            self._loop.remove_reader(self._in)
        else:
            self._resume()

    @property
    def is_discarding(self) -> bool:
        """Whether a line passed the limit and has not ended since."""
        return self._framer.is_discarding

    def _resume(self) -> None:
        try:
            self._loop.add_reader(self._in, self._readable)
        except PermissionError:  # epoll's word for regular files and /dev/null
            self._thread = _FileReader(self._in, self._loop, self._chunk)

    def _readable(self) -> None:
        for _ in READS:
            try:
                chunk = os.read(self._in, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # EIO: the terminal is gone; ECONNRESET: so is the socket's other end
                chunk = b""
            self._chunk(chunk)
            if self._paused or self._over:
                return

    def _chunk(self, chunk: bytes) -> None:
        """Bytes came; none: the end."""
        to = self._to
        if to is None or self._over:
            return None
        self._read = True
        try:
            line = self._framer.line(chunk)
            frames = (
                []
                if line is not None
                else self._framer.feed(chunk)
                if chunk
                else self._framer.end()
            )
        except MemoryError:  # what came is gone with it, but answers can still leave
            log.exception("no memory for what came; nothing more is read")
            self._stop_reading()
            return to.on_eof()
        if line is not None:
            to.on_frames((line,))
        elif OversizeFrame not in map(type, frames):
            if frames:
                to.on_frames(frames)  # pyright: ignore[reportArgumentType]  # no Overlong is among them
        else:
            for frame in frames:
                if isinstance(frame, OversizeFrame):
                    self.overlong_head = frame.head
                    to.on_frame_too_long(frame.size)
                else:
                    to.on_frames((frame,))
        if not chunk:
            self._stop_reading()
            to.on_eof()
        return None

    def _stop_reading(self) -> None:
        if self._over or self._to is None:
            return
        self._over = True
        if self._thread is not None:
            self._thread.stop()
        elif not self._paused:
            self._loop.remove_reader(self._in)

    # Writing

    def write(self, frame: bytes, about: Id | None) -> int:
        if self._broken:
            return 0
        self._queue.append(frame)
        self._held = held = self._held + len(frame) + 1
        if held < self._high_water_bytes:
            return held
        self._high = True
        self.flush()
        return self._held

    def send(self, frame: bytes, about: Id | None) -> int:
        """write() and flush() in one step. Returns the bytes held after that."""
        if self._held or self._broken:
            self.write(frame, about)
            self.flush()
            return self._held
        line = frame + b"\n"
        try:
            written = os.write(self._out, line)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as why:
            self._break(why)
            return 0
        return self._keep(line, written) if written < len(line) else 0

    def _keep(self, line: bytes, written: int) -> int:
        """What was not taken of a line that send() wrote."""
        self._held = held = len(line) - written
        self._high = held >= self._high_water_bytes
        self._rest = memoryview(line)[written:]
        self._push()
        return self._held

    def flush(self) -> None:
        """Hand the queue to the system in one write; what it does not take goes when it can."""
        queue = self._queue
        if not queue or self._rest or self._broken:
            return
        if len(queue) == 1:
            frames = queue.pop() + b"\n"
        else:
            queue.append(b"")  # for the last newline
            frames = b"\n".join(queue)
            queue.clear()
        try:
            written = os.write(self._out, frames)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as why:
            self._break(why)
            return
        self._held -= written
        if self._high or written < len(frames):
            self._rest = memoryview(frames)[written:]
            self._push()

    def _push(self) -> None:
        """What the other side did not take at once, and what was queued since."""
        try:
            for _ in range(WRITES):
                if self._rest:
                    written = os.write(self._out, self._rest)
                    self._rest = self._rest[written:]
                    self._held -= written
                if (
                    not self._rest
                ):  # after the last write too: what is queued must not be left without a watch
                    if not self._queue:
                        break
                    self._queue.append(b"")
                    self._rest = memoryview(b"\n".join(self._queue))
                    self._queue.clear()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as why:
            return self._break(why)
        self._watch_writing(bool(self._rest))
        if not self._rest and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
        if self._high and self._held < self._low and self._to is not None:
            self._high = False
            # Not at once: this may run inside a write of the one who is told.
            self._loop.call_soon(self._tell_drained)
        return None

    def _tell_drained(self) -> None:
        if self._to is not None and not self._broken:
            self._to.on_drain(self._held)

    def _watch_writing(self, wanted: bool) -> None:
        if wanted is self._watching:
            return
        self._watching = wanted
        if not wanted:
            self._loop.remove_writer(self._out)
            return
        try:
            self._loop.add_writer(self._out, self._push)
        except OSError:  # cannot be polled: try again in a while
            self._watching = False
            self._loop.call_later(0.01, self._push)

    def _reader_gone(self) -> None:
        self._loop.remove_reader(self._out)
        if not self._fifo:  # a socket: its other side may only have promised to write nothing
            self._one_way = False
            poll = select.poll()
            poll.register(self._out, 0)
            if not poll.poll(0):  # neither POLLHUP nor POLLERR
                return
        self._break(BrokenPipeError("the other side closed the pipe that answers go to"))

    def _break(self, why: OSError) -> None:
        if self._broken:
            return
        self._broken = True
        self._queue.clear()
        self._rest = memoryview(b"")
        self._held = 0
        self._watch_writing(False)
        self._stop_reading()
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
        if self._to is not None:
            self._loop.call_soon(self._to.on_disconnect, why)

    # The end

    async def close(self, within_s: float) -> None:
        if self._to is None:
            self._release()  # if it was never opened
            return
        self.flush()
        if self._rest and not self._broken:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=within_s)
        self._stop_reading()
        self._watch_writing(False)
        if self._one_way and isinstance(self._loop, asyncio.SelectorEventLoop):
            self._loop.remove_reader(self._out)
        self._release()

    def disown(self) -> None:
        """In a forked child: it must not be able to write frames, nor keep the other side waiting when this process is gone."""
        self._restore.clear()  # the flag belongs to the parent as well
        self._thread = None  # it was not forked
        self._release()

    def _release(self) -> None:
        if self._released:
            return
        self._released = self._broken = True
        self._to = None
        for descriptor in self._restore:
            try:
                os.set_blocking(descriptor, True)
            except OSError:
                pass
        # A thread may still be reading a regular file; its descriptor is left to it.
        for descriptor in {self._out} if self._thread is not None else {self._out, self._in}:
            try:
                os.close(descriptor)
            except OSError:  # it is closed nevertheless (Linux close(2)), and so must the other be
                pass

    def _own(self, descriptor: int, mode: int) -> int:
        """A non-blocking descriptor for the same thing; the given one is closed if another could be had."""
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind):
            return descriptor
        if stat.S_ISFIFO(kind) or os.isatty(descriptor):
            try:
                fresh = os.open(
                    f"/proc/self/fd/{descriptor}", mode | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                )
            except OSError:  # no /proc, another user's pipe, or nobody at its other end
                pass
            else:
                os.close(descriptor)
                return fresh
        if os.get_blocking(descriptor):
            os.set_blocking(descriptor, False)
            self._restore.append(descriptor)
        return descriptor


class _FileReader:
    """Reads what cannot be polled in a daemon thread, a chunk at a time; each is taken before the next is read."""

    def __init__(
        self, descriptor: int, loop: asyncio.AbstractEventLoop, take: Callable[[bytes], None]
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._take = take
        self._turn = threading.Semaphore(1)
        self._stopped = False
        self._paused = False
        self._owed = False
        threading.Thread(target=self._run, name="concertino-reader", daemon=True).start()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if self._owed and not paused:
            self._owed = False
            self._turn.release()

    def stop(self) -> None:
        self._stopped = True
        self._turn.release()

    def _run(self) -> None:
        chunk = b" "
        while chunk:
            self._turn.acquire()
            if self._stopped:
                return
            try:
                chunk = os.read(self._descriptor, READ_BYTES)
            except OSError:
                chunk = b""
            try:
                self._loop.call_soon_threadsafe(self._taken, chunk)
            except RuntimeError:  # the loop is closed
                return

    def _taken(self, chunk: bytes) -> None:
        self._take(chunk)
        if self._paused:
            self._owed = True
        else:
            self._turn.release()
