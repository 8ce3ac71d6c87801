"""protocol/seal.py: what a state that comes back is trusted for.

The rules: 2026-07-28 basic/patterns/mrtr (REQUIREMENTS A.8, MR-6 to MR-8). The tag is worked out
again here from RFC 2104 by hand.
"""

from __future__ import annotations

import base64
import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.protocol.seal import LIFETIME_S, MAX_STATE, InvalidState, Seal, digest

KEY = b"k" * 32
CALL = b"c" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def make_seal(clock: Clock | None = None, max_spent: int = 8, key: bytes = KEY) -> Seal:
    numbers = itertools.count(1)
    return Seal(key, clock or Clock(), lambda size: next(numbers).to_bytes(size, "big"), max_spent)


def refusal_of(seal: Seal, token: str, bound: bytes = CALL) -> str:
    with pytest.raises(InvalidState) as why:
        seal.open_token(token, bound)
    return str(why.value)


@given(st.binary(max_size=200))
def test_what_was_sealed_comes_back_as_it_was(content: bytes) -> None:
    seal = make_seal()
    token = seal.create_token(content, CALL)
    assert seal.open_token(token, CALL).content == content
    assert not set(token) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_the_tag_is_hmac_sha256_over_what_it_belongs_to_nonce_time_and_content() -> None:
    token = make_seal().create_token(b"abc", CALL)
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    signed = (1).to_bytes(16, "big") + (1_000_000_000).to_bytes(8, "big") + b"abc"
    padded = KEY + b"\0" * 32
    inner = hashlib.sha256(bytes(each ^ 0x36 for each in padded) + CALL + signed).digest()
    outer = hashlib.sha256(bytes(each ^ 0x5C for each in padded) + inner).digest()
    assert raw == outer + signed


@pytest.mark.requirement("MR-6")
def test_one_changed_character_is_refused_wherever_it_is() -> None:
    seal = make_seal()
    token = seal.create_token(
        b"yes", CALL
    )  # 59 bytes: 79 characters, the last of which holds two bits that count for nothing
    for at in range(len(token)):
        other = "A" if token[at] != "A" else "g"
        assert "none of this server's" in refusal_of(seal, token[:at] + other + token[at + 1 :])


@pytest.mark.parametrize("token", ["", "A", "-TAMPERED", "a b", "é", "AAAA" * 14, "=" * 8])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert "none of this server's" in refusal_of(make_seal(), token)


def test_more_than_was_made_is_refused() -> None:
    seal = make_seal()
    assert "none of this server's" in refusal_of(seal, seal.create_token(b"a", CALL) + "-TAMPERED")


def test_another_call_another_key_are_refused() -> None:
    seal = make_seal()
    token = seal.create_token(b"a", CALL)
    assert "belongs to another call" in refusal_of(seal, token, b"d" * 32)
    assert "none of this server's" in refusal_of(make_seal(key=b"l" * 32), token)


def test_the_same_key_opens_what_another_process_sealed() -> None:
    assert make_seal().open_token(make_seal().create_token(b"a", CALL), CALL).content == b"a"


@pytest.mark.requirement("MR-7")
def test_ten_minutes_are_the_limit() -> None:
    clock = Clock()
    seal = make_seal(clock)
    token = seal.create_token(b"a", CALL)
    clock.now += LIFETIME_S - 0.001
    assert seal.open_token(token, CALL).content == b"a"
    clock.now += 0.001
    assert refusal_of(seal, token) == "it is older than 600 s"


def test_it_is_opened_any_number_of_times_and_spent_once() -> None:
    seal = make_seal()
    token, other = seal.create_token(b"a", CALL), seal.create_token(b"a", CALL)
    opened = seal.open_token(token, CALL)
    seal.open_token(token, CALL)
    seal.mark_used(opened)
    assert refusal_of(seal, token) == "it was used before"
    assert seal.open_token(other, CALL).content == b"a"


