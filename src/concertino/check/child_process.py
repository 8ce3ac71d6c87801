"""One process of the server under check: its pipes, and what came through them.

Single-threaded: whoever waits polls all descriptors, so stderr is always drained and writing cannot deadlock with reading. Every
wait has an end. Of what comes, at most MAX_KEPT_BYTES of messages and the tail of stderr are kept. The child leads a session of its
own, so that all it started can be killed, and Ctrl-C on our terminal does not reach it first.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from concertino.check import process_stats
from concertino.check.case import Crash, Hang, Violation
from concertino.check.messages import Id, Message, Stray, is_id, messages_of, shown

__all__ = ["PLAIN", "ServerProcess", "StdioSetup", "kill_all"]

MAX_KEPT_BYTES = 512 * 2**20  # of stdout; a server that says more in one case is flooding
TAIL_BYTES = 64 * 1024  # of stderr
TURN_S = 0.05  # how long one poll may take: the end of a process is an event on Linux alone
CHUNK = 1 << 20

Kind = Literal["pipe", "socket", "terminal", "file", "null", "closed", "full", "unread"]
_alive: set[ServerProcess] = set()


class StdioSetup(Struct, frozen=True):
    """What a child finds at its descriptors 0, 1 and 2.

    `file`: a regular file that holds `content`. `full`: /dev/full. `unread`: a pipe that nobody reads.
    small_pipe: stdout holds 4 KiB. nonblocking: stdin and stdout are O_NONBLOCK already. wrapped: behind
    a shell, `sh -c 'COMMAND; true'`.
    """

    stdin: Kind = "pipe"
    stdout: Kind = "pipe"
    stderr: Kind = "pipe"
    content: bytes = b""
    small_pipe: bool = False
    nonblocking: bool = False
    wrapped: bool = False


PLAIN = StdioSetup()


class ServerProcess:
    """Start a command. Close it with end(); a with-block does.

    Raises OSError when the command cannot be started. answers: by type and value of their id, so that 1 is not "1" or True.
    """

    def __init__(
        self,
        command: Sequence[str],
        surroundings: StdioSetup = PLAIN,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.answers: dict[tuple[type, Id], list[Message]] = {}
        self.idless: list[Message] = []  # error answers without an id, or with null
        self.notifications: list[Message] = []
        self.requests: list[Message] = []  # of the server, to us
        self.strays: list[Stray] = []  # lines of stdout that are no message
        self.order: list[Message] = []  # every message, as it came
        self.arrived: dict[tuple[type, Id], float] = {}  # time.monotonic() of the first answer
        self.stderr = bytearray()  # the tail
        self.stderr_bytes = 0
        self.arrays = False  # whether a line may be an array (2025-03-26)
        self.on_request: Callable[[Message], None] | None = None
        self.eof = False
        self._partial = bytearray()
        self._kept = 0
        self._files: list[int] = []
        self.writing = self.reading = self._errors = self._held = -1
        shell = _shell(surroundings)
        try:
            theirs = self._descriptors(surroundings)
            self.popen = subprocess.Popen(
                [*shell, *command],
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                env=environment,
                bufsize=0,
                start_new_session=True,
            )
        except BaseException:
            self._release()
            raise
        finally:
            for descriptor in self._files:
                os.close(descriptor)
            self._files.clear()
        self.pid = self.popen.pid
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1
        self.eof = self.reading < 0
        _alive.add(self)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # Descriptors

    def _descriptors(self, given: StdioSetup) -> tuple[int, int, int]:
        """Make what the child gets, in self._files until it has it, and keep our ends."""
        stdin = self._open(given.stdin, given.content, reads=True)
        self.writing = self._held
        stdout = self._open(given.stdout, b"", reads=False)
        self.reading = self._held
        stderr = self._open(given.stderr, b"", reads=False)
        self._errors = self._held
        if given.small_pipe and self.reading >= 0:
            with suppress(AttributeError, OSError):
                fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, 4096)  # Linux
        if given.stdin == given.stdout == "terminal":
            os.close(self.reading)
            self.reading = os.dup(self.writing)
        for descriptor in (self.writing, self.reading, self._errors):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        if given.nonblocking:
            os.set_blocking(stdin, False)
            os.set_blocking(stdout, False)
        self._unread = self._errors if given.stderr == "unread" else -1
        self._held = -1
        return stdin, stdout, stderr

    def _open(self, kind: Kind, content: bytes, *, reads: bool) -> int:
        """A descriptor for the child; ours goes to self._held, -1 for none."""
        ours = -1
        if kind in ("pipe", "unread"):
            theirs, ours = os.pipe() if reads else reversed(os.pipe())
        elif kind == "socket":
            one, other = socket.socketpair()
            theirs, ours = one.detach(), other.detach()
        elif kind == "terminal":
            if not reads and self.writing >= 0 and self._terminal >= 0:
                theirs, ours = os.dup(self._terminal), os.dup(self.writing)
            else:
                ours, theirs = pty.openpty()
                flags = termios.tcgetattr(theirs)
                flags[1] &= ~termios.OPOST  # output as it is
                flags[3] &= ~(
                    termios.ECHO | termios.ICANON
                )  # no echo, no lines of at most 4096 bytes
                termios.tcsetattr(theirs, termios.TCSANOW, flags)
                self._terminal = theirs
        elif kind == "file":
            with tempfile.TemporaryFile() as file:
                file.write(content)
                file.seek(0)
                theirs = os.dup(file.fileno())
        else:
            device = "/dev/full" if kind == "full" else "/dev/null"
            theirs = os.open(device, os.O_RDONLY if reads else os.O_WRONLY)
        self._files.append(theirs)
        self._held = ours
        return theirs

    _terminal = -1
    _unread = -1
    _pidfd = -1

    # Waiting

    @property
    def exit(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""
        return self.popen.poll()

    def pump(self, until: Callable[[], bool], within_s: float, *, read: bool = True) -> bool:
        """Take what comes until the condition holds: True. False after within_s seconds, or when nothing can come any more."""
        deadline = time.monotonic() + within_s
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            gone = self.exit is not None
            came = self._turn(min(left, TURN_S), read=read)
            if gone and not came and self.eof and not self.group_lives():
                return until()
        return True

    def _turn(self, within_s: float, *, read: bool = True, write: bool = False) -> bool:
        """Wait for one event and take it; False when none came."""
        poll = select.poll()
        if not self.eof and read:
            poll.register(self.reading, select.POLLIN)
        if self._errors >= 0 and self._errors != self._unread:
            poll.register(self._errors, select.POLLIN)
        if write and self.writing >= 0:
            poll.register(self.writing, select.POLLOUT)
        if self._pidfd >= 0 and self.popen.returncode is None:
            poll.register(self._pidfd, select.POLLIN)
        events = poll.poll(within_s * 1000)
        for descriptor, _ in events:
            if descriptor == self._errors:
                self._complain(_read(descriptor))
            elif descriptor == self.reading:
                self._take(_read(descriptor))
        return any(descriptor != self._pidfd for descriptor, _ in events)

    def _complain(self, chunk: bytes | None) -> None:
        if chunk is None:
            return
        if not chunk:
            os.close(self._errors)
            self._errors = -1
        self.stderr_bytes += len(chunk)
        self.stderr += chunk
        del self.stderr[:-TAIL_BYTES]

    def _take(self, chunk: bytes | None) -> None:
        if chunk is None:
            return
        if not chunk:
            self.eof = True
            if self._partial:
                self.strays.append(Stray(bytes(self._partial[:1000]), "stdout ended inside a line"))
            return
        self._kept += len(chunk)
        if self._kept > MAX_KEPT_BYTES:
            raise Violation(f"more than {MAX_KEPT_BYTES >> 20} MiB on stdout in one case")
        self._partial += chunk
        if b"\n" in chunk:
            *lines, rest = self._partial.split(b"\n")
            self._partial = bytearray(rest)
            now = time.monotonic()
            for line in lines:
                self._line(bytes(line), now)

    def _line(self, line: bytes, now: float) -> None:
        found = messages_of(line, arrays=self.arrays)
        if isinstance(found, Stray):
            if len(self.strays) < 1000:
                self.strays.append(found)
            return
        for message in found:
            self.order.append(message)
            id: object = message.get("id")
            if "method" in message:
                (self.requests if "id" in message else self.notifications).append(message)
                if "id" in message and self.on_request is not None:
                    self.on_request(message)
            elif is_id(id):
                key: tuple[type, Id] = (type(id), id)
                self.answers.setdefault(key, []).append(message)
                self.arrived.setdefault(key, now)
            else:
                self.idless.append(message)

    def forget_volume(self) -> None:
        """Count what is kept from nothing again: for a caller that has dropped the messages so far."""
        self._kept = 0

    # Speaking

    def write(self, data: bytes, within_s: float, *, read: bool = True) -> None:
        """Write all of it, reading meanwhile. Raises Hang when stdin is not read for so long, Crash when nobody can read it."""
        deadline = time.monotonic() + within_s
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.writing, rest[:CHUNK]) :]
                continue
            except BlockingIOError:
                pass
            except OSError:
                self.pump(lambda: self.exit is not None, 1.0)
                raise self.gone("stdin was closed while it was written to") from None
            left = deadline - time.monotonic()
            if left <= 0:
                raise Hang(
                    f"stdin was not read for {within_s:g} s; {len(rest)} bytes of {len(data)} are left"
                )
            self._turn(min(left, TURN_S), read=read, write=True)

    def gone(self, what: str) -> Crash | Hang:
        """What to raise when the process cannot be spoken to any more."""
        code = self.exit
        if code is None:
            return Hang(f"{what}, and the process lives")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Crash(f"the process ended with {how} ({what})")

    def write_now(self, data: bytes) -> int:
        """Write what goes without waiting; how much went. 0 when the pipe is full. Raises Crash."""
        try:
            return os.write(self.writing, data)
        except BlockingIOError:
            return 0
        except OSError:
            raise self.gone("stdin was closed while it was written to") from None

    def swallowed(self, within_s: float) -> bool:
        """Wait until the child has read what was written, as far as the system tells."""
        waiting = bytearray(4)

        def empty() -> bool:
            try:
                fcntl.ioctl(self.writing, termios.FIONREAD, waiting)
            except OSError:
                return True
            return struct.unpack("i", waiting)[0] == 0

        return self.pump(empty, within_s)

    # The end

    def close_stdin(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close_stdout(self) -> None:
        if self.reading >= 0:
            os.close(self.reading)
            self.reading, self.eof = -1, True

    def close_stderr(self) -> None:
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1

    def signal(self, number: int) -> None:
        """To the whole group, as a terminal does."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def group_lives(self) -> bool:
        """Whether any process that it started still runs."""
        self.popen.poll()
        pids = process_stats.members(self.pid)
        if pids is not None:
            return bool(pids)
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def wait(self, within_s: float) -> bool:
        """Whether the process and all it started ended in time, everything they wrote being read."""
        if not self.pump(lambda: self.exit is not None and not self.group_lives(), within_s):
            return False
        # What a dead process wrote is still in the pipes. A process that left the group may hold them open.
        self.pump(lambda: self.eof and (self._errors < 0 or self._errors == self._unread), 1.0)
        return True

    def end(self) -> None:
        """Kill whatever still runs and release everything. Idempotent."""
        if self in _alive:
            self.signal(signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(
                    5
                )  # killed: a matter of milliseconds, unless the system itself holds it
            _alive.discard(self)
        self._release()

    def _release(self) -> None:
        for descriptor in {self.writing, self.reading, self._errors, self._pidfd}:
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
        self.writing = self.reading = self._errors = self._pidfd = -1
        self.eof = True

    def stderr_tail(self, lines: int = 12) -> str:
        """The last lines of stderr, safe for a terminal."""
        text = bytes(self.stderr).decode("utf-8", "replace").rstrip()
        return "\n".join(shown(line, 300) for line in text.split("\n")[-lines:]) if text else ""


def kill_all() -> None:
    """Kill every child that was started and not yet ended: for signal handlers and the end of a run."""
    for child in list(_alive):
        child.end()


def _read(descriptor: int) -> bytes | None:
    """What there is; None for nothing yet, empty for the end."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None
    except OSError:  # EIO: a terminal without another side
        return b""


def _shell(given: StdioSetup) -> list[str]:
    """What is put before the command: Popen itself cannot start a process without one of the descriptors."""
    closed = [
        each
        for each, kind in (("<&-", given.stdin), (">&-", given.stdout), ("2>&-", given.stderr))
        if kind == "closed"
    ]
    if given.wrapped:
        return ["sh", "-c", '"$@"; true', "sh"]
    return ["sh", "-c", f'exec "$@" {" ".join(closed)}', "sh"] if closed else []
