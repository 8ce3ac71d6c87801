"""PipeConnection: a Connection over two file descriptors, one to read and one to write.

The descriptors may be pipes, sockets (Node.js gives its children a Unix socket as stdin), terminals
or regular files. Regular files and /dev/null cannot be polled, so a thread reads them
(file_reader.py); writing to them does not block for long. A frame is one line, unless a derived
class has other frames. StdioConnection, ChildProcess and SocketConnection are derived from this
class.

os.read() and os.write() are called directly. asyncio's transports would take 12 to 15 us more for
each message.

O_NONBLOCK belongs to an "open file description", which several processes may share. Setting it on
an inherited pipe or terminal would affect the parent process too. Therefore a pipe or terminal is
reopened through /proc, which creates an open file description of our own. If that fails, the flag
is set on the given descriptor, and reset at the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from concertino.jsonrpc.framing import Framer, OversizeFrame
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import JOINED_BYTES, Id
from concertino.transports.output_buffer import OutputBuffer
from concertino.transports.pipe_capacity import PipeCapacities

if TYPE_CHECKING:
    from concertino.transports.connection import Receiver
    from concertino.transports.file_reader import FileReader

__all__ = ["LONG_READ_BYTES", "READS", "READ_BYTES", "PipeConnection"]

log = logging.getLogger("concertino.pipe")

# The size of one read. For reads of more than 128 KiB, CPython maps and unmaps memory each time,
# which takes 9.6 us instead of 0.55 us.
READ_BYTES = 65536
# The size of the reads in the middle of a long line.
LONG_READ_BYTES = 2**20
# At most this many reads are made in a row before the loop runs other callbacks. With several reads
# in a row, a call takes 7.2 us instead of 9.4 us.
READS = range(8)
# At most this many writes are made in a row before the loop runs other callbacks. A message of 1 MB
# needs that many writes to a pipe of 64 KiB.
WRITES = 16
# How many seconds to wait before the next write to a full descriptor that cannot be polled.
WRITE_RETRY_S = 0.01
# While much output is buffered, on_drain() is called each time that this many bytes were written.
REPORT_BYTES = 2**18


class _Input:
    """The state of a connection's input.

    framer: splits the input into frames.
    oversize_head: the first bytes of the last frame that was too long.
    paused: whether reading is paused.
    has_read: set to True by each read. StdioConnection sets it to False, to find out whether input
        has arrived in a period of time.
    ended: whether no more input is read, because it has ended or the connection is closed.
    thread: the FileReader, if the descriptor cannot be polled; otherwise None.
    """

    __slots__ = ("ended", "framer", "has_read", "oversize_head", "paused", "thread")

    def __init__(self, limits: Limits) -> None:
        self.framer = Framer(limits.max_message_bytes)
        self.oversize_head = b""
        self.paused = False
        self.has_read = False
        self.ended = False
        self.thread: FileReader | None = None


class PipeConnection:
    """A Connection over two file descriptors, which may be the same. It closes them when it ends.

    Connection (transports/connection.py) describes the methods without a docstring. A derived class
    whose frames are not lines overrides on_chunk() and sets `terminator`, the bytes that are
    written after each frame. A derived class may also set `reads` to `range(N)`: after N reads in a
    row (8 by default), the event loop runs other callbacks.

    reading, writing: the descriptors.
    limits: the limits for the size of a frame and for the buffered output.
    facts: facts about the peer, by name, such as `pid`, `uid` and `address`.
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

        # The descriptors on which O_NONBLOCK was set, and must be reset at the end.
        self._restore: list[int] = []

        # Whether the descriptor for writing shows that the peer has gone: a pipe does, and so does
        # a socket that is not also used for reading.
        read_stat, write_stat = os.fstat(reading), os.fstat(writing)
        self._detects_peer_loss = stat.S_ISFIFO(write_stat.st_mode) or (
            stat.S_ISSOCK(write_stat.st_mode) and not os.path.samestat(read_stat, write_stat)
        )

        self._reading_fd = self._make_nonblocking(reading, os.O_RDONLY)
        self._writing_fd = self._make_nonblocking(writing, os.O_WRONLY)
        self._input = _Input(limits)
        # When the buffered bytes (`held`) have reached the high-water mark, the receiver stops
        # writing until on_drain() is called.
        self._output = OutputBuffer(limits, self.terminator)
        self._capacities = PipeCapacities()
        self._receiver: Receiver | None = None
        # Whether the descriptors are closed.
        self._released = False

    def open(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._resume_reading()

        # When the reader has gone, a pipe reports an error and a socket reports the end of file.
        # Both make the writing end readable, so watch it for that.
        if self._detects_peer_loss:
            self._loop.add_reader(self._writing_fd, self._on_peer_lost)

    # Reading

    def pause(self, paused: bool) -> None:
        state = self._input
        if paused is state.paused or self._receiver is None:
            return
        state.paused = paused
        if state.ended:
            return

        if state.thread is not None:
            state.thread.pause(paused)
        elif paused:
            self._loop.remove_reader(self._reading_fd)
        else:
            self._resume_reading()

    @property
    def is_discarding(self) -> bool:
        return self._input.framer.is_discarding

    @property
    def oversize_head(self) -> bytes:
        return self._input.oversize_head

    def _resume_reading(self) -> None:
        """Watch the descriptor for input, or start a thread if it cannot be polled."""
        try:
            self._loop.add_reader(self._reading_fd, self._on_readable)
        except PermissionError:
            # epoll fails with EPERM for regular files and /dev/null.
            from concertino.transports.file_reader import FileReader

            self._input.thread = FileReader(self._reading_fd, self._loop, self.on_chunk, READ_BYTES)

    def _on_readable(self) -> None:
        """Read chunks until nothing is left, at most `reads` times. The loop calls this."""
        state = self._input
        size = READ_BYTES
        for _ in self.reads:
            try:
                chunk = os.read(self._reading_fd, size)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # EIO means that the terminal has gone, ECONNRESET that the other end of the socket
                # has. Treat both as the end of input.
                chunk = b""
            self.on_chunk(chunk)
            # After a long read, let the loop run other callbacks.
            if state.paused or state.ended or len(chunk) > READ_BYTES:
                return
            if len(chunk) == READ_BYTES:
                size = self._choose_read_size()

    def _choose_read_size(self) -> int:
        """Return the size of the next read, in bytes, after a read that returned READ_BYTES.

        In the middle of a long line, the size is LONG_READ_BYTES, and the pipe is enlarged.
        """
        if self._input.framer.pending_bytes < READ_BYTES:
            return READ_BYTES
        self._capacities.enlarge(self._reading_fd)
        return LONG_READ_BYTES

    def on_chunk(self, chunk: bytes) -> None:
        """Split a chunk of input into frames, and deliver the complete frames.

        chunk: b"" at the end of input.
        """
        receiver = self._receiver
        state = self._input
        if receiver is None or state.ended:
            return
        state.has_read = True

        framer = state.framer
        try:
            # In the common case, the chunk is exactly one line. take_line() returns it without
            # making a list; for all other chunks it returns None.
            line = framer.take_line(chunk)
            if line is not None:
                frames: list[bytes | OversizeFrame] = []
            else:
                frames = framer.feed(chunk) if chunk else framer.end()
        except MemoryError:
            # The chunk is lost, so later input cannot be split into frames. Responses can still be
            # sent.
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
        """Deliver frames in order; call on_frame_too_long() for frames that were too long."""
        receiver = self._receiver
        assert receiver is not None
        for frame in frames:
            if isinstance(frame, OversizeFrame):
                self._input.oversize_head = frame.head
                receiver.on_frame_too_long(frame.size)
            else:
                receiver.on_frames((frame,))

    def _stop_reading(self) -> None:
        """Stop reading for good."""
        state = self._input
        if state.ended or self._receiver is None:
            return
        state.ended = True
        if state.thread is not None:
            state.thread.stop()
        elif not state.paused:
            self._loop.remove_reader(self._reading_fd)

    # Writing

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes of output are buffered."""
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

        # Much output is buffered, so write some of it now, and not only at the next flush. From now
        # on the receiver must be told by on_drain() when the peer has read.
        output.reported = held
        self.flush()
        return output.held

    def send(self, frame: bytes, request_id: Id | None) -> int:
        """Write one frame and flush, in a single step. Returns how many bytes are buffered."""
        output = self._output
        if output.held or output.broken or len(frame) > JOINED_BYTES:
            self.write(frame, request_id)
            self.flush()
            return output.held

        line = frame + output.terminator
        try:
            written = os.write(self._writing_fd, line)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as exc:
            output.rest = memoryview(line)
            self._on_write_error(exc)
            return 0
        return self._hold_rest(line, written) if written < len(line) else 0

    def drop(self, frame: bytes) -> None:
        """Drop a frame that cannot be written any more. ChildProcess overrides this method."""

    def _hold_rest(self, line: bytes, written: int) -> int:
        """Buffer the rest of a line that was only partly written, and try to write it.

        written: how many of its bytes were written.
        Returns how many bytes are buffered.
        """
        output = self._output
        output.held = held = len(line) - written
        output.reported = held if held >= output.high_water_bytes else 0
        output.set_rest(line, written)
        self._write_rest()
        return output.held

    def flush(self) -> None:
        """Write the queued frames with one system call, if possible.

        Frames that do not fit into the pipe or socket are written when it becomes writable.
        """
        output = self._output
        queue = output.queue
        # If there is a rest of an earlier write, _write_rest() writes it, and then the queue, when
        # the descriptor becomes writable.
        if not queue or output.rest or output.broken:
            return None
        # The receiver waits for on_drain(), which _write_rest() calls.
        if output.reported:
            return self._write_rest()

        if len(queue) == 1:
            if len(queue[0]) > JOINED_BYTES:
                return self._write_long(queue.pop())
            frames = queue.pop() + output.terminator
        else:
            # With this empty item, the joined bytes end with a terminator.
            queue.append(b"")
            frames = output.terminator.join(queue)
            queue.clear()

        try:
            written = os.write(self._writing_fd, frames)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as exc:
            output.rest = memoryview(frames)
            return self._on_write_error(exc)
        output.held -= written
        if written < len(frames):
            output.set_rest(frames, written)
            self._write_rest()
        return None

    def _write_long(self, frame: bytes) -> None:
        """Write one long frame, which is not copied to append the terminator."""
        self._capacities.enlarge(self._writing_fd)
        output = self._output
        try:
            written = os.writev(self._writing_fd, (frame, output.terminator))
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as exc:
            output.rest = memoryview(frame)
            return self._on_write_error(exc)
        output.held -= written
        if written < len(frame) + output.terminator_bytes:
            # The rest of this frame is written without a terminator. An empty frame follows, whose
            # terminator ends this frame.
            output.queue.insert(0, b"")
            output.set_rest(frame, written)
            self._write_rest()
        return None

    def _write_rest(self) -> None:
        """Write the rest of an earlier write, then the queued frames.

        Calls on_drain() of the receiver when enough output was written.
        """
        output = self._output
        try:
            for _ in range(WRITES):
                if output.rest:
                    written = os.write(self._writing_fd, output.rest)
                    output.rest = output.rest[written:]
                    output.held -= written

                # Do this even after the last write of this loop, because _watch_writable() below
                # checks only `rest` and not the queue.
                if not output.rest:
                    if not output.queue and not output.pieces:
                        break
                    output.refill()
        except (BlockingIOError, InterruptedError):
            # The pipe or socket is full. _watch_writable() below waits until it is writable.
            pass
        except OSError as exc:
            self._on_write_error(exc)
            return

        self._watch_writable(bool(output.rest))
        if not output.rest:
            output.wake_closer()

        if output.reported and self._receiver is not None:
            # Report that little output is left, or that much was written since the last report.
            if output.held < output.low_water_bytes:
                output.reported = 0
            elif output.reported - output.held < REPORT_BYTES:
                return
            else:
                output.reported = output.held
            # Call on_drain() in the next loop iteration, because the receiver may be calling
            # write() now.
            self._loop.call_soon(self._report_drain)

    def _report_drain(self) -> None:
        if self._receiver is not None and not self._output.broken:
            self._receiver.on_drain(self._output.held)

    def _watch_writable(self, wanted: bool) -> None:
        """Start or stop to call _write_rest() when the descriptor is writable."""
        output = self._output
        if wanted is output.watching:
            return
        output.watching = wanted
        if not wanted:
            self._loop.remove_writer(self._writing_fd)
            return

        try:
            self._loop.add_writer(self._writing_fd, self._write_rest)
        except OSError:
            # The descriptor cannot be polled.
            output.watching = False
            self._loop.call_later(WRITE_RETRY_S, self._write_rest)

    def _on_peer_lost(self) -> None:
        """Handle a readable event on the descriptor for writing: its reader has probably gone."""
        self._loop.remove_reader(self._writing_fd)

        # On a socket, the event may only mean that the peer will not write any more (shutdown),
        # which is harmless. POLLHUP or POLLERR means that the peer has gone.
        if not stat.S_ISFIFO(os.fstat(self._writing_fd).st_mode):
            self._detects_peer_loss = False
            poll = select.poll()
            poll.register(self._writing_fd, 0)
            if not poll.poll(0):
                return
        self._on_write_error(BrokenPipeError("the peer closed the pipe that we write to"))

    def _on_write_error(self, exc: OSError) -> None:
        """Discard all output, stop reading and report the disconnect.

        The caller has put the bytes of the failed write into `rest`, because ChildProcess overrides
        this method and keeps all output that was not written.
        """
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
        # If there is no receiver, the connection was never opened, and there is no output.
        if self._receiver is not None:
            await self._drain(within_s)
        self.abort()

    def abort(self) -> None:
        """Close at once, and drop the output that was not sent."""
        if self._receiver is not None:
            self._output.discard()
            self._stop_reading()
            self._watch_writable(False)
            if self._detects_peer_loss:
                self._loop.remove_reader(self._writing_fd)
        self._release()

    async def _drain(self, within_s: float) -> None:
        """Flush, and wait up to within_s seconds until everything is written."""
        output = self._output
        self.flush()
        if output.rest and not output.broken:
            output.drained = self._loop.create_future()
            await asyncio.wait([output.drained], timeout=within_s)

    def disown(self) -> None:
        """Close the descriptors in a forked child.

        The child must not write frames. It must not keep the descriptors open either, because the
        peer could then not notice the end of the parent process.
        """
        # Do not reset O_NONBLOCK: the parent process shares the open file descriptions.
        self._restore.clear()
        # Threads do not survive a fork.
        self._input.thread = None
        self._release()

    def _release(self) -> None:
        """Close the descriptors, and reset O_NONBLOCK where it was set. Later calls do nothing."""
        if self._released:
            return
        self._released = self._output.broken = True
        self._receiver = None
        self._capacities.release()

        for descriptor in self._restore:
            try:
                os.set_blocking(descriptor, True)
            except OSError:
                # Other code has closed the descriptor.
                pass

        # If a thread reads a regular file, do not close the descriptor that it uses.
        descriptors = (
            {self._writing_fd}
            if self._input.thread is not None
            else {self._writing_fd, self._reading_fd}
        )
        for descriptor in descriptors:
            try:
                os.close(descriptor)
            except OSError:
                # Linux has closed this descriptor even if it reports an error, see close(2).
                pass

    def _make_nonblocking(self, descriptor: int, mode: int) -> int:
        """Return a non-blocking descriptor for the same pipe, socket or terminal.

        If possible, the pipe, socket or terminal is reopened; then the new descriptor is returned,
        and the given one is closed. Descriptors of regular files are returned unchanged.
        mode: os.O_RDONLY or os.O_WRONLY.
        """
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISREG(kind):
            return descriptor

        if stat.S_ISFIFO(kind) or os.isatty(descriptor):
            flags = mode | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            try:
                reopened = os.open(f"/proc/self/fd/{descriptor}", flags)
            except OSError:
                # There is no /proc, the pipe belongs to another user, or its other end is closed.
                pass
            else:
                os.close(descriptor)
                return reopened

        if os.get_blocking(descriptor):
            os.set_blocking(descriptor, False)
            self._restore.append(descriptor)
        return descriptor
