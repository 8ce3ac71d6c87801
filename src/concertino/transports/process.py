"""spawn(): starts a program and returns the Connection to it, over its stdin and stdout.

    child = spawn(["python", "server.py"])
    child.open(receiver)
    ...
    await child.close(within_s=1)      # ends the child and all processes that it has started

The child leads a new process group, so that the processes that it starts can be ended together with
it. close() has up to three steps, each with a time limit (ShutdownTimeouts): close stdin and wait;
send SIGTERM to the group and wait; send SIGKILL and wait. Processes that have left the group get
the same signals (escaped_processes.py). If the child has ended by itself, only SIGKILL is sent.

The child is not reaped before its group is empty. Until then its process id, which is also the id
of the group, cannot be reused for another process.

Windows is not supported. There, a job object would have to take the place of the process group.
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

from msgspec import Struct
from msgspec.structs import astuple

from concertino.errors import SpawnError
from concertino.jsonrpc.limits import Limits
from concertino.near_names import HintingStructMeta
from concertino.transports.connection import Receiver
from concertino.transports.escaped_processes import EscapedProcesses
from concertino.transports.pipe import READ_BYTES
from concertino.transports.polling import PollingConnection
from concertino.transports.process_exit import ExitWatch, live_members
from concertino.transports.process_groups import add_process_group, remove_process_group
from concertino.transports.process_marks import STARTED_BY
from concertino.transports.stderr_capture import StderrCapture
from concertino.transports.unread_input import UnreadInput, count_unread, read_back

__all__ = ["INHERITED", "ChildProcess", "ShutdownTimeouts", "spawn"]

log = logging.getLogger("concertino.process")

# The environment variables that a child inherits by default: many programs need them, and they
# contain no secrets. The official SDKs pass on the first six.
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
# Variables for children that are Python programs. The most common reason for a client that hangs is
# a child that buffers its output, or that decodes its input by the locale.
PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}

# At most this many reads are made to empty the child's stdout at its end. That is twice as much as
# a pipe can contain (fs.pipe-max-size).
LAST_READS = range(32)
# How many seconds the report of the end is delayed, to wait for the exit status and the rest of
# stderr.
LINGER_S = 0.25
# How often, in seconds, to check whether a process group is empty. No event reports this.
GROUP_CHECK_S = 0.01


class ShutdownTimeouts(Struct, frozen=True, metaclass=HintingStructMeta):
    """The time limits of a child's shutdown, in seconds.

    stdin_closed_s: how long to wait after closing stdin.
    terminated_s: how long to wait after SIGTERM.
    killed_s: how long to wait after SIGKILL.
    Raises ValueError unless all are finite numbers of at least 0.
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
    """Start a program and return the Connection to it.

    The program runs at once; call open() to receive its frames.

    command: the program and its arguments. No shell is involved.
    env: environment variables for the child. It also gets PYTHONUNBUFFERED and PYTHONUTF8, unless
        `env` contains them, and CONCERTINO_STARTED_BY, which names this process. It inherits only
        the variables in `inherit`.
    inherit: the names of variables to pass on from this process.
    cwd: the working directory; by default the working directory of this process.
    stderr: called on the event loop with each chunk of the child's stderr. Even if it is None,
        stderr is read, and its last 8 KiB are kept (ChildProcess.tail).
    limits: by default Limits().
    ladder: the time limits of the shutdown; by default ShutdownTimeouts().
    Raises SpawnError if the program cannot be started. The text names the program, where it was
    searched for, and the reason.
    """
    argv = _check_command(command)
    environment = {name: os.environ[name] for name in inherit if name in os.environ}
    escaped = EscapedProcesses()
    environment |= PYTHON | dict(env or {}) | {STARTED_BY: escaped.environment_value}

    our_ends: list[int] = []
    child_ends: list[int] = []
    try:
        # The three pipes: the child reads its stdin and writes its stdout and stderr.
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
    escaped.note_child(popen.pid, our_ends[1:])
    return ChildProcess(
        popen,
        our_ends,
        limits=limits or Limits(),
        timeouts=ladder or ShutdownTimeouts(),
        stderr=stderr,
        escaped=escaped,
    )


