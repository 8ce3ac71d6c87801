"""Seal: makes and opens `requestState`, a token that the client stores for the server.

    token = seal.create_token(b"content", call_digest)  # sent to the client
    opened = seal.open_token(token, call_digest)        # when the client sends it back
    seal.mark_used(opened)

The content is signed but not encrypted: anybody can read it, but only the owner of the key can make
a token. A token is accepted once, within LIFETIME_S, and only with the same `call_digest`, which
identifies the method, params and caller of a call. The signature covers this digest, although the
token does not contain it.

To accept each token only once, the Seal remembers used tokens until they expire. If they become too
many, it forgets the oldest ones, and rejects every token that is not newer than those.
Spec: 2026-07-28 basic/patterns/mrtr "Server Requirements".
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

__all__ = [
    "LIFETIME_S",
    "MAX_STATE",
    "NOT_OURS",
    "InvalidState",
    "OpenedState",
    "Seal",
    "UsedStates",
    "digest",
]

# How many seconds a token is valid: a person may need time to think about an answer.
LIFETIME_S = 600.0

# The longest token, in characters.
MAX_STATE = 65536

# At most this many used tokens are remembered.
MAX_USED = 16384

# A token consists of a message authentication code, a nonce, the time of issue and the content, in
# URL-safe base64. These are the lengths of the first three parts.
MAC_BYTES, NONCE_BYTES, TIME_BYTES = 32, 16, 8
HEAD_BYTES = MAC_BYTES + NONCE_BYTES + TIME_BYTES

# From the alphabet of base64 to its URL-safe alphabet, and back.
URL_SAFE = bytes.maketrans(b"+/", b"-_")
FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")

# The reason for a token that is malformed, or whose signature does not fit.
NOT_OURS = "it is none of this server's, or belongs to another call"


class InvalidState(Exception):
    """Raised for a token that is not acceptable. The text gives the reason, for the client."""


class OpenedState:
    """An opened token.

    content: the bytes that were passed to create_token().
    nonce: the random bytes that identify the token.
    issued: when the token was made, in milliseconds since the epoch.
    """

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


class UsedStates(Protocol):
    """A record of the used tokens (`requestState`), which several processes share."""

    def use(self, nonce: bytes, expires: float, /) -> bool:
        """Record that a token is used, in one atomic step. Returns False if it was used before.

        nonce: identifies the token.
        expires: when the token becomes invalid, in seconds since the epoch. The record must keep
            the nonce until then.
        Raises OSError if the record cannot be read or written. The token is then rejected.
        """
        ...


class Seal:
    """Makes and opens the tokens that clients store and send back, such as a `requestState`.

        token = seal.create_token(b"content", call_digest)  # sent to the client
        opened = seal.open_token(token, call_digest)        # when the client sends it back
        seal.mark_used(opened)

    A token is valid for LIFETIME_S (600 s). All connections share one Seal, because a client may
    reconnect.

    key: a secret of at least 32 bytes.
    clock: returns the time in seconds since the epoch.
    random: returns random bytes; its argument is how many.
    max_used: how many used tokens are remembered. If there are more, the oldest ones are forgotten,
        and all tokens that are not newer than a forgotten one are rejected, even unused ones.
    old_keys: earlier keys. Tokens that were made with one of them are also accepted.
    record: the used tokens of all processes with this key; None if this process is the only one.
    """

    def __init__(
        self,
        key: bytes,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
        max_used: int = MAX_USED,
        old_keys: Sequence[bytes] = (),
        record: UsedStates | None = None,
    ) -> None:
        import hmac

        self._digest = hmac.digest
        self._compare = hmac.compare_digest
        self._keys = (key, *old_keys)
        self._record = record
        self._clock = clock
        self._random = random
        self._max_used = max_used
        self._used: set[bytes] = set()
        # The tokens in _used as (issued, nonce): a heap with the oldest one first.
        self._by_age: list[tuple[int, bytes]] = []
        # All tokens issued up to this time, in milliseconds, are rejected, because used tokens of
        # that age were forgotten.
        self._forgotten_until = 0

    def create_token(self, content: bytes, call_digest: bytes) -> str:
        """Return a token that contains `content`.

        call_digest: 32 bytes that identify the call; open_token() needs the same value.
        Raises ValueError if the token would be longer than MAX_STATE.
        """
        issued = int(self._clock() * 1000)
        signed = self._random(NONCE_BYTES) + issued.to_bytes(TIME_BYTES, "big") + content
        raw = self._mac(self._keys[0], signed, call_digest) + signed
        token = b2a_base64(raw, newline=False).translate(URL_SAFE).rstrip(b"=")
        if len(token) > MAX_STATE:
            raise ValueError(f"the state has {len(token)} characters; the limit is {MAX_STATE}")
        return token.decode()

    def open_token(self, token: str, call_digest: bytes) -> OpenedState:
        """Check a token and return its content.

        call_digest: the value that was passed to create_token().
        Raises InvalidState if the token was not made with this key and `call_digest`, was altered,
        is too old, or was or may have been used before.
        """
        if len(token) > MAX_STATE:
            raise InvalidState(f"expected at most {MAX_STATE} characters, got {len(token)}")
        try:
            # The length of base64 text is a multiple of 4; create_token() has removed the padding.
            padded = token.encode("ascii").translate(FROM_URL_SAFE) + b"=" * (-len(token) % 4)
            raw = a2b_base64(padded, strict_mode=True)
        except (Error, UnicodeEncodeError):
            raise InvalidState(NOT_OURS) from None

        mac, signed = raw[:MAC_BYTES], raw[MAC_BYTES:]
        is_ours = any(self._compare(mac, self._mac(key, signed, call_digest)) for key in self._keys)
        if len(raw) < HEAD_BYTES or not is_ours:
            raise InvalidState(NOT_OURS)

        nonce = signed[:NONCE_BYTES]
        content = signed[NONCE_BYTES + TIME_BYTES :]
        issued = int.from_bytes(signed[NONCE_BYTES : NONCE_BYTES + TIME_BYTES], "big")
        if issued <= int((self._clock() - LIFETIME_S) * 1000):
            raise InvalidState(f"it is older than {LIFETIME_S:g} s")
        if issued <= self._forgotten_until:
            raise InvalidState(
                "it is so old that the server cannot tell whether it was used before; "
                "call again without it"
            )
        if nonce in self._used:
            raise InvalidState("it was used before")
        return OpenedState(content, nonce, issued)

    def mark_used(self, opened: OpenedState) -> None:
        """Remember that a token was used; open_token() rejects it from now on.

        Raises InvalidState if another process has used the token meanwhile, or if the shared record
        cannot be read.
        """
        if self._record is not None:
            try:
                is_first = self._record.use(opened.nonce, opened.issued / 1000 + LIFETIME_S)
            except OSError:
                raise InvalidState(
                    "the record of used states cannot be reached; send it again later"
                ) from None
            if not is_first:
                raise InvalidState("it was used before")
        self._used.add(opened.nonce)
        heappush(self._by_age, (opened.issued, opened.nonce))

        expired = int((self._clock() - LIFETIME_S) * 1000)
        while self._by_age and (
            self._by_age[0][0] <= expired or len(self._by_age) > self._max_used
        ):
            issued, nonce = heappop(self._by_age)
            self._used.discard(nonce)
            self._forgotten_until = max(self._forgotten_until, issued)

    def _mac(self, key: bytes, signed: bytes, call_digest: bytes) -> bytes:
        """Return the message authentication code of a token.

        signed: the nonce, the time of issue and the content.
        """
        # All values of call_digest have the same length, so the border between the two is certain.
        return self._digest(key, call_digest + signed, "sha256")


def digest(*parts: bytes) -> bytes:
    """Return a SHA-256 hash of these parts, their order and their lengths."""
    from hashlib import sha256

    result = sha256()
    for part in parts:
        # Hash the length of each part too. Otherwise ("ab", "c") and ("a", "bc") would have equal
        # hashes.
        result.update(len(part).to_bytes(8, "big"))
        result.update(part)
    return result.digest()
