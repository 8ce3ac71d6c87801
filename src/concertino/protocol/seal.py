"""requestState: a token that the client keeps for the server and returns unchanged.

A token is accepted once, for the same call, within LIFETIME_S. Its content is signed but not
encrypted: everybody can read it, but only the owner of the key can make a token. The MAC also
covers method, params and caller of the call, which the token does not contain.

Used tokens are remembered until they expire. When there are too many, the oldest are forgotten, and
every token that was issued before them is rejected from then on.
Spec: 2026-07-28 basic/patterns/mrtr "Server Requirements".
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable
from heapq import heappop, heappush

__all__ = ["LIFETIME_S", "MAX_STATE", "NOT_OURS", "InvalidState", "OpenedState", "Seal", "digest"]

# Seconds from a client request to its answer. A person may need time to think.
LIFETIME_S = 600.0

# Characters of a token.
MAX_STATE = 65536

# Tokens that are remembered as used.
MAX_USED = 16384

# A token is the base64 of: MAC, nonce, time of issue, content. Lengths in bytes.
MAC, NONCE, TIME = 32, 16, 8
HEAD = MAC + NONCE + TIME

URL_SAFE = bytes.maketrans(b"+/", b"-_")
FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")

NOT_OURS = "it is none of this server's, or belongs to another call"


class InvalidState(Exception):
    """A token cannot be accepted. The text tells the client why."""


class OpenedState:
    """The content of an accepted token. issued: milliseconds of the seal's clock."""

    __slots__ = ("content", "issued", "nonce")

    def __init__(
        self,
        content: bytes,
        nonce: bytes,
        issued: int,
    ) -> None:
        self.content = content
        self.nonce = nonce
        self.issued = issued


class Seal:
    """Makes and opens tokens. Use one Seal for all connections: a token may come back on another.

    key: secret, at least 32 bytes.
    clock: returns seconds since the epoch.
    random: returns that many random bytes.
    """

    def __init__(
        self,
        key: bytes,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        max_used: int = MAX_USED,
    ) -> None:
        import hmac

        self._digest = hmac.digest
        self._compare = hmac.compare_digest
        self._key = key
        self._clock = clock
        self._random = random
        self._max_used = max_used
        self._used: set[bytes] = set()
        # A heap of (issued, nonce) of the tokens in _used.
        self._by_age: list[tuple[int, bytes]] = []
        # Tokens that were issued up to this time, in milliseconds, are rejected.
        self._forgotten_until = 0

    def create_token(self, content: bytes, bound: bytes) -> str:
        """Return a token that holds `content`.

        bound: identifies the call; open_token() needs the same value. Raises ValueError if the
        token would be longer than MAX_STATE.
        """
        issued = int(self._clock() * 1000)
        signed = self._random(NONCE) + issued.to_bytes(TIME, "big") + content
        raw = self._mac(signed, bound) + signed
        token = b2a_base64(raw, newline=False).translate(URL_SAFE).rstrip(b"=")
        if len(token) > MAX_STATE:
            raise ValueError(f"the state has {len(token)} characters; the limit is {MAX_STATE}")
        return token.decode()

    def open_token(self, token: str, bound: bytes) -> OpenedState:
        """Return what a token holds.

        Raises InvalidState if it was not made by this key for this call, or is too old or used.
        """
        if len(token) > MAX_STATE:
            raise InvalidState(f"expected at most {MAX_STATE} characters, got {len(token)}")
        try:
            padded = token.encode("ascii").translate(FROM_URL_SAFE) + b"=" * (-len(token) % 4)
            raw = a2b_base64(padded, strict_mode=True)
        except (Error, UnicodeEncodeError):
            raise InvalidState(NOT_OURS) from None

        signed = raw[MAC:]
        if len(raw) < HEAD or not self._compare(raw[:MAC], self._mac(signed, bound)):
            raise InvalidState(NOT_OURS)

        nonce = signed[:NONCE]
        issued = int.from_bytes(signed[NONCE : NONCE + TIME], "big")
        if issued <= max(self._forgotten_until, int((self._clock() - LIFETIME_S) * 1000)):
            raise InvalidState(f"it is older than {LIFETIME_S:g} s")
        if nonce in self._used:
            raise InvalidState("it was used before")
        return OpenedState(signed[NONCE + TIME :], nonce, issued)

    def mark_used(self, opened: OpenedState) -> None:
        """Reject this token from now on."""
        self._used.add(opened.nonce)
        heappush(self._by_age, (opened.issued, opened.nonce))

        expired = int((self._clock() - LIFETIME_S) * 1000)
        while self._by_age and (
            self._by_age[0][0] <= expired or len(self._by_age) > self._max_used
        ):
            issued, nonce = heappop(self._by_age)
            self._used.discard(nonce)
            self._forgotten_until = max(self._forgotten_until, issued)

    def _mac(self, signed: bytes, bound: bytes) -> bytes:
        return self._digest(self._key, bound + signed, "sha256")


def digest(*parts: bytes) -> bytes:
    """Return 32 bytes that identify these parts in this order."""
    from hashlib import sha256

    result = sha256()
    for part in parts:
        # Hash the length of each part too, so that another split of the same bytes differs.
        result.update(len(part).to_bytes(8, "big"))
        result.update(part)
    return result.digest()
