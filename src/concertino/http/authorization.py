"""Authorization: whom an HTTP server lets in, and what a token verifier is.

A request brings a bearer token. A TokenVerifier tells whose it is; concertino.verifiers has some.
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

# How long a verified token is believed without another look, in seconds: so long does it take until
# a token that was revoked is refused.
MAX_CACHE_S = 60.0

VerifyToken: TypeAlias = "Callable[[str], Principal | Awaitable[Principal | None] | None]"


class InvalidToken(Exception):
    """A token that is refused. The text says why, for clients and logs, without the token."""


class VerifierUnavailable(Exception):
    """A token can be neither accepted nor refused now, because another server does not answer."""


@runtime_checkable
class TokenVerifier(Protocol):
    """Verifies tokens, and returns their principals."""

    @property
    def issuers(self) -> Sequence[str]:
        """Return the authorization servers that issue such tokens, as URLs, for clients."""
        ...

    def verify(self, token: str, /) -> Principal | Awaitable[Principal]:
        """Return the principal of a token; an awaitable of it if other servers must be asked.

        A token must be refused unless it was issued for this server (its audience).
        Raises InvalidToken, and VerifierUnavailable.
        """
        ...


class Authorization(Struct, frozen=True):
    """The tokens that an HTTP server accepts.

    verifiers: the verifiers of tokens: TokenVerifiers, or functions that return a Principal, or
        None for a token that is refused. They are asked in this order until one accepts.
    scopes: the scopes that every token must have.
    cache_s: the time for which a verified token is accepted without being verified again, in
        seconds; at most 60.
    name: the name of the server for people, in its metadata.
    documentation: the URL of a page for developers, in its metadata.
    Raises ValueError if there is no verifier, or cache_s is greater.
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
        force_setattr(self, "scopes", check_scopes(self.scopes))

    def make_verifiers(self) -> list[TokenVerifier]:
        """Return the verifiers, with functions as verifiers."""
        made: list[TokenVerifier] = []
        for item in self.verifiers:
            if isinstance(item, TokenVerifier):
                made.append(item)
            else:
                made.append(_FunctionVerifier(item))
        return made


class _FunctionVerifier:
    """A TokenVerifier that calls a function of the author's."""

    issuers = ()

    def __init__(self, function: VerifyToken) -> None:
        self._function = function

    def verify(self, token: str) -> Principal | Awaitable[Principal]:
        result = self._function(token)
        return self._finish(result) if isawaitable(result) else _check(result)

    async def _finish(self, result: Awaitable[Principal | None]) -> Principal:
        return _check(await result)


def _check(result: object) -> Principal:
    if result is None:
        raise InvalidToken("the token is not known")
    if not isinstance(result, Principal):
        kind = type(result).__name__
        raise TypeError(f"a function that verifies tokens returned {kind}, not Principal or None")
    return result
