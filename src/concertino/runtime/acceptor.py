"""serve_connections(): accepts clients on any number of listeners, for one Host.

A client that has not sent anything costs only its descriptor. Its connection and session are made
when its first bytes arrive.
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

# How many clients are accepted in a row before other callbacks of the loop get their turn.
ACCEPTS = 64
# How long accepting pauses when the system has no descriptors or memory left.
PAUSE_S = 1.0

# Returns the connection to attach. Takes a new connection and its client's name.
Wrap = Callable[[Connection, str], Connection]


def serve_connections(
    host: Host, *listeners: Listener, max_connections: int | None = None, wrap: Wrap | None = None
) -> Acceptor:
    """Serve all clients that connect to the listeners, until close().

    Call it on the host's event loop, inside `async with Host(...)`, in a `with` statement. Leaving
    the `with` statement accepts no more clients and removes the socket files; leaving the host
    drains the connections. The Acceptor owns the listeners and closes them.
    max_connections: clients at once; by default as the host's limits say.
    wrap: returns the connection to attach instead of a new one, for example with a trace around it;
    it also gets the client's name.
    Raises ValueError if max_connections is not positive.
    """
    if max_connections is not None and max_connections < 1:
        raise ValueError(f"max_connections: expected a positive number, got {max_connections}")
    return Acceptor(
        host, listeners, max_connections or host.limits.max_connections, wrap or _unwrapped
    )


class Acceptor:
    """Accepts clients; made by serve_connections().

    addresses: where clients can connect, in the order of the listeners.
    """

    def __init__(
        self, host: Host, listeners: tuple[Listener, ...], max_connections: int, wrap: Wrap
    ) -> None:
        self.addresses = [listener.address for listener in listeners]
        self._host = host
        self._listeners = listeners
        self._limit = max_connections
        self._wrap = wrap
        self._loop = asyncio.get_running_loop()
        # Accepted sockets of which nothing was read yet, by descriptor.
        self._silent: dict[int, socket.socket] = {}
        self._connections: dict[ServerConnection, AcceptedSocket] = {}
        # All clients so far, for their names.
        self._count = 0
        # Set while accepting is paused.
        self._resuming: asyncio.TimerHandle | None = None
        self._closed = False
        # The system has refused a client, which still waits in a listener's queue.
        self._is_starved = False

        # A fork handler cannot be unregistered, so it must not keep this object alive.
        disown = WeakMethod(self._disown_all)
        os.register_at_fork(after_in_child=lambda: (method := disown()) and method())
        self._listen()

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def clients(self) -> int:
        """Return the number of clients that are connected now."""
        return len(self._silent) + len(self._connections)

    def close(self) -> None:
        """Accept no more clients, and remove the socket files.

        Clients that have sent nothing are disconnected; the others stay until the host is left.
        """
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
        """Remove the socket files, when the process ends without close().

        May be called from any thread or signal handler.
        """
        for listener in self._listeners:
            listener.remove()

    def _listen(self) -> None:
        self._resuming = None
        for listener in self._listeners:
            self._loop.add_reader(listener.socket.fileno(), self._accept_waiting, listener)

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.socket.fileno())

    def _accept_waiting(self, listener: Listener) -> None:
        """Accept the clients in a listener's queue, at most ACCEPTS of them."""
        for _ in range(ACCEPTS):
            try:
                sock = listener.accept()
            except (BlockingIOError, InterruptedError):
                # The queue is empty: the next refusal is worth a log message again.
                self._is_starved = False
                return
            except ConnectionAbortedError:
                # The client has gone while it waited.
                continue
            except OSError as exc:
                # EMFILE, ENFILE or ENOMEM. The listener stays readable, so without a pause the loop
                # would do nothing but fail here.
                if not self._is_starved:
                    log.warning(
                        "%s: no client can be accepted for now: %s", listener.address, exc.strerror
                    )
                self._is_starved = True
                self._stop_listening()
                self._resuming = self._loop.call_later(PAUSE_S, self._listen)
                return
            self._admit(sock, listener)

    def _admit(self, sock: socket.socket, listener: Listener) -> None:
        """Wait for the first bytes of a new client, unless it is refused."""
        self._count += 1
        if self.clients >= self._limit:
            log.warning(
                "%s: a client was refused: %d are connected, which is the maximum",
                listener.address,
                self.clients,
            )
            sock.close()
            return

        name = f"client {self._count}"
        try:
            facts = listener.examine(sock)
            sock.setblocking(False)
            self._loop.add_reader(sock.fileno(), self._attach, sock, facts, listener.address, name)
        except PermissionError as exc:
            log.warning("%s: a client was refused: %s", listener.address, exc.strerror)
            sock.close()
        except OSError as exc:
            # The client has gone already.
            log.debug("%s: a client was lost: %s", listener.address, exc)
            sock.close()
        else:
            self._silent[sock.fileno()] = sock
            log.debug("%s: %s: %s", listener.address, name, dict(facts))

    def _attach(
        self, sock: socket.socket, facts: Mapping[str, object], address: str, name: str
    ) -> None:
        """Attach a client that has sent its first bytes or has closed its socket."""
        self._loop.remove_reader(sock.fileno())
        del self._silent[sock.fileno()]
        accepted = AcceptedSocket(sock, self._host.limits, facts, f"{address}: {name}")
        connection = self._host.attach(self._wrap(accepted, name))
        self._connections[connection] = accepted
        connection.closed.add_done_callback(lambda _: self._on_client_closed(connection, name))

    def _on_client_closed(self, connection: ServerConnection, name: str) -> None:
        del self._connections[connection]
        log.debug("%s has disconnected", name)
        # Its descriptor is free: a client that the system refused may be accepted now.
        if self._resuming is not None and not self._closed:
            self._resuming.cancel()
            self._listen()

    def _disown_all(self) -> None:
        """Close everything in a forked child: clients and socket files belong to the parent."""
        for listener in self._listeners:
            listener.socket.close()
        for sock in list(self._silent.values()):
            sock.close()
        for accepted in list(self._connections.values()):
            accepted.disown()


def _unwrapped(connection: Connection, name: str) -> Connection:
    return connection
