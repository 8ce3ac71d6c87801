"""VerifiedTokens: a cache of the tokens that were verified recently.

Verifying a signature takes 60 to 145 us, asking another server milliseconds. The tokens themselves
are not kept, only their SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable

from concertino.http.authorization import InvalidToken
from concertino.protocol.principal import Principal

__all__ = ["VerifiedTokens"]

MAX_ACCEPTED = 10_000
# Refused tokens have a table of their own: anybody can send them, and they must not displace the
# accepted ones.
MAX_REFUSED = 1_000
REFUSED_S = 10.0


class VerifiedTokens:
    """The results of verifying tokens, by the tokens' SHA-256.

    cache_s: the time for which a result is used, in seconds.
    clock: returns the time in seconds; must not go backwards.
    wall_clock: returns the seconds since the epoch, to compare with the end of a token.
    """

    def __init__(
        self, cache_s: float, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._cache_s = cache_s
        self._clock = clock
        self._wall_clock = wall_clock
        # Digest -> the principal, and until when it is believed.
        self._accepted: dict[bytes, tuple[Principal, float]] = {}
        self._refused: dict[bytes, tuple[str, float]] = {}

    def find(self, digest: bytes) -> Principal | None:
        """Return the principal of a token; None if the cache has no result for it.

        Raises InvalidToken for a token that was refused recently.
        """
        accepted = self._accepted.get(digest)
        if accepted is not None:
            if self._clock() < accepted[1]:
                return accepted[0]
            del self._accepted[digest]
            return None
        refused = self._refused.get(digest)
        if refused is not None:
            if self._clock() < refused[1]:
                raise InvalidToken(refused[0])
            del self._refused[digest]
        return None

    def accept(self, digest: bytes, principal: Principal) -> None:
        """Store the principal of a token, at most until the token's end."""
        within_s = self._cache_s
        if principal.expires is not None:
            within_s = min(within_s, principal.expires - self._wall_clock())
        if within_s > 0:
            _make_room(self._accepted, MAX_ACCEPTED)
            self._accepted[digest] = principal, self._clock() + within_s

    def refuse(self, digest: bytes, reason: str) -> None:
        """Remember that a token was refused."""
        _make_room(self._refused, MAX_REFUSED)
        self._refused[digest] = reason, self._clock() + min(REFUSED_S, self._cache_s)


def _make_room(table: dict[bytes, tuple[Principal, float]] | dict[bytes, tuple[str, float]],
               limit: int) -> None:  # fmt: skip
    """Forget the entry that was added first, if the table is full."""
    if len(table) >= limit:
        del table[next(iter(table))]
