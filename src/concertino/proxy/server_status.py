"""Reports the state of the servers behind this process to `concertino ps`, at a Unix socket.

This does not slow down calls: each Client of a server counts the figures anyway, and they are
collected only when `concertino ps` connects. process_sockets.py says where the socket is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.json import encode

from concertino.excerpts import shorten
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.proxy.process_sockets import listen_in_first, status_folders
from concertino.runtime import entry

if TYPE_CHECKING:
    from concertino.transports.listeners import Listener

__all__ = [
    "ProxyStatus",
    "ServerStatus",
    "StatusSource",
    "add_source",
    "describe_error",
    "remove_source",
]

log = logging.getLogger("concertino.proxy")

# The socket is opened this many seconds after the first server was added, so that it does not delay
# the server's start, for which a client waits.
OPEN_AFTER_S = 0.3
# The largest number of servers in an answer.
MAX_SERVERS = 256
# The longest error text in an answer, in characters.
MAX_ERROR = 400


class ServerStatus(Struct, frozen=True, omit_defaults=True):
    """The state of one server, as `concertino ps` shows it.

    server: the name of the server.
    state: one of these:
        - `running`, `starting` or `restarting`.
        - `crash loop`: the server has ended ten times in a row. Half a minute after the last try,
          the next call starts it again.
        - `idle`: the next call starts the server.
        - `waits for approval`: the user has not approved the server.
        - `failed`: the first start has failed; the next call tries again.
    pid: the id of the server's process; 0 if the server has none.
    calls: the number of requests that all processes of the server have got.
    restarts: how many times the server was restarted.
    host: the name that the newest client sent for its application; "" before the first client.
    last_error: why the last process of the server has ended, or why the server does not run; "" if
        the server never failed.
    stray: the number of lines that the present process has printed to stdout and that are no
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
    """The answer of one proxy process to `concertino ps`.

    pid: the id of the proxy process.
    servers: the states of the servers to which it passes calls.
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
        # A dict keeps the order, so that `concertino ps` always shows the same order.
        self.sources: dict[StatusSource, None] = {}
        # The listening socket; None before it is opened.
        self._listener: Listener | None = None
        # The timer that opens the socket, or has opened it; None while there are no servers.
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
# In a forked process, reset _socket by running __init__ again, because the listening socket still
# belongs to the parent.
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
