"""Child processes as Connections: frames over stdin and stdout, stderr captured, always ended.

The child leads a process group of its own, so that everything it starts can be ended with it. It is
not reaped before its group is empty: until then its process id, which is also the id of the group,
cannot be reused. Shutdown has three bounded steps: close stdin and wait, SIGTERM to the group and
wait, SIGKILL to the group and wait.

Linux offers the best information: pidfd, waitid and /proc. Where those are missing (macOS), a
thread waits for the child and reaps it, and signal 0 tells whether the group still has members; no
system reuses the id of a group that has. Windows is not supported; there a job object would replace
the group, assigned before the first instruction (CREATE_SUSPENDED), with
JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE, and TerminateJobObject as the last step.
Spec: 2026-07-28 basic/transports/stdio "Shutdown".
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from concertino.errors import SpawnError
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver
from concertino.transports.pipe import PipeConnection

__all__ = ["INHERITED", "ChildProcess", "ShutdownTimeouts", "live_members", "spawn"]

log = logging.getLogger("concertino.process")

# Variables that programs commonly need and that hold no secrets. The first six are those that the
# official SDKs pass on.
INHERITED = (
    "HOME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "USER",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
)
# A Python child that buffers its output, or decodes input by the locale, is the most common reason
# for a client that hangs.
PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}

# The end of stderr that is kept for error messages.
TAIL_BYTES = 8192
READ_BYTES = 65536
# Reads in a row before other callbacks of the loop run.
READS = range(8)
# Polls that may succeed in a row before the loop has to run once.
MAX_POLLS = 16
# Reads without polls that follow repeated polls in vain, at most.
MAX_POLL_PAUSE = 8
# Reads that empty the child's stdout at the end: twice what a pipe can hold (fs.pipe-max-size).
LAST_READS = range(32)
# How long the report of the end waits for the exit status and the rest of stderr.
LINGER_S = 0.25
# How often a process group is checked for members: no event reports that it became empty.
GROUP_CHECK_S = 0.01
PROC = Path("/proc")


class ShutdownTimeouts(Struct, frozen=True):
    """How long each step of a shutdown may take, in seconds.

    stdin_closed_s: after stdin was closed. terminated_s: after SIGTERM. killed_s: after SIGKILL.
    Raises ValueError unless each is a finite number, 0 or more.
    """

    stdin_closed_s: float = 2.0
    terminated_s: float = 2.0
    killed_s: float = 2.0

    def __post_init__(self) -> None:
        for name, value in zip(self.__struct_fields__, astuple(self), strict=True):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value < float("inf"):
                raise ValueError(f"{name}: expected seconds, 0 or more, got {value!r}")


def spawn(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    inherit: Sequence[str] = INHERITED,
    cwd: str | os.PathLike[str] | None = None,
    stderr: Callable[[bytes], object] | None = None,
    limits: Limits | None = None,
    ladder: ShutdownTimeouts | None = None,
) -> ChildProcess:
    """Start a program and return the Connection to it. The program runs; open() starts delivery.

    command: the program and its arguments, never a line for a shell.
    env: variables in addition to those named in `inherit`; the child gets no others.
    stderr: called on the loop with every chunk of stderr, as bytes. Without it, stderr is still
    read and its last 8 KiB are kept.
    ladder: how long each step of the shutdown may take.
    Raises SpawnError, which names the program, where it was searched and why it cannot be started.
    Nothing is left open then.
    """
    argv = _check_command(command)
    environment = {name: os.environ[name] for name in inherit if name in os.environ}
    environment |= PYTHON | dict(env or {})

    our_ends: list[int] = []
    child_ends: list[int] = []
    try:
        # The child reads its stdin and writes its stdout and stderr.
        for child_reads in (True, False, False):
            reading, writing = os.pipe()
            child_ends.append(reading if child_reads else writing)
            our_ends.append(writing if child_reads else reading)
        popen = subprocess.Popen(
            argv,
            stdin=child_ends[0],
            stdout=child_ends[1],
            stderr=child_ends[2],
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError, TypeError) as exc:
        for descriptor in our_ends:
            os.close(descriptor)
        raise SpawnError(_explain_failure(argv[0], environment, cwd, exc)) from exc
    finally:
        for descriptor in child_ends:
            os.close(descriptor)
    return ChildProcess(popen, our_ends, limits or Limits(), ladder or ShutdownTimeouts(), stderr)


def _check_command(command: Sequence[str]) -> list[str]:
    # Both are Sequences, too.
    if isinstance(command, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpawnError(
            f"command: expected a list such as ['python', 'server.py'], got the text {command!r}"
        )
    argv = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in command]
    parts: list[object] = [*argv]
    if not argv or not all(isinstance(part, str) and "\0" not in part for part in parts):
        raise SpawnError(
            f"command: expected a list of str without NUL, the program first, got {command!r}"
        )
    return argv


def _explain_failure(
    program: str, environment: Mapping[str, str], cwd: str | os.PathLike[str] | None, exc: Exception
) -> str:
    """Return the reason why a program could not be started, for the user."""
    if isinstance(exc, TypeError):
        return (
            f"{program}: an environment variable or the working directory has a wrong type: {exc}"
        )
    if cwd is not None and not Path(cwd).is_dir():
        return f"{program}: the working directory {os.fspath(cwd)} is not a directory"
    if isinstance(exc, PermissionError):
        return f"{program}: {'is a directory' if Path(program).is_dir() else 'not executable'}"
    if not isinstance(exc, FileNotFoundError):
        return f"{program}: {exc}"

    if os.sep in program:
        if Path(program).exists():
            return f"{program}: the interpreter named in its first line is missing"
        return f"{program}: no such file"
    if "PATH" not in environment:
        searched = os.pathsep.join(os.get_exec_path(environment))
        return f"{program}: command not found in {searched}; the environment has no PATH"
    return f"{program}: command not found in PATH={environment['PATH']}"


class ChildProcess(PipeConnection):
    """The Connection to a process. Made by spawn().

    pid: its process id, which is also the id of its process group.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        our_ends: list[int],
        limits: Limits,
        timeouts: ShutdownTimeouts,
        stderr: Callable[[bytes], object] | None,
    ) -> None:
        writing, reading, errors = our_ends
        super().__init__(reading, writing, limits, {"transport": "process", "pid": popen.pid})
        self.pid = popen.pid
        self._exit = _ExitWatch(popen, self._on_exit)
        self._stderr = _StderrCapture(errors, popen.pid, stderr)
        self._timeouts = timeouts
        self._polls = _PollBudget()
        self._closing: asyncio.Task[None] | None = None
        self._stdout_ended = False
        # Whether the receiver knows that the connection is over, or need not know.
        self._end_reported = False

    @property
    def exit_status(self) -> int | None:
        """Return the exit code, or minus the signal that ended the child; None while it runs."""
        return self._exit.status

    @property
    def tail(self) -> bytearray:
        """Return the last 8 KiB of stderr."""
        return self._stderr.tail

    def open(self, receiver: Receiver) -> None:
        self._child_receiver = receiver
        self._context = copy_context()
        super().open(_ReceiverProxy(receiver, self))
        self._stderr.start()
        self._exit.start()

    async def wait(self) -> int:
        """Wait until the child has ended and return exit_status.

        Processes that the child started may still run, and may hold its stdout open.
        """
        await self._exit.ended.wait()
        assert self.exit_status is not None
        return self.exit_status

    async def close(self, within_s: float) -> None:
        """Shut the child down, with everything it started.

        within_s: for buffered output that the child has not accepted yet. The shutdown continues
        when the caller is cancelled.
        """
        if self._closing is None:
            if self._receiver is None:
                self.open(_NullReceiver())
            self._end_reported = True
            # The child may wait for its output to be read before it ends.
            self.pause(False)
            self._closing = self._loop.create_task(self._shut_down(within_s))
            self._closing.add_done_callback(self.abandon)
        await asyncio.shield(self._closing)

    def abandon(self, _: object = None) -> None:
        """Kill the child at once, in case close() has not run or cannot run. Blocks briefly.

        close() cannot run when the event loop ends, which cancels even tasks that have not begun.
        """
        if not self._released and (self._closing is None or self._closing.done()):
            if self._receiver is None:
                self.open(_NullReceiver())
            self._end_reported = True
            self._kill()
            self._release()

    # Requests that are answered at once

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
            self._on_chunk(chunk)

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
                self._on_chunk(chunk)
            else:
                if polls.pause:
                    polls.pause -= 1
                else:
                    polls.left = MAX_POLLS
                # Input is read only while the connection is open, so there is a receiver.
                self._receiver.on_frames((line,))  # pyright: ignore[reportOptionalMemberAccess]
            if len(chunk) < READ_BYTES or state.paused or state.over or polls.chunk_deferred:
                return

    # The end of the child

    def _on_exit(self) -> None:
        if self._input.over:
            self._report_end()
        else:
            # Processes that the child started may hold its stdout open for ever.
            self._loop.call_later(LINGER_S, self._report_end)

    def _on_stdout_ended(self) -> None:
        self._stdout_ended = True
        if self.exit_status is not None:
            self._report_end()
        else:
            self._loop.call_later(LINGER_S, self._report_end)

    def _on_write_error(self, exc: OSError) -> None:
        """Discard all output. Input that the child has already written is still delivered."""
        if self._output.broken:
            return
        self._output.broken = True
        self._output.discard()
        self._watch_writable(False)
        self._loop.call_later(LINGER_S, self._report_end)

    def _report_end(self) -> None:
        """Report the end of the connection to the receiver, once."""
        if not self._end_reported:
            self._end_reported = True
            self._stop_reading()
            self._stderr.read()
            self._child_receiver.on_eof()

    # Shutdown

    async def _shut_down(self, within_s: float) -> None:
        try:
            await self._run_shutdown_steps(within_s)
        except asyncio.CancelledError:
            # The loop is about to end, so there is no time for the gentle steps.
            self._kill()
            raise
        finally:
            self._release()

    async def _run_shutdown_steps(self, within_s: float) -> None:
        timeouts = self._timeouts
        await self._drain(within_s)
        self._close_stdin()

        steps = (
            (None, timeouts.stdin_closed_s),
            (signal.SIGTERM, timeouts.terminated_s),
            (signal.SIGKILL, timeouts.killed_s),
        )
        for number, timeout_s in steps:
            if number is not None:
                log.info("process %d has not ended: %s", self.pid, signal.Signals(number).name)
                self._signal_group(number)
            if await self._wait_for_group(timeout_s):
                break
        else:
            members = ", ".join(map(str, live_members(self.pid)))
            log.error("process %d: %s could not be ended", self.pid, members)

        if not self._is_stdout_closed():
            log.warning(
                "a process started by process %d has left its process group "
                "and holds its stdout open",
                self.pid,
            )

    async def _wait_for_group(self, within_s: float) -> bool:
        """Return True if every process of the group ended within that time."""
        until = self._loop.time() + within_s
        try:
            async with asyncio.timeout_at(until):
                await self._exit.ended.wait()
        except TimeoutError:
            return False

        while live_members(self.pid):
            if self._loop.time() >= until:
                return False
            await asyncio.sleep(GROUP_CHECK_S)
        return True

    def _is_stdout_closed(self) -> bool:
        """Return True if no process holds the child's stdout open. Unread output is discarded."""
        if self._stdout_ended:
            return True
        for _ in LAST_READS:
            try:
                if not os.read(self._in, READ_BYTES):
                    return True
            except BlockingIOError:
                return False
            except OSError:
                return True
        # More came than a pipe holds, so a process is still writing.
        return False

    def _kill(self) -> None:
        """Send SIGKILL to the group and wait for the child. Blocks the loop briefly."""
        self._close_stdin()
        self._signal_group(signal.SIGKILL)
        until = time.monotonic() + self._timeouts.killed_s
        while self.exit_status is None and time.monotonic() < until:
            self._exit.check()
            if self.exit_status is None:
                time.sleep(GROUP_CHECK_S)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # The group is gone; macOS reports PermissionError for a group of zombies.
            pass

    def _close_stdin(self) -> None:
        if self._out >= 0:
            self._watch_writable(False)
            if self._detects_reader_loss:
                self._loop.remove_reader(self._out)
            os.close(self._out)
            self._out = -1
        self._output.broken = True

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        self._stop_reading()
        os.close(self._in)
        self._stderr.close()
        self._exit.close()