def _check_command(command: Sequence[str]) -> list[str]:
    """Return a command as a list of str. Raises SpawnError if it is anything else."""
    # str and bytes are Sequences too, so check for them first.
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
    """Return a text for the user with the reason why a program could not be started.

    exc: the exception that subprocess.Popen has raised.
    """
    if isinstance(exc, TypeError):
        return (
            f"{program}: an environment variable or the working directory has a wrong type: {exc}"
        )
    if cwd is not None and not os.path.isdir(cwd):
        return f"{program}: the working directory {os.fspath(cwd)} is not a directory"
    if isinstance(exc, PermissionError):
        reason = "is a directory" if os.path.isdir(program) else "not executable"
        return f"{program}: {reason}"
    if not isinstance(exc, FileNotFoundError):
        return f"{program}: {exc}"

    # A whole command line in place of the program is a common mistake in mcp.json.
    first, *arguments = program.split() or [program]
    folders = os.get_exec_path(environment)
    if arguments and any(os.access(os.path.join(folder, first), os.X_OK) for folder in folders):
        noun = "argument" if len(arguments) == 1 else "arguments"
        return (
            f"{program}: command not found; did you mean the command {first!r} "
            f"with the {noun} {', '.join(map(repr, arguments))}?"
        )

    if os.sep in program:
        if os.path.exists(program):
            return f"{program}: the interpreter named in its first line is missing"
        return f"{program}: no such file"
    if "PATH" not in environment:
        searched = os.pathsep.join(folders)
        return f"{program}: command not found in {searched}; the environment has no PATH"
    return f"{program}: command not found in PATH={environment['PATH']}"


