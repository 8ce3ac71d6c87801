"""`concertino connect unix:PATH | tcp:HOST:PORT`: join stdin and stdout to a server at a socket.

For MCP clients that can only start commands. Bytes are copied both ways, and no message is parsed.

Each direction has a thread of its own, with blocking calls and one buffer. So if the reader of one
direction is slow, only this direction stops. O_NONBLOCK is not set on stdin and stdout, because it
would also affect the other processes that share them.

Each session of a client starts this command, so it must start fast, and this module imports little.
`concertino.cli` calls parse_quickly() and connect() without argparse. _socket is the C part of the
module socket; importing the whole module costs 6 ms of CPU time on Python 3.13. The rest of this
command costs 3 ms more than a bare interpreter.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import select
import sys
import time

from concertino.cli import INTERRUPTED, UNREACHABLE, CommandFailure, UsageError
from concertino.transports.addresses import parse_address, unix_name
from concertino.transports.tcp_options import set_tcp_options

# The name that type checkers take for True. Importing the module typing would cost 5 ms at the
# start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence
else:
    # The C part of the module signal. Importing the whole module costs as much as importing typing.
    import _signal

STDIN, STDOUT, STDERR = 0, 1, 2
# The size of each direction's buffer: the capacity of a pipe on Linux.
CHUNK_BYTES = 2**16
# How long to wait between two attempts to connect.
RETRY_S = 0.05
# Errors which mean that no server listens yet.
NOT_LISTENING = frozenset((errno.ENOENT, errno.ECONNREFUSED))

DESCRIPTION = (
    "Join stdin and stdout to a server that listens at a socket (concertino serve --unix, --tcp), "
    "for MCP clients that can only start commands. Bytes are copied both ways. Exit codes: 0 after "
    "the end of input or when the client is gone, 2 usage, 3 if nobody listens or the server "
    "closes the connection."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino connect` to its parser."""
    parser.add_argument("address", metavar="ADDRESS", help="unix:PATH or tcp:HOST:PORT")
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        default="0",
        help="how long to wait until somebody listens there (default 0)",
    )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Run the command with arguments that parse_quickly() cannot parse, and return its exit code.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for invalid arguments, and the exceptions of connect().
    """
    if server:
        raise UsageError(
            f"this command takes no words after --, got {server[0]!r}",
            "for example: concertino connect unix:/run/user/1000/shop.sock",
        )
    wait_s = _parse_seconds(args.wait)
    if wait_s is None:
        raise UsageError(f"--wait: expected a number of seconds, got {args.wait!r}")
    return connect(args.address, wait_s)


def parse_quickly(words: Sequence[str]) -> tuple[str, float] | None:
    """Parse the words after `connect` without argparse, whose import takes long.

    Returns the address and the number of seconds to wait for a server. Returns None for words that
    argparse must parse, such as --help or a malformed number.
    """
    rest = list(words)
    wait_s: float | None = 0.0
    if len(rest) == 3 and "--wait" in rest[:2]:
        at = rest.index("--wait")
        wait_s = _parse_seconds(rest[at + 1])
        del rest[at : at + 2]
    if len(rest) != 1 or wait_s is None or not rest[0].startswith(("unix:", "tcp:")):
        return None
    return rest[0], wait_s


def _parse_seconds(text: str) -> float | None:
    """Return a number that is not negative; None for any other text."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def connect(address: str, wait_s: float) -> int:
    """Connect to a server, copy stdin to it and its output to stdout, and return the exit code.

    Returns 0 when the client (the reader of stdout) has gone, or when the server has closed the
    connection after the end of stdin. Returns 130 after Ctrl-C.

    address: unix:PATH or tcp:HOST:PORT.
    wait_s: how long to wait until a server listens there, in seconds.
    Raises UsageError for an impossible address. Raises CommandFailure if the server cannot be
    reached, or closes the connection before the end of stdin. Raises OSError if stdout cannot be
    written.
    """
    try:
        place = parse_address(address)
        place = unix_name(place) if isinstance(place, str) else place
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    _reserve_standard_descriptors()
    # SIGTERM and SIGHUP keep their default action, which ends this process at once, because there
    # is nothing to restore.
    try:
        sock = _open(address, place, wait_s)
        return 0 if sock is None else _Connection(address, sock).copy()
    except KeyboardInterrupt:
        return INTERRUPTED


