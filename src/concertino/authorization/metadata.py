"""discover_resource(), discover_issuer(): find the authorization server of an MCP server.

The metadata of the MCP server (its "protected resource metadata") names authorization servers by
their issuer identifiers, and the metadata of an authorization server names its endpoints. Issuers
are compared as plain strings, because a URL may look different after parsing.
Source: RFC 9728, RFC 8414, OpenID Connect Discovery 1.0; 2026-07-28 basic/authorization
"Authorization Server Discovery"; 2025-03-26 basic/authorization "Fallbacks".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.json import Decoder

from concertino.authorization.fetcher import Fetcher
from concertino.errors import AuthorizationError
from concertino.http_client.server_url import ServerUrl, parse_url

__all__ = [
    "IssuerMetadata",
    "IssuerNotFound",
    "MetadataRefused",
    "ResourceMetadata",
    "default_endpoints",
    "discover_issuer",
    "discover_resource",
    "issuer_metadata_urls",
    "own_resource",
]

# The well-known paths of the metadata: of an MCP server (RFC 9728), and of an authorization server
# (RFC 8414 and OpenID Connect Discovery 1.0).
RESOURCE_PATH = "/.well-known/oauth-protected-resource"
ISSUER_PATH = "/.well-known/oauth-authorization-server"
OPENID_PATH = "/.well-known/openid-configuration"
# The statuses which say that there is no document at a URL. Any other error may end soon, such as
# 429, or hide a document, such as 403.
ABSENT = frozenset((404, 405, 410))

T = TypeVar("T")


class ResourceMetadata(Struct, frozen=True):
    """The protected resource metadata of an MCP server (RFC 9728).

    resource: the resource identifier of the server, a URL.
    authorization_servers: the issuer identifiers of the authorization servers whose tokens the
        server accepts.
    scopes_supported: the scopes that clients should request.
    """

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()


class IssuerMetadata(Struct, frozen=True, kw_only=True):
    """The metadata of an authorization server (RFC 8414).

    RFC 8414 describes the fields. A field that the metadata does not have keeps its default.
    """

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False

    def check_pkce(self) -> None:
        """Raise AuthorizationError unless the metadata names PKCE with SHA-256 (S256)."""
        if "S256" not in (self.code_challenge_methods_supported or ()):
            raise AuthorizationError(
                f"{self.issuer}: the authorization server does not say that it supports PKCE with "
                "S256 (code_challenge_methods_supported), without which codes can be stolen"
            )


class IssuerNotFound(AuthorizationError):
    """Raised if an authorization server has no metadata at any of its well-known URLs."""


class MetadataRefused(AuthorizationError):
    """Raised if a server has refused a request for its metadata, for example with the status 403.

    Either it has metadata that this client may not read, or it has none, and refuses all paths that
    it does not have.
    """


_resource_decoder = Decoder(ResourceMetadata)
_issuer_decoder = Decoder(IssuerMetadata)


async def discover_resource(
    fetcher: Fetcher, server: ServerUrl, url: str
) -> ResourceMetadata | None:
    """Return the protected resource metadata of an MCP server; None if it has none.

    fetcher: sends the requests.
    server: the URL of the MCP server.
    url: the parameter `resource_metadata` of the server's challenge; "" if it had none, to try the
        two well-known URLs: with the path of the server, and without a path.
    Raises MetadataRefused if a well-known URL has been refused, for example with the status 403,
    and the other one has no metadata. Raises AuthorizationError for metadata that cannot be used,
    and OSError if a server cannot be reached.
    """
    if url:
        # The metadata must be at this URL. No other URL is tried.
        response = await fetcher.get(url)
        if response.status != 200:
            raise AuthorizationError(f"{url}: HTTP {response.status}")
        found = url, response.decode(_resource_decoder)
    else:
        origin, path = _split(server)
        # For a server without a path, both URLs are the same.
        places = dict.fromkeys((f"{origin}{RESOURCE_PATH}{path}", f"{origin}{RESOURCE_PATH}"))
        found = await _fetch_first(fetcher, places, _resource_decoder)
    if found is None:
        return None
    place, metadata = found
    _check_resource(metadata.resource, server, place)
    if not metadata.authorization_servers:
        raise AuthorizationError(f"{place}: expected authorization_servers, got none")
    return metadata


async def _fetch_first(
    fetcher: Fetcher, places: Iterable[str], decoder: Decoder[T]
) -> tuple[str, T] | None:
    """Return (URL, document) of the first document at these URLs; None if there is none.

    Raises MetadataRefused if there is no document, and a request was refused with a status that is
    not in ABSENT. Raises AuthorizationError at once for a redirect and a server error.
    """
    refusal = ""
    for place in places:
        response = await fetcher.get(place)
        if response.status == 200:
            return place, response.decode(decoder)
        if not 400 <= response.status < 500:
            raise AuthorizationError(f"{place}: HTTP {response.status}")
        if response.status not in ABSENT:
            refusal = refusal or f"{place}: HTTP {response.status}"
    if refusal:
        raise MetadataRefused(refusal)
    return None


def own_resource(server: ServerUrl) -> ResourceMetadata:
    """Return metadata for an MCP server without metadata, such as a server of revision 2025-03-26.

    The metadata says that the server is its own authorization server.
    """
    origin, path = _split(server)
    return ResourceMetadata(f"{origin}{path}", (origin,))


def default_endpoints(origin: str) -> IssuerMetadata:
    """Return the endpoints that revision 2025-03-26 defines for a server without metadata.

    The returned metadata says that the server supports PKCE, because the revision requires this of
    all servers.
    origin: the origin of the server, such as `https://mcp.example.com`.
    """
    return IssuerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=("S256",),
    )


def _split(server: ServerUrl) -> tuple[str, str]:
    """Return the origin of a server, and the path of its URL without a slash at its end."""
    # ServerUrl.path contains the query.
    origin = f"{server.scheme}://{server.authority}"
    return origin, server.path.partition("?")[0].rstrip("/")


def _check_resource(resource: str, server: ServerUrl, place: str) -> None:
    """Raise AuthorizationError unless a resource identifier covers a server.

    It covers the server if it has the same origin, and a path that is the server's path or a prefix
    of it.
    place: the URL of the metadata, for the text of the error.
    """
    # Without this check, a server could obtain tokens for another server.
    try:
        parsed = parse_url(resource)
    except ValueError:
        parsed = None
    if parsed is not None and parsed.origin == server.origin:
        _, prefix = _split(parsed)
        _, path = _split(server)
        if path == prefix or path.startswith(f"{prefix}/"):
            return
    raise AuthorizationError(
        f"{place}: the resource {resource[:200]!r} is not {server.text}, so its tokens are for "
        "another server"
    )


async def discover_issuer(fetcher: Fetcher, issuer: str) -> IssuerMetadata:
    """Return the metadata of an authorization server.

    fetcher: sends the requests.
    issuer: the issuer identifier of the server, a URL.
    Raises IssuerNotFound if the server has no metadata, MetadataRefused if it refuses the request,
    AuthorizationError if the metadata names another issuer, and OSError if the server cannot be
    reached.
    """
    try:
        parse_url(issuer)
    except ValueError as exc:
        raise AuthorizationError(f"authorization_servers: {exc}") from None
    places = issuer_metadata_urls(issuer)
    found = await _fetch_first(fetcher, places, _issuer_decoder)
    if found is None:
        raise IssuerNotFound(
            f"{issuer}: the authorization server has no metadata at {' or '.join(places)}"
        )
    place, metadata = found
    if metadata.issuer != issuer:
        raise AuthorizationError(
            f"{place}: it describes {metadata.issuer[:200]!r} and not {issuer!r}, so it "
            "must not be used"
        )
    return metadata


def issuer_metadata_urls(issuer: str) -> list[str]:
    """Return the URLs at which an authorization server may publish its metadata, in MCP's order."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = [f"{origin}{ISSUER_PATH}{path}", f"{origin}{OPENID_PATH}{path}"]
    return [*places, f"{origin}{path}{OPENID_PATH}"] if path else places
