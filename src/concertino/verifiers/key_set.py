"""IssuerKeys: the public keys of an issuer, with which JwtVerifier verifies signatures.

The keys are fetched when a token names a key that is not known. Anybody can send tokens with
invented key ids. So at most one fetch is started in REFRESH_S, and all requests that need new keys
wait for the same fetch. When the issuer does not answer, the keys that were fetched before stay in
use.
Source: RFC 7517; RFC 8414; OpenID Connect Discovery 1.0.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from concertino.authorization.metadata import issuer_metadata_urls
from concertino.http.authorization import InvalidToken, VerifierUnavailable
from concertino.installation import missing_extra
from concertino.verifiers.fetching import IssuerClient

try:
    from joserfc.errors import JoseError, SecurityWarning
    from joserfc.jwk import ECKey, OKPKey, RSAKey
except ModuleNotFoundError:
    raise ImportError(missing_extra("verifying JSON Web Tokens", "auth")) from None

__all__ = ["IssuerKeys", "PublicKey"]

# The shortest time between the starts of two fetches, in seconds.
REFRESH_S = 10.0
# The age at which keys are fetched again, so that keys which the issuer has withdrawn are removed.
MAX_AGE_S = 600.0
# How many keys of an issuer are used. The others are ignored, because the signature of a token
# without a key id is tried with each key.
MAX_KEYS = 64
# The smallest modulus of an RSA key, in bits (RFC 7518, section 3.3).
MIN_RSA_BITS = 2048

PublicKey = RSAKey | ECKey | OKPKey
# Value of `kty` -> class of the key. Symmetric keys are left out: a public key must never be used
# as a shared secret.
KEY_TYPES: dict[str, type[RSAKey] | type[ECKey] | type[OKPKey]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}


class _KeySet(Struct, frozen=True):
    """A JSON Web Key Set (RFC 7517).

    keys: the fields of each key, as decoded JSON.
    """

    keys: tuple[dict[str, Any], ...]


class _Metadata(Struct, frozen=True):
    """The fields of an issuer's metadata that are used.

    jwks_uri: the URL of the issuer's key set.
    """

    issuer: str
    jwks_uri: str


class IssuerKeys:
    """Fetches and keeps the public keys of one issuer (an authorization server).

    client: sends requests to the issuer.
    issuer: the URL of the issuer.
    jwks_url: the URL of the keys; None to read it from the issuer's metadata.
    clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, client: IssuerClient, issuer: str, jwks_url: str | None, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._issuer = issuer
        self._configured_url = jwks_url
        self._clock = clock
        # The fields of each key in the key set, and the key.
        self._keys: list[tuple[dict[str, Any], PublicKey]] = []
        # When the keys were last fetched with success, and when the last fetch was started.
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        # The fetch that is running.
        self._fetching: asyncio.Task[None] | None = None

    def find(self, kid: str | None, algorithm: str) -> list[PublicKey]:
        """Return the keys that may have signed a token, of those that were fetched before.

        If it returns [], await fetch() and call find() again. If the keys were fetched more than
        ten minutes ago, also starts a fetch in the background.
        kid: the key id in the token's header; None if it has none.
        algorithm: the signature algorithm in the token's header.
        """
        now = self._clock()
        is_old = self._fetched_at is not None and now - self._fetched_at >= MAX_AGE_S
        if is_old and self.may_fetch():
            self._start_fetch()
        # A key without `alg`, `use` or `key_ops` is not restricted by this member.
        return [
            key
            for members, key in self._keys
            if (kid is None or members.get("kid") == kid)
            and members.get("alg", algorithm) == algorithm
            and members.get("use", "sig") == "sig"
            and "verify" in members.get("key_ops", ("verify",))
        ]

    async def fetch(self) -> None:
        """Fetch the keys again. Call this if find() does not find the key of a token.

        If a fetch is running, waits for that fetch. If the last fetch has ended and was started
        less than 10 s ago, does not fetch.
        Raises VerifierUnavailable if the issuer does not answer, or has never answered. Raises
        InvalidToken if it does not fetch: the issuer probably has no such key.
        """
        if self._fetching is None and not self.may_fetch():
            if self._fetched_at is None:
                raise VerifierUnavailable(f"{self._issuer}: its keys could not be fetched")
            raise InvalidToken("the token is signed with a key that the issuer does not have")
        fetching = self._fetching or self._start_fetch()
        await asyncio.shield(fetching)

    def may_fetch(self) -> bool:
        """Return whether no fetch is running, and none was started in the last 10 s."""
        return self._fetching is None and (
            self._tried_at is None or self._clock() - self._tried_at >= REFRESH_S
        )

    def _start_fetch(self) -> asyncio.Task[None]:
        """Start the task that fetches the keys, and return it."""
        self._tried_at = self._clock()
        fetching = self._fetching = asyncio.get_running_loop().create_task(self._fetch())

        def on_done(task: asyncio.Task[None]) -> None:
            self._fetching = None
            if not task.cancelled():
                # Read the exception: otherwise asyncio would log it if no request waits for it.
                task.exception()

        fetching.add_done_callback(on_done)
        return fetching

    async def _fetch(self) -> None:
        """Fetch the key set, and replace the known keys. Raises VerifierUnavailable."""
        url = self._configured_url
        is_trusted = url is not None
        if url is None:
            url = await self._discover()
        found = await self._client.get(url, _decode_keys, is_trusted=is_trusted)
        if found is None:
            raise VerifierUnavailable(f"{url}: the issuer's keys are not there")
        self._keys = [
            (members, key)
            for members in found.keys[:MAX_KEYS]
            if (key := _import_key(members)) is not None
        ]
        self._fetched_at = self._clock()

    async def _discover(self) -> str:
        """Return the URL of the keys, from the issuer's metadata. Raises VerifierUnavailable."""
        for url in issuer_metadata_urls(self._issuer):
            metadata = await self._client.get(url, _decode_metadata, is_trusted=True)
            if metadata is None:
                continue
            if metadata.issuer != self._issuer:
                raise VerifierUnavailable(
                    f"{url}: it is about the issuer {metadata.issuer[:200]!r}, not "
                    f"{self._issuer!r}; both must be equal to the letter"
                )
            return metadata.jwks_uri
        raise VerifierUnavailable(f"{self._issuer}: it has no metadata at the well-known URLs")


_decode_keys = Decoder(_KeySet)
_decode_metadata = Decoder(_Metadata)


def _import_key(members: dict[str, Any]) -> PublicKey | None:
    """Return a public key for its fields in a key set; None for a key that must not be used."""
    kind = KEY_TYPES.get(str(members.get("kty")))
    if kind is None:
        return None
    try:
        with warnings.catch_warnings():
            # joserfc warns of keys that are too short. They are rejected below.
            warnings.simplefilter("ignore", SecurityWarning)
            key = kind.import_key(members)
        if isinstance(key, RSAKey) and key.public_key.key_size < MIN_RSA_BITS:
            return None
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return key
