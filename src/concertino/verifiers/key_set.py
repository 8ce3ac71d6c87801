"""IssuerKeys: the public keys of an issuer, fetched when a token names one that is not known.

Anybody can send tokens with invented key ids, so a fetch for them is tried once in REFRESH_S at
most, however many requests wait for it. Keys that were fetched once are used further while the
issuer does not answer.
Source: RFC 7517; RFC 8414; OpenID Connect Discovery 1.0.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.json import Decoder

from concertino.http.authorization import InvalidToken, VerifierUnavailable
from concertino.installation import missing_extra
from concertino.verifiers.fetching import IssuerClient

try:
    from joserfc.errors import JoseError, SecurityWarning
    from joserfc.jwk import ECKey, OKPKey, RSAKey
except ModuleNotFoundError:
    raise ImportError(missing_extra("verifying JSON Web Tokens", "auth")) from None

__all__ = ["IssuerKeys", "PublicKey"]

# A fetch for a key id that is not known is tried this often, in seconds.
REFRESH_S = 10.0
# Keys that the issuer has withdrawn are forgotten after this time at most, in seconds.
MAX_AGE_S = 600.0
MAX_KEYS = 64
# The smallest modulus of an RSA key, in bits (RFC 7518, section 3.3).
MIN_RSA_BITS = 2048

PublicKey = RSAKey | ECKey | OKPKey
# Symmetric keys are not among these: a public key must never be taken for a secret.
TYPES: dict[str, type[RSAKey] | type[ECKey] | type[OKPKey]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}


class _KeySet(Struct, frozen=True):
    keys: tuple[dict[str, Any], ...]


class _Metadata(Struct, frozen=True):
    issuer: str
    jwks_uri: str


class IssuerKeys:
    """The keys of one issuer.

    client: fetches from the issuer.
    issuer: the URL of the issuer.
    jwks_url: the URL of the keys; None to read it from the issuer's metadata.
    clock: returns the time in seconds; must not go backwards.
    """

    def __init__(
        self, client: IssuerClient, issuer: str, jwks_url: str | None, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._issuer = issuer
        self._configured_url = jwks_url
        self._clock = clock
        self._keys: list[tuple[dict[str, Any], PublicKey]] = []
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    def find(self, kid: str | None, algorithm: str) -> list[PublicKey]:
        """Return the keys that may have signed a token. Starts to fetch keys that are too old."""
        now = self._clock()
        if self._fetched_at is not None and now - self._fetched_at >= MAX_AGE_S and self._may_try():
            self._start()
        return [
            key
            for members, key in self._keys
            if (kid is None or members.get("kid") == kid)
            and members.get("alg", algorithm) == algorithm
            and members.get("use", "sig") == "sig"
            and "verify" in members.get("key_ops", ("verify",))
        ]

    async def fetch(self) -> None:
        """Fetch the keys, unless they were fetched a moment ago.

        Raises InvalidToken if the keys are new: then the issuer has no such key. Raises
        VerifierUnavailable if there are no keys and the issuer does not answer.
        """
        if self._fetching is None and not self._may_try():
            if self._fetched_at is None:
                raise VerifierUnavailable(f"{self._issuer}: its keys could not be fetched")
            raise InvalidToken("the token is signed with a key that the issuer does not have")
        fetching = self._fetching or self._start()
        await asyncio.shield(fetching)

    def _may_try(self) -> bool:
        return self._fetching is None and (
            self._tried_at is None or self._clock() - self._tried_at >= REFRESH_S
        )

    def _start(self) -> asyncio.Task[None]:
        self._tried_at = self._clock()
        fetching = self._fetching = asyncio.get_running_loop().create_task(self._fetch())

        def on_done(task: asyncio.Task[None]) -> None:
            self._fetching = None
            # Nobody may have waited for it.
            _ = task.cancelled() or task.exception()

        fetching.add_done_callback(on_done)
        return fetching

    async def _fetch(self) -> None:
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
        for url in _metadata_urls(self._issuer):
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


def _metadata_urls(issuer: str) -> list[str]:
    """Return where the metadata of an issuer may be, in the order of MCP's specification."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    urls = [f"{origin}{oauth}{path}", f"{origin}{openid}{path}"]
    return [*urls, f"{origin}{path}{openid}"] if path else urls


def _import_key(members: dict[str, Any]) -> PublicKey | None:
    """Return a public key; None for one that cannot be used here."""
    kind = TYPES.get(str(members.get("kty")))
    if kind is None:
        return None
    try:
        with warnings.catch_warnings():
            # joserfc warns of keys that are too short; they are not used.
            warnings.simplefilter("ignore", SecurityWarning)
            key = kind.import_key(members)
        if isinstance(key, RSAKey) and key.public_key.key_size < MIN_RSA_BITS:
            return None
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return key
