"""ResourceIdentity: the URL by which clients know an HTTP server, and the server's metadata.

Tokens are issued for this URL. It comes from the configuration and never from the header Host,
which a client can set to anything.
Source: RFC 9728; RFC 8707; 2026-07-28 basic/authorization.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.json import encode

from concertino.http.authorization import Authorization

__all__ = ["ResourceIdentity", "parse_public_url"]

WELL_KNOWN = "/.well-known/oauth-protected-resource"
# Clients may keep the metadata for this long, in seconds.
MAX_AGE_S = 3600


class ResourceIdentity(Struct, frozen=True):
    """The URL by which clients know the MCP endpoint, and the parts of this URL.

    url: the URL, without a slash at its end, such as `https://example.com/mcp`.
    origin: the scheme, host and port of the URL.
    host: the host of the URL, in lower case.
    path: the path of the URL.
    """

    url: str
    origin: str
    host: str
    path: str

    @property
    def metadata_url(self) -> str:
        """The URL of the server's protected resource metadata (RFC 9728)."""
        return f"{self.origin}{WELL_KNOWN}{self.path}"

    @property
    def metadata_paths(self) -> tuple[str, ...]:
        """The paths at which the metadata is served: one for this URL, one for the whole origin."""
        return f"{WELL_KNOWN}{self.path}", WELL_KNOWN

    def describe(self, authorization: Authorization, issuers: Iterable[str]) -> bytes:
        """Return the protected resource metadata as JSON.

        authorization: has the scopes, the name and the documentation of the server.
        issuers: the URLs of the authorization servers that issue tokens for this server.
        """
        metadata: dict[str, object] = {
            "resource": self.url,
            "authorization_servers": list(dict.fromkeys(issuers)),
            "bearer_methods_supported": ["header"],
        }
        if authorization.scopes:
            metadata["scopes_supported"] = sorted(authorization.scopes)
        if authorization.name is not None:
            metadata["resource_name"] = authorization.name
        if authorization.documentation is not None:
            metadata["resource_documentation"] = authorization.documentation
        return encode(metadata)


def parse_public_url(text: str, default_path: str) -> ResourceIdentity:
    """Parse the URL by which clients know the server.

    text: the URL, as the user has written it.
    default_path: the path that is added to a URL without a path.
    Raises ValueError unless the text is an http or https URL without user, query and fragment.
    """
    # Imported here, because most servers have no such URL.
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"public URL {text!r}: {exc}") from None
    host = parts.hostname
    if (
        parts.scheme not in ("http", "https")
        or not host
        or parts.username is not None
        or parts.query
        or parts.fragment
        or not text.isascii()
        or any(char <= " " for char in text)
    ):
        raise ValueError(
            f"public URL {text!r}: expected the URL by which clients know the server, such as "
            "https://mcp.example.com/mcp, without user, query and fragment"
        )
    name = f"[{host}]" if ":" in host else host
    default_port = {"http": 80, "https": 443}[parts.scheme]
    origin = f"{parts.scheme}://{name}"
    if port not in (None, default_port):
        origin += f":{port}"
    path = parts.path.rstrip("/") or default_path
    return ResourceIdentity(f"{origin}{path}", origin, host, path)
