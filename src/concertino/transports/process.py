"""Child processes as Connections: frames over stdin and stdout, stderr captured, always ended.

The child leads a process group of its own, so that everything it starts can be ended with it. It is
not reaped before its group is empty: until then its process id, which is also the id of the group,
cannot be reused. Shutdown has three bounded steps: close stdin and wait, SIGTERM to the group and
wait, SIGKILL to the group and wait. Then processes that have left the group get the same signals
(escaped_processes.py). If the child has ended by itself, SIGKILL is the only step.

Windows is not supported; there a job object would replace the group, assigned before the first
instruction (CREATE_SUSPENDED), with JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE, and TerminateJobObject as
the last step.
Spec: 2026-07-28 basic/transports/stdio "Shutdown".
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from concertino.errors import SpawnError
from concertino.jsonrpc.limits import Limits
from concertino.near_names import HintingStructMeta
from concertino.transports.connection import Receiver
from concertino.transports.escaped_processes import STARTED_BY, EscapedProcesses
from concertino.transports.pipe import READ_BYTES
from concertino.transports.polling import PollingConnection
from concertino.transports.process_exit import ExitWatch, live_members
from concertino.transports.stderr_capture import StderrCapture
from concertino.transports.unread_input import UnreadInput, count_unread, read_back

__all__ = ["INHERITED", "ChildProcess", "ShutdownTimeouts", "spawn"]

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

# Reads that empty the child's stdout at the end: twice what a pipe can hold (fs.pipe-max-size).
LAST_READS = range(32)
# How long the report of the end waits for the exit status and the rest of stderr.
LINGER_S = 0.25
# How often a process group is checked for members: no event reports that it became empty.
GROUP_CHECK_S = 0.01


class ShutdownTimeouts(Struct, frozen=True, metaclass=HintingStructMeta):
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
    escaped = EscapedProcesses()
    environment |= PYTHON | dict(env or {}) | {STARTED_BY: escaped.variable}

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
    return ChildProcess(
        popen, our_ends, limits or Limits(), ladder or ShutdownTimeouts(), stderr, escaped
    )


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
    program: str,
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    exc: Exception,
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


class ChildProcess(PollingConnection):
    """The Connection to a process. Made by spawn().

    pid: its process id, which is also the id of its process group. stdout_ended: whether the child,
    and every process that it started, has closed stdout.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        our_ends: list[int],
        limits: Limits,
        timeouts: ShutdownTimeouts,
        stderr: Callable[[bytes], object] | None,
        escaped: EscapedProcesses,
    ) -> None:
        writing, reading, errors = our_ends
        super().__init__(reading, writing, limits, {"transport": "process", "pid": popen.pid})
        self.pid = popen.pid
        self._exit = ExitWatch(popen, self._on_exit)
        self._stderr = StderrCapture(errors, popen.pid, stderr)
        self._unread = UnreadInput(limits.high_water_bytes + limits.max_message_bytes)
        self._escaped = escaped
        self._timeouts = timeouts
        self._closing: asyncio.Task[None] | None = None
        self.stdout_ended = False
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

    # The end of the child

    def _on_exit(self) -> None:
        if self._input.over:
            self._report_end()
        elif self.exit_status == 0 or self._input.paused:
            # It may have left its stdout to a process that it started, perhaps for ever.
            self._loop.call_later(LINGER_S, self._report_end)
        else:
            # A polled chunk may have to be delivered before, in this iteration.
            self._loop.call_soon(self._deliver_rest)

    def _deliver_rest(self) -> None:
        """After a crash, deliver what the child has written and report its end.

        Processes that it started may hold its stdout open, and even write to it for ever.
        """
        for _ in LAST_READS:
            if self._input.over or self._released:
                break
            try:
                chunk = os.read(self._in, READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self.on_chunk(chunk)
        self._report_end()

    def _on_stdout_ended(self) -> None:
        self.stdout_ended = True
        if self.exit_status is not None:
            self._report_end()
        else:
            self._loop.call_later(LINGER_S, self._report_end)

    def _on_write_error(self, exc: OSError) -> None:
        """Discard all output. Input that the child has already written is still delivered."""
        if self._output.broken:
            return
        self._output.broken = True
        self._discard_output()
        self._watch_writable(False)
        self._loop.call_later(LINGER_S, self._report_end)

    def drop(self, frame: bytes) -> None:
        """Keep a frame that cannot be written any more, for take_unread()."""
        if not self._end_reported:
            self._unread.add((frame, b"\n"))

    def _discard_output(self) -> None:
        """Move all buffered output to what the child has not read."""
        output = self._output
        self._unread.add((output.rest, *(frame + b"\n" for frame in output.queue)))
        output.discard()

    def has_read_input(self) -> bool:
        """Return whether a process has read all that was written to the child's stdin."""
        return self._out >= 0 and not self._output.held and not count_unread(self._out)

    def take_unread(self) -> list[bytes]:
        """Return the lines that nobody has read from the child's stdin, and remove them.

        Call it when the end was reported, before close(). What is still in the pipe counts only if
        no process has its reading end open. The first line may be incomplete.
        """
        if self._out < 0:
            return []
        self._discard_output()
        return self._unread.take(read_back(self._out))

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
        steps: tuple[tuple[signal.Signals | None, float], ...] = (
            (None, timeouts.stdin_closed_s),
            (signal.SIGTERM, timeouts.terminated_s),
            (signal.SIGKILL, timeouts.killed_s),
        )
        if self.exit_status is None:
            self._escaped.note_descendants(self.pid)
            await self._drain(within_s)
        else:
            # The child ended by itself. What it has left behind has nobody to work for.
            steps = steps[-1:]
        self._close_stdin()

        for number, timeout_s in steps:
            if number is not None:
                log.info("process %d has not ended: %s", self.pid, number.name)
                self._signal_group(number)
            if await self._wait_for_group(timeout_s):
                break
        else:
            members = ", ".join(map(str, live_members(self.pid)))
            log.error("process %d: %s could not be ended", self.pid, members)

        for number, timeout_s in steps:
            # They have nobody to tell them that stdin was closed.
            if number is not None and await self._escaped.end(self.pid, number, timeout_s):
                break
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
        if self.stdout_ended:
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
        self._escaped.kill(self.pid)
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
