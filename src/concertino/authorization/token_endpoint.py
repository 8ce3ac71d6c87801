"""TokenEndpoint: requests tokens from an authorization server, and authenticates the client there.

Source: RFC 6749, sections 2.3.1, 4.1.3, 4.4, 5 and 6; RFC 7523 for assertions; RFC 8707 for
`resource`.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from urllib.parse import quote

from msgspec import Struct
from msgspec.json import Decoder

from concertino.authorization.fetcher import FetchedResponse, Fetcher
from concertino.authorization.logins import ClientIdentity, Login
from concertino.authorization.metadata import IssuerMetadata
from concertino.authorization.settings import OAuth
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import AuthorizationError

__all__ = [
    "TokenEndpoint",
    "TokenError",
    "TokenResponse",
    "choose_auth_method",
    "make_error",
    "token_expiry",
]

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
# A token counts as valid for at most this time, even if the server names a longer one.
MAX_LIFE_S = 366 * 86400.0


class TokenResponse(Struct, frozen=True):
    """A response of the token endpoint with tokens (RFC 6749, section 5.1).

    access_token: the access token.
    token_type: the type of the access token, which must be "Bearer".
    expires_in: how long the access token is valid, in seconds; None if the server does not say it.
    refresh_token: the refresh token; "" if the server has sent none.
    scope: the granted scopes, separated by spaces; None if all requested scopes were granted.
    """

    access_token: str
    token_type: str
    expires_in: float | None = None
    refresh_token: str = ""
    scope: str | None = None


class _ErrorResponse(Struct, frozen=True):
    """An error response of the token endpoint (RFC 6749, section 5.2)."""

    error: str = ""
    error_description: str = ""


class TokenError(AuthorizationError):
    """Raised if an authorization server has refused a request.

    code: the field `error` of its response, such as `invalid_grant`; "" if it has none.
    """

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


_decoder = Decoder(TokenResponse)
_error_decoder = Decoder(_ErrorResponse)


def choose_auth_method(metadata: IssuerMetadata, has_secret: bool, has_key: bool) -> str:
    """Return how a client authenticates at the token endpoint of an authorization server.

    The result is a value of `token_endpoint_auth_method` (RFC 7591):

    - "private_key_jwt" for a client with a private key;
    - "client_secret_basic" for a client with a secret, or "client_secret_post" if the server does
      not accept "client_secret_basic";
    - "none" for a client with neither.

    metadata: the metadata of the authorization server.
    has_secret: whether the client has a secret.
    has_key: whether the client has a private key.
    Raises AuthorizationError if the client has a secret, and the server accepts neither method.
    """
    if has_key:
        return "private_key_jwt"
    if not has_secret:
        return "none"
    # RFC 8414, section 2, defines this default.
    offered = metadata.token_endpoint_auth_methods_supported or ("client_secret_basic",)
    for method in ("client_secret_basic", "client_secret_post"):
        if method in offered:
            return method
    raise AuthorizationError(
        f"{metadata.issuer}: expected a way to show a client secret, got {', '.join(offered)}"
    )


class TokenEndpoint:
    """The token endpoint of an authorization server, which issues tokens to one client.

    fetcher: sends the requests.
    issuer: the issuer identifier of the authorization server.
    url: the URL of the endpoint.
    client: the client that requests tokens.
    settings: the user's settings. If the client authenticates with a private key, they contain it.
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
        """Request tokens, and return them.

        fields: the form fields that depend on the grant, such as `grant_type` and `code`.
        Raises TokenError if the server refuses, AuthorizationError for another wrong response, and
        OSError if the server cannot be reached or has failed.
        """
        form, headers = self._authenticate(dict(fields))
        response = await self._fetcher.post_form(self._url, form, headers)
        if response.status != 200:
            raise make_error(response)
        tokens = response.decode(_decoder)
        if tokens.token_type.lower() != "bearer":
            raise AuthorizationError(
                f"{self._url}: expected a token of the type Bearer, got {tokens.token_type!r}"
            )
        if not _is_token(tokens.access_token):
            raise AuthorizationError(f"{self._url}: the token has characters that are not allowed")
        return tokens

    async def refresh(self, login: Login) -> TokenResponse:
        """Return new tokens for a login, obtained with its refresh token.

        Raises TokenError if the server refuses, AuthorizationError for another wrong response, and
        OSError if the server cannot be reached or has failed.
        """
        return await self.request(
            {
                "grant_type": "refresh_token",
                "refresh_token": login.refresh_token,
                "resource": login.resource,
            }
        )

    async def post(self, url: str, fields: Mapping[str, str]) -> FetchedResponse:
        """Send a form to another endpoint of the authorization server, authenticated as the client.

        url: the URL of the endpoint.
        fields: the fields of the form.
        Returns the response with any status. Raises AuthorizationError if the URL must not be used,
        and OSError if the server cannot be reached.
        """
        form, headers = self._authenticate(dict(fields))
        return await self._fetcher.post_form(url, form, headers)

    def _authenticate(self, form: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return a form and headers that prove to the server which client sends the request.

        form: the fields of the request. The fields for the authentication are added to it.
        """
        client = self._client
        headers: dict[str, str] = {}
        if client.auth_method == "client_secret_basic":
            # Servers made with the official Python SDK also require the id in the form.
            form["client_id"] = client.client_id
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


def make_error(response: FetchedResponse) -> ConnectionError | TokenError:
    """Return the exception for an error response, for the caller to raise.

    Returns a ConnectionError if the server has failed or is busy (HTTP 5xx, 429), because the
    caller may then try again; otherwise a TokenError.
    """
    try:
        body = _error_decoder.decode(response.body)
    except DECODE_ERRORS:
        body = _ErrorResponse()
    text = f"{response.url}: {body.error[:100] or f'HTTP {response.status}'}"
    if body.error_description:
        text += f" ({body.error_description[:300]})"
    if response.status >= 500 or response.status == 429:
        return ConnectionError(text)
    return TokenError(text, body.error)


def _is_token(text: str) -> bool:
    """Return whether a text can be sent as a token: it has printable ASCII characters only."""
    return bool(text) and all("!" <= char <= "~" for char in text)


def token_expiry(tokens: TokenResponse) -> float | None:
    """Return when an access token expires, in seconds since 1970; None if that is not known."""
    if tokens.expires_in is None:
        return None
    return time.time() + min(max(tokens.expires_in, 0.0), MAX_LIFE_S)
