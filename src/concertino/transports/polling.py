"""PollingConnection: a PipeConnection that supports polling (SupportsPolling in connection.py).

A client can send a request and read the response at once, without an iteration of the event loop,
if the server is fast enough. ChildProcess (process.py) is derived from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import JOINED_BYTES, Id
from concertino.transports.pipe import READ_BYTES, READS, PipeConnection

if TYPE_CHECKING:
    from concertino.transports.connection import Receiver

__all__ = ["MAX_POLLS", "PollingConnection"]

# At most this many polls may succeed in a row before the loop has to run once.
MAX_POLLS = 16
# After polls that have found nothing, at most this many reads are made without a poll.
MAX_POLL_PAUSE = 8


class PollingConnection(PipeConnection):
    """A PipeConnection that can send a request and check at once for the response.

    This saves a client one iteration of the event loop if the server answers quickly.
    """

    def __init__(
        self,
        reading: int,
        writing: int,
        limits: Limits,
        facts: Mapping[str, object],
    ) -> None:
        super().__init__(reading, writing, limits, facts)
        self._polls = _PollBudget()

    def open(self, receiver: Receiver) -> None:
        # A deferred chunk is delivered with the same context variables as chunks that the loop
        # reads.
        self._context = copy_context()
        super().open(receiver)

    def send_and_poll(self, frame: bytes, request_id: Id | None) -> bytes | int:
        """Write one frame, flush, and poll: return the next line if it has already arrived.

        Otherwise returns how many bytes of output are buffered. If the line is not the response
        that the caller waits for, the caller must pass it to defer_line().
        """
        # If client and server run on the same core, the server has usually answered before the
        # write returns. Polling then saves a loop iteration: on Python 3.13 a call takes 4.6 us
        # instead of 7.6 us (bench/clients.py). But a poll that finds nothing costs 1 us, and the
        # loop has to run regularly, so not every call of this method polls (_PollBudget).
        polls = self._polls
        output = self._output
        if not polls.left or output.held or len(frame) > JOINED_BYTES:
            return self.send(frame, request_id)

        line = frame + b"\n"
        try:
            written = os.write(self._writing_fd, line)
        except OSError:
            # send() gets the same error and handles it.
            return self.send(frame, request_id)
        if written < len(line):
            return self._hold_rest(line, written)

        polls.left -= 1
        try:
            chunk = os.read(self._reading_fd, READ_BYTES)
        except OSError:
            # Nothing has arrived, or there is an error, which the next regular read gets as well.
            chunk = b""
        answer = self._input.framer.take_line(chunk)
        if answer is not None:
            return answer

        polls.on_miss()
        if chunk:
            self._defer_chunk(chunk)
        return 0

    def defer_line(self, line: bytes) -> None:
        """Deliver a line from send_and_poll() to the receiver in the next loop iteration."""
        self._defer_chunk(line + b"\n")

    def _defer_chunk(self, chunk: bytes) -> None:
        """Deliver a polled chunk in the next loop iteration."""
        self._polls.left = 0
        self._polls.has_deferred_chunk = True
        # Stop reading until this chunk is delivered, so that no later input is delivered before it.
        self._loop.remove_reader(self._reading_fd)
        self._loop.call_soon(self._deliver_deferred, chunk, context=self._context)

    def _deliver_deferred(self, chunk: bytes) -> None:
        """Deliver the chunk of _defer_chunk(), and resume reading."""
        self._polls.has_deferred_chunk = False
        if not self._input.ended:
            if not self._input.paused:
                self._resume_reading()
            self.on_chunk(chunk)

    # Reading

    def _on_readable(self) -> None:
        """Read chunks until a read returns more or fewer than READ_BYTES. The loop calls this."""
        # The differences to PipeConnection: PipeConnection reads until there is nothing left. But a
        # client usually waits for only one response, so another read after a short read would cost
        # more than it gains. After a longer read, which is made in the middle of a long line, the
        # loop runs other callbacks first. A single line takes the fast path of take_line(). And a
        # read changes how many polls may be made.
        state = self._input
        polls = self._polls
        size = READ_BYTES
        for _ in READS:
            try:
                chunk = os.read(self._reading_fd, size)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""

            line = state.framer.take_line(chunk)
            if line is None:
                # Stop polling, so that no polled line is handled before the lines of this chunk.
                polls.left = 0
                self.on_chunk(chunk)
            else:
                if polls.pause:
                    polls.pause -= 1
                else:
                    polls.left = MAX_POLLS
                # Input is read only while the connection is open, so there is a receiver.
                self._receiver.on_frames((line,))  # pyright: ignore[reportOptionalMemberAccess]
            if len(chunk) != READ_BYTES or state.paused or state.ended or polls.has_deferred_chunk:
                return
            size = self._choose_read_size()


class _PollBudget:
    """How many polls send_and_poll() may make.

    At most MAX_POLLS polls are made in a row; then the loop has to read once. When polls find
    nothing, polling pauses for some reads of the loop: 1, then 2, 4 and 8 (MAX_POLL_PAUSE).

    left: how many polls may be made before the loop has to run.
    pause: how many reads must still be made without a poll.
    next_pause: the value of `pause` after the next poll that finds nothing.
    has_deferred_chunk: whether a polled chunk will be delivered in the next loop iteration.
    """

    __slots__ = ("has_deferred_chunk", "left", "next_pause", "pause")

    def __init__(self) -> None:
        self.has_deferred_chunk = False
        self.left = 0
        self.pause = 0
        self.next_pause = 1

    def on_miss(self) -> None:
        """Stop polling until the loop has read once. Called when a poll has found nothing.

        If it was the first poll after that read, polling also stops for the next reads of the loop:
        for 1, then 2, 4 and 8 reads.
        """
        # The poll that has found nothing is subtracted from `left` already, so for the first poll
        # `left` is MAX_POLLS - 1.
        if self.left < MAX_POLLS - 1:
            # Other polls have succeeded just before, so do not pause.
            self.next_pause = 1
        else:
            self.pause = self.next_pause
            self.next_pause = min(2 * self.next_pause, MAX_POLL_PAUSE)
        self.left = 0
