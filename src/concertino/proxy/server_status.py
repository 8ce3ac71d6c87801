"""Reports the state of the servers behind this process to `concertino ps`, at a Unix socket.

This does not slow down calls: each Client of a server counts the figures anyway, and they are
collected only when `concertino ps` connects. The socket belongs to this user and is in a directory
that other users cannot enter. Its name contains the id, the start time and the pid namespace of
this process, so that sockets of killed processes are recognized.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.json import encode

from concertino.excerpts import shorten
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.runtime import entry
from concertino.transports.process_marks import pid_namespace
from concertino.transports.process_table import is_process, read_process_state

if TYPE_CHECKING:
    from concertino.transports.listeners import Listener
    from concertino.user_files import AnyPath

__all__ = [
    "ProxyStatus",
    "ServerStatus",
    "StatusSource",
    "add_source",
    "describe_error",
    "has_ended",
    "is_old",
    "listen_in_first",
    "make_private",
    "remove_source",
    "remove_stale_sockets",
    "status_folders",
]

log = logging.getLogger("concertino.proxy")

# The socket is opened this many seconds after the first server was added, so that it does not delay
# the server's start, for which a client waits.
OPEN_AFTER_S = 0.3
# After this time, in seconds, a process certainly listens at the socket that it has made.
OPENING_S = 60.0
# The largest number of servers in an answer.
MAX_SERVERS = 256
# The longest error text in an answer, in characters.
MAX_ERROR = 400
FOLDER = "proxies"


class ServerStatus(Struct, frozen=True, omit_defaults=True):
    """The state of one server, as `concertino ps` shows it.

    server: the name of the server.
    state: one of these:
        - `running`, `starting` or `restarting`.
        - `crash loop`: it has ended ten times in a row. Only a call that comes at least half a
          minute later starts it again.
        - `idle`: the next call starts it.
        - `waits for approval`: the user has not approved it.
        - `failed`: its first start has failed; the next call tries again.
    pid: the id of its process; 0 if it has none.
    calls: the number of requests that all its processes have got.
    restarts: how many times it was restarted.
    host: the name that the newest client sent for its application; "" before the first client.
    last_error: why its process has ended the last time, or why it does not run; "" if it never
        failed.
    stray: the number of lines that its present process has printed to stdout and that are no
        messages of MCP.
    last_stray: the last of these lines, shortened and without secrets; "" if there are none.
    """

    server: str
    state: str
    pid: int = 0
    calls: int = 0
    restarts: int = 0
    host: str = ""
    last_error: str = ""
    stray: int = 0
    last_stray: str = ""


class ProxyStatus(Struct, frozen=True):
    """What a process with servers behind it sends to `concertino ps`.

    pid: the id of this process, and not of a server.
    servers: the states of its servers.
    """

    pid: int
    servers: tuple[ServerStatus, ...]


# A function that returns the present state of some servers of this process. Each proxy has one.
StatusSource = Callable[[], Iterable[ServerStatus]]


def describe_error(failure: object) -> str:
    """Describe an error in one line of at most 400 characters, without secrets.

    failure: an exception or a text; None for no error, which returns "".
    """
    text = "" if failure is None else redactor().text(" ".join(str(failure).split()))
    return shorten(escape_controls(text), MAX_ERROR)


class _StatusSocket:
    """Answers each connection with the state of all servers as JSON, and closes it."""

    def __init__(self) -> None:
        # A dict keeps the order.
        self.sources: dict[StatusSource, None] = {}
        # The listening socket; None before it is opened.
        self._listener: Listener | None = None
        # The timer that opens the socket; None while there are no servers.
        self._opening: asyncio.TimerHandle | None = None

    def add(self, source: StatusSource) -> None:
        self.sources[source] = None
        # Only in a program of concertino: another program does not expect a socket to be opened.
        if self._opening is None and entry.is_program():
            loop = asyncio.get_running_loop()
            self._opening = loop.call_later(OPEN_AFTER_S, self._open, loop)

    def remove(self, source: StatusSource) -> None:
        self.sources.pop(source, None)
        if not self.sources and self._opening is not None:
            self._opening.cancel()
            self._opening = None
            if self._listener is not None:
                asyncio.get_running_loop().remove_reader(self._listener.socket)
                self._listener.close()
                self._listener = None

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen in the first directory in which that is possible."""
        self._listener = listen_in_first(
            status_folders(os.environ), log, "concertino ps will not see this process at %s: %s"
        )
        if self._listener is not None:
            loop.add_reader(self._listener.socket, self._answer, self._listener)

    def _answer(self, listener: Listener) -> None:
        """Accept a connection, send the state of all servers, and close the connection."""
        try:
            connection = listener.accept()
        except OSError:
            return
        # The answer must not block this process; bytes that exceed the socket's buffer are dropped.
        with connection, suppress(OSError):
            connection.setblocking(False)
            # Raises PermissionError for a process of another user.
            listener.examine(connection)
            servers = [item for source in self.sources for item in source()]
            status = ProxyStatus(os.getpid(), tuple(servers[:MAX_SERVERS]))
            # 2 KiB for each server: the longest error, a stray line, and the short members.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_SERVERS * 2048)
            connection.send(encode(status))


