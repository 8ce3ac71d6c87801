"""ServerProcess: one process of the server under test, with its pipes and its output.

There are no threads: every wait polls all pipes of the process. So stderr is always read, and
writing to stdin cannot deadlock with a server that waits until its output is read. Every wait has a
time limit.

The process leads a new session (setsid). So all processes that it starts can be killed with it, and
Ctrl-C on the user's terminal reaches only the check.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from concertino.check import process_stats
from concertino.check.findings import Crash, Hang
from concertino.check.messages import excerpt
from concertino.check.server_output import ServerOutput
from concertino.check.stdio_setup import (
    PLAIN,
    CheckEnds,
    StdioSetup,
    close_descriptor,
    open_stdio,
    shell_prefix,
)

# How much of the end of stderr is stored.
STDERR_TAIL_BYTES = 64 * 1024
# How many bytes are read or written at once.
CHUNK_BYTES = 1 << 20
# The longest single poll, in seconds. Only on Linux the exit of a process ends a poll, so elsewhere
# the exit is noticed at the end of the poll.
POLL_S = 0.05
STDIN_CLOSED = "stdin was closed while it was written to"

# The processes that are not closed yet, for kill_all().
_running: set[ServerProcess] = set()


class StderrTail:
    """The end of what a process has written to stderr.

    Attributes:
    tail: the last 64 KiB.
    total_bytes: how many bytes the process has written in all.
    """

    def __init__(self) -> None:
        self.tail = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of stderr."""
        self.total_bytes += len(chunk)
        self.tail += chunk
        del self.tail[:-STDERR_TAIL_BYTES]

    def format_last_lines(self, count: int = 12) -> str:
        """Return the last `count` lines, with control characters escaped for a terminal."""
        text = bytes(self.tail).decode("utf-8", "replace").rstrip()
        return "\n".join(excerpt(line, 300) for line in text.split("\n")[-count:]) if text else ""