class _ExitWatch:
    """Reports when a child process ends. on_exit: called once, on the loop.

    status: the exit code, or minus the signal; None while the child runs. ended: set with it. The
    child stays a zombie until close(), so that its id is not reused before.
    """

    def __init__(self, popen: subprocess.Popen[bytes], on_exit: Callable[[], object]) -> None:
        self.status: int | None = None
        self.ended = asyncio.Event()
        self._popen = popen
        self._on_exit = on_exit
        self._pidfd = -1

    def start(self) -> None:
        """Start to watch, on the running loop."""
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
            self._loop.add_reader(self._pidfd, self.check)
        except (AttributeError, OSError):
            # This is not Linux, or an old kernel.
            thread = threading.Thread(target=self._wait, name="concertino-child", daemon=True)
            thread.start()

    def _wait(self) -> None:
        """Wait for the exit in a thread."""
        try:
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        except (AttributeError, ChildProcessError):
            # macOS has waitid since Python 3.13 only; or somebody else has reaped the child.
            self._popen.wait()
        try:
            self._loop.call_soon_threadsafe(self.check)
        except RuntimeError:
            # The loop is closed.
            pass

    def check(self) -> None:
        """Look whether the child has ended, and if so set status and call on_exit."""
        if self.status is not None or (status := self._poll_status()) is None:
            return
        self.status = status
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self.ended.set()
        self._on_exit()

    def _poll_status(self) -> int | None:
        """Return how the child ended without reaping it; None while it runs.

        Returns 0 if this program ignores SIGCHLD, so that the system reaps all children: that is
        what Popen does, too.
        """
        try:
            result = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except (AttributeError, ChildProcessError):
            return self._popen.poll()
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def close(self) -> None:
        """Stop watching, and reap the child if it has ended."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        if self.status is not None:
            self._popen.wait()


class _StderrCapture:
    """Reads a child's stderr, passes on each chunk and keeps the last 8 KiB in `tail`."""

    def __init__(self, descriptor: int, pid: int, sink: Callable[[bytes], object] | None) -> None:
        self.tail = bytearray()
        self._descriptor = descriptor
        self._pid = pid
        self._sink = sink
        os.set_blocking(descriptor, False)

    def start(self) -> None:
        """Start to read, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self.read)

    def read(self) -> None:
        """Read what is available now."""
        for _ in READS:
            try:
                chunk = os.read(self._descriptor, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._loop.remove_reader(self._descriptor)
                return

            self.tail += chunk
            del self.tail[:-TAIL_BYTES]
            if self._sink is not None:
                try:
                    self._sink(chunk)
                except Exception:
                    log.exception("the stderr function of process %d failed", self._pid)

    def close(self) -> None:
        """Read what is left and close the descriptor."""
        self.read()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


class _PollBudget:
    """How many polls ChildProcess.send_and_poll() may make. left: before the loop has to run.

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


