"""verified_tokens.py: how long the result of verifying a token is used. It bounds the time until a
revoked token is refused.
"""

from __future__ import annotations

import pytest

from concertino.http import InvalidToken
from concertino.http.verified_tokens import MAX_ACCEPTED, MAX_REFUSED, REFUSED_S, VerifiedTokens
from concertino.protocol.principal import Principal

START = 1_000_000.0


class Clock:
    """now: the seconds since the start, of the monotonic clock and of the wall clock."""

    def __init__(self) -> None:
        self.now = 0.0


def tokens_of(clock: Clock, cache_s: float) -> VerifiedTokens:
    return VerifiedTokens(cache_s, lambda: clock.now, lambda: START + clock.now)


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.mark.requirement("AU-10", side="authorization")
@pytest.mark.parametrize("cache_s", [60.0, 5.0])
def test_a_token_is_verified_again_after_the_interval(cache_s: float) -> None:
    clock = Clock()
    tokens = tokens_of(clock, cache_s)
    ada = Principal("ada")
    tokens.accept(digest(1), ada)

    clock.now = cache_s - 0.001
    assert tokens.find(digest(1)) is ada
    clock.now = cache_s
    assert tokens.find(digest(1)) is None


@pytest.mark.requirement("AU-10", side="authorization")
def test_without_an_interval_each_request_verifies_its_token() -> None:
    tokens = tokens_of(Clock(), 0.0)
    tokens.accept(digest(1), Principal("ada"))
    tokens.refuse(digest(2), "expired")

    assert tokens.find(digest(1)) is None
    assert tokens.find(digest(2)) is None


@pytest.mark.requirement("AU-10", "RS-13", side="authorization")
def test_a_token_is_not_accepted_after_its_expiry() -> None:
    clock = Clock()
    tokens = tokens_of(clock, 60.0)
    tokens.accept(digest(1), Principal("ada", expires=START + 10))
    tokens.accept(digest(2), Principal("bob", expires=START - 1))

    clock.now = 9.9
    assert tokens.find(digest(1)) == Principal("ada", expires=START + 10)
    clock.now = 10.0
    assert tokens.find(digest(1)) is None
    assert tokens.find(digest(2)) is None


def test_a_refused_token_is_verified_again_later() -> None:
    clock = Clock()
    tokens = tokens_of(clock, 60.0)
    tokens.refuse(digest(1), "not known")

    with pytest.raises(InvalidToken, match="not known"):
        tokens.find(digest(1))
    clock.now = REFUSED_S
    assert tokens.find(digest(1)) is None


def test_refused_tokens_displace_no_accepted_ones() -> None:
    tokens = tokens_of(Clock(), 60.0)
    tokens.accept(digest(0), Principal("ada"))
    for number in range(1, 2 * MAX_ACCEPTED):
        tokens.refuse(digest(number), "not known")

    assert tokens.find(digest(0)) == Principal("ada")
    assert tokens.find(digest(2 * MAX_ACCEPTED - 1 - MAX_REFUSED)) is None


def test_the_oldest_of_too_many_accepted_tokens_is_verified_again() -> None:
    tokens = tokens_of(Clock(), 60.0)
    for number in range(MAX_ACCEPTED + 1):
        tokens.accept(digest(number), Principal("ada"))

    assert tokens.find(digest(0)) is None
    assert tokens.find(digest(1)) == Principal("ada")
