"""LoginFlow: obtains access to an MCP server, from the server's challenge to the tokens.

discover() finds the authorization server of the MCP server. log_in() registers this client there
if necessary, lets the user permit access, and obtains the tokens. Both follow the rules of revision
2026-07-28 with every server, because they are stricter than the rules of older revisions.
Spec: 2026-07-28 basic/authorization.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from concertino.authorization.code_flow import CodeRequest
from concertino.authorization.device_flow import request_by_device
from concertino.authorization.fetcher import Fetcher
from concertino.authorization.logins import ClientIdentity, Login
from concertino.authorization.metadata import (
    IssuerMetadata,
    IssuerNotFound,
    MetadataRefused,
    ResourceMetadata,
    default_endpoints,
    discover_issuer,
    discover_resource,
    own_resource,
)
from concertino.authorization.redirect_listener import RedirectListener
from concertino.authorization.registration import identify_client
from concertino.authorization.settings import OAuth
from concertino.authorization.token_endpoint import TokenEndpoint, TokenResponse, token_expiry
from concertino.errors import AuthorizationError
from concertino.http_client.addresses import AddressPolicy, find_reach
from concertino.http_client.server_url import ServerUrl

__all__ = ["Discovery", "LoginFlow", "PageOpener", "make_fetcher"]

# The scope with which some authorization servers issue a refresh token, and without which they do
# not (OpenID Connect Core 1.0, section 11).
OFFLINE = "offline_access"


class PageOpener:
    """Shows the page of a login to the user. A subclass opens a browser, for example."""

    def show(self, page: str) -> None:
        """Show the page of a login to the user, for example in a browser, and return at once.

        When the user has permitted access on the page, the authorization server redirects the
        browser to a RedirectListener, which LoginFlow has started.
        page: the URL of the page.
        """
        raise NotImplementedError

    def show_code(self, page: str, code: str) -> None:
        """Tell the user which page to open on any device, and which code to type there.

        Returns at once.
        page: the URL of the page.
        code: the code, which has no control characters.
        """
        raise NotImplementedError


class Discovery(Struct, frozen=True):
    """What a client learns about the authorization of a server before it logs in.

    resource: the protected resource metadata of the MCP server.
    issuer_metadata: the metadata of its authorization server.
    challenge: the parameters of the Bearer challenge in the MCP server's response; {} if it had
        none.
    has_default_endpoints: True if no metadata was found. Then `issuer_metadata` names the endpoints
        that revision 2025-03-26 defines for this case, which may not exist.
    """

    resource: ResourceMetadata
    issuer_metadata: IssuerMetadata
    challenge: Mapping[str, str]
    has_default_endpoints: bool = False


async def make_fetcher(server: ServerUrl) -> Fetcher:
    """Return the Fetcher that sends the HTTP requests of a login at an MCP server.

    The Fetcher refuses private addresses if the server itself has a public one, and addresses of
    this machine unless the server is on this machine.
    server: the URL of the MCP server. Its name is looked up to know whether it is public.
    """
    # The server or its metadata names the URLs of the requests. A malicious server could name a URL
    # in the private network of this machine.
    return Fetcher(AddressPolicy(await find_reach(server)))


class LoginFlow:
    """Obtains access tokens for one MCP server.

        challenge = bearer_challenge(header)               # of the refused request
        discovery = await flow.discover(challenge, None)   # None: there was no login before
        login = await flow.log_in(discovery, None)

    server: the URL of the MCP server.
    settings: how to log in.
    fetcher: sends the requests to the servers that take part in the login.
    opener: shows pages to the user. None if there is no user to ask; log_in() then succeeds only
        with the grant "client_credentials" or with `settings.authorize`.
    """

    def __init__(
        self, server: ServerUrl, settings: OAuth, fetcher: Fetcher, opener: PageOpener | None = None
    ) -> None:
        self._server = server
        self._settings = settings
        self._fetcher = fetcher
        self._opener = opener

    async def discover(self, challenge: Mapping[str, str], previous: Login | None) -> Discovery:
        """Fetch the metadata of the MCP server and of its authorization server.

        challenge: the parameters of the Bearer challenge in the MCP server's response; {} if it had
            none.
        previous: the previous login; None if there was none. If the MCP server names several
            authorization servers, the one in the settings is used, or else that of `previous`.
        Raises AuthorizationError if the metadata cannot be used, and OSError if a server cannot be
        reached.
        """
        url = challenge.get("resource_metadata", "")
        refusal: MetadataRefused | None = None
        try:
            resource = await discover_resource(self._fetcher, self._server, url)
        except MetadataRefused as exc:
            resource, refusal = None, exc
        if resource is None:
            return await self._discover_own_issuer(challenge, refusal)
        # If the server names several, prefer one that this client already uses.
        issuers = resource.authorization_servers
        issuer = issuers[0]
        if self._settings.issuer and self._settings.issuer in issuers:
            issuer = self._settings.issuer
        elif previous is not None and previous.issuer in issuers:
            issuer = previous.issuer
        return Discovery(resource, await discover_issuer(self._fetcher, issuer), challenge)

    async def _discover_own_issuer(
        self, challenge: Mapping[str, str], refusal: MetadataRefused | None
    ) -> Discovery:
        """Return the Discovery for a server without metadata, such as one of revision 2025-03-26.

        Such a server is its own authorization server.
        refusal: the error if the server has refused the request for its metadata. A server of
            2025-03-26 may refuse all paths that it does not have. None if it has no metadata.
        Raises AuthorizationError if the server has refused, and is no authorization server.
        """
        resource = own_resource(self._server)
        origin = resource.authorization_servers[0]
        try:
            return Discovery(resource, await discover_issuer(self._fetcher, origin), challenge)
        except (IssuerNotFound, MetadataRefused) as exc:
            # After a refusal, do not use the default endpoints: the refused document may name other
            # endpoints.
            if refusal is not None:
                raise AuthorizationError(
                    f"{self._server.text} asks for authorization, and its metadata cannot be read "
                    f"({refusal}); it may want something else, such as an API key in a header"
                ) from None
            if isinstance(exc, MetadataRefused):
                raise
            return Discovery(
                resource, default_endpoints(origin), challenge, has_default_endpoints=True
            )

    async def log_in(self, discovery: Discovery, previous: Login | None) -> Login:
        """Obtain access tokens, and return the new login.

        Waits for the user if the settings need one. The login is not stored.
        discovery: what discover() has returned.
        previous: the previous login; None if there was none. If it is of the same authorization
            server, its client registration is used again, and its scopes are requested, too.
        Raises AuthorizationError if the login fails or the user does not respond, and OSError if a
        server cannot be reached.
        """
        settings, issuer = self._settings, discovery.issuer_metadata.issuer
        if discovery.has_default_endpoints and settings.client_secret and settings.issuer != issuer:
            # If the metadata is missing for a moment only, it may name another server. Then this
            # server must not get the secret.
            raise AuthorizationError(
                f"{issuer} has no metadata; to send it the client's secret nevertheless, set "
                f"issuer={issuer!r} in OAuth(...) or in `auth` of the server file"
            )
        try:
            return await self._log_in(discovery, previous)
        except AuthorizationError as exc:
            if discovery.has_default_endpoints:
                text = f"{exc}; {issuer} has no metadata that names other endpoints"
                raise AuthorizationError(text) from None
            raise

    async def _log_in(self, discovery: Discovery, previous: Login | None) -> Login:
        """Obtain access tokens, and return the new login. log_in() treats default endpoints."""
        settings, metadata = self._settings, discovery.issuer_metadata
        is_same = previous is not None and previous.issuer == metadata.issuer
        scopes = self._choose_scopes(discovery, previous if is_same else None)
        if not metadata.token_endpoint:
            raise AuthorizationError(
                f"{metadata.issuer}: expected a token_endpoint in its metadata"
            )
        if settings.grant == "authorization_code":
            # The client is identified there, because its redirect URI may name the listener's port.
            client, tokens = await self._log_in_by_code(discovery, previous, scopes)
        else:
            client = await self._identify(discovery, previous, redirect_uri="")
            tokens = await self._log_in_without_redirect(discovery, client, scopes)
        login = Login(
            server=self._server.text,
            resource=discovery.resource.resource,
            issuer=metadata.issuer,
            token_endpoint=metadata.token_endpoint,
            revocation_endpoint=metadata.revocation_endpoint,
            client=client,
            scopes=scopes,
        )
        return with_tokens(login, tokens)

    async def _identify(
        self, discovery: Discovery, previous: Login | None, redirect_uri: str
    ) -> ClientIdentity:
        """Return the OAuth client with whose id to log in, and register one if there is none."""
        return await identify_client(
            self._fetcher,
            discovery.issuer_metadata,
            self._settings,
            redirect_uri,
            previous=None if previous is None else previous.client,
            previous_issuer="" if previous is None else previous.issuer,
        )

    def _token_endpoint(self, discovery: Discovery, client: ClientIdentity) -> TokenEndpoint:
        """Return the token endpoint of the authorization server."""
        metadata = discovery.issuer_metadata
        return TokenEndpoint(
            self._fetcher, metadata.issuer, metadata.token_endpoint, client, self._settings
        )

    def _choose_scopes(self, discovery: Discovery, previous: Login | None) -> tuple[str, ...]:
        """Return the scopes to request.

        - The scopes in the settings.
        - The scopes in the server's challenge. If it names none, those in the server's metadata.
        - The scopes of the previous login, if the settings or the challenge name scopes.
        - OFFLINE if the authorization server offers it, to get a refresh token.

        previous: the previous login at this authorization server; None if there was none.
        """
        challenge = discovery.challenge.get("scope", "").split()
        wanted = [*self._settings.scopes, *(challenge or discovery.resource.scopes_supported)]
        # A challenge names only the scopes that the refused operation needs. The new tokens must
        # not lack the scopes of the old ones. Metadata names all scopes that clients should have.
        if previous is not None and (challenge or self._settings.scopes):
            wanted = [*previous.scopes, *wanted]
        offered = discovery.issuer_metadata.scopes_supported or ()
        wanted = [scope for scope in wanted if scope != OFFLINE]
        if OFFLINE in offered and self._settings.grant != "client_credentials":
            wanted.append(OFFLINE)
        return _unique(wanted)

    async def _log_in_by_code(
        self, discovery: Discovery, previous: Login | None, scopes: tuple[str, ...]
    ) -> tuple[ClientIdentity, TokenResponse]:
        """Let the user permit access on a page, and exchange the resulting code for tokens.

        `settings.authorize` shows the page and receives the redirect. If it is None, the PageOpener
        shows the page, and a RedirectListener receives the redirect.
        """
        authorize, redirect_uri = self._settings.authorize, self._settings.redirect_uri
        if authorize is not None:
            client = await self._identify(discovery, previous, redirect_uri)
            request = self._code_request(discovery, client, redirect_uri, scopes)
            address = await authorize(request.page)
            return client, await self._exchange(discovery, client, request, redirect_uri, address)
        opener = self._opener
        if opener is None:
            raise AuthorizationError("a person has to log in")
        async with RedirectListener(_port_of(redirect_uri, previous)) as listener:
            redirect_uri = listener.redirect_uri
            client = await self._identify(discovery, previous, redirect_uri)
            request = self._code_request(discovery, client, redirect_uri, scopes)
            opener.show(request.page)
            address = await listener.wait(request.expects)
        return client, await self._exchange(discovery, client, request, redirect_uri, address)

    def _code_request(
        self,
        discovery: Discovery,
        client: ClientIdentity,
        redirect_uri: str,
        scopes: tuple[str, ...],
    ) -> CodeRequest:
        resource = discovery.resource.resource
        return CodeRequest(
            discovery.issuer_metadata, client.client_id, redirect_uri, resource, scopes
        )

    async def _exchange(
        self,
        discovery: Discovery,
        client: ClientIdentity,
        request: CodeRequest,
        redirect_uri: str,
        address: str,
    ) -> TokenResponse:
        """Exchange an authorization code for tokens.

        redirect_uri: the redirect URI of the authorization request.
        address: the URL to which the authorization server redirected the browser. Its query
            contains the code.
        """
        return await self._token_endpoint(discovery, client).request(
            {
                "grant_type": "authorization_code",
                "code": request.read_response(address),
                "redirect_uri": redirect_uri,
                "code_verifier": request.verifier,
                "resource": discovery.resource.resource,
            }
        )

    async def _log_in_without_redirect(
        self, discovery: Discovery, client: ClientIdentity, scopes: tuple[str, ...]
    ) -> TokenResponse:
        """Obtain tokens with the client's own credentials, or through another device."""
        endpoint = self._token_endpoint(discovery, client)
        fields = {"resource": discovery.resource.resource}
        if scopes:
            fields["scope"] = " ".join(scopes)
        if self._settings.grant == "client_credentials":
            return await endpoint.request({"grant_type": "client_credentials", **fields})
        if self._opener is None:
            raise AuthorizationError("a person has to log in")
        prompt = self._opener.show_code
        return await request_by_device(endpoint, discovery.issuer_metadata, fields, prompt)


def with_tokens(login: Login, tokens: TokenResponse) -> Login:
    """Return a copy of a login with new tokens.

    The copy keeps the old refresh token if the authorization server has not sent a new one. It has
    the scopes of the old login, and the scopes that the server has granted now.
    login: the old login.
    tokens: the response of the token endpoint.
    """
    granted = login.scopes if tokens.scope is None else (*login.scopes, *tokens.scope.split())
    return replace(
        login,
        scopes=_unique(granted),
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token or login.refresh_token,
        expires_at=token_expiry(tokens),
        obtained_at=time.time(),
    )


def _unique(scopes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(scopes))


def _port_of(redirect_uri: str, previous: Login | None) -> int:
    """Return the port of the redirect URI in the settings or in the registration; 0 without both.

    redirect_uri: the redirect URI in the settings; "" if there is none.
    """
    registered = "" if previous is None else previous.client.redirect_uri
    for uri in (redirect_uri, registered):
        if uri:
            return urlsplit(uri).port or 0
    return 0
