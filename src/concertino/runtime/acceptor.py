"""serve_connections(): accepts clients on any number of listeners, for one Host.

Until a client sends something it costs its descriptor only; then it gets a connection and a session.
Nothing here waits for a client. When the system has no descriptors left, accepting pauses, and new
clients wait in the listeners' queues.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from weakref import WeakMethod

from concertino.runtime.host import Host
from concertino.runtime.server_connection import ServerConnection
from concertino.transports.connection import Connection
from concertino.transports.listeners import Listener
from concertino.transports.sockets import AcceptedSocket

__all__ = ["Acceptor", "Wrap", "serve_connections"]

log = logging.getLogger("concertino.accept")

ACCEPTS = 64  # in a row before other callbacks get their turn
PAUSE_S = 1.0  # after the system refused: no descriptors, no memory

Wrap = Callable[[Connection, str], Connection]


def serve_connections(
    host: Host, *listeners: Listener, max_connections: int | None = None, wrap: Wrap | None = None
) -> Acceptor:
    """Serve whoever connects, until close(). Call it on the host's loop; the listeners are owned from now on.

    Use it inside `async with Host(...)`, by `with`: leaving it lets nobody in any more and removes the sockets' files; leaving
    the host drains the connections that there are.
    max_connections: clients at once; the host's limits say it otherwise. wrap: gets each new connection and its client's name,
    and gives the one to attach: a trace around it, say. Raises ValueError for a number of clients that is not positive.
    """
    if max_connections is not None and max_connections < 1:
        raise ValueError(f"max_connections: expected a positive number, got {max_connections}")
    return Acceptor(
        host, listeners, max_connections or host.limits.max_connections, wrap or _as_it_is
    )


class Acceptor:
    """Accepts clients. Made by serve_connections(). addresses: where, in the order of the listeners."""

    def __init__(
        self, host: Host, listeners: tuple[Listener, ...], max_connections: int, wrap: Wrap
    ) -> None:
        self.addresses = [listener.address for listener in listeners]
        self._host = host
        self._listeners = listeners
        self._limit = max_connections
        self._wrap = wrap
        self._loop = asyncio.get_running_loop()
        self._silent: dict[
            int, socket.socket
        ] = {}  # accepted, and nothing was read yet; by descriptor
        self._links: dict[ServerConnection, AcceptedSocket] = {}
        self._count = 0  # of all that were let in, for their names
        self._resuming: asyncio.TimerHandle | None = None  # accepting is paused
        self._closed = False
        self._starved = False  # somebody waits whom the system refused
        forked = WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())
        self._listen()

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def clients(self) -> int:
        """The number of clients that are connected now."""
        return len(self._silent) + len(self._links)

    def close(self) -> None:
        """Let nobody in any more. Those who have said nothing yet are sent away; the others stay until the host is left."""
        if self._closed:
            return
        self._closed = True
        if self._resuming is not None:
            self._resuming.cancel()
        else:
            self._stop_listening()
        for listener in self._listeners:
            listener.close()
        for descriptor in list(self._silent):
            self._loop.remove_reader(descriptor)
            self._silent.pop(descriptor).close()

    def remove_files(self) -> None:
        """Remove the sockets' files; from any thread or signal handler, when the process ends in a hurry."""
        for listener in self._listeners:
            listener.remove()

    # In

    def _listen(self) -> None:
        self._resuming = None
        for listener in self._listeners:
            self._loop.add_reader(listener.socket.fileno(), self._somebody, listener)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.socket.fileno())

    def _somebody(self, listener: Listener) -> None:
        for _ in range(ACCEPTS):
            try:
                sock = listener.accept()
            except (BlockingIOError, InterruptedError):
                self._starved = False  # nobody waits any more: being starved again is news
                return
            except ConnectionAbortedError:  # gone before its turn
                continue
            except (
                OSError
            ) as why:  # EMFILE, ENFILE, ENOMEM: it would be told again at once, and for ever
                if not self._starved:
                    log.warning(
                        "%s: nobody can be let in for a while: %s", listener.address, why.strerror
                    )
                self._starved = True
                self._stop_listening()
                self._resuming = self._loop.call_later(PAUSE_S, self._listen)
                return
            self._let_in(sock, listener)

    def _let_in(self, sock: socket.socket, listener: Listener) -> None:
        self._count += 1
        if self.clients >= self._limit:
            log.warning(
                "%s: a client was sent away: %d are connected, as many as may be",
                listener.address,
                self.clients,
            )
            sock.close()
            return
        try:
            facts = listener.examine(sock)
            sock.setblocking(False)
            self._loop.add_reader(
                sock.fileno(), self._first, sock, facts, listener.address, f"client {self._count}"
            )
        except PermissionError as why:
            log.warning("%s: a client was sent away: %s", listener.address, why.strerror)
            sock.close()
        except OSError as why:  # gone already
            log.debug("%s: a client was lost: %s", listener.address, why)
            sock.close()
        else:
            self._silent[sock.fileno()] = sock
            log.debug("%s: client %d: %s", listener.address, self._count, dict(facts))

    def _first(
        self, sock: socket.socket, facts: Mapping[str, object], address: str, name: str
    ) -> None:
        """Attach a client that has sent something, or is gone."""
        self._loop.remove_reader(sock.fileno())
        del self._silent[sock.fileno()]
        connection = AcceptedSocket(sock, self._host.limits, facts, f"{address}: {name}")
        link = self._host.attach(self._wrap(connection, name))
        self._links[link] = connection
        link.closed.add_done_callback(lambda _: self._over(link, name))

    def _over(self, link: ServerConnection, name: str) -> None:
        del self._links[link]
        log.debug("%s is gone", name)
        if self._resuming is not None and not self._closed:  # there is a descriptor again
            self._resuming.cancel()
            self._listen()

    def _forked(self) -> None:
        """Close everything in a forked child: clients and files are the parent's."""
        for listener in self._listeners:
            listener.socket.close()
        for sock in list(self._silent.values()):
            sock.close()
        for connection in list(self._links.values()):
            connection.disown()


def _as_it_is(connection: Connection, name: str) -> Connection:
    return connection
