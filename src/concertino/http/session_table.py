"""SessionTable: the sessions of an HTTP server, which belong to revisions before 2026-07-28.

`initialize` opens a session, and later requests name it with Mcp-Session-Id. A session belongs to
the principal that has opened it. It ends when it was not used for a long time, or when there are
too many sessions. With several worker processes, each has the sessions that it has opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from concertino.http.caller import HttpCaller, identity_of
from concertino.http.challenges import Challenges
from concertino.http.event_streams import EventBudget
from concertino.http.exchange import Exchange
from concertino.http.options import Polling
from concertino.http.principal_limits import too_many
from concertino.http.request_head import HttpError, unavailable
from concertino.http.session_connection import SessionConnection
from concertino.http.session_peers import NO_SESSION, SessionPeers, create_session_id, pass_on
from concertino.runtime.host import Host, Wrap

__all__ = ["SessionTable"]


class SessionTable:
    """The open sessions of a server, by their ids.

    host: serves the backend to each session as to one connection (runtime/host.py).
    wrap: wraps the Connection of each session before the host gets it.
    max_sessions: how many sessions there may be at the same time. With 0, none can be opened.
    session_s: the time without a request and without an open stream after which a session ends.
    challenges: makes the 401 and 403 errors; None if there is no authorization.
    max_own_sessions: how many sessions one principal (verified user) may have; None for any number.
    polling: when clients must resume a stream to get the rest of a response; None for never.
    peers: passes requests to the other processes that share the sessions; None if there is one
        process.
    """

    def __init__(
        self,
        host: Host,
        wrap: Wrap,
        max_sessions: int,
        session_s: float,
        challenges: Challenges | None = None,
        max_own_sessions: int | None = None,
        polling: Polling | None = None,
        peers: SessionPeers | None = None,
    ) -> None:
        self._host = host
        self._wrap = wrap
        self.max_sessions = max_sessions
        self._session_s = session_s
        self._challenges = challenges
        self._max_own_sessions = max_own_sessions
        self._polling = polling
        self.peers = peers
        # The memory for the events that all sessions keep until their clients resume a stream.
        self._budget = EventBudget()
        # Id -> session. find() also checks that the session belongs to the user of the request.
        self._sessions: dict[str, SessionConnection] = {}
        # How many sessions were opened, from which the names of sessions in log lines are made.
        self._count = 0

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)

    def open(self, exchange: Exchange) -> SessionConnection:
        """Open a session for the `initialize` request of a client.

        The session's id is added to the headers of the response. If there are too many sessions,
        the one that was not used for the longest time is ended.

        exchange: the POST with `initialize`. The caller passes it to the session with deliver().
        Raises HttpError 429 if the principal has too many sessions, and 503 if the server has too
        many; each only if all of these sessions are in use.
        """
        self._make_room(identity_of(exchange.principal))
        id = create_session_id(self.peers)
        caller = HttpCaller(exchange.connection.facts, exchange.principal, self._challenges)
        session = SessionConnection(
            id, caller, self._budget, lambda: self._sessions.pop(id, None), self._polling
        )
        self._sessions[id] = session
        self._count += 1
        caller.attach(self._host.attach(self._wrap(session, f"session {self._count}")))
        exchange.headers += session.header
        return session

    def _make_room(self, identity: bytes) -> None:
        """End a session if there are too many, in total or of the principal with this identity.

        Raises HttpError 429 or 503 if all of them are in use.
        """
        sessions = self._sessions.values()
        if self._max_own_sessions is not None:
            own = [item for item in sessions if item.caller.identity == identity]
            if len(own) >= self._max_own_sessions and not self._end_oldest(own):
                raise too_many(f"{self._max_own_sessions} sessions of yours are in use")
        if len(sessions) >= self.max_sessions and not self._end_oldest(sessions):
            raise unavailable(f"{self.max_sessions} sessions are open")

    def find(self, exchange: Exchange, id: str | None) -> SessionConnection | None:
        """Return the session of a request; None if the request was passed on to another process.

        id: the session id in the request; None if it has none.
        Raises HttpError 400 if id is None, and 404 if there is no such session. A session of
        another user is treated as if it did not exist.
        """
        if id is None:
            raise HttpError(
                HTTPStatus.BAD_REQUEST,
                "expected Mcp-Session-Id, as the response to initialize has named it, "
                "or the headers and _meta of revision 2026-07-28",
            )
        session = self._sessions.get(id)
        if session is None and pass_on(self.peers, exchange, id):
            return None
        if session is None or session.caller.identity != identity_of(exchange.principal):
            raise HttpError(HTTPStatus.NOT_FOUND, NO_SESSION)
        return session

    def end(self, session: SessionConnection, reason: str) -> None:
        """End a session, and remove it from the table. reason: why, for the log."""
        self._sessions.pop(session.id, None)
        session.end(reason)

    def end_idle(self, now: float) -> bool:
        """End the sessions that have not been used for the time `session_s`.

        Returns whether any session is left.
        now: the time by the clock of the event loop.
        """
        for session in list(self._sessions.values()):
            if not session.is_in_use and now - session.last_used >= self._session_s:
                self.end(session, "the session was not used for a long time")
        return bool(self._sessions)

    def _end_oldest(self, among: Iterable[SessionConnection]) -> bool:
        """End the session that has not been used for the longest time.

        Returns False if all of them are in use.
        """
        idle = [session for session in among if not session.is_in_use]
        if not idle:
            return False
        oldest = min(idle, key=lambda session: session.last_used)
        self.end(oldest, "there are too many sessions")
        return True
