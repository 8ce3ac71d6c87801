"""A Connection over two file descriptors of any kind: pipe, socket, terminal or regular file.

Descriptors are read and written with os.read and os.write instead of asyncio's transports, which
read 256 KiB at a time and cost 12-15 us per message (measured). Nothing here may assume pipe
semantics: Node gives its children a Unix socket as stdin. Regular files and /dev/null cannot be
polled, so a thread reads them; writing to them does not block for long.

A pipe is reopened through /proc, so that O_NONBLOCK is set on an open file description of our own:
on the inherited one the flag would also affect the parent's terminal or a sibling process. Where
reopening fails, the flag is set on the given descriptor and reset at the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from concertino.jsonrpc.framing import Framer, OversizeFrame
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id

if TYPE_CHECKING:
    from concertino.transports.connection import Receiver

__all__ = ["READS", "READ_BYTES", "PipeConnection"]

log = logging.getLogger("concertino.pipe")

# Above 128 KiB CPython maps and unmaps the buffer at each read, which takes 9.6 us instead of 0.55.
READ_BYTES = 65536
# Reads in a row before other callbacks of the loop run; takes a call from 9.4 to 7.2 us.
READS = range(8)
# Writes in a row before other callbacks of the loop run.
WRITES = 16
# Bytes of one write at most, and of the frames that are joined for it. Other callbacks wait
# meanwhile, and the joined bytes need memory besides the frames.
WRITE_BYTES = 2**20
# While much output is buffered, the receiver hears of it each time that as many bytes have left.
REPORT_BYTES = 2**18


class _Input:
    """State of the reading side. over: no more input is read, at its end or after close().

    has_read: set at every read; StdioConnection resets it to detect silence.
    """

    __slots__ = ("framer", "has_read", "over", "oversize_head", "paused", "thread")

    def __init__(self, limits: Limits) -> None:
        self.framer = Framer(limits.max_message_bytes)
        self.oversize_head = b""
        self.paused = False
        self.has_read = False
        self.over = False
        self.thread: _FileReader | None = None


class _Output:
    """The output buffer. held: all bytes in it; rest: the unwritten end of the last write.

    reported: what `held` was when the receiver last heard of it, while is_high.
    is_high: the buffer passed the high-water mark and has not drained since. drained: completed
    when the buffer is empty. watching: whether the loop reports when the descriptor becomes
    writable.
    broken: nothing can be written any more.
    """

    __slots__ = (
        "broken",
        "drained",
        "held",
        "high_water_bytes",
        "is_high",
        "low_water_bytes",
        "queue",
        "reported",
        "rest",
        "terminator",
        "terminator_bytes",
        "watching",
    )

    def __init__(self, limits: Limits, terminator: bytes) -> None:
        self.terminator = terminator
        self.terminator_bytes = len(terminator)
        self.queue: list[bytes] = []
        self.held = 0
        self.rest = memoryview(b"")
        self.is_high = False
        self.reported = 0
        self.high_water_bytes = limits.high_water_bytes
        # Users may set one of the two marks alone, to any value.
        self.low_water_bytes = min(limits.low_water_bytes, limits.high_water_bytes - 1)
        self.drained: asyncio.Future[None] | None = None
        self.watching = False
        self.broken = False

    def discard(self) -> None:
        """Drop everything that is buffered, and wake the task that waits for the drain."""
        self.queue.clear()
        self.rest = memoryview(b"")
        self.held = 0
        self.report_drained()

    def refill(self) -> None:
        """Take the next frames from the queue, about WRITE_BYTES, to be written."""
        queue = self.queue
        count = size = 0
        while count < len(queue) and (not count or size + len(queue[count]) < WRITE_BYTES):
            size += len(queue[count]) + self.terminator_bytes
            count += 1
        frames = queue[:count]
        del queue[:count]
        if size <= WRITE_BYTES:
            self.rest = memoryview(self.terminator.join([*frames, b""]))
        else:
            # One large frame, which is not copied: the empty one makes its terminator come next.
            self.rest = memoryview(frames[0])
            queue.insert(0, b"")

    def report_drained(self) -> None:
        """Wake the task that waits until the buffer is empty."""
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)


class PipeConnection:
    """Reads frames from one descriptor and writes frames to another, or to the same one.

    The descriptors belong to the connection, which closes them at its end.
    terminator: what is written after each frame; a derived class with other frames than lines sets
    it, and overrides on_chunk().
    """

    terminator = b"\n"
    reads = READS

    def __init__(
        self,
        reading: int,
        writing: int,
        limits: Limits,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        self.facts: Mapping[str, object] = facts or {}

        # Descriptors whose O_NONBLOCK flag we set and have to reset.
        self._restore: list[int] = []

        # The loss of the reader can be detected on a pipe, and on a socket that is not also the
        # one we read from.
        read_stat, write_stat = os.fstat(reading), os.fstat(writing)
        self._detects_reader_loss = stat.S_ISFIFO(write_stat.st_mode) or (
            stat.S_ISSOCK(write_stat.st_mode) and not os.path.samestat(read_stat, write_stat)
        )

        self._in = self._make_nonblocking(reading, os.O_RDONLY)
        self._out = self._make_nonblocking(writing, os.O_WRONLY)
        self._input = _Input(limits)
        self._output = _Output(limits, self.terminator)
        self._receiver: Receiver | None = None
        self._released = False

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._resume_reading()

        # When the reader is gone, a pipe reports an error and a socket reports end of file. Only
        # watching our writing end for readability notices either.
        if self._detects_reader_loss and isinstance(self._loop, asyncio.SelectorEventLoop):
            self._loop.add_reader(self._out, self._on_reader_lost)

    # Reading

    def pause(self, paused: bool) -> None:
        state = self._input
        if paused is state.paused or self._receiver is None:
            return
        state.paused = paused
        if state.over:
            return

        if state.thread is not None:
            state.thread.pause(paused)
        elif paused:
            self._loop.remove_reader(self._in)
        else:
            self._resume_reading()

    @property
    def is_discarding(self) -> bool:
        return self._input.framer.is_discarding

    @property
    def oversize_head(self) -> bytes:
        return self._input.oversize_head

    def _resume_reading(self) -> None:
        try:
            self._loop.add_reader(self._in, self._on_readable)
        except PermissionError:
            # epoll refuses regular files and /dev/null with EPERM.
            self._input.thread = _FileReader(self._in, self._loop, self.on_chunk)

    def _on_readable(self) -> None:
        state = self._input
        for _ in self.reads:
            try:
                chunk = os.read(self._in, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # EIO: the terminal is gone. ECONNRESET: the other end of the socket is gone.
                chunk = b""
            self.on_chunk(chunk)
            if state.paused or state.over:
                return

    def on_chunk(self, chunk: bytes) -> None:
        """Deliver the frames that a chunk of input completes.

        An empty chunk is the end of input.
        """
        receiver = self._receiver
        state = self._input
        if receiver is None or state.over:
            return
        state.has_read = True

        framer = state.framer
        try:
            line = framer.take_line(chunk)
            if line is not None:
                frames: list[bytes | OversizeFrame] = []
            else:
                frames = framer.feed(chunk) if chunk else framer.end()
        except MemoryError:
            # The chunk is lost, so no later input can be trusted; but answers can still be sent.
            log.exception("out of memory while reading; input is closed")
            self._stop_reading()
            receiver.on_eof()
            return

        if line is not None:
            receiver.on_frames((line,))
        elif OversizeFrame not in map(type, frames):
            if frames:
                receiver.on_frames(frames)  # pyright: ignore[reportArgumentType]  # all are bytes
        else:
            self._deliver_one_by_one(frames)

        if not chunk:
            self._stop_reading()
            receiver.on_eof()

    def _deliver_one_by_one(self, frames: list[bytes | OversizeFrame]) -> None:
        """Deliver frames in order, some of them over the size limit."""
        receiver = self._receiver
        assert receiver is not None
        for frame in frames:
            if isinstance(frame, OversizeFrame):
                self._input.oversize_head = frame.head
                receiver.on_frame_too_long(frame.size)
            else:
                receiver.on_frames((frame,))

    def _stop_reading(self) -> None:
        state = self._input
        if state.over or self._receiver is None:
            return
        state.over = True
        if state.thread is not None:
            state.thread.stop()
        elif not state.paused:
            self._loop.remove_reader(self._in)

    # Writing

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of output that the peer has not accepted."""
        return self._output.held

    def write(self, frame: bytes, request_id: Id | None) -> int:
        output = self._output
        if output.broken:
            self.drop(frame)
            return 0
        output.queue.append(frame)
        output.held = held = output.held + len(frame) + output.terminator_bytes
        if held < output.high_water_bytes:
            return held

        output.is_high = True
        output.reported = held
        self.flush()
        return output.held

    def send(self, frame: bytes, request_id: Id | None) -> int:
        """Write one frame and flush, in a single step. Returns the bytes left in the buffer."""
        output = self._output
        if output.held or output.broken:
            self.write(frame, request_id)
            self.flush()
            return output.held

        line = frame + output.terminator
        try:
            written = os.write(self._out, line)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as exc:
            output.rest = memoryview(line)
            self._on_write_error(exc)
            return 0
        return self._hold_rest(line, written) if written < len(line) else 0

    def drop(self, frame: bytes) -> None:
        """Drop a frame that cannot be written any more. A derived class may keep it."""

    def _hold_rest(self, line: bytes, written: int) -> int:
        """Buffer the part of a line that the peer did not accept.

        Returns the bytes left afterwards.
        """
        output = self._output
        output.held = held = len(line) - written
        output.is_high = held >= output.high_water_bytes
        output.reported = held
        output.rest = memoryview(line)[written:]
        self._write_rest()
        return output.held

    def flush(self) -> None:
        """Write the queued frames with one system call.

        Bytes that do not fit into the pipe or socket now are written when it becomes writable.
        """
        output = self._output
        queue = output.queue
        if not queue or output.rest or output.broken:
            return None
        if output.is_high:
            return self._write_rest()

        if len(queue) == 1:
            frames = queue.pop() + output.terminator
        else:
            # The empty item makes join() end with a terminator.
            queue.append(b"")
            frames = output.terminator.join(queue)
            queue.clear()

        try:
            written = os.write(self._out, frames)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as exc:
            output.rest = memoryview(frames)
            return self._on_write_error(exc)
        output.held -= written
        if written < len(frames):
            output.rest = memoryview(frames)[written:]
            self._write_rest()
        return None

    def _write_rest(self) -> None:
        """Write the rest of an earlier write, then the frames that were queued since."""
        output = self._output
        try:
            for _ in range(WRITES):
                if output.rest:
                    written = os.write(self._out, output.rest[:WRITE_BYTES])
                    output.rest = output.rest[written:]
                    output.held -= written

                # Refill even after the last write: a queue without a rest would never be watched.
                if not output.rest:
                    if not output.queue:
                        break
                    output.refill()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as exc:
            self._on_write_error(exc)
            return

        self._watch_writable(bool(output.rest))
        if not output.rest:
            output.report_drained()

        if output.is_high and self._receiver is not None:
            if output.held < output.low_water_bytes:
                output.is_high = False
            elif output.reported - output.held < REPORT_BYTES:
                return
            output.reported = output.held
            # Not at once: this may run inside a write() of the receiver.
            self._loop.call_soon(self._report_drain)

    def _report_drain(self) -> None:
        if self._receiver is not None and not self._output.broken:
            self._receiver.on_drain(self._output.held)

    def _watch_writable(self, wanted: bool) -> None:
        output = self._output
        if wanted is output.watching:
            return
        output.watching = wanted
        if not wanted:
            self._loop.remove_writer(self._out)
            return

        try:
            self._loop.add_writer(self._out, self._write_rest)
        except OSError:
            # The descriptor cannot be polled, so try again a little later.
            output.watching = False
            self._loop.call_later(0.01, self._write_rest)

    def _on_reader_lost(self) -> None:
        """Handle a readable event on the descriptor we write to: its reader is probably gone."""
        self._loop.remove_reader(self._out)

        # On a socket the event may only mean that the peer will not write (shutdown), which is
        # harmless. POLLHUP or POLLERR means that it is gone.
        if not stat.S_ISFIFO(os.fstat(self._out).st_mode):
            self._detects_reader_loss = False
            poll = select.poll()
            poll.register(self._out, 0)
            if not poll.poll(0):
                return
        self._on_write_error(BrokenPipeError("the peer closed the pipe that we write to"))

    def _on_write_error(self, exc: OSError) -> None:
        """Discard all output, stop reading and report the disconnect."""
        if self._output.broken:
            return
        self._output.broken = True
        self._output.discard()
        self._watch_writable(False)
        self._stop_reading()
        if self._receiver is not None:
            self._loop.call_soon(self._receiver.on_disconnect, exc)

    # Closing

    async def close(self, within_s: float) -> None:
        # It may never have been opened.
        if self._receiver is not None:
            await self._drain(within_s)
        self.abort()

    def abort(self) -> None:
        """Close at once, and drop the output that was not sent."""
        if self._receiver is not None:
            self._output.discard()
            self._stop_reading()
            self._watch_writable(False)
            if self._detects_reader_loss and isinstance(self._loop, asyncio.SelectorEventLoop):
                self._loop.remove_reader(self._out)
        self._release()

    async def _drain(self, within_s: float) -> None:
        """Flush, and wait up to within_s seconds until the peer has accepted everything."""
        output = self._output
        self.flush()
        if output.rest and not output.broken:
            output.drained = self._loop.create_future()
            await asyncio.wait([output.drained], timeout=within_s)

    def disown(self) -> None:
        """Close the descriptors in a forked child.

        The child must not write frames, nor keep the peer waiting when the parent process is gone.
        """
        # The flags belong to open file descriptions that the parent still uses.
        self._restore.clear()
        # Threads do not survive a fork.
        self._input.thread = None
        self._release()

    def _release(self) -> None:
        if self._released:
            return
        self._released = self._output.broken = True
        self._receiver = None

        for descriptor in self._restore:
            try:
                os.set_blocking(descriptor, True)
            except OSError:
                pass

        # A thread may still be reading a regular file; it keeps the descriptor.
        descriptors = {self._out} if self._input.thread is not None else {self._out, self._in}
        for descriptor in descriptors:
            try:
                os.close(descriptor)
            except OSError:
                # Linux has closed it all the same, see close(2), and the other one must be closed.
                pass

    def _make_nonblocking(self, descriptor: int, mode: int) -> int:
        """Return a non-blocking descriptor of the same file.

        The given descriptor is closed if the file could be reopened.
        """
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind):
            return descriptor

        if stat.S_ISFIFO(kind) or os.isatty(descriptor):
            flags = mode | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            try:
                reopened = os.open(f"/proc/self/fd/{descriptor}", flags)
            except OSError:
                # There is no /proc, the pipe is another user's, or nobody is at its other end.
                pass
            else:
                os.close(descriptor)
                return reopened

        if os.get_blocking(descriptor):
            os.set_blocking(descriptor, False)
            self._restore.append(descriptor)
        return descriptor


