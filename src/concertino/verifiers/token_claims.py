"""TokenClaims: checks the claims of a token, and makes a Principal of them.

The claims are the content of a JSON Web Token, or the response of an introspection endpoint.
Sources: RFC 7519, RFC 7662, RFC 8693, RFC 9068. Microsoft and Okta name the scopes `scp`, and
OpenID Connect names the client `azp`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from concertino.http.authorization import InvalidToken
from concertino.protocol.principal import Principal

__all__ = ["TokenClaims"]

# The longest name of a user (`sub`) or of a client, in characters.
MAX_NAME = 512


class TokenClaims(Struct, frozen=True, kw_only=True):
    """The claims that decide whether a token is accepted, and to which user it belongs.

    A claim that the token does not have keeps its default.

    iss: the issuer, the authorization server that has issued the token.
    sub: the user to whom the token was issued.
    aud: the servers for which the token was issued.
    exp, nbf, iat: when the token expires, becomes valid, and was issued, in seconds since 1970.
    client_id, azp: the OAuth client to which the token was issued.
    scope, scp: the scopes of the token: words in a string, or a list.
    cnf: a key that the sender of the token must have, too (RFC 7800). Such tokens are refused.
    active: whether the token is valid. Only introspection responses have this field, and must have
        it (RFC 7662, section 2.2).
    """

    iss: str = ""
    sub: str = ""
    aud: str | tuple[str, ...] = ()
    exp: float | None = None
    nbf: float | None = None
    iat: float | None = None
    client_id: str | None = None
    azp: str | None = None
    scope: str | tuple[str, ...] | None = None
    scp: str | tuple[str, ...] | None = None
    cnf: Any = None
    active: bool = False

    def to_principal(
        self, issuer: str, audience: frozenset[str], now: float, leeway_s: float
    ) -> Principal:
        """Check the claims, and return the principal (user and client) that has got the token.

        If the token names no user, the client counts as the user.
        issuer: the issuer that the token must have.
        audience: the token must have at least one of these audiences (`aud`).
        now: the time in seconds since 1970.
        leeway_s: by how much the clocks may differ, in seconds.
        Raises InvalidToken if the token is not valid now and for this issuer and audience.
        """
        if self.iss != issuer:
            raise InvalidToken("the token is of another issuer")
        audiences = frozenset((self.aud,) if isinstance(self.aud, str) else self.aud)
        if audiences.isdisjoint(audience):
            raise InvalidToken("the token was issued for another server (aud)")
        self._check_times(now, leeway_s)
        if self.cnf is not None:
            raise InvalidToken("the token is bound to a key (cnf), and that is not supported")
        client = self.client_id or self.azp or ""
        subject = self.sub or client
        if not subject or max(len(subject), len(client)) > MAX_NAME:
            raise InvalidToken("the token does not say for whom it was issued (sub)")
        # When the HTTP layer stops accepting the token; the leeway holds there, too.
        expires = None if self.exp is None else self.exp + leeway_s
        return Principal(subject, client, issuer, self._read_scopes(), expires)

    def _check_times(self, now: float, leeway_s: float) -> None:
        """Raise InvalidToken unless the token is valid now."""
        if self.exp is None:
            raise InvalidToken("the token has no end (exp)")
        # In this form, the comparison also refuses NaN.
        if not now < self.exp + leeway_s:
            raise InvalidToken("the token has expired")
        if self.nbf is not None and not self.nbf - leeway_s <= now:
            raise InvalidToken("the token is not valid yet (nbf)")
        if self.iat is not None and not self.iat - leeway_s <= now:
            raise InvalidToken("the token was issued in the future (iat)")

    def _read_scopes(self) -> frozenset[str]:
        """Return the scopes, which issuers write as a list or as words in a string."""
        value = self.scope if self.scope is not None else self.scp
        if value is None:
            return frozenset()
        return frozenset(value.split() if isinstance(value, str) else value)
