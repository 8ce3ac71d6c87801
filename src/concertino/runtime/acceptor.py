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
from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakMethod

from msgspec import structs

from concertino.jsonrpc.limits import Limits
from concertino.runtime.host import Host, Wrap
from concertino.runtime.listener_places import ListenerPlaces, identity_of, places_per_listener
from concertino.runtime.server_connection import ServerConnection
from concertino.transports.connection import Connection
from concertino.transports.listeners import Listener
from concertino.transports.sockets import AcceptedSocket

__all__ = ["Acceptor", "serve_connections"]

log = logging.getLogger("concertino.accept")

# How many clients are accepted in a row before other callbacks of the loop get their turn.
ACCEPTS = 64
# Which silent clients that had to go are logged: of each listener the first, the tenth and so on.
LOGGED_EVICTIONS = frozenset(10**power for power in range(10))
# How long accepting pauses when the system has no descriptors or memory left.
PAUSE_S = 1.0


def serve_connections(
    host: Host,
    *listeners: Listener,
    max_connections: int | None = None,
    wrap: Wrap | None = None,
) -> Acceptor:
    """Serve all clients that connect to the listeners, until close().

    Call it on the host's event loop, inside `async with Host(...)`, in a `with` statement. Leaving
    the `with` statement accepts no more clients and removes the socket files; leaving the host
    drains the connections. The Acceptor owns the listeners and closes them.
    max_connections: clients at once at each listener; by default as the host's limits say.
    wrap: returns the connection to attach instead of a new one, for example with a trace around it;
    it also gets the client's name.
    Raises ValueError if max_connections is not positive.
    """
    if max_connections is not None and max_connections < 1:
        raise ValueError(f"max_connections: expected a positive number, got {max_connections}")
    return Acceptor(
        host, listeners, max_connections or host.limits.max_connections, wrap or _unwrapped
    )


class _SilentClient(NamedTuple):
    """A client that has sent nothing. identity: see identity_of()."""

    sock: socket.socket
    facts: Mapping[str, object]
    listener: Listener
    places: ListenerPlaces
    identity: str
    name: str


class Acceptor:
    """Accepts clients; made by serve_connections().

    addresses: where clients can connect, in the order of the listeners.
    """

    def __init__(
        self,
        host: Host,
        listeners: tuple[Listener, ...],
        max_connections: int,
        wrap: Wrap,
    ) -> None:
        self.addresses = [listener.address for listener in listeners]
        self._host = host
        self._listeners = listeners
        limit = places_per_listener(max_connections, len(listeners))
        self._places = {listener: ListenerPlaces(limit) for listener in listeners}
        self._limits = _share_output(host.limits, limit * max(1, len(listeners)))
        self._wrap = wrap
        self._loop = asyncio.get_running_loop()
        # Accepted sockets of which nothing was read yet, by descriptor.
        self._silent: dict[int, _SilentClient] = {}
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
            self._disconnect_silent(descriptor)

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
        places = self._places[listener]
        if places.is_crowded:
            self._evict_silent_stranger(places)

        try:
            facts = listener.examine(sock)
            identity = identity_of(facts)
            sock.setblocking(False)
        except PermissionError as exc:
            self._refuse(sock, listener, exc.strerror)
            return
        except OSError as exc:
            # The client has gone already.
            log.debug("%s: a client was lost: %s", listener.address, exc)
            sock.close()
            return
        if refusal := places.find_refusal(identity):
            self._refuse(sock, listener, refusal)
            return

        name = f"client {self._count}"
        client = _SilentClient(sock, facts, listener, places, identity, name)
        descriptor = sock.fileno()
        places.take(identity)
        self._silent[descriptor] = client
        if identity:
            places.silent_strangers[descriptor] = None
        self._loop.add_reader(descriptor, self._attach, client)
        log.debug("%s: %s: %s", listener.address, name, dict(facts))

    def _refuse(
        self,
        sock: socket.socket,
        listener: Listener,
        reason: str | None,
    ) -> None:
        log.warning("%s: a client was refused: %s", listener.address, reason)
        sock.close()

    def _evict_silent_stranger(self, places: ListenerPlaces) -> None:
        """Disconnect the stranger that has been silent for the longest time, if there is one."""
        while places.silent_strangers:
            descriptor = next(iter(places.silent_strangers))
            client = self._silent[descriptor]
            # Its first bytes may have arrived in this very loop iteration.
            if _has_input(client.sock):
                self._attach(client)
                continue

            self._disconnect_silent(descriptor)
            places.evictions += 1
            if places.evictions in LOGGED_EVICTIONS:
                log.warning(
                    "%s: %s (%s) was disconnected: it has sent nothing, and more than half of "
                    "%d places are taken; so far this happened %d times",
                    client.listener.address,
                    client.name,
                    client.identity,
                    places.limit,
                    places.evictions,
                )
            return

    def _disconnect_silent(self, descriptor: int) -> None:
        client = self._silent[descriptor]
        self._end_silence(client)
        client.places.release(client.identity)
        client.sock.close()

    def _end_silence(self, client: _SilentClient) -> None:
        """Wait no longer for the first bytes of a client."""
        descriptor = client.sock.fileno()
        self._loop.remove_reader(descriptor)
        del self._silent[descriptor]
        client.places.silent_strangers.pop(descriptor, None)

    def _attach(self, client: _SilentClient) -> None:
        """Attach a client that has sent its first bytes or has closed its socket."""
        self._end_silence(client)
        name = client.name
        about = f"{client.listener.address}: {name}"
        accepted = AcceptedSocket(client.sock, self._limits, client.facts, about)
        connection = self._host.attach(self._wrap(accepted, name), self._limits)
        self._connections[connection] = accepted
        connection.closed.add_done_callback(lambda _: self._on_client_closed(connection, client))

    def _on_client_closed(self, connection: ServerConnection, client: _SilentClient) -> None:
        del self._connections[connection]
        client.places.release(client.identity)
        log.debug("%s has disconnected", client.name)
        # Its descriptor is free: a client that the system refused may be accepted now.
        if self._resuming is not None and not self._closed:
            self._resuming.cancel()
            self._listen()

    def _disown_all(self) -> None:
        """Close everything in a forked child: clients and socket files belong to the parent."""
        for listener in self._listeners:
            listener.socket.close()
        for client in list(self._silent.values()):
            client.sock.close()
        for accepted in list(self._connections.values()):
            accepted.disown()


def _has_input(sock: socket.socket) -> bool:
    """Return whether something can be read, or the other side is gone."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _share_output(limits: Limits, connections: int) -> Limits:
    """Return limits by which small unread results of all connections fit into their budget."""
    high = min(limits.high_water_bytes, max(1, limits.max_unread_bytes_total // connections))
    return structs.replace(limits, high_water_bytes=high)


def _unwrapped(connection: Connection, name: str) -> Connection:
    return connection