class ServerProcess:
    """A running server. Call close() at the end, or use it as a context manager.

        with ServerProcess(["python", "server.py"]) as process:
            process.write(line, within_s=10)
            process.wait_until(lambda: bool(process.output.responses), within_s=10)

    The constructor starts the command, and raises OSError if that fails.

    command: the program and its arguments.
    setup: whether stdin, stdout and stderr of the process are pipes, sockets, files or terminals;
        by default pipes.
    environment: the environment of the process; None for that of this process.

    Attributes:
    output: the messages that the process has written to stdout.
    stderr: the last part of what the process has written to stderr.
    pid: the id of the process, and of its process group.
    eof: whether stdout has ended, or the check has closed it.
    ends: the descriptors with which the check writes the server's stdin, and reads its stdout and
        stderr. Cases only ask whether a descriptor is open.
    popen: the process. Use exit_code to ask whether it has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        setup: StdioSetup = PLAIN,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.output = ServerOutput()
        self.stderr = StderrTail()
        self.ends = CheckEnds()
        server_ends: list[int] = []
        try:
            server_ends = open_stdio(setup, self.ends)
            self.popen = subprocess.Popen(
                [*shell_prefix(setup), *command],
                stdin=server_ends[0],
                stdout=server_ends[1],
                stderr=server_ends[2],
                env=environment,
                bufsize=0,
                start_new_session=True,
            )
        except BaseException:
            self.ends.close()
            raise
        finally:
            # The process has its own copies. If the check kept these open, it would not see the end
            # of stdout.
            for descriptor in server_ends:
                os.close(descriptor)
        self.pid = self.popen.pid
        # A descriptor that becomes readable when the process exits. Linux only.
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        # The descriptor is -1 if the setup leaves stdout closed. Then there is nothing to read.
        self.eof = self.ends.stdout < 0
        _running.add(self)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Waiting

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the process, or minus the number of the signal that ended it.

        Returns None while the process runs.
        """
        return self.popen.poll()

    def wait_until(
        self,
        condition: Callable[[], bool],
        within_s: float,
        *,
        read_stdout: bool = True,
    ) -> bool:
        """Read output until the condition is true. Returns whether it has become true.

        Returns False after within_s seconds, or earlier if the process and its children have ended
        and all their output was read.

        condition: called at first, after each chunk of output, and at least each POLL_S seconds.
        read_stdout: False to read only stderr meanwhile, like a client that is slow to read.
        """
        deadline = time.monotonic() + within_s
        while not condition():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            # Ask for the exit before reading. In the opposite order, the last output could arrive
            # after the reading and before the exit, and would not be read.
            has_exited = self.exit_code is not None
            has_events = self._poll_once(min(remaining_s, POLL_S), read_stdout=read_stdout)
            if has_exited and not has_events and self.eof and not self.is_group_running():
                return condition()
        return True

    def read_for(self, seconds: float) -> None:
        """Read output for a fixed time, or until the process has ended and all output was read."""
        self.wait_until(lambda: False, seconds)

    def _poll_once(
        self,
        within_s: float,
        *,
        read_stdout: bool = True,
        for_write: bool = False,
    ) -> bool:
        """Wait for events on the pipes, and read what has arrived.

        read_stdout: False to leave stdout unread.
        for_write: whether to wait until stdin can be written, too.
        Returns False if no event came within within_s seconds, or only the exit of the process.
        """
        ends = self.ends
        poll = select.poll()
        if not self.eof and read_stdout:
            poll.register(ends.stdout, select.POLLIN)
        if ends.stderr >= 0 and ends.reads_stderr:
            poll.register(ends.stderr, select.POLLIN)
        if for_write and ends.stdin >= 0:
            poll.register(ends.stdin, select.POLLOUT)
        if self._pidfd >= 0 and self.popen.returncode is None:
            poll.register(self._pidfd, select.POLLIN)

        events = poll.poll(within_s * 1000)
        for descriptor, _ in events:
            if descriptor == ends.stderr:
                self._read_stderr()
            elif descriptor == ends.stdout:
                self._read_stdout()
        return any(descriptor != self._pidfd for descriptor, _ in events)

    def _read_stdout(self) -> None:
        chunk = _read_available(self.ends.stdout)
        if chunk:
            self.output.feed(chunk)
        elif chunk is not None:
            self.eof = True
            self.output.feed_eof()

    def _read_stderr(self) -> None:
        chunk = _read_available(self.ends.stderr)
        if chunk:
            self.stderr.feed(chunk)
        elif chunk is not None:
            self.ends.close_stderr()

    # Writing

    def write(
        self,
        data: bytes,
        within_s: float,
        *,
        read_stdout: bool = True,
    ) -> None:
        """Write all the data to stdin. Output that arrives meanwhile is read and kept.

        Returns when the pipe has accepted the last byte, which the server may not have read yet.
        within_s: how many seconds to wait until the pipe has accepted all bytes.
        read_stdout: False to read only stderr meanwhile.
        Raises Hang after within_s seconds. If the server has closed its stdin, raises Crash if the
        process has ended, and otherwise Hang.
        """
        deadline = time.monotonic() + within_s
        rest = memoryview(data)
        while rest:
            try:
                count = os.write(self.ends.stdin, rest[:CHUNK_BYTES])
            except BlockingIOError:
                count = 0
            except OSError:
                # Wait a moment for the exit code, which belongs in the report.
                self.wait_until(lambda: self.exit_code is not None, 1.0)
                raise self.crash_or_hang(STDIN_CLOSED) from None
            rest = rest[count:]
            if count:
                continue

            # The pipe is full.
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                left = f"{len(rest)} bytes of {len(data)} are left"
                raise Hang(f"stdin was not read for {within_s:g} s; {left}")
            self._poll_once(min(remaining_s, POLL_S), read_stdout=read_stdout, for_write=True)

    def write_available(self, data: bytes) -> int:
        """Write as many bytes as the pipe accepts without waiting. Returns their number.

        Raises Crash or Hang if the server has closed its stdin.
        """
        try:
            return os.write(self.ends.stdin, data)
        except BlockingIOError:
            return 0
        except OSError:
            raise self.crash_or_hang(STDIN_CLOSED) from None

    def wait_until_read(self, within_s: float) -> bool:
        """Wait until the server has read all its input. Returns whether it has.

        Returns True at once if the system cannot tell, as with sockets.
        """
        unread = bytearray(4)

        def is_empty() -> bool:
            try:
                fcntl.ioctl(self.ends.stdin, termios.FIONREAD, unread)
            except OSError:
                return True
            return struct.unpack("i", unread)[0] == 0

        return self.wait_until(is_empty, within_s)

    def crash_or_hang(self, text: str) -> Crash | Hang:
        """Return a Crash if the process has ended, otherwise a Hang.

        text: what has failed, for the text of the finding.
        """
        code = self.exit_code
        if code is None:
            return Hang(f"{text}, and the process lives")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Crash(f"the process ended with {how} ({text})")

    # The end

    def close_stdin(self) -> None:
        """Close stdin, which the server reads as the end of its input."""
        self.ends.close_stdin()

    def close_stdout(self) -> None:
        """Close the check's end of stdout, like a client that no longer reads."""
        self.ends.close_stdout()
        self.eof = True

    def close_stderr(self) -> None:
        """Close the check's end of stderr."""
        self.ends.close_stderr()

    def send_signal(self, number: int) -> None:
        """Send a signal to the process group, as a terminal does.

        Does nothing if all processes of the group have ended.
        """
        # macOS raises PermissionError for a group that has only zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def is_group_running(self) -> bool:
        """Return whether the process, or a process that it has started, still runs."""
        # Reap the process first, because a zombie keeps its group alive.
        self.popen.poll()
        pids = process_stats.find_group_pids(self.pid)
        if pids is not None:
            return bool(pids)
        # The system cannot list the processes of a group. Signal 0 tests whether there are any.
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def wait_for_exit(self, within_s: float) -> bool:
        """Wait until the process and all processes that it started have ended.

        Returns True if all have ended within within_s seconds. All their output was read then.
        """

        def have_all_ended() -> bool:
            return self.exit_code is not None and not self.is_group_running()

        if not self.wait_until(have_all_ended, within_s):
            return False
        # Read the last output from the pipes. Wait only a short time for their end, since a process
        # that has left the group may keep them open.
        self.wait_until(
            lambda: self.eof and (self.ends.stderr < 0 or not self.ends.reads_stderr), 1.0
        )
        return True

    def close(self) -> None:
        """Kill the process group and close all descriptors. May be called again."""
        if self in _running:
            self.send_signal(signal.SIGKILL)
            # A killed process ends within milliseconds, unless it is stuck in the kernel.
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(5)
            _running.discard(self)
        self.ends.close()
        self._pidfd = close_descriptor(self._pidfd)
        self.eof = True


def kill_all() -> None:
    """Close every ServerProcess that is still open, at the end of a run or on a signal."""
    for process in list(_running):
        process.close()


def _read_available(descriptor: int) -> bytes | None:
    """Read once. Returns None if there is no data yet, and b"" at the end of the stream."""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        # EIO: the other side of a terminal is closed.
        return b""
