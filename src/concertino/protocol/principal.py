"""Principal: the verified identity of the user and the program that make a call.

Over HTTP with authorization, the principal comes from the bearer token. Over a Unix socket, it is
the user of the client's process. A client's description of itself (`clientInfo`) is never verified,
so it is not part of a Principal; ClientFacts has it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.json import encode

__all__ = ["UNIX", "Principal", "unix_principal"]

# The issuer of principals from a Unix socket, whose user the kernel has verified. Issuers of tokens
# are URLs, so no token can have this issuer.
UNIX = "unix:"


class Principal(Struct, frozen=True):
    """The verified identity of a caller.

    subject: the user, or a program that acts for itself; the claim `sub` of a token.
    client: the program that acts for the user; the claim `client_id` of a token. "" if unknown.
    issuer: the authority that has issued the names in subject and client. Another issuer may use
        the same names for other users and programs.
    scopes: the scopes of the token; None if the caller has no token and may do everything.
    expires: when the token expires, in seconds since the epoch; None if it does not expire.
    """

    subject: str
    client: str = ""
    issuer: str = ""
    scopes: frozenset[str] | None = None
    expires: float | None = None

    @property
    def identity(self) -> bytes:
        """Return bytes that are equal for all tokens of the same user and client.

        Sessions, `requestState` tokens and rate limits belong to an identity, so a client keeps
        them when it gets a new access token.
        """
        # A user id alone is no JSON array, so it cannot equal the identity of a token.
        if self.issuer == UNIX:
            return self.subject.encode()
        return encode((self.issuer, self.client, self.subject))

    def lacks(self, scopes: AbstractSet[str]) -> bool:
        """Return whether the caller lacks at least one of these scopes."""
        return self.scopes is not None and not scopes <= self.scopes

    def __repr__(self) -> str:
        """Return a text for logs, which distinguishes principals but contains no personal data."""
        from hashlib import sha256

        digest = sha256(self.identity).hexdigest()[:12]
        return f"Principal({digest} of {self.issuer or 'an unnamed issuer'})"

    __str__ = __repr__


def unix_principal(uid: int) -> Principal:
    """Return the principal of a client on a Unix socket.

    uid: the user id of the client's process, which the kernel has verified.
    """
    return Principal(str(uid), issuer=UNIX)
