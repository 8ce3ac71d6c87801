"""A child process as a Connection: started, spoken to over its stdin and stdout, listened to on stderr, and never left behind.

The child leads a process group of its own, so that everything it starts can be ended with it. It is not reaped before its group is
empty: until then its process id, which is the group's too, cannot come to mean anybody else. The end is a ladder, each rung
bounded: close stdin and wait, SIGTERM to the group and wait, SIGKILL to the group and wait.

Linux tells the most: pidfd, waitid, /proc. Where those are missing (macOS) a thread waits for the child and reaps it, and the group
is asked for by a signal 0; no system gives a group's number to a new process while it has members. On Windows a job object would
take the place of the group: assigned before the first instruction (CREATE_SUSPENDED), JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE, and
TerminateJobObject as the last rung. That is not built.
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
from collections.abc import Callable, Mapping, Sequence, Sized
from contextvars import copy_context
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple

from concertino.errors import SpawnError
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver
from concertino.transports.pipe import PipeConnection

__all__ = ["INHERITED", "ChildProcess", "ShutdownTimeouts", "spawn"]

log = logging.getLogger("concertino.process")

# What a program needs to find its way about, and nothing that could be a secret; the official SDKs pass the first six.
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
# A Python child that buffers its output, or reads UTF-8 in the locale's way, is the most common reason for a client that hangs.
PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
TAIL_BYTES = 8192  # of stderr, kept for error messages
READ_BYTES = 65536
READS = range(8)  # in a row
GLANCES = 16  # in a row
GLANCES_REST = 8  # turns of the loop
LAST_READS = range(32)  # of stdout: twice what a pipe holds at most (fs.pipe-max-size)
LAST_WORDS_S = 0.25  # after stdout has ended: for the exit status, and for what stderr still says
LOOK_S = 0.01  # how often an emptying group is looked at: no event tells
PROCESSES = Path("/proc")


class ShutdownTimeouts(Struct, frozen=True):
    """How long each rung of the end may take, in seconds. Raises ValueError for what is no time."""

    stdin_closed_s: float = 2.0
    terminated_s: float = 2.0
    killed_s: float = 2.0

    def __post_init__(self) -> None:
        for name, given in zip(self.__struct_fields__, astuple(self), strict=True):
            if (
                isinstance(given, bool)
                or not isinstance(given, (int, float))
                or not 0 <= given < float("inf")
            ):
                raise ValueError(f"{name}: expected seconds, 0 or more, got {given!r}")


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
    """Start a program and give the Connection to it. It runs already; open() starts to deliver.

    command: the program and its arguments, never a line for a shell. env: over the variables named in `inherit`, and no others.
    stderr: called on the loop with every piece that comes, as bytes; it is read and kept (the last 8 KiB) without.
    Raises SpawnError naming what cannot be started, where it was looked for, and why. Nothing is left open then.
    """
    argv = _checked(command)
    environment = (
        {name: os.environ[name] for name in inherit if name in os.environ}
        | PYTHON
        | dict(env or {})
    )
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for reads in (True, False, False):  # the child's stdin, stdout, stderr
            reading, writing = os.pipe()
            theirs.append(reading if reads else writing)
            ours.append(writing if reads else reading)
        popen = subprocess.Popen(
            argv,
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError, TypeError) as why:
        for descriptor in ours:
            os.close(descriptor)
        raise SpawnError(_why(argv[0], environment, cwd, why)) from why
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return ChildProcess(popen, ours, limits or Limits(), ladder or ShutdownTimeouts(), stderr)


def _checked(command: Sequence[str]) -> list[str]:
    if isinstance(command, (str, bytes)):  # pyright: ignore[reportUnnecessaryIsInstance]  # both are Sequences
        raise SpawnError(
            f"command: expected a list such as ['python', 'server.py'], got the text {command!r}"
        )
    argv = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in command]
    if not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpawnError(
            f"command: expected a list of str without NUL, the program first, got {command!r}"
        )
    return argv


def _why(
    program: str, environment: Mapping[str, str], cwd: str | os.PathLike[str] | None, why: Exception
) -> str:
    if isinstance(why, TypeError):
        return f"{program}: an environment variable or the working directory is none: {why}"
    if cwd is not None and not Path(cwd).is_dir():
        return f"{program}: the working directory {os.fspath(cwd)} is not a directory"
    if isinstance(why, FileNotFoundError):
        if os.sep in program:
            found = (
                "the interpreter named in its first line is missing"
                if Path(program).exists()
                else "no such file"
            )
            return f"{program}: {found}"
        if "PATH" not in environment:
            looked = os.pathsep.join(os.get_exec_path(environment))
            return f"{program}: command not found in {looked}; the environment has no PATH"
        return f"{program}: command not found in PATH={environment['PATH']}"
    if isinstance(why, PermissionError):
        return f"{program}: {'is a directory' if Path(program).is_dir() else 'not executable'}"
    return f"{program}: {why}"


class ChildProcess(PipeConnection):
    """The connection to a process that spawn() started.

    exit_status: its exit code, or minus the signal that ended it; None while it runs. tail: the last 8 KiB of stderr.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        ours: list[int],
        limits: Limits,
        ladder: ShutdownTimeouts,
        stderr: Callable[[bytes], object] | None,
    ) -> None:
        writing, reading, self._errors = ours
        super().__init__(reading, writing, limits, {"transport": "process", "pid": popen.pid})
        self.pid = popen.pid
        self.exit_status: int | None = None
        self.tail = bytearray()
        self._popen = popen
        self._ladder = ladder
        self._sink = stderr
        self._exited: asyncio.Event = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._pidfd = -1
        self._at_end = False  # of its stdout
        self._told = False  # the receiver knows that it is over
        self._glances = 0  # that may be made before the loop turns again
        self._resting = 0  # turns of the loop to come, in which none is made
        self._next_rest = 1  # how many there will be after the next that is in vain
        self._postponed = False  # something that was read, to the next turn
        os.set_blocking(self._errors, False)

    def open(self, to: Receiver) -> None:
        self._receiver = to
        self._context = copy_context()
        # What is to run next; the loop has no other way to ask. One that keeps it elsewhere (uvloop) is taken to be always busy.
        self._ready: Sized = getattr(asyncio.get_running_loop(), "_ready", "unknown")
        super().open(_Ear(to, self))
        self._loop.add_reader(self._errors, self._said)
        self._watch()

    async def wait(self) -> int:
        """Wait until the child has ended, whatever it started and whoever holds its stdout. Returns exit_status."""
        await self._exited.wait()
        assert self.exit_status is not None
        return self.exit_status

    async def close(self, within_s: float) -> None:
        """Down the ladder; within_s is for output that the child has not taken yet. It goes on when the caller is cancelled."""
        if self._closing is None:
            if self._to is None:
                self.open(_Nobody())
            self._told = True
            self.pause(False)  # it may wait for its output to be read
            self._closing = self._loop.create_task(self._end(within_s))
            self._closing.add_done_callback(self.abandon)
        await asyncio.shield(self._closing)

    def abandon(self, _: object = None) -> None:
        """Kill it, if that is all that is left to do: a loop that ends cancels even what has not begun. Blocks for a moment."""
        if not self._released and (self._closing is None or self._closing.done()):
            if self._to is None:
                self.open(_Nobody())
            self._told = True
            self._kill()
            self._release()

    # Requests that are answered at once

    def exchange(self, frame: bytes, about: Id | None) -> bytes | int:
        """send(), and the line that has come by then, if one has; else the bytes held.

        A server that shares the core has mostly answered before the write returns. To look at once saves a turn of the loop: of
        62,600 instructions that a call costs, 23,600 are left. Elsewhere a glance is 1 us lost, so after one in vain there is none
        for a turn of the loop, then for two, up to GLANCES_REST. Nobody waits longer for it: there is none while something else is
        ready to run, and after GLANCES the loop gets its turn. A line that is not what was asked for goes to postpone().
        """
        if not self._glances or self._held or self._ready:
            return self.send(frame, about)
        line = frame + b"\n"
        try:
            written = os.write(self._out, line)
        except OSError:
            return self.send(frame, about)  # which finds the same, and knows what it means
        if written < len(line):
            return self._keep(line, written)
        self._glances = left = self._glances - 1
        try:
            chunk = os.read(self._in, READ_BYTES)
        except OSError:  # nothing yet; or what the reader finds, too
            chunk = b""
        answer = self._framer.line(chunk)
        if answer is not None:
            return answer
        self._glances = 0
        if left < GLANCES - 1:
            self._next_rest = 1
        else:  # the first of the turn
            self._resting = self._next_rest
            self._next_rest = min(2 * self._next_rest, GLANCES_REST)
        if chunk:
            self._postpone(chunk)
        return 0

    def postpone(self, line: bytes) -> None:
        """Deliver a line that exchange() gave to the receiver, outside of the task that asked."""
        self._postpone(line + b"\n")

    def _postpone(self, chunk: bytes) -> None:
        self._glances = 0
        self._postponed = True
        self._loop.remove_reader(self._in)  # so that nothing overtakes it
        self._loop.call_soon(self._deliver, chunk, context=self._context)

    def _deliver(self, chunk: bytes) -> None:
        self._postponed = False
        if not self._over:
            if not self._paused:
                self._resume()
            self._chunk(chunk)

    # Reading

    def _readable(self) -> None:
        """A client mostly waits for one answer: to look for more after a read that was not full costs more than it gains."""
        for _ in READS:
            try:
                chunk = os.read(self._in, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                chunk = b""
            line = self._framer.line(chunk)
            if line is None:
                self._glances = 0  # they would overtake what is delivered now
                self._chunk(chunk)
            else:
                if self._resting:
                    self._resting -= 1
                else:
                    self._glances = GLANCES
                self._to.on_frames((line,))  # pyright: ignore[reportOptionalMemberAccess]  # it is open
            if len(chunk) < READ_BYTES or self._paused or self._over or self._postponed:
                return

    # What happens to the child

    def _watch(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._look)
        except (AttributeError, OSError):  # not Linux, or an old kernel
            threading.Thread(target=self._await_exit, name="concertino-child", daemon=True).start()

    def _await_exit(self) -> None:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except (
            AttributeError,
            ChildProcessError,
        ):  # macOS has it since Python 3.13; or somebody else has reaped it
            self._popen.wait()
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed
            pass

    def _look(self) -> None:
        """The child has ended. It stays a zombie until its group is gone."""
        if self.exit_status is not None or (status := self._status()) is None:
            return
        self.exit_status = status
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
        self._exited.set()
        if self._over:
            self._tell()
        else:
            self._loop.call_later(LAST_WORDS_S, self._tell)  # what it started may hold stdout open

    def _status(self) -> int | None:
        """How the child ended; None while it runs. 0 if the program reaps all children (SIGCHLD ignored): Popen's convention."""
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except (AttributeError, ChildProcessError):
            return self._popen.poll()
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _output_ended(self) -> None:
        self._at_end = True
        if self.exit_status is not None:
            self._tell()
        else:
            self._loop.call_later(LAST_WORDS_S, self._tell)

    def _break(self, why: OSError) -> None:
        """The child takes no input any more. What it has said still counts."""
        if self._broken:
            return
        self._broken = True
        self._queue.clear()
        self._rest = memoryview(b"")
        self._held = 0
        self._watch_writing(False)
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
        self._loop.call_later(LAST_WORDS_S, self._tell)

    def _tell(self) -> None:
        """Nothing more is to be hoped for: once."""
        if not self._told:
            self._told = True
            self._stop_reading()
            self._said()
            self._receiver.on_eof()

    def _said(self) -> None:
        """stderr."""
        for _ in READS:
            try:
                piece = os.read(self._errors, READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                piece = b""
            if not piece:
                self._loop.remove_reader(self._errors)
                return
            self.tail += piece
            del self.tail[:-TAIL_BYTES]
            if self._sink is not None:
                try:
                    self._sink(piece)
                except Exception:
                    log.exception(
                        "the function that takes the stderr of process %d failed", self.pid
                    )

    # The end

    async def _end(self, within_s: float) -> None:
        try:
            await self._descend(within_s)
        except asyncio.CancelledError:  # the loop is about to end: there is no time for manners
            self._kill()
            raise
        finally:
            self._release()

    def _kill(self) -> None:
        """SIGKILL to the group, and wait for the child. This blocks the loop, for a moment."""
        self._close_input()
        self._signal(signal.SIGKILL)
        until = time.monotonic() + self._ladder.killed_s
        while self.exit_status is None and time.monotonic() < until:
            self._look()
            if self.exit_status is None:
                time.sleep(LOOK_S)

    async def _descend(self, within_s: float) -> None:
        ladder = self._ladder
        self.flush()
        if self._rest and not self._broken:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=within_s)
        self._close_input()
        rungs = (
            (None, ladder.stdin_closed_s),
            (signal.SIGTERM, ladder.terminated_s),
            (signal.SIGKILL, ladder.killed_s),
        )
        for number, within in rungs:
            if number is not None:
                log.info("process %d has not ended: %s", self.pid, signal.Signals(number).name)
                self._signal(number)
            if await self._is_gone(within):
                break
        else:
            log.error(
                "process %d: %s could not be ended",
                self.pid,
                ", ".join(map(str, _living(self.pid))),
            )
        if not self._silent():
            log.warning(
                "something that process %d started is no longer in its group, and holds its stdout",
                self.pid,
            )

    async def _is_gone(self, within_s: float) -> bool:
        """Whether the whole group has ended within that time."""
        until = self._loop.time() + within_s
        try:
            async with asyncio.timeout_at(until):
                await self._exited.wait()
        except TimeoutError:
            return False
        while _living(self.pid):
            if self._loop.time() >= until:
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _silent(self) -> bool:
        """Whether nobody holds the child's stdout any more. What is left in it is nobody's."""
        if self._at_end:
            return True
        for _ in LAST_READS:
            try:
                if not os.read(self._in, READ_BYTES):
                    return True
            except BlockingIOError:
                return False
            except OSError:
                return True
        return False  # more than a pipe holds: somebody still writes

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):  # gone; or macOS, of a group of zombies
            pass

    def _close_input(self) -> None:
        if self._out >= 0:
            self._watch_writing(False)
            if self._one_way:
                self._loop.remove_reader(self._out)
            os.close(self._out)
            self._out = -1
        self._broken = True

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        self._said()
        self._stop_reading()
        self._loop.remove_reader(self._errors)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        for descriptor in (self._in, self._errors):
            os.close(descriptor)
        if self.exit_status is not None:
            self._popen.wait()  # a zombie: at once


class _Ear:
    """Takes what the pipe brings; its end is not told before the child's last words are there."""

    def __init__(self, to: Receiver, child: ChildProcess) -> None:
        self.on_frames = to.on_frames
        self.on_frame_too_long = to.on_frame_too_long
        self.on_drain = to.on_drain
        self.on_eof = child._output_ended  # pyright: ignore[reportPrivateUsage]

    def on_disconnect(self, why: Exception) -> None:
        """Never: Child tells it as an end."""


class _Nobody:
    def on_frames(self, batch: Sequence[bytes]) -> None: ...
    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_eof(self) -> None: ...
    def on_disconnect(self, why: Exception) -> None: ...


def _living(group: int) -> list[int]:
    """The processes of a group that have not ended; zombies have. Where /proc does not tell, the group's number stands for them."""
    if not (PROCESSES / "self" / "stat").exists():
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):  # nobody; or, on macOS, zombies only
            return []
        return [group]
    members: list[int] = []
    for place in PROCESSES.iterdir():
        if place.name.isdecimal():
            try:
                state, _, its_group = (place / "stat").read_bytes().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):  # gone meanwhile
                continue
            if int(its_group) == group and state not in (b"Z", b"X"):
                members.append(int(place.name))
    return members
