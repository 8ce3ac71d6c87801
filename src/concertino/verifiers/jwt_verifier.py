"""JwtVerifier: a TokenVerifier for JSON Web Tokens that an issuer has signed.

It verifies the signature with the public keys of the issuer (key_set.py) and then checks the claims
(token_claims.py). It needs the extra `auth` (`concertino[auth]`).
Sources: RFC 7519, RFC 8725 (best practices), RFC 9068 (access tokens); 2026-07-28
basic/authorization "Token Handling".
"""

from __future__ import annotations

import time
import warnings
from binascii import a2b_base64
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from msgspec import Struct, ValidationError
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.http.authorization import InvalidToken, VerifierUnavailable
from concertino.installation import missing_extra
from concertino.protocol.principal import Principal
from concertino.verifiers.fetching import IssuerClient
from concertino.verifiers.key_set import IssuerKeys, PublicKey
from concertino.verifiers.token_claims import TokenClaims

try:
    from joserfc import jws
    from joserfc.errors import JoseError, SecurityWarning
except ModuleNotFoundError:
    raise ImportError(missing_extra("verifying JSON Web Tokens", "auth")) from None

__all__ = ["ALGORITHMS", "JwtVerifier"]

# No algorithm with a shared secret is accepted. Everybody who can verify such tokens can also forge
# them, and an attacker could sign a token with the issuer's public key as the secret.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
# The accepted values of the header `typ`: the value of RFC 9068, and the value that most issuers
# use. Tokens of other types, such as logout tokens, are not access tokens.
TOKEN_TYPES = frozenset(("at+jwt", "jwt"))
LEEWAY_S = 30.0


class _WrongSignature(InvalidToken):
    """Raised if none of the known keys has signed the token."""


class _Header(Struct, frozen=True):
    """The fields of a token's header that are used.

    alg: the algorithm of the signature.
    typ: the type of the token.
    kid: the id of the key that has signed the token; None if the token does not name it.
    crit: the names of header fields that a verifier must understand.
    """

    alg: str
    typ: str = "jwt"
    kid: str | None = None
    crit: Any = None


class _Issuer(Struct, frozen=True):
    """The only claim that is read before the signature is verified.

    A token of another issuer is refused without a fetch of keys.
    """

    iss: str = ""


_decode_header = Decoder(_Header).decode
_decode_issuer = Decoder(_Issuer).decode
_decode_claims = Decoder(TokenClaims).decode


