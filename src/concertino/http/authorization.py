"""Authorization: the tokens that an HTTP server accepts, and TokenVerifier, which verifies them.

Each request has a bearer token in its header Authorization. A TokenVerifier returns the Principal
to whom the token was issued. The package concertino.verifiers has several TokenVerifiers.
Source: 2026-07-28 basic/authorization; RFC 6750.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct
from msgspec.structs import force_setattr

from concertino.errors import check_scopes
from concertino.protocol.principal import Principal

__all__ = [
    "Authorization",
    "InvalidToken",
    "TokenVerifier",
    "VerifierUnavailable",
    "VerifyToken",
]

# The longest time for which a token is accepted without being verified again, in seconds. A revoked
# token may be accepted for this time.
MAX_CACHE_S = 60.0

# The type of a function, written by the author of a server, that verifies a token. It returns None
# to refuse the token.
VerifyToken: TypeAlias = "Callable[[str], Principal | Awaitable[Principal | None] | None]"


class InvalidToken(Exception):
    """Raised to refuse a token. The text is the reason, which clients and logs show."""


class VerifierUnavailable(Exception):
    """Raised if a token can be neither accepted nor refused, because its issuer does not answer."""


@runtime_checkable
class TokenVerifier(Protocol):
    """Verifies tokens. A class that has these two members can be used in an Authorization.

    The package concertino.verifiers has verifiers for JWTs, token introspection and token files.
    """

    @property
    def issuers(self) -> Sequence[str]:
        """The URLs of the authorization servers that issue such tokens; empty if there are none.

        A client without a token gets these URLs, to know where to get a token.
        """
        ...

    def verify(self, token: str, /) -> Principal | Awaitable[Principal]:
        """Verify a token, and return the principal (user) to whom it was issued.

        Returns an awaitable of the principal if another server must be asked.
        This method and the awaitable raise InvalidToken to refuse the token, and
        VerifierUnavailable if it can be neither accepted nor refused now. An implementation must
        refuse a token whose audience is another server.
        """
        ...


class Authorization(Struct, frozen=True):
    """The tokens that an HTTP server accepts.

        def verify(token: str) -> Principal | None:
            return PRINCIPALS.get(token)

        options = HttpOptions(authorization=Authorization((verify,)))

    verifiers: TokenVerifiers, or functions that take a token and return a Principal, or None to
        refuse it. A function may be async. The verifiers are called in this order until one accepts
        the token.
    scopes: the scopes that every token must have.
    cache_s: the time for which a verified token is accepted without being verified again, in
        seconds; at most 60. With 0, each request is verified.
    name: the name of the server for people, in its protected resource metadata (RFC 9728).
    documentation: the URL of a page for developers, in the same metadata.
    Raises ValueError if there is no verifier, or if cache_s is greater than 60.
    """

    verifiers: tuple[TokenVerifier | VerifyToken, ...]
    scopes: frozenset[str] = frozenset()
    cache_s: float = MAX_CACHE_S
    name: str | None = None
    documentation: str | None = None

    def __post_init__(self) -> None:
        if not self.verifiers:
            raise ValueError("authorization: expected at least one verifier of tokens, got none")
        if not 0 <= self.cache_s <= MAX_CACHE_S:
            raise ValueError(
                f"authorization: cache_s: expected 0 to {MAX_CACHE_S:g} seconds, got {self.cache_s}"
            )
        # Refuses a single str, which is a collection of its characters.
        force_setattr(self, "scopes", check_scopes(self.scopes))

    def make_verifiers(self) -> list[TokenVerifier]:
        """Return the verifiers. Functions among them are wrapped in TokenVerifiers."""
        made: list[TokenVerifier] = []
        for item in self.verifiers:
            if isinstance(item, TokenVerifier):
                made.append(item)
            else:
                made.append(_FunctionVerifier(item))
        return made


class _FunctionVerifier:
    """A TokenVerifier that calls a function which the author of the server has written."""

    issuers = ()

    def __init__(self, function: VerifyToken) -> None:
        self._function = function

    def verify(self, token: str) -> Principal | Awaitable[Principal]:
        result = self._function(token)
        return self._finish(result) if isawaitable(result) else _check(result)

    async def _finish(self, result: Awaitable[Principal | None]) -> Principal:
        return _check(await result)


def _check(result: object) -> Principal:
    """Return the result of the author's function.

    Raises InvalidToken for None, and TypeError for anything else that is no Principal.
    """
    if result is None:
        raise InvalidToken("the token is not known")
    if not isinstance(result, Principal):
        kind = type(result).__name__
        raise TypeError(f"a function that verifies tokens returned {kind}, not Principal or None")
    return result
