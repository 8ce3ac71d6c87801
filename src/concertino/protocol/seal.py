"""requestState: what a server gives its client to keep, and takes back only as it was, once, for the same call, in time.

A token holds its content in clear: whoever has it can read it, and nobody but the holder of the key can make one. It is bound to
what it was made for (the method, its params, the caller) without holding that. Spent tokens are remembered until they would have
expired anyway; when too many are remembered, the oldest are forgotten, and with them everything that was issued before them.
Spec: 2026-07-28 basic/patterns/mrtr "Server Requirements".
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable
from heapq import heappop, heappush

__all__ = ["LIFETIME_S", "MAX_STATE", "NOT_OURS", "InvalidState", "OpenedState", "Seal", "digest"]

LIFETIME_S = 600.0  # from the question to its answer; a person may have to think
MAX_STATE = 65536  # characters of a token
MAX_SPENT = 16384  # tokens remembered as spent
MAC, NONCE, TIME = 32, 16, 8  # bytes, in this order, before the content
HEAD = MAC + NONCE + TIME
URL_SAFE = bytes.maketrans(b"+/", b"-_")
FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class InvalidState(Exception):
    """A token is not to be trusted, or no longer. The text says why, to whoever sent it."""


class OpenedState:
    """An opened token. issued: milliseconds of the clock."""

    __slots__ = ("content", "issued", "nonce")

    def __init__(self, content: bytes, nonce: bytes, issued: int) -> None:
        self.content = content
        self.nonce = nonce
        self.issued = issued


class Seal:
    """Makes and opens tokens. key: secret, at least 32 bytes. clock: seconds since some epoch. random: that many random bytes.

    One of these serves all connections that share a key: a token may come back over another one.
    """

    def __init__(
        self,
        key: bytes,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        max_spent: int = MAX_SPENT,
    ) -> None:
        import hmac

        self._digest = hmac.digest
        self._compare = hmac.compare_digest
        self._key = key
        self._clock = clock
        self._random = random
        self._max_spent = max_spent
        self._used: set[bytes] = set()
        self._by_age: list[tuple[int, bytes]] = []  # a heap of (issued, nonce): what is in _spent
        self._forgotten = 0  # nothing that was issued until then is taken any more

    def create_token(self, content: bytes, bound: bytes) -> str:
        """A token that holds content. bound: what it belongs to; it must be the same when the token is opened.

        Raises ValueError when it would be longer than MAX_STATE.
        """
        issued = int(self._clock() * 1000)
        signed = self._random(NONCE) + issued.to_bytes(TIME, "big") + content
        token = (
            b2a_base64(self._mac(signed, bound) + signed, newline=False)
            .translate(URL_SAFE)
            .rstrip(b"=")
        )
        if len(token) > MAX_STATE:
            raise ValueError(f"the state has {len(token)} characters; it may have {MAX_STATE}")
        return token.decode()

    def open_token(self, token: str, bound: bytes) -> OpenedState:
        """What a token holds. Raises InvalidState for one that is not ours, was made for something else, is too old or spent."""
        if len(token) > MAX_STATE:
            raise InvalidState(f"expected at most {MAX_STATE} characters, got {len(token)}")
        try:
            raw = a2b_base64(
                token.encode("ascii").translate(FROM_URL_SAFE) + b"=" * (-len(token) % 4),
                strict_mode=True,
            )
        except (Error, UnicodeEncodeError):
            raise InvalidState(NOT_OURS) from None
        signed = raw[MAC:]
        if len(raw) < HEAD or not self._compare(raw[:MAC], self._mac(signed, bound)):
            raise InvalidState(NOT_OURS)
        nonce = signed[:NONCE]
        issued = int.from_bytes(signed[NONCE : NONCE + TIME], "big")
        if issued <= max(self._forgotten, int((self._clock() - LIFETIME_S) * 1000)):
            raise InvalidState(f"it is older than {LIFETIME_S:g} s")
        if nonce in self._used:
            raise InvalidState("it was used before")
        return OpenedState(signed[NONCE + TIME :], nonce, issued)

    def mark_used(self, sealed: OpenedState) -> None:
        """From now on this token is refused."""
        self._used.add(sealed.nonce)
        heappush(self._by_age, (sealed.issued, sealed.nonce))
        expired = int((self._clock() - LIFETIME_S) * 1000)
        while self._by_age and (
            self._by_age[0][0] <= expired or len(self._by_age) > self._max_spent
        ):
            issued, nonce = heappop(self._by_age)
            self._used.discard(nonce)
            self._forgotten = max(self._forgotten, issued)

    def _mac(self, signed: bytes, bound: bytes) -> bytes:
        return self._digest(self._key, bound + signed, "sha256")


NOT_OURS = "it is none of this server's, or belongs to another call"


def digest(*parts: bytes) -> bytes:
    """32 bytes that stand for these parts, in this order."""
    from hashlib import sha256

    whole = sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()