def test_what_is_remembered_is_bounded_and_what_was_forgotten_is_refused_all_the_same() -> None:
    clock = Clock()
    seal = make_seal(clock, max_spent=3)
    tokens: list[str] = []
    for _ in range(5):
        tokens.append(seal.create_token(b"a", CALL))
        clock.now += 1
    for token in tokens[1:]:
        seal.mark_used(seal.open_token(token, CALL))
    said = [refusal_of(seal, token) for token in tokens]
    assert (
        said
        == [
            "it is so old that the server cannot tell whether it was used before; "
            "call again without it"
        ]
        * 2
        + ["it was used before"] * 3
    )  # the first, unspent, pays for the bound


def test_what_has_expired_need_not_be_remembered() -> None:
    clock = Clock()
    seal = make_seal(clock, max_spent=1)
    token = seal.create_token(b"a", CALL)
    seal.mark_used(seal.open_token(token, CALL))
    clock.now += LIFETIME_S
    later, last = seal.create_token(b"b", CALL), seal.create_token(b"c", CALL)
    seal.mark_used(seal.open_token(later, CALL))
    assert refusal_of(seal, token) == "it is older than 600 s"
    assert refusal_of(seal, later) == "it was used before"
    assert seal.open_token(last, CALL).content == b"c"


def test_a_state_has_a_greatest_size() -> None:
    seal = make_seal()
    most = MAX_STATE // 4 * 3 - 56
    assert len(seal.create_token(b"a" * most, CALL)) == MAX_STATE
    with pytest.raises(ValueError, match="the limit is 65536"):
        seal.create_token(b"a" * (most + 1), CALL)
    assert refusal_of(seal, "A" * (MAX_STATE + 1)) == "expected at most 65536 characters, got 65537"


def test_a_digest_tells_parts_apart() -> None:
    assert digest(b"ab", b"c") != digest(b"a", b"bc")
    assert digest(b"a") == hashlib.sha256((1).to_bytes(8, "big") + b"a").digest()


class SharedRecord:
    """A record in memory, as several processes see one."""

    def __init__(self) -> None:
        self.used: dict[bytes, float] = {}
        self.is_reachable = True

    def use(self, nonce: bytes, expires: float) -> bool:
        if not self.is_reachable:
            raise OSError("gone")
        return self.used.setdefault(nonce, expires) is expires


def make_shared(record: SharedRecord, clock: Clock) -> Seal:
    return Seal(KEY, clock, lambda size: b"n" * size, record=record)


def test_of_two_processes_one_uses_a_token_and_the_other_is_refused() -> None:
    record, clock = SharedRecord(), Clock()
    one, other = make_shared(record, clock), make_shared(record, clock)
    token = one.create_token(b"a", CALL)
    mine, theirs = one.open_token(token, CALL), other.open_token(token, CALL)
    other.mark_used(theirs)
    with pytest.raises(InvalidState, match="it was used before"):
        one.mark_used(mine)
    assert list(record.used.values()) == [clock.now + LIFETIME_S]


def test_a_token_is_refused_when_the_record_cannot_be_reached() -> None:
    record, clock = SharedRecord(), Clock()
    seal = make_shared(record, clock)
    opened = seal.open_token(seal.create_token(b"a", CALL), CALL)
    record.is_reachable = False
    with pytest.raises(InvalidState, match="cannot be reached"):
        seal.mark_used(opened)


def test_a_token_of_the_old_key_is_opened_and_new_ones_have_the_new_key() -> None:
    old = make_seal(key=b"o" * 32)
    both = Seal(KEY, Clock(), lambda size: b"n" * size, old_keys=[b"o" * 32])
    assert both.open_token(old.create_token(b"a", CALL), CALL).content == b"a"
    assert make_seal().open_token(both.create_token(b"b", CALL), CALL).content == b"b"
    assert "none of this server's" in refusal_of(old, both.create_token(b"b", CALL))