_socket = _StatusSocket()
# Forget the socket in a forked process, because it still belongs to the parent.
os.register_at_fork(after_in_child=_socket.__init__)


def add_source(source: StatusSource) -> None:
    """Make `concertino ps` show some servers from now on.

    Call this on the event loop, and call remove_source() when the servers end. Has no effect in a
    program that uses concertino as a library.
    source: called on the event loop for each `concertino ps`; returns the present state of the
        servers.
    """
    _socket.add(source)


def remove_source(source: StatusSource) -> None:
    """Undo add_source(). Does nothing if the source was not added."""
    _socket.remove(source)


def status_folders(environment: Mapping[str, str]) -> list[str]:
    """Return the directories in which a process may have its socket for `concertino ps`.

    A process uses the first directory in which it can write. The order is:

    1. `$XDG_RUNTIME_DIR/concertino/proxies`
    2. /run/user/UID/concertino/proxies
    3. `$XDG_STATE_HOME/concertino/proxies`
    4. ~/.local/state/concertino/proxies

    The first two are left out unless `$XDG_RUNTIME_DIR` or /run/user/UID belongs to this user and
    nobody else can enter it.
    environment: the environment variables.
    """
    # Two of the directories depend on no XDG variable, because a host, such as an editor, may start
    # this process without the variables that a terminal has.
    # Imported here, because its imports would delay the first answer of a server.
    from concertino.proxy.state_files import state_folder_path

    runtime = [environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"]
    own = [path for path in runtime if path.startswith("/") and _is_own(path)]
    folders = [os.path.join(path, "concertino", FOLDER) for path in own]
    with suppress(RuntimeError):
        states = (state_folder_path(environment), state_folder_path({}))
        folders += [os.path.join(state, FOLDER) for state in states]
    return list(dict.fromkeys(folders))


def listen_in_first(
    folders: Iterable[AnyPath], log: logging.Logger, message: str
) -> Listener | None:
    """Open a Unix socket of this process in the first directory in which that is possible.

    Makes the directory if needed, and removes the sockets of processes that have ended from it.
    folders: the directories to try.
    log, message: for each directory in which it is not possible, `message` is logged for debugging,
        with the directory and the error as its arguments.
    Returns the listening socket; None if it is possible in no directory.
    """
    # Imported here, because its imports would delay the first answer of a server.
    from concertino.transports.listeners import listen_unix

    state = read_process_state(os.getpid())
    started_at = 0 if state is None else state.started_at
    name = f"{os.getpid()}-{started_at}-{pid_namespace()}"
    for folder in folders:
        try:
            make_private(folder)
            remove_stale_sockets(folder)
            return listen_unix(os.path.join(folder, name))
        except (OSError, ValueError) as exc:
            log.debug(message, folder, exc)
    return None


def remove_stale_sockets(folder: AnyPath) -> None:
    """Remove the sockets of processes that have ended from a directory.

    Raises OSError if the directory cannot be read.
    """
    for name in os.listdir(folder):
        if has_ended(name):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def has_ended(name: str) -> bool:
    """Return whether the process that has made a socket has ended.

    Returns False if that is not known, because the process is in another pid namespace, such as
    that of a container, or because the name is not that of a socket.
    name: the name of the socket, which listen_in_first() has made.
    """
    parts = name.split("-")
    if len(parts) != 3 or not all(map(str.isdecimal, parts)):
        return False
    pid, started_at, namespace = map(int, parts)
    if namespace != pid_namespace():
        return False
    if not namespace:
        # There is no /proc.
        return not is_process(pid)
    state = read_process_state(pid)
    return state is None or not state.is_live or state.started_at != started_at


def is_old(path: AnyPath) -> bool:
    """Return whether a socket was made more than OPENING_S ago, or is gone.

    If an old socket refuses connections, the process that has made it was killed.
    """
    try:
        return time.time() - os.stat(path).st_mtime > OPENING_S
    except OSError:
        return True


def _is_own(path: AnyPath) -> bool:
    """Return whether a path belongs to this user, and other users have no access to it."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def make_private(folder: AnyPath) -> None:
    """Make a directory that only this user can enter. Does nothing if it exists and is private.

    Raises PermissionError if it exists, but belongs to another user or other users can enter it.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{os.fspath(folder)}: expected a folder that only you can enter")