def _reserve_standard_descriptors() -> None:
    """Open /dev/null in place of stdin and stderr if they are closed.

    Otherwise the socket would get the number of one of them. Raises CommandFailure if stdout is
    closed.
    """
    # sys.stdout is None if descriptor 1 is closed.
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise CommandFailure("stdout is closed, so there is nobody to connect to the server")
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(descriptor)


# Opening the connection


def _open(address: str, place: str | tuple[str, int], wait_s: float) -> _socket.socket | None:
    """Return a connected socket; None if the client has gone before a server listens.

    address: the address as the user has written it, for errors.
    place: the parsed address: the path of a Unix socket, or a host and a port.
    wait_s: how many seconds to wait until a server listens.
    Raises CommandFailure if the server cannot be reached.
    """
    stdout = _watch_reader()
    until = time.monotonic() + wait_s
    while True:
        try:
            return _connect(place)
        except (OSError, UnicodeError) as exc:
            code = exc.errno if isinstance(exc, OSError) else None
            left_s = until - time.monotonic()
            if code not in NOT_LISTENING or left_s <= 0:
                raise _explain(address, place, exc, wait_s) from None
        if _is_reader_gone(stdout.poll(min(left_s, RETRY_S) * 1000)):
            return None


def _connect(place: str | tuple[str, int]) -> _socket.socket:
    """Return a connected socket. Raises OSError, and UnicodeError for an impossible host."""
    if isinstance(place, str):
        return _connect_one(_socket.AF_UNIX, place)
    host, port = place
    # For a str, Python would import the codec for international names, which takes 5 ms.
    name = host.encode() if host.isascii() else host
    failure = OSError(errno.EADDRNOTAVAIL, "no address")
    for family, _, _, _, address in _socket.getaddrinfo(name, port, 0, _socket.SOCK_STREAM):
        try:
            sock = _connect_one(family, address)
            set_tcp_options(sock)
            return sock
        except OSError as exc:
            failure = exc
    raise failure


def _connect_one(family: int, address: str | tuple[object, ...]) -> _socket.socket:
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _is_other_file(path: str) -> bool:
    """Return whether a file or folder is there that is not a socket."""
    import stat

    try:
        return not stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _explain(
    address: str, place: str | tuple[str, int], exc: OSError | UnicodeError, wait_s: float
) -> CommandFailure:
    """Return the failure for an error of connecting."""
    hint = ""
    if isinstance(place, str) and _is_other_file(place):
        text = f"{address}: this is not a socket; give the path that a server listens at"
    elif isinstance(exc, OSError) and exc.errno in NOT_LISTENING:
        from shlex import quote

        option, _, where = address.partition(":")
        command = f"concertino serve server.py --{option} {quote(where)}"
        waited = f" after {wait_s:g} s" if wait_s else ""
        text = f"nothing listens at {address}{waited}; start it with: {command}"
        if not wait_s:
            hint = "if it starts at the same time: --wait 10 waits up to 10 s for it"
    elif isinstance(exc, PermissionError) and isinstance(place, str):
        text = (
            f"{address}: {exc.strerror}; a server at a Unix socket is for one user: run this "
            "command as the user of the server"
        )
    else:
        reason = exc.strerror if isinstance(exc, OSError) else None
        text = f"{address}: {reason or exc}"
    return CommandFailure(
        text, hint=hint, code="unreachable", exit_code=UNREACHABLE, is_for_client=True
    )


# Copying