class _ReceiverProxy:
    """Forwards input to the receiver, but the end of input and disconnects to the ChildProcess.

    So the receiver learns of the end only when the exit status and all of stderr are there.
    """

    def __init__(self, receiver: Receiver, child: ChildProcess) -> None:
        # Bound methods instead of forwarding ones: one call less for each frame.
        self.on_frames = receiver.on_frames
        self.on_frame_too_long = receiver.on_frame_too_long
        self.on_drain = receiver.on_drain
        self.on_eof = child._on_stdout_ended  # pyright: ignore[reportPrivateUsage]

    def on_disconnect(self, exc: Exception) -> None:
        """Ignore it: ChildProcess never reports a disconnect, only the end of input."""


class _NullReceiver:
    """Ignores everything, for a child that is closed before it was opened."""

    def on_frames(self, batch: Sequence[bytes]) -> None: ...
    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_eof(self) -> None: ...
    def on_disconnect(self, exc: Exception) -> None: ...


def live_members(group: int) -> list[int]:
    """Return the ids of the processes in a process group that have not ended; zombies have.

    Without /proc, returns the id of the group itself if it has members.
    """
    if not (PROC / "self" / "stat").exists():
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            # The group is empty; macOS reports PermissionError for a group of zombies.
            return []
        return [group]

    members: list[int] = []
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_bytes()
                # The name of the program, in parentheses, may contain blanks and parentheses.
                state, _, member_group = text.rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):
                # The process has ended meanwhile.
                continue
            if int(member_group) == group and state not in (b"Z", b"X"):
                members.append(int(folder.name))
    return members
