"""Principal: who makes a call, as far as the transport has verified it.

Over HTTP with authorization it is what the bearer token says, on a Unix socket the user of the
client's process. What a client says about itself (`clientInfo`) is never part of it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.json import encode

__all__ = ["UNIX", "Principal", "unix_principal"]

# The issuer of the users of a Unix socket: the kernel has verified them. It is no URL, so no token
# can have it.
UNIX = "unix:"


class Principal(Struct, frozen=True):
    """Who makes a call.

    subject: the user, or the program that acts for itself; `sub` of a token.
    client: the program that acts for the user, `client_id` of a token; "" if it is not known.
    issuer: who vouches for subject and client; their names mean nothing without it.
    scopes: what the token allows; None if there is no token that limits the caller.
    expires: until when the token is valid, in seconds since the epoch; None for no end.
    """

    subject: str
    client: str = ""
    issuer: str = ""
    scopes: frozenset[str] | None = None
    expires: float | None = None

    @property
    def identity(self) -> bytes:
        """Return what two tokens of the same user and client have in common, as bytes.

        It decides who may use a session or a sealed state, and whose limits count.
        """
        if self.issuer == UNIX:
            return self.subject.encode()
        return encode((self.issuer, self.client, self.subject))

    def lacks(self, scopes: AbstractSet[str]) -> bool:
        """Return whether the caller has not all of these scopes."""
        return self.scopes is not None and not scopes <= self.scopes

    def __repr__(self) -> str:
        """Return a text for logs. It tells principals apart, and names no person."""
        from hashlib import sha256

        digest = sha256(self.identity).hexdigest()[:12]
        return f"Principal({digest} of {self.issuer or 'an unnamed issuer'})"

    __str__ = __repr__


def unix_principal(uid: int) -> Principal:
    """Return the principal for a process of this user, at the other end of a Unix socket."""
    return Principal(str(uid), issuer=UNIX)