def _watch_reader() -> select.poll:
    """Return a poll object that reports when the reader of our stdout is gone."""
    poll = select.poll()
    # Without an event mask, only errors and hang-ups are reported.
    poll.register(STDOUT, 0)
    return poll


def _is_reader_gone(events: Sequence[tuple[int, int]]) -> bool:
    """Return whether the events say that the reader of our stdout is gone."""
    return any(
        descriptor == STDOUT and event & (select.POLLERR | select.POLLHUP)
        for descriptor, event in events
    )


class _Connection:
    """Copies stdin to the socket of a server, and the socket to stdout."""

    def __init__(self, address: str, sock: _socket.socket) -> None:
        self._address = address
        self._socket = sock
        # Whether the client has closed our stdin.
        self._input_ended = False
        # Whether the server has sent anything.
        self._has_answered = False

    def copy(self) -> int:
        """Copy until the end, and return the exit code. Raises CommandFailure, and OSError."""
        # The thread ends with the process. The module threading would cost 1 ms.
        _thread.start_new_thread(self._send_input, ())
        try:
            client_is_gone = self._write_output()
        except BrokenPipeError:
            # The client is gone.
            return 0
        if client_is_gone or self._input_ended:
            return 0
        text = f"{self._address}: the server closed the connection"
        if not self._has_answered:
            text += " without an answer; its log says why"
        raise CommandFailure(text, code="unreachable", exit_code=UNREACHABLE)

    def _send_input(self) -> None:
        """Copy stdin to the socket until either ends."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := _read(STDIN, buffer):
            try:
                self._socket.sendall(buffer[:size])
            except OSError:
                # Leave the error to _write_output(), which gets it from the same socket after it
                # has delivered the server's last output.
                return
        # Set this before the shutdown, to which the server may respond at once.
        self._input_ended = True
        try:
            # Responses may still come.
            self._socket.shutdown(_socket.SHUT_WR)
        except OSError:
            pass

    def _write_output(self) -> bool:
        """Copy the socket to stdout until either ends.

        Returns False if the server has closed the connection, and True if the client is gone.
        Raises CommandFailure if the connection is lost, OSError if stdout cannot be written.
        """
        buffer = memoryview(bytearray(CHUNK_BYTES))
        # The poll object also reports the end of the client. Otherwise this process would stay as
        # long as the server keeps the connection open.
        poll = _watch_reader()
        poll.register(self._socket.fileno(), select.POLLIN)
        # SIGINT may arrive just before poll(), or in the other thread. Neither would end poll(). So
        # let Python write a byte to a pipe when a signal arrives, and poll the pipe.
        wakeup, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(signalled)
        poll.register(wakeup, select.POLLIN)
        while True:
            events = poll.poll()
            if _is_reader_gone(events):
                return True
            if all(descriptor == wakeup for descriptor, _ in events):
                # A signal has arrived. KeyboardInterrupt is raised at this point.
                continue
            try:
                size = self._socket.recv_into(buffer)
            except OSError as exc:
                raise CommandFailure(
                    f"{self._address}: the connection to the server was lost: {exc.strerror}",
                    code="unreachable",
                    exit_code=UNREACHABLE,
                ) from None
            if not size:
                return False
            self._has_answered = True
            _write_all(STDOUT, buffer[:size])


def _read(descriptor: int, buffer: memoryview) -> int:
    """Read the available bytes, and return their number; 0 at the end of input and after errors."""
    while True:
        try:
            return os.readv(descriptor, [buffer])
        except BlockingIOError:
            # Another process has set O_NONBLOCK.
            _wait_for(descriptor, select.POLLIN)
        except OSError:
            # For example a terminal that has gone.
            return 0


def _write_all(descriptor: int, data: memoryview) -> None:
    """Write all of the data. Raises OSError."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            _wait_for(descriptor, select.POLLOUT)


def _wait_for(descriptor: int, event: int) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll()
