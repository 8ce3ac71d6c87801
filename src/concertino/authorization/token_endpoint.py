"""TokenEndpoint: asks an authorization server for tokens, as a client that it knows.

Source: RFC 6749, sections 2.3.1, 4.1.3, 4.4, 5 and 6; RFC 7523 for assertions; RFC 8707 for
`resource`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from urllib.parse import quote

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from concertino.authorization.fetcher import FetchedResponse, Fetcher
from concertino.authorization.logins import ClientIdentity, Login
from concertino.authorization.metadata import IssuerMetadata
from concertino.authorization.settings import OAuth
from concertino.errors import AuthorizationError

__all__ = [
    "TokenEndpoint",
    "TokenError",
    "TokenResponse",
    "choose_auth_method",
    "describe_error",
    "token_expiry",
]

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# The access token of a longer life is not believed to live so long.
MAX_LIFE_S = 366 * 86400.0


class TokenResponse(Struct, frozen=True):
    """The tokens of a response. expires_in: in seconds; None if the server does not say so."""

    access_token: str
    token_type: str
    expires_in: float | None = None
    refresh_token: str = ""
    scope: str | None = None


class _ErrorResponse(Struct, frozen=True):
    error: str = ""
    error_description: str = ""


class TokenError(AuthorizationError):
    """An authorization server has refused a request. code: such as `invalid_grant`."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


_decoder = Decoder(TokenResponse)
_error_decoder = Decoder(_ErrorResponse)


def choose_auth_method(metadata: IssuerMetadata, has_secret: bool, has_key: bool) -> str:
    """Return how a client shows its secret. Raises AuthorizationError if no way is accepted.

    Without a list, a server takes Basic (RFC 8414, section 2).
    """
    if not has_secret and not has_key:
        return "none"
    offered = metadata.token_endpoint_auth_methods_supported or ("client_secret_basic",)
    if has_key:
        return "private_key_jwt"
    for method in ("client_secret_basic", "client_secret_post"):
        if method in offered:
            return method
    raise AuthorizationError(
        f"{metadata.issuer}: expected a way to show a client secret, got {', '.join(offered)}"
    )


class TokenEndpoint:
    """The token endpoint of an authorization server.

    settings: have the private key of the client, if it has one.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        issuer: str,
        url: str,
        client: ClientIdentity,
        settings: OAuth,
    ) -> None:
        self._fetcher = fetcher
        self._issuer = issuer
        self._url = url
        self._client = client
        self._settings = settings

    async def request(self, fields: Mapping[str, str]) -> TokenResponse:
        """Return new tokens. fields: of the grant.

        Raises TokenError, AuthorizationError, and OSError if the server cannot be reached or has
        failed.
        """
        form, headers = self._authenticate(dict(fields))
        response = await self._fetcher.post_form(self._url, form, headers)
        if response.status != 200:
            raise describe_error(response)
        tokens = response.decode(_decoder)
        if tokens.token_type.lower() != "bearer":
            raise AuthorizationError(
                f"{self._url}: expected a token of the type Bearer, got {tokens.token_type!r}"
            )
        if not _is_token(tokens.access_token):
            raise AuthorizationError(f"{self._url}: the token has characters that are not allowed")
        return tokens

    async def refresh(self, login: Login) -> TokenResponse:
        """Return new tokens for a login. Raises as request()."""
        return await self.request(
            {
                "grant_type": "refresh_token",
                "refresh_token": login.refresh_token,
                "resource": login.resource,
            }
        )

    async def post(self, url: str, fields: Mapping[str, str]) -> FetchedResponse:
        """Send a form to another endpoint of the server, as this client."""
        form, headers = self._authenticate(dict(fields))
        return await self._fetcher.post_form(url, form, headers)

    def _authenticate(self, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return a form and headers that show who we are."""
        client = self._client
        headers: dict[str, str] = {}
        if client.auth_method == "client_secret_basic":
            words = f"{quote(client.client_id, safe='')}:{quote(client.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
        elif client.auth_method == "private_key_jwt":
            try:
                from concertino.authorization.assertions import sign_assertion
            except ImportError as exc:
                raise AuthorizationError(str(exc)) from None

            form["client_assertion_type"] = ASSERTION_TYPE
            form["client_assertion"] = sign_assertion(
                self._settings.private_key,
                self._settings.key_algorithm,
                client.client_id,
                self._issuer,
            )
        else:
            form["client_id"] = client.client_id
            if client.auth_method == "client_secret_post":
                form["client_secret"] = client.client_secret
        return form, headers


def describe_error(response: FetchedResponse) -> Exception:
    """Return the exception for a response of failure."""
    try:
        body = _error_decoder.decode(response.body)
    except (DecodeError, RecursionError):
        body = _ErrorResponse()
    text = f"{response.url}: {body.error[:100] or f'HTTP {response.status}'}"
    if body.error_description:
        text += f" ({body.error_description[:300]})"
    if response.status >= 500 or response.status == 429:
        return ConnectionError(text)
    return TokenError(text, body.error)


def _is_token(text: str) -> bool:
    return bool(text) and all("!" <= char <= "~" for char in text)


def token_expiry(tokens: TokenResponse) -> float | None:
    """Return when tokens expire, in seconds since 1970; None if that is not known."""
    if tokens.expires_in is None:
        return None
    return time.time() + min(max(tokens.expires_in, 0.0), MAX_LIFE_S)