class ChildProcess(PollingConnection):
    """The Connection to a child process, over its stdin and stdout. Made by spawn().

        child = spawn(["python", "server.py"])
        child.open(receiver)
        ...
        await child.close(within_s=1)

    popen: the process.
    our_ends: the descriptors for the child's stdin (to write), stdout and stderr (to read).
    timeouts: the time limits of the shutdown.
    stderr: called with each chunk of the child's stderr; None to ignore the chunks.
    escaped: finds processes that have left the child's process group.

    Attributes:
    pid: the child's process id, which is also the id of its process group.
    stdout_ended: whether all processes that had the child's stdout open have closed it.
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
        # If the connection is not closed before os._exit(), runtime/shutdown.py kills this group.
        add_process_group(popen.pid)
        self._exit = ExitWatch(popen, self._on_exit)
        self._stderr = StderrCapture(errors, popen.pid, stderr)
        # This is as much as may be buffered: up to the high-water mark, and one more message.
        self._unread = UnreadInput(limits.high_water_bytes + limits.max_message_bytes)
        self._escaped = escaped
        self._timeouts = timeouts
        # The task that runs the shutdown; None before close().
        self._closing: asyncio.Task[None] | None = None
        self.stdout_ended = False
        # Whether the end may still be reported to the receiver: not twice, and not after close().
        self._may_report_end = True

    @property
    def exit_status(self) -> int | None:
        """Return the exit code of the child; None while it runs.

        If a signal has ended the child, the result is minus the number of the signal.
        """
        return self._exit.status

    @property
    def tail(self) -> bytearray:
        """Return the last 8 KiB of stderr."""
        return self._stderr.tail

    def open(self, receiver: Receiver) -> None:
        self._user_receiver = receiver
        super().open(_ReceiverProxy(receiver, self))
        self._stderr.start()
        self._exit.start()

    async def wait(self) -> int:
        """Wait until the child has ended, and return exit_status.

        Processes that the child has started may still run.
        """
        await self._exit.ended.wait()
        assert self.exit_status is not None
        return self.exit_status

    async def close(self, within_s: float) -> None:
        """End the child and all processes that it has started.

        If the calling task is cancelled, the shutdown continues.
        within_s: how long to wait, before the shutdown begins, until the child has read the
            buffered output, in seconds.
        """
        if self._closing is None:
            # Only an open connection notices the child's end, for which the shutdown waits.
            if self._receiver is None:
                self.open(_NullReceiver())
            self._may_report_end = False
            # Continue reading, if it was paused: the child may block until its output is read.
            self.pause(False)
            self._closing = self._loop.create_task(self._shut_down(within_s))
            self._closing.add_done_callback(self.abandon)
        await asyncio.shield(self._closing)

    def abandon(self, _: object = None) -> None:
        """Kill the child at once, unless a task of close() is ending it. Blocks briefly."""
        # Also the done callback of the task of close(). That task may have been cancelled before
        # its first step, because asyncio.run() cancels all tasks at its end.
        if not self._released and (self._closing is None or self._closing.done()):
            if self._receiver is None:
                self.open(_NullReceiver())
            self._may_report_end = False
            self._kill()
            self._release()

    # The end of the child

    def _on_exit(self) -> None:
        """Report the end of the child, after its last output. ExitWatch calls this."""
        if self._input.ended:
            self._report_end()
        elif self.exit_status == 0 or self._input.paused:
            # Another process may have the child's stdout open, perhaps for ever. Therefore report
            # the end soon, even if stdout has not ended. While reading is paused, the rest of the
            # output cannot be delivered anyway.
            self._loop.call_later(LINGER_S, self._report_end)
        else:
            # The child may have been a wrapper of a process that still reads and writes. Kill that
            # process, but deliver the output that it has written before.
            self._signal_group(signal.SIGKILL)
            # In the next loop iteration, because a polled chunk may have to be delivered first.
            self._loop.call_soon(self._deliver_rest, self._loop.time() + LINGER_S)

    def _deliver_rest(self, until: float) -> None:
        """Deliver the output that the child has written before it crashed, and report its end.

        until: the time, by the loop's clock, until which to wait for the end of the child's group,
            which was killed.
        """
        # Do not wait for the end of the child's stdout, because processes that the child has
        # started may have it open, and even write to it for ever.
        if not self._released and live_members(self.pid) and self._loop.time() < until:
            self._loop.call_later(GROUP_CHECK_S, self._deliver_rest, until)
            return
        for _ in LAST_READS:
            if self._input.ended or self._released:
                break
            try:
                chunk = os.read(self._reading_fd, READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                chunk = b""
            self.on_chunk(chunk)
        self._report_end()

    def _on_stdout_ended(self) -> None:
        """Report the end of the child, at the latest LINGER_S after the end of its stdout."""
        self.stdout_ended = True
        if self.exit_status is not None:
            self._report_end()
        else:
            self._loop.call_later(LINGER_S, self._report_end)

    def _on_write_error(self, exc: OSError) -> None:
        """Write nothing more, because the child has closed its stdin or has ended.

        Frames that were not written are kept for take_unread(). The end of the connection is
        reported LINGER_S seconds later, so that the last output of the child is delivered before.
        """
        if self._output.broken:
            return
        self._output.broken = True
        self._discard_output()
        self._watch_writable(False)
        self._loop.call_later(LINGER_S, self._report_end)

    def drop(self, frame: bytes) -> None:
        """Keep a frame that cannot be written any more, for take_unread()."""
        if self._may_report_end:
            self._unread.add((frame, b"\n"))

    def _discard_output(self) -> None:
        """Move all buffered output to `_unread`, because the child has not read it."""
        output = self._output
        lines = (frame + b"\n" for frame in output.queue)
        self._unread.add((output.rest, *reversed(output.pieces), *lines))
        output.discard()

    def has_read_input(self) -> bool:
        """Return whether the child has read everything that was passed to write().

        Returns False if the child's stdin is closed. If the system does not report how many bytes
        in a pipe are unread, these bytes count as read.
        """
        return (
            self._writing_fd >= 0 and not self._output.held and not count_unread(self._writing_fd)
        )

    def take_unread(self) -> list[bytes]:
        """Remove the lines that the child has not read from its stdin, and return the lines.

        Must be called after on_eof() of the receiver and before close(). If another process has the
        child's stdin open, the content of the pipe is not returned, because that process may still
        read it. The first line is incomplete if the child has read its beginning.
        """
        if self._writing_fd < 0:
            return []
        self._discard_output()
        return self._unread.take(read_back(self._writing_fd))

    def _report_end(self) -> None:
        """Report the end of the connection to the receiver, once."""
        if self._may_report_end:
            self._may_report_end = False
            self._stop_reading()
            self._stderr.read()
            self._user_receiver.on_eof()

    # Shutdown

    async def _shut_down(self, within_s: float) -> None:
        """End the child and its processes, in a task that goes on if close() is cancelled.

        within_s: how many seconds the child may first read the buffered output.
        """
        try:
            await self._run_shutdown_steps(within_s)
        except asyncio.CancelledError:
            # The event loop is about to end, so there is no time for the other steps.
            self._kill()
            raise
        finally:
            self._release()

    async def _run_shutdown_steps(self, within_s: float) -> None:
        """End the child's process group, and the processes that have left the group.

        within_s: how many seconds the child may first read the buffered output.
        """
        timeouts = self._timeouts
        if self.exit_status is None:
            self._escaped.note_descendants(self.pid)
            await self._drain(within_s)
            self._close_stdin()
            # Processes that have left the group do not notice that the child's stdin was closed.
            group_ended = await self._wait_for_group(timeouts.stdin_closed_s)
            has_ended = await self._end_with(signal.SIGTERM, timeouts.terminated_s, group_ended)
            group_ended = not live_members(self.pid)
        else:
            # The child has ended by itself, so kill the processes that it has left behind.
            self._close_stdin()
            has_ended = group_ended = False
        if not has_ended:
            await self._end_with(signal.SIGKILL, timeouts.killed_s, group_ended)
        if members := live_members(self.pid):
            text = ", ".join(map(str, members))
            log.error("process %d: %s could not be ended", self.pid, text)
        if not self._is_stdout_closed():
            log.warning(
                "a process started by process %d has left its process group "
                "and holds its stdout open",
                self.pid,
            )

    async def _end_with(self, number: signal.Signals, within_s: float, group_ended: bool) -> bool:
        """Send a signal to the group and to processes that have left it. Returns whether all ended.

        number: the number of the signal.
        within_s: how long to wait for their end, in seconds.
        group_ended: whether the group is empty already.
        """
        if group_ended:
            return await self._escaped.end(self.pid, number, within_s)
        if self.exit_status is None:
            log.info("process %d has not ended: %s", self.pid, number.name)
        self._signal_group(number)
        ended = await asyncio.gather(
            self._wait_for_group(within_s), self._escaped.end(self.pid, number, within_s)
        )
        # Processes of the group may have started other processes before their end, so search again.
        return all(ended) and await self._escaped.end(self.pid, number, within_s)

    async def _wait_for_group(self, within_s: float) -> bool:
        """Wait up to within_s seconds for the end of all processes in the group.

        Returns whether all of them have ended.
        """
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
        """Return whether no process has the child's stdout open. Discards its unread output."""
        if self.stdout_ended:
            return True
        for _ in LAST_READS:
            try:
                if not os.read(self._reading_fd, READ_BYTES):
                    return True
            except BlockingIOError:
                return False
            except OSError:
                return True
        # More was read than a pipe can contain, so a process is still writing.
        return False

    def _kill(self) -> None:
        """Send SIGKILL to the group, and wait for the child. Blocks the event loop briefly."""
        self._close_stdin()
        self._signal_group(signal.SIGKILL)
        self._escaped.kill(self.pid)
        until = time.monotonic() + self._timeouts.killed_s
        while self.exit_status is None and time.monotonic() < until:
            self._exit.check()
            if self.exit_status is None:
                time.sleep(GROUP_CHECK_S)

    def _signal_group(self, number: int) -> None:
        """Send a signal to the child's process group, if it is not empty."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # The group is empty; macOS reports PermissionError for a group of zombies.
            pass

    def _close_stdin(self) -> None:
        """Close the child's stdin, and write nothing more."""
        if self._writing_fd >= 0:
            self._watch_writable(False)
            if self._detects_peer_loss:
                self._loop.remove_reader(self._writing_fd)
            os.close(self._writing_fd)
            self._writing_fd = -1
        self._output.broken = True

    def _release(self) -> None:
        """Close the descriptors and reap the child. Later calls do nothing."""
        if self._released:
            return
        self._released = True
        self._stop_reading()
        os.close(self._reading_fd)
        self._stderr.close()
        remove_process_group(self.pid)
        self._exit.close()


class _ReceiverProxy:
    """The Receiver between the pipe and the user's receiver. It forwards all events but the end.

    ChildProcess reports the end to the user's receiver later, when the exit status is known and all
    of stderr was read.
    """

    def __init__(self, receiver: Receiver, child: ChildProcess) -> None:
        # These are attributes and not methods, to save a function call for each frame.
        self.on_frames = receiver.on_frames
        self.on_frame_too_long = receiver.on_frame_too_long
        self.on_drain = receiver.on_drain
        self.on_eof = child._on_stdout_ended  # pyright: ignore[reportPrivateUsage]

    def on_disconnect(self, exc: Exception) -> None:
        """Do nothing. ChildProcess reports only the end of input, and never a disconnect."""


class _NullReceiver:
    """A Receiver that ignores everything, for a child that is closed without open()."""

    def on_frames(self, frames: Sequence[bytes]) -> None: ...
    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_eof(self) -> None: ...
    def on_disconnect(self, exc: Exception) -> None: ...
