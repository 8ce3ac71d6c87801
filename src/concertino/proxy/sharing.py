"""ServerSharing: decides which clients of a proxy share a connection to its server.

Clients that share a connection share a process of the server, and so also what it stores: one
client may see data of another.
"""

from __future__ import annotations

import logging
from typing import Literal, get_args

from concertino.backend.caller import CallerSession

__all__ = ["Isolation", "ServerSharing"]

log = logging.getLogger("concertino.proxy")

# ServerSharing describes the values.
Isolation = Literal["auto", "shared", "principal", "session"]


class ServerSharing:
    """Decides which client sessions of a proxy share a connection to the proxy's server.

    name: the name of the server, for the log.
    isolation: which sessions share a connection: "shared" for all sessions, "principal" for those
        of one verified user, "session" for none. "auto" becomes "principal" when the features of
        the server are known; or "session" for a server before 2026-07-28 that has log levels or
        asks its client something.
    can_reopen: whether more than one connection to the server can be opened. If not, all sessions
        share one.
    """

    def __init__(self, name: str, isolation: Isolation, can_reopen: bool) -> None:
        if isolation not in get_args(Isolation):
            expected = ", ".join(get_args(Isolation))
            raise ValueError(f"isolation: expected one of {expected}, got {isolation!r}")
        self._name = name
        self._isolation = isolation
        # Whether the user has left the choice to this object.
        self._is_auto = isolation == "auto"
        self._can_reopen = can_reopen

    def key_of(self, session: CallerSession | None) -> object:
        """Return the key of a session. Sessions with equal keys share a connection.

        - If all sessions share one connection: None.
        - If each session has a connection of its own: `session`.
        - Otherwise: the identity of the user; b"" if the user is not verified or `session` is None.

        session: the session of a call; None if the call has not come from a client. All such calls
            share one connection.
        """
        if not self._can_reopen or self._isolation == "shared":
            return None
        if self._isolation == "session":
            return session
        return b"" if session is None else session.principal

    def principal_of(self, session: CallerSession | None) -> bytes:
        """Return the identity of the user for whom a session's lists are stored in the cache.

        The lists are those of tools, prompts and resources. Returns b"" if all sessions share them,
        if the user is not verified, and for a call without a session.
        """
        if session is None or self._isolation == "shared":
            return b""
        return session.principal

    def learn(self, *, is_modern: bool, has_log_levels: bool) -> None:
        """Replace the isolation "auto" by "principal" or "session". Does nothing for other values.

        Call this when the features of the server are known.
        is_modern: whether the server speaks 2026-07-28.
        has_log_levels: whether it has the capability for log messages.
        """
        if self._isolation == "auto":
            self._isolation = "principal"
            # Before 2026-07-28 the log level holds for the whole connection, so one client would
            # change the level of all other clients.
            if not is_modern and has_log_levels:
                self._isolate("it has log levels")

    def on_question(self) -> None:
        """Give each new session a connection of its own, if `isolation` was "auto".

        Called when a server before 2026-07-28 asks its client something.
        """
        # Such a server does not say for which call it asks. If several sessions of a user shared a
        # connection, the wrong session might get the question.
        if self._is_auto and self._isolation == "principal":
            self._isolate("it asks its client something")

    def _isolate(self, reason: str) -> None:
        """From now on, give each session that has no connection yet a connection of its own.

        reason: completes the log message "each client gets a server process of its own: ...".
        """
        self._isolation = "session"
        if self._can_reopen:
            log.info("%s: each client gets a server process of its own: %s", self._name, reason)
