"""StatelessPool: finds the StatelessConnection for each request of 2026-07-28.

A StatelessConnection carries the requests of one user, on one HTTP connection at a time. If a
client connects directly, it stays on the same HTTP connection. But a reverse proxy sends the
requests of many users on a few HTTP connections. When an HTTP connection carries a request of
another user, the pool unbinds the StatelessConnection and keeps it until its user's next request
arrives on any HTTP connection. Making a new one for each request would take 75 us (Python 3.11).
"""

from __future__ import annotations

from collections import OrderedDict

from concertino.http.caller import HttpCaller, identity_of
from concertino.http.challenges import Challenges
from concertino.http.exchange import Exchange, RequestConnection
from concertino.http.stateless import StatelessConnection
from concertino.runtime.host import Host, Wrap

__all__ = ["StatelessPool"]

# How many Connections without an HTTP connection are kept.
MAX_WAITING = 256


class StatelessPool:
    """The Connections of an HTTP server for requests without a session (2026-07-28).

    host: serves the backend on each Connection (runtime/host.py).
    wrap: wraps each Connection before the host gets it, for example to trace its messages.
    challenges: makes the 401 and 403 errors; None if there is no authorization.
    """

    def __init__(self, host: Host, wrap: Wrap, challenges: Challenges | None) -> None:
        self._host = host
        self._wrap = wrap
        self._challenges = challenges
        # The Connections that belong to an HTTP connection.
        self._bound: dict[RequestConnection, StatelessConnection] = {}
        # The Connections without an HTTP connection -> the identity of their user. The most
        # recently used Connection is at the end.
        self._waiting: OrderedDict[StatelessConnection, bytes] = OrderedDict()
        # The identity of a user -> the user's Connections in _waiting.
        self._by_identity: dict[bytes, list[StatelessConnection]] = {}

    def find(self, exchange: Exchange) -> StatelessConnection:
        """Return the Connection that carries a request, bound to the request's HTTP connection.

        - If the last request on the HTTP connection was of the same user: its Connection.
        - Otherwise: a Connection of this user that waits, or a new one.
        """
        http = exchange.connection
        connection = self._bound.get(http)
        principal = exchange.principal
        if connection is None:
            return self._bind(exchange)
        caller = connection.caller
        # Requests with the same token have the same object.
        if principal is caller.principal or identity_of(principal) == caller.identity:
            return connection
        self._release(http, connection)
        return self._bind(exchange)

    def _bind(self, exchange: Exchange) -> StatelessConnection:
        """Bind a Connection of the request's user to the HTTP connection: a kept or a new one."""
        http = exchange.connection
        waiting = self._by_identity.get(identity_of(exchange.principal))
        if not waiting:
            return self._attach(exchange)
        connection = waiting[-1]
        self._forget_waiting(connection)
        connection.bind(http)
        self._bound[http] = connection
        return connection

    def _attach(self, exchange: Exchange) -> StatelessConnection:
        """Make a Connection for the request's user, and let the Host serve it from now on."""
        http = exchange.connection
        caller = HttpCaller(http.facts, exchange.principal, self._challenges)
        connection = StatelessConnection(http, caller)
        self._bound[http] = connection
        served = self._host.attach(self._wrap(connection, "client"))
        connection.caller.attach(served)
        served.closed.add_done_callback(lambda _: self._remove(connection))
        return connection

    def _release(self, http: RequestConnection, connection: StatelessConnection) -> None:
        """Unbind a Connection from its HTTP connection, and keep it for its user's next request."""
        del self._bound[http]
        connection.unbind()
        if http.unread_bytes:
            # Its user has not read all of the last response. The Connection counts these bytes as
            # unread, which would be wrong on another HTTP connection.
            connection.end()
            return
        identity = connection.caller.identity
        self._waiting[connection] = identity
        self._by_identity.setdefault(identity, []).append(connection)
        if len(self._waiting) > MAX_WAITING:
            oldest = next(iter(self._waiting))
            self._forget_waiting(oldest)
            oldest.end()

    def _forget_waiting(self, connection: StatelessConnection) -> None:
        """Remove a Connection from the table of kept Connections."""
        identity = self._waiting.pop(connection)
        same_user = self._by_identity[identity]
        same_user.remove(connection)
        if not same_user:
            del self._by_identity[identity]

    def _remove(self, connection: StatelessConnection) -> None:
        """Remove a Connection, because it is closed."""
        http = connection.http
        if connection in self._waiting:
            self._forget_waiting(connection)
        elif http is not None and self._bound.get(http) is connection:
            del self._bound[http]
