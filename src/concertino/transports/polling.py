"""A PipeConnection whose user can wait for a response without an iteration of the event loop.

For the client's end of a connection to a child process: see send_and_poll().
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.transports.pipe import READ_BYTES, READS, PipeConnection

if TYPE_CHECKING:
    from concertino.transports.connection import Receiver

__all__ = ["MAX_POLLS", "PollingConnection"]

# Polls that may succeed in a row before the loop has to run once.
MAX_POLLS = 16
# Reads without polls that follow repeated polls in vain, at most.
MAX_POLL_PAUSE = 8


class PollingConnection(PipeConnection):
    """A PipeConnection that supports polling (transports/connection.py)."""

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
        self._context = copy_context()
        super().open(receiver)

    def send_and_poll(self, frame: bytes, request_id: Id | None) -> bytes | int:
        """Write one frame, flush, and return the next line if it is already there.

        Otherwise returns the bytes left in the output buffer. Pass a line that is not the expected
        response to defer_line().

        A server that shares the core has mostly answered before the write returns. Reading at once
        saves a loop iteration: on Python 3.13 a call takes 4.6 us instead of 7.6
        (bench/clients.py). Elsewhere a poll in vain costs 1 us; so after one, polls pause for 1, 2,
        4 and then 8 reads. At most MAX_POLLS polls succeed in a row, so that the loop runs
        regularly.
        """
        polls = self._polls
        output = self._output
        if not polls.left or output.held:
            return self.send(frame, request_id)

        line = frame + b"\n"
        try:
            written = os.write(self._out, line)
        except OSError:
            # send() runs into the same error and handles it.
            return self.send(frame, request_id)
        if written < len(line):
            return self._hold_rest(line, written)

        polls.left -= 1
        try:
            chunk = os.read(self._in, READ_BYTES)
        except OSError:
            # Nothing is there yet, or there is an error that the reader will find as well.
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
        self._polls.left = 0
        self._polls.chunk_deferred = True
        # Later input must not overtake this chunk.
        self._loop.remove_reader(self._in)
        self._loop.call_soon(self._deliver_deferred, chunk, context=self._context)

    def _deliver_deferred(self, chunk: bytes) -> None:
        self._polls.chunk_deferred = False
        if not self._input.over:
            if not self._input.paused:
                self._resume_reading()
            self.on_chunk(chunk)

    # Reading

    def _on_readable(self) -> None:
        """Read until a read is not full.

        A client mostly waits for one response; another read after a partial one costs more than it
        gains.
        """
        state = self._input
        polls = self._polls
        for _ in READS:
            try:
                chunk = os.read(self._in, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""

            line = state.framer.take_line(chunk)
            if line is None:
                # Stop polling: a polled line would overtake the lines that are delivered now.
                polls.left = 0
                self.on_chunk(chunk)
            else:
                if polls.pause:
                    polls.pause -= 1
                else:
                    polls.left = MAX_POLLS
                # Input is read only while the connection is open, so there is a receiver.
                self._receiver.on_frames((line,))  # pyright: ignore[reportOptionalMemberAccess]
            if len(chunk) < READ_BYTES or state.paused or state.over or polls.chunk_deferred:
                return


class _PollBudget:
    """How many polls send_and_poll() may make. left: before the loop has to run.

    pause: reads of single lines without a poll that are still to come. next_pause: the pause after
    the next miss. chunk_deferred: a polled chunk is to be delivered in the next loop iteration.
    """

    __slots__ = ("chunk_deferred", "left", "next_pause", "pause")

    def __init__(self) -> None:
        self.chunk_deferred = False
        self.left = 0
        self.pause = 0
        self.next_pause = 1

    def on_miss(self) -> None:
        """Stop polling, and pause longer if not even the first poll of this loop iteration hit."""
        if self.left < MAX_POLLS - 1:
            self.next_pause = 1
        else:
            self.pause = self.next_pause
            self.next_pause = min(2 * self.next_pause, MAX_POLL_PAUSE)
        self.left = 0