class JwtVerifier:
    """Verifies the access tokens of HTTP requests: accepts JSON Web Tokens of one issuer.

        verifier = JwtVerifier("https://login.example.com", "https://mcp.example.com/mcp")
        options = HttpOptions(authorization=Authorization((verifier,)))

    Implements TokenVerifier (http/authorization.py). Needs the extra `concertino[auth]`.

    issuer: the URL of the issuer (an authorization server), exactly as its tokens have it in `iss`.
    audience: the value that a token must have in `aud`, usually the public URL of this server; or
        several values, of which a token must have at least one.
    algorithms: the accepted algorithms of signatures; None for RS*, PS*, ES*, EdDSA and Ed25519.
    jwks_url: the URL of the issuer's keys; None to read it from the issuer's metadata.
    leeway_s: by how much the clocks of the issuer and of this server may differ, in seconds; at
        most 300.
    wall_clock: returns the seconds since 1970; for tests.
    Raises ValueError for an invalid value.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Collection[str],
        *,
        algorithms: Collection[str] | None = None,
        jwks_url: str | None = None,
        leeway_s: float = LEEWAY_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._issuer = issuer
        self._audience = frozenset((audience,) if isinstance(audience, str) else audience)
        self._algorithms = list(ALGORITHMS if algorithms is None else algorithms)
        unknown = [name for name in self._algorithms if name not in ALGORITHMS]
        if unknown or not self._algorithms:
            raise ValueError(
                f"algorithms: expected some of {', '.join(ALGORITHMS)}, got "
                f"{', '.join(unknown) or 'none'}"
            )
        if not self._audience or "" in self._audience:
            raise ValueError(
                "audience: expected for whom the tokens are issued, usually the server's public URL"
            )
        if not 0 <= leeway_s <= 300:
            raise ValueError(f"leeway_s: expected 0 to 300 seconds, got {leeway_s}")
        self._leeway_s = leeway_s
        self._wall_clock = wall_clock
        client = IssuerClient(issuer)
        if jwks_url is not None:
            client.check_url(jwks_url)
        self._keys = IssuerKeys(client, issuer, jwks_url, time.monotonic)

    @property
    def issuers(self) -> tuple[str, ...]:
        """Return the issuers whose tokens are accepted: only the one passed to the constructor."""
        return (self._issuer,)

    def verify(self, token: str) -> Principal | Awaitable[Principal]:
        """Verify a token, and return the principal (user) to whom it was issued.

        If the issuer's keys must be fetched first, returns an awaitable of the principal.

        Raises InvalidToken if the token is not acceptable. The awaitable raises InvalidToken, or
        VerifierUnavailable if the issuer does not answer.
        """
        header = self._read_header(token)
        keys = self._keys.find(header.kid, header.alg)
        if not keys:
            return self._verify_with_new_keys(token, header)
        try:
            return self._verify_with(token, header, keys)
        except _WrongSignature as exc:
            # The issuer may have replaced a key by one with the same id, or by one without an id.
            if not self._keys.may_fetch():
                raise
            return self._verify_with_new_keys(token, header, exc)

    async def _verify_with_new_keys(
        self, token: str, header: _Header, refusal: InvalidToken | None = None
    ) -> Principal:
        """Fetch the issuer's keys, verify a token with them, and return its principal.

        refusal: the error to raise if the issuer does not answer; None to raise
            VerifierUnavailable.
        """
        try:
            await self._keys.fetch()
        except VerifierUnavailable:
            if refusal is None:
                raise
            raise refusal from None
        keys = self._keys.find(header.kid, header.alg)
        if not keys:
            raise InvalidToken("the token is signed with a key that the issuer does not have")
        return self._verify_with(token, header, keys)

    def _read_header(self, token: str) -> _Header:
        """Return the header of a token. Called before the signature of the token is verified.

        Raises InvalidToken if the token cannot be accepted even with a valid signature.
        """
        parts = token.split(".")
        if len(parts) != 3:
            raise InvalidToken("the token is no JSON Web Token with a signature")
        try:
            header = _decode_header(_decode_part(parts[0]))
            issuer = _decode_issuer(_decode_part(parts[1])).iss
        except (ValueError, *DECODE_ERRORS):
            raise InvalidToken("the token is malformed") from None
        if issuer != self._issuer:
            raise InvalidToken("the token is of another issuer")
        if header.alg not in self._algorithms:
            raise InvalidToken("the token is signed with an algorithm that is not allowed")
        if header.typ.lower().removeprefix("application/") not in TOKEN_TYPES:
            raise InvalidToken("the token is no access token (typ)")
        if header.crit is not None:
            raise InvalidToken("the token has an extension that is not known (crit)")
        return header

    def _verify_with(self, token: str, header: _Header, keys: list[PublicKey]) -> Principal:
        """Return the principal of a token that one of these keys has signed.

        Raises InvalidToken if no key has signed it, or if the claims are not acceptable.
        """
        for key in keys:
            try:
                with warnings.catch_warnings():
                    # RFC 9864 renames EdDSA to Ed25519, and most issuers still use the old name.
                    warnings.simplefilter("ignore", SecurityWarning)
                    signed = jws.deserialize_compact(token, key, algorithms=[header.alg])
                claims = _decode_claims(signed.payload)
            except DECODE_ERRORS as exc:
                # The signature is right, but the claims are malformed. This clause comes before the
                # next one, because these errors are ValueErrors, too.
                text = str(exc) if isinstance(exc, ValidationError) else "no JSON"
                raise InvalidToken(f"the claims of the token are malformed: {text}") from None
            except (JoseError, ValueError, TypeError):
                # This key has not signed the token.
                continue
            return claims.to_principal(
                self._issuer, self._audience, self._wall_clock(), self._leeway_s
            )
        raise _WrongSignature("the signature of the token is wrong")


def _decode_part(text: str) -> bytes:
    """Decode a part of a token, which is base64url without padding. Raises ValueError."""
    standard = text.encode("ascii").replace(b"-", b"+").replace(b"_", b"/")
    # Pad the text to a multiple of four characters.
    return a2b_base64(standard + b"=" * (-len(standard) % 4))
