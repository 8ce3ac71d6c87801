"""HttpCaller: the user whose requests one Connection carries.

A Connection carries the JSON-RPC messages of a session, or the requests without a session that come
on one HTTP connection. All of them must be requests of the same user, because no other user may get
what belongs to a Connection: the session, the sealed states (`requestState` of 2026-07-28,
protocol/seal.py) and, in a proxy, the processes of the server. The user's token may change.
"""

from __future__ import annotations

from collections.abc import Mapping

from concertino.errors import INSUFFICIENT_SCOPE
from concertino.http.challenges import Challenges
from concertino.protocol.principal import Principal
from concertino.protocol.session import is_refusing_scopes
from concertino.runtime.server_connection import ServerConnection

__all__ = ["HttpCaller", "identity_of"]


class HttpCaller:
    """The user who sends the requests of one Connection.

    The user is a Principal, which is replaced when the user's token changes.

    facts: what is known about the client of the first request, such as its address. The attribute
        `facts` also contains the principal of this request.
    principal: the verified user of the first request, then of the latest one; None if there is no
        authorization.
    challenges: makes the 401 and 403 errors; None if there is no authorization.

    Attributes:
    identity: the Principal.identity that all principals of the Connection have; b"" without
        authorization.
    """

    def __init__(
        self,
        facts: Mapping[str, object],
        principal: Principal | None,
        challenges: Challenges | None,
    ) -> None:
        self.facts = facts if principal is None else {**facts, "principal": principal}
        self.identity = identity_of(principal)
        self.principal = principal
        self._challenges = challenges
        self._served: ServerConnection | None = None

    def attach(self, served: ServerConnection) -> None:
        """Set the ServerConnection that serves the requests."""
        self._served = served

    def update(self, principal: Principal | None) -> None:
        """Replace the principal by one with the same identity, for example with a new token.

        None, for a request without a user, changes nothing.
        """
        # The same object is the usual case. Comparing the fields takes longer.
        if principal is None or principal is self.principal or principal == self.principal:
            return
        self.principal = principal
        if self._served is not None:
            self._served.identify(principal)

    def is_scope_refusal(self, outcome: int | None) -> bool:
        """Return whether the response that is being written says that the caller lacks scopes.

        Returns False for an error of another server behind a Proxy, because a new token for this
        server would not help. Call this within Connection.write(): meanwhile, a context variable
        says whether this server itself has made the error.

        outcome: the code of the error in the response; 0 for a result, and None if the message is
            no response.
        """
        return outcome == INSUFFICIENT_SCOPE and is_refusing_scopes.get()

    def scope_challenge(self, frame: bytes) -> bytes:
        """Return the header WWW-Authenticate for a response with the error INSUFFICIENT_SCOPE.

        frame: the JSON-RPC response, whose error names the scopes that are needed.
        Returns the header as a whole line; empty if there is no authorization.
        """
        return b"" if self._challenges is None else self._challenges.scope_challenge(frame)


def identity_of(principal: Principal | None) -> bytes:
    """Return the identity of a principal, which is equal for all of its tokens; b"" for None."""
    return b"" if principal is None else principal.identity
