"""StdioSetup: the kinds of stdin, stdout and stderr that a server process is started with.

Most cases use pipes. Some start the server with a terminal, a file or a closed stream instead.
"""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import tempfile
import termios
from contextlib import suppress
from typing import Literal

from msgspec import Struct

Kind = Literal["pipe", "socket", "terminal", "file", "null", "closed", "full", "unread"]


class StdioSetup(Struct, frozen=True):
    """The kinds of a server's stdin, stdout and stderr.

    stdin, stdout, stderr: `pipe`, `socket`, `terminal`, `file` for a regular file, `null` for
        /dev/null, `full` for /dev/full, or `closed` for no descriptor at all. stderr may also be
        `unread`, a pipe that the check does not read.
    content: the content of a `file` as stdin. A `file` as stdout or stderr is empty at first.
    small_pipe: whether the pipe of stdout has a capacity of only 4 KiB.
    nonblocking: whether stdin and stdout have O_NONBLOCK set.
    wrapped: whether the server is started by a shell, `sh -c 'COMMAND; true'`.
    """

    stdin: Kind = "pipe"
    stdout: Kind = "pipe"
    stderr: Kind = "pipe"
    content: bytes = b""
    small_pipe: bool = False
    nonblocking: bool = False
    wrapped: bool = False


PLAIN = StdioSetup()


class CheckEnds(Struct):
    """The descriptors at the check's ends of the server's stdin, stdout and stderr.

    A descriptor is -1 if the check has closed its end, or if the stream is a file or device without
    another end.

    stdin: the descriptor to which the check writes the server's input.
    stdout, stderr: the descriptors from which the check reads the server's output.
    reads_stderr: whether the check reads stderr.
    """

    stdin: int = -1
    stdout: int = -1
    stderr: int = -1
    reads_stderr: bool = True

    def close_stdin(self) -> None:
        """Close stdin, so that the server reads the end of its input. May be called again."""
        self.stdin = close_descriptor(self.stdin)

    def close_stdout(self) -> None:
        """Close stdout, so that the server's next write fails with EPIPE. May be called again."""
        self.stdout = close_descriptor(self.stdout)

    def close_stderr(self) -> None:
        """Close stderr. May be called again."""
        self.stderr = close_descriptor(self.stderr)

    def close(self) -> None:
        """Close all three. May be called again."""
        self.close_stdin()
        self.close_stdout()
        self.close_stderr()


def close_descriptor(descriptor: int) -> int:
    """Close a descriptor unless it is -1, and return -1."""
    if descriptor >= 0:
        with suppress(OSError):
            os.close(descriptor)
    return -1


def open_stdio(setup: StdioSetup, ends: CheckEnds) -> list[int]:
    """Open pipes, files or terminals for a server's stdin, stdout and stderr.

    A pipe, a socket or a terminal has two ends: the server gets one, the check keeps the other.

    setup: what to open for each stream.
    ends: the object into which this function writes the descriptors of the check's ends, which are
        non-blocking. The caller must close `ends`, also after an error.

    Returns the descriptors of the server's ends: stdin, stdout, stderr. The caller must close them
    after it has started the server. Raises OSError if a file cannot be opened; then the server's
    ends are closed.
    """
    server_ends: list[int] = []
    try:
        stdin, ends.stdin = _open_stream(setup.stdin, setup.content, is_input=True)
        server_ends.append(stdin)
        # A terminal is one device for both directions.
        if setup.stdin == setup.stdout == "terminal":
            stdout, ends.stdout = os.dup(stdin), os.dup(ends.stdin)
        else:
            stdout, ends.stdout = _open_stream(setup.stdout, b"", is_input=False)
        server_ends.append(stdout)
        stderr, ends.stderr = _open_stream(setup.stderr, b"", is_input=False)
        server_ends.append(stderr)
        ends.reads_stderr = setup.stderr != "unread"

        # F_SETPIPE_SZ exists on Linux only.
        if setup.small_pipe and ends.stdout >= 0:
            with suppress(AttributeError, OSError):
                fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, 4096)
        for descriptor in (ends.stdin, ends.stdout, ends.stderr):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        if setup.nonblocking:
            os.set_blocking(stdin, False)
            os.set_blocking(stdout, False)
    except BaseException:
        for descriptor in server_ends:
            close_descriptor(descriptor)
        raise
    return server_ends


def _open_stream(kind: Kind, content: bytes, *, is_input: bool) -> tuple[int, int]:
    """Open one stream. Returns the descriptors of the server's end and of the check's end, or -1.

    content: the content of a `file`.
    is_input: whether the stream is the server's stdin.
    """
    if kind in ("pipe", "unread"):
        reader, writer = os.pipe()
        return (reader, writer) if is_input else (writer, reader)
    if kind == "socket":
        server_end, check_end = socket.socketpair()
        return server_end.detach(), check_end.detach()
    if kind == "terminal":
        return _open_terminal()
    if kind == "file":
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            return os.dup(file.fileno()), -1
    # A `closed` stream is /dev/null until the shell of shell_prefix() closes it.
    device = "/dev/full" if kind == "full" else "/dev/null"
    return os.open(device, os.O_RDONLY if is_input else os.O_WRONLY), -1


def _open_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal that passes bytes on unchanged.

    Returns the descriptors of the server's end and of the check's end.
    """
    check_end, server_end = pty.openpty()
    flags = termios.tcgetattr(server_end)
    # No translation of newlines, no echo, and no line mode, which cuts lines at 4096 bytes. The
    # indices are those of termios.tcgetattr(): 1 for output modes, 3 for local modes.
    flags[1] &= ~termios.OPOST
    flags[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(server_end, termios.TCSANOW, flags)
    return server_end, check_end


def shell_prefix(setup: StdioSetup) -> list[str]:
    """Return the shell command to put before the server's command; [] if none is needed.

    A shell is needed for setup.wrapped, and to close the `closed` streams, because subprocess.Popen
    cannot start a process without one of its three descriptors.
    """
    # The last "sh" is $0; the words of the command that follow are "$@".
    if setup.wrapped:
        # With a second command, the shell must stay and wait, instead of becoming the server.
        return ["sh", "-c", '"$@"; true', "sh"]
    streams = (("<&-", setup.stdin), (">&-", setup.stdout), ("2>&-", setup.stderr))
    closings = [redirection for redirection, kind in streams if kind == "closed"]
    return ["sh", "-c", f'exec "$@" {" ".join(closings)}', "sh"] if closings else []
