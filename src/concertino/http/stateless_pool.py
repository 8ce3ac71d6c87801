"""StatelessPool: the Connections that carry requests of 2026-07-28, by HTTP connection and caller.

A client that connects by itself has one HTTP connection, and so one Connection. A reverse proxy
sends the requests of many callers on a few HTTP connections. A Connection belongs to one caller, so
it changes places there: when the next request of an HTTP connection is another caller's, the
Connection of the one before waits until its caller's next request comes, on whatever HTTP
connection. Making a new one for each request would take 75 us (Python 3.11).
"""

from __future__ import annotations

from collections import OrderedDict

from concertino.http.caller import HttpCaller, identity_of
from concertino.http.challenges import Challenges
from concertino.http.connection import Exchange, HttpConnection
from concertino.http.stateless import StatelessConnection
from concertino.runtime.host import Host, Wrap

__all__ = ["StatelessPool"]

# At most this many Connections wait for their caller's next request.
MAX_WAITING = 256


class StatelessPool:
    """The Connections of one Host for requests without a session.

    wrap: wraps each Connection before it is attached.
    challenges: makes refusals; None if there is no authorization.
    """

    def __init__(self, host: Host, wrap: Wrap, challenges: Challenges | None) -> None:
        self._host = host
        self._wrap = wrap
        self._challenges = challenges
        self._bound: dict[HttpConnection, StatelessConnection] = {}
        # Those without an HTTP connection. The one that was used last comes last.
        self._waiting: OrderedDict[StatelessConnection, bytes] = OrderedDict()
        self._by_identity: dict[bytes, list[StatelessConnection]] = {}

    def find(self, exchange: Exchange) -> StatelessConnection:
        """Return the Connection for a request, bound to the request's HTTP connection."""
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
        """Bind a Connection of the caller to the HTTP connection: one that waits, or a new one."""
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
        http = exchange.connection
        caller = HttpCaller(http.facts, exchange.principal, self._challenges)
        connection = StatelessConnection(http, caller)
        self._bound[http] = connection
        served = self._host.attach(self._wrap(connection, "client"))
        connection.caller.attach(served)
        served.closed.add_done_callback(lambda _: self._remove(connection))
        return connection

    def _release(self, http: HttpConnection, connection: StatelessConnection) -> None:
        """Take a Connection off its HTTP connection, and let it wait for its caller."""
        del self._bound[http]
        connection.unbind()
        if http.unread_bytes:
            # Its caller has not read all of the last response: that state is of no use elsewhere.
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
        identity = self._waiting.pop(connection)
        others = self._by_identity[identity]
        others.remove(connection)
        if not others:
            del self._by_identity[identity]

    def _remove(self, connection: StatelessConnection) -> None:
        """Forget a Connection, because it is closed."""
        http = connection.http
        if connection in self._waiting:
            self._forget_waiting(connection)
        elif http is not None and self._bound.get(http) is connection:
            del self._bound[http]
