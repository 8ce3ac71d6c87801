"""VerifiedTokens: a cache with the results of verifying tokens.

The Gate looks here for the token of each request, before it asks a verifier. Verifying a signature
takes 60 to 145 us, and asking another server takes milliseconds. The cache contains only the
SHA-256 of each token, and not the token.
"""

from __future__ import annotations

from collections.abc import Callable

from concertino.http.authorization import InvalidToken
from concertino.protocol.principal import Principal

__all__ = ["VerifiedTokens"]

# How many accepted tokens are remembered.
MAX_ACCEPTED = 10_000
# How many refused tokens are remembered. Refused tokens have a separate table, because anybody can
# send many of them, and they must not displace accepted tokens.
MAX_REFUSED = 1_000
# How long a refused token is refused without being verified again, in seconds.
REFUSED_S = 10.0


class VerifiedTokens:
    """The results of verifying tokens, by the SHA-256 of each token (its digest).

    cache_s: the longest time for which a result is used, in seconds.
    clock: a monotonic clock, in seconds.
    wall_clock: returns the seconds since 1970, to compare with the expiry of a token.
    """

    def __init__(
        self, cache_s: float, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._cache_s = cache_s
        self._clock = clock
        self._wall_clock = wall_clock
        # Digest -> the principal, and the time until which the token is accepted.
        self._accepted: dict[bytes, tuple[Principal, float]] = {}
        # Digest -> the reason, and the time until which the token is refused.
        self._refused: dict[bytes, tuple[str, float]] = {}

    def find(self, digest: bytes) -> Principal | None:
        """Return the principal (user) of a token; None if the cache has no result for the token.

        Raises InvalidToken for a token that was refused recently.
        """
        accepted = self._accepted.get(digest)
        if accepted is not None:
            principal, until = accepted
            if self._clock() < until:
                return principal
            del self._accepted[digest]
            return None
        refused = self._refused.get(digest)
        if refused is not None:
            reason, until = refused
            if self._clock() < until:
                raise InvalidToken(reason)
            del self._refused[digest]
        return None

    def accept(self, digest: bytes, principal: Principal) -> None:
        """Store the principal of a token for cache_s, but at most until the token expires."""
        within_s = self._cache_s
        if principal.expires is not None:
            within_s = min(within_s, principal.expires - self._wall_clock())
        if within_s > 0:
            _make_room(self._accepted, MAX_ACCEPTED)
            self._accepted[digest] = principal, self._clock() + within_s

    def refuse(self, digest: bytes, reason: str) -> None:
        """Store the reason for which a token was refused, for at most ten seconds."""
        _make_room(self._refused, MAX_REFUSED)
        self._refused[digest] = reason, self._clock() + min(REFUSED_S, self._cache_s)


def _make_room(table: dict[bytes, tuple[Principal, float]] | dict[bytes, tuple[str, float]],
               limit: int) -> None:  # fmt: skip
    """Remove the oldest entry if the table is full."""
    if len(table) >= limit:
        del table[next(iter(table))]
