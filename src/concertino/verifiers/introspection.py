"""Introspection: a TokenVerifier that asks the authorization server about each token (RFC 7662).

It is for access tokens that are not JSON Web Tokens. Each verification takes one request.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection
from urllib.parse import quote_plus

from msgspec.json import Decoder
from msgspec.structs import replace

from concertino.http.authorization import InvalidToken, VerifierUnavailable
from concertino.protocol.principal import Principal
from concertino.verifiers.fetching import IssuerClient
from concertino.verifiers.token_claims import TokenClaims

__all__ = ["Introspection"]


class Introspection:
    """Verifies the access tokens of HTTP requests: asks their issuer about each (RFC 7662).

        verifier = Introspection(
            ISSUER, f"{ISSUER}/introspect", PUBLIC_URL, client_id="notes", client_secret=SECRET
        )
        options = HttpOptions(authorization=Authorization((verifier,)))

    Implements TokenVerifier (http/authorization.py). Answers of the issuer are not cached.

    issuer: the URL of the issuer, the authorization server that issues the tokens.
    url: the URL of the issuer's introspection endpoint.
    audience: the value that a token must have in `aud`, usually the public URL of this server; or
        several values, of which a token must have at least one.
    client_id: the id under which this server is registered at the issuer.
    client_secret: the secret of that registration.
    wall_clock: returns the seconds since 1970; for tests.
    Raises ValueError for an invalid value.
    """

    def __init__(
        self,
        issuer: str,
        url: str,
        audience: str | Collection[str],
        client_id: str,
        client_secret: str,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if not client_id or not client_secret:
            raise ValueError(
                "introspection: expected the id and the secret by which the issuer knows this "
                "server (CONCERTINO_INTROSPECTION_ID, CONCERTINO_INTROSPECTION_SECRET)"
            )
        self._audience = frozenset((audience,) if isinstance(audience, str) else audience)
        if not self._audience or "" in self._audience:
            raise ValueError(
                "audience: expected for whom the tokens are issued, usually the server's public URL"
            )
        self._issuer = issuer
        self._url = url
        self._client = IssuerClient(issuer)
        self._client.check_url(url)
        # RFC 6749, section 2.3.1: encode the id and the secret as in forms first.
        pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
        self._headers = {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        self._wall_clock = wall_clock

    @property
    def issuers(self) -> tuple[str, ...]:
        """Return the issuers whose tokens are accepted: only the one passed to the constructor."""
        return (self._issuer,)

    async def verify(self, token: str) -> Principal:
        """Ask the issuer about a token, and return the principal (user) to whom it was issued.

        Raises InvalidToken if the token is not acceptable, and VerifierUnavailable if the issuer
        does not answer, or refuses the request, for example because of a wrong client_secret.
        """
        fields = {"token": token, "token_type_hint": "access_token"}
        claims = await self._client.post(self._url, fields, self._headers, _decoder)
        if claims is None:
            raise VerifierUnavailable(f"{self._url}: the issuer refuses to tell about tokens")
        if not claims.active:
            raise InvalidToken("the token is not valid, or not any more")
        if not claims.iss:
            # This field of the response is optional. The response comes from the issuer anyway.
            claims = replace(claims, iss=self._issuer)
        return claims.to_principal(self._issuer, self._audience, self._wall_clock(), leeway_s=0.0)


_decoder = Decoder(TokenClaims)