class _FileReader:
    """Reads a descriptor that cannot be polled, in a daemon thread.

    It reads one chunk at a time and waits until the loop has handled it.
    """

    def __init__(
        self,
        descriptor: int,
        loop: asyncio.AbstractEventLoop,
        on_chunk: Callable[[bytes], None],
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self.on_chunk = on_chunk
        # Released once for each chunk that the thread may read.
        self._permits = threading.Semaphore(1)
        self._stopped = False
        self._paused = False
        self._permit_owed = False
        threading.Thread(target=self._run, name="concertino-reader", daemon=True).start()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        if self._permit_owed and not paused:
            self._permit_owed = False
            self._permits.release()

    def stop(self) -> None:
        self._stopped = True
        self._permits.release()

    def _run(self) -> None:
        chunk = b" "
        while chunk:
            self._permits.acquire()
            if self._stopped:
                return
            try:
                chunk = os.read(self._descriptor, READ_BYTES)
            except OSError:
                chunk = b""
            try:
                self._loop.call_soon_threadsafe(self._deliver, chunk)
            except RuntimeError:
                # The loop is closed.
                return

    def _deliver(self, chunk: bytes) -> None:
        self.on_chunk(chunk)
        if self._paused:
            self._permit_owed = True
        else:
            self._permits.release()
