"""serve_connections(): accepts clients on any number of listening sockets, for one Host.

    async with Host(server) as host:
        with serve_connections(host, listen_unix("/run/my.sock")):
            await stop_requested.wait()

A client that has sent nothing so far is called "silent" here. It takes only a file descriptor: its
connection and session are made when its first bytes arrive. A "stranger" is a client that does not
run as the user of this process; listener_places.py limits the number of clients, and of strangers
in particular. When the process can open no more descriptors, the acceptor pauses for PAUSE_S
seconds, and new clients wait in the queues of the listening sockets.
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
from concertino.runtime.host import Host, Wrap, unwrapped
from concertino.runtime.listener_places import ListenerPlaces, client_identity, places_per_listener
from concertino.runtime.server_connection import ServerConnection, load_calls
from concertino.transports.listeners import Listener
from concertino.transports.sockets import AcceptedSocket

__all__ = ["Acceptor", "serve_connections"]

log = logging.getLogger("concertino.accept")

# At most this many clients are accepted in a row before the loop runs other callbacks.
ACCEPTS = 64
# When silent clients of a listener are disconnected to make room, this is logged for the first
# client, and then for the 10th, the 100th and so on.
LOGGED_EVICTIONS = frozenset(10**power for power in range(10))
# How many seconds the acceptor pauses when the system has no descriptors or memory left.
PAUSE_S = 1.0


def serve_connections(
    host: Host,
    *listeners: Listener,
    max_connections: int | None = None,
    wrap: Wrap | None = None,
) -> Acceptor:
    """Start to serve all clients that connect to the listeners. Returns the Acceptor.

    Use it in a `with` statement inside `async with Host(...)`, on the same event loop. At the end
    of the `with` block no more clients are accepted, the listeners are closed, and their socket
    files removed. The connections stay open until the end of the `async with` block.

    host: serves its backend on the connection of each client.
    max_connections: how many clients each listener may have at the same time; by default
        host.limits.max_connections. With several listeners, each may have fewer, because all
        together get at most half of the file descriptors that this process may open.
    wrap: called with each new connection and the client's name; returns the connection that the
        host serves, for example one that traces the messages. None to serve each connection as it
        is.
    Raises ValueError if max_connections is not positive.
    """
    if max_connections is not None and max_connections < 1:
        raise ValueError(f"max_connections: expected a positive number, got {max_connections}")
    return Acceptor(
        host, listeners, max_connections or host.limits.max_connections, wrap or unwrapped
    )


class _SilentClient(NamedTuple):
    """A client that has sent nothing so far.

    sock: the socket of the client.
    facts: the facts of the connection: `uid` (Unix socket) or `address` (TCP).
    listener: the listener that has accepted the client.
    places: the counter of the listener's clients.
    identity: the user or address of the client, as client_identity() returns it; "" for the user of
        this process, who is no stranger.
    name: for the log, such as "client 7".
    """

    sock: socket.socket
    facts: Mapping[str, object]
    listener: Listener
    places: ListenerPlaces
    identity: str
    name: str


class Acceptor:
    """Accepts clients, and attaches them to a Host; made by serve_connections().

    It accepts from the start until close() is called, or until the end of its `with` block.
    """

    def __init__(
        self,
        host: Host,
        listeners: tuple[Listener, ...],
        max_connections: int,
        wrap: Wrap,
    ) -> None:
        self._host = host
        limit = places_per_listener(max_connections, len(listeners))
        # Each listener, in the order of the arguments -> the counter of its clients.
        self._places = {listener: ListenerPlaces(limit) for listener in listeners}
        self._limits = _share_output(host.limits, limit * max(1, len(listeners)))
        self._wrap = wrap
        self._loop = asyncio.get_running_loop()
        # The silent clients, by the file descriptor of their socket.
        self._silent: dict[int, _SilentClient] = {}
        # The clients that have sent something.
        self._connections: dict[ServerConnection, AcceptedSocket] = {}
        # How many clients have connected so far; each gets its number as its name.
        self._count = 0
        # The timer that ends a pause; None while clients are accepted.
        self._pause_timer: asyncio.TimerHandle | None = None
        self._closed = False
        # Whether the last accept() has failed, because there were no descriptors or memory left.
        self._has_shortage = False

        load_calls()
        # A child process that a handler forks must not hold the clients' sockets open. Functions
        # passed to register_at_fork() stay registered for ever, and a strong reference would keep
        # this object in memory for as long.
        reference = WeakMethod(self._disown_all)

        def disown_in_child() -> None:
            disown_all = reference()
            if disown_all is not None:
                disown_all()

        os.register_at_fork(after_in_child=disown_in_child)
        self._listen()

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of the listeners, in order, with the real ports."""
        return [listener.address for listener in self._places]

    @property
    def clients(self) -> int:
        """Return the number of clients that are connected now."""
        return len(self._silent) + len(self._connections)

    def close(self) -> None:
        """Accept no more clients, close the listeners, and remove their socket files.

        Clients that have sent nothing so far are disconnected. All other clients stay connected
        until the Host is closed.
        """
        if self._closed:
            return
        self._closed = True
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        else:
            self._stop_listening()
        for listener in self._places:
            listener.close()
        for descriptor in list(self._silent):
            self._disconnect_silent(descriptor)

    def _listen(self) -> None:
        """Accept clients from now on."""
        self._pause_timer = None
        for listener in self._places:
            self._loop.add_reader(listener.socket.fileno(), self._accept_waiting, listener)

    def _stop_listening(self) -> None:
        for listener in self._places:
            self._loop.remove_reader(listener.socket.fileno())

    def _accept_waiting(self, listener: Listener) -> None:
        """Accept the clients in a listener's queue, at most ACCEPTS at a time."""
        for _ in range(ACCEPTS):
            try:
                sock = listener.accept()
            except (BlockingIOError, InterruptedError):
                # The queue is empty, so a shortage of descriptors or memory is over. The next one
                # will be logged again.
                self._has_shortage = False
                return
            except ConnectionAbortedError:
                # The client has disconnected while it waited in the queue.
                continue
            except OSError as exc:
                # The error is EMFILE, ENFILE or ENOMEM. The client stays in the queue, and the
                # socket stays readable, so without a pause the loop would call this method again at
                # once, and for ever.
                if not self._has_shortage:
                    log.warning(
                        "%s: no client can be accepted for now: %s", listener.address, exc.strerror
                    )
                self._has_shortage = True
                self._stop_listening()
                self._pause_timer = self._loop.call_later(PAUSE_S, self._listen)
                return
            self._admit(sock, listener)

    def _admit(self, sock: socket.socket, listener: Listener) -> None:
        """Check a new client. Refuse it, or wait for its first bytes."""
        self._count += 1
        places = self._places[listener]
        # Make room first, because find_refusal() counts the clients that are connected. So a client
        # that is refused may cost another its place, but only one that has sent nothing.
        if places.is_crowded:
            self._evict_silent_stranger(places)

        try:
            facts = listener.examine(sock)
            identity = client_identity(facts)
            sock.setblocking(False)
        except PermissionError as exc:
            self._refuse(sock, listener, exc.strerror)
            return
        except OSError as exc:
            # The client has disconnected already.
            log.debug("%s: a client was lost: %s", listener.address, exc)
            sock.close()
            return
        if refusal := places.find_refusal(identity):
            self._refuse(sock, listener, refusal)
            return

        name = f"client {self._count}"
        client = _SilentClient(
            sock=sock, facts=facts, listener=listener, places=places, identity=identity, name=name
        )
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
        """Log the reason why a client is refused, and close its socket."""
        log.warning("%s: a client was refused: %s", listener.address, reason)
        sock.close()

    def _evict_silent_stranger(self, places: ListenerPlaces) -> None:
        """Make room for a client: disconnect the stranger that has sent nothing for longest."""
        while places.silent_strangers:
            descriptor = next(iter(places.silent_strangers))
            client = self._silent[descriptor]
            # The client is no longer silent if its first bytes have arrived but were not read yet.
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
        """Remove a client from the silent clients, and stop waiting for its first bytes."""
        descriptor = client.sock.fileno()
        self._loop.remove_reader(descriptor)
        del self._silent[descriptor]
        client.places.silent_strangers.pop(descriptor, None)

    def _attach(self, client: _SilentClient) -> None:
        """Attach a client to the Host. Called when its first bytes, or its end, have arrived."""
        self._end_silence(client)
        name = client.name
        about = f"{client.listener.address}: {name}"
        accepted = AcceptedSocket(client.sock, self._limits, client.facts, about)
        connection = self._host.attach(self._wrap(accepted, name), self._limits)
        self._connections[connection] = accepted
        connection.closed.add_done_callback(lambda _: self._on_client_closed(connection, client))

    def _on_client_closed(self, connection: ServerConnection, client: _SilentClient) -> None:
        """Stop counting a client whose connection has ended, so that another one may connect."""
        del self._connections[connection]
        client.places.release(client.identity)
        log.debug("%s has disconnected", client.name)
        # A descriptor is free again, so end a pause early.
        if self._pause_timer is not None and not self._closed:
            self._pause_timer.cancel()
            self._listen()

    def _disown_all(self) -> None:
        """Close all sockets in a forked child, since the clients belong to the parent process.

        The socket files are not removed.
        """
        for listener in self._places:
            listener.socket.close()
        for client in list(self._silent.values()):
            client.sock.close()
        for accepted in list(self._connections.values()):
            accepted.disown()


def _has_input(sock: socket.socket) -> bool:
    """Return whether a socket has data to be read, or its other side is closed."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        # The connection has failed, which counts as its end.
        pass
    return True


def _share_output(limits: Limits, connections: int) -> Limits:
    """Return `limits` with a lower high_water_bytes, if there may be many connections.

    Each connection may buffer high_water_bytes of small responses. All connections together must
    not exceed max_unread_bytes_total.
    connections: the largest possible number of connections.
    """
    high = min(limits.high_water_bytes, max(1, limits.max_unread_bytes_total // connections))
    return structs.replace(limits, high_water_bytes=high)
