"""CodeRequest: one OAuth authorization request, which obtains an authorization code.

It builds the URL of the page that the user opens, with a PKCE challenge and a random `state`, and
checks the response (`state`, `iss`) before it returns the code.
Source: RFC 6749 section 4.1, RFC 7636, RFC 9207 section 2.4; 2026-07-28 basic/authorization.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from concertino.authorization.metadata import IssuerMetadata
from concertino.errors import AuthorizationError
from concertino.http_client.server_url import parse_url
from concertino.transports.addresses import is_loopback

__all__ = ["CodeRequest", "check_page"]

# How many characters of the query of a response are read.
MAX_QUERY_CHARS = 16 * 1024


def check_page(url: str, field: str = "authorization_endpoint") -> str:
    """Return the URL of a login page unchanged, if it is safe to open it in a browser.

    url: the URL, as the authorization server has sent it. A malicious server could send a URL such
        as `file:...` or `javascript:...`, or one that starts a program.
    field: the field in the server's JSON from which the URL comes, for the text of the error.
    Raises AuthorizationError unless it is an https URL, or an http URL of this machine.
    """
    try:
        parsed = parse_url(url)
    except ValueError as exc:
        raise AuthorizationError(f"{field}: {exc}") from None
    if not parsed.is_tls and not is_loopback(parsed.host):
        raise AuthorizationError(f"{field}: expected https, got {parsed.text}")
    return url


class CodeRequest:
    """A request for an authorization code. It also checks the response, and returns the code.

        request = CodeRequest(metadata, client_id, redirect_uri, resource, scopes)
        ...                                     # the user opens request.page in a browser
        code = request.read_response(address)   # the URL to which the browser was redirected

    metadata: the metadata of the authorization server. A response of another server is refused.
    client_id: the id of the client that requests access.
    redirect_uri: the URL to which the authorization server redirects the browser.
    resource: the identifier of the MCP server for which the tokens will be (RFC 8707).
    scopes: the scopes to request; () to leave the choice to the authorization server.

    Attributes:
    page: the URL of the page on which the user permits access.
    verifier: the PKCE code verifier, which proves to the token endpoint that this client has
        requested the code.

    Creating the object raises AuthorizationError if the server does not support PKCE, or if its
    page must not be opened.
    """

    def __init__(
        self,
        metadata: IssuerMetadata,
        client_id: str,
        redirect_uri: str,
        resource: str,
        scopes: Sequence[str],
    ) -> None:
        metadata.check_pkce()
        page = check_page(metadata.authorization_endpoint)
        self.verifier = _make_random()
        self._metadata = metadata
        self._state = _make_random()
        digest = hashlib.sha256(self.verifier.encode()).digest()
        fields = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": redirect_uri,
            "state": self._state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "resource": resource,
        }
        if scopes:
            fields["scope"] = " ".join(scopes)
        separator = "&" if urlsplit(page).query else "?"
        self.page = f"{page}{separator}{urlencode(fields)}"

    def expects(self, query: str) -> bool:
        """Return whether a response has the `state` of this request.

        query: the query of the URL to which the browser was redirected.
        """
        return hmac.compare_digest(
            _read_fields(query).get("state", "").encode(), self._state.encode()
        )

    def read_response(self, address: str) -> str:
        """Return the authorization code in the URL to which the browser was redirected.

        address: the whole URL, or its path and query.
        Raises AuthorizationError in these cases:
        - The response belongs to another request (`state`), or comes from another authorization
          server (`iss`). Anybody could have sent such a response, so no text of it is shown.
        - The response has the parameter `error`. The exception shows its value.
        - The response has no code.
        """
        try:
            query = urlsplit(address).query
        except ValueError as exc:
            raise AuthorizationError(f"the response to the login is no URL: {exc}") from None
        if not self.expects(query):
            raise AuthorizationError("the response to the login belongs to another request (state)")
        fields = _read_fields(query)
        issuer = fields.get("iss")
        if issuer is None and self._metadata.authorization_response_iss_parameter_supported:
            raise AuthorizationError("the response to the login does not say who sends it (iss)")
        if issuer is not None and issuer != self._metadata.issuer:
            raise AuthorizationError(
                f"the response to the login is not from {self._metadata.issuer} (iss)"
            )
        if "error" in fields:
            text = f"{self._metadata.issuer}: {fields['error'][:100]}"
            if detail := fields.get("error_description"):
                text += f" ({detail[:300]})"
            raise AuthorizationError(text)
        if not fields.get("code"):
            raise AuthorizationError("the response to the login has no code")
        return fields["code"]


def _read_fields(query: str) -> dict[str, str]:
    """Return the parameters of a query. Parameters that occur twice are left out as ambiguous."""
    try:
        pairs = parse_qsl(query[:MAX_QUERY_CHARS], keep_blank_values=True, max_num_fields=64)
    except ValueError:
        return {}
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


def _make_random() -> str:
    """Return 32 random bytes in base64url, for `state` or a code verifier."""
    return base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
