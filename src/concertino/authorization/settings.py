"""OAuth: how a client obtains access to a server that requires authorization.

Users pass an OAuth object in HttpParameters. The key `auth` of a server file has the same settings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, get_args

from msgspec import Struct

from concertino.near_names import HintingStructMeta
from concertino.transports.addresses import is_loopback

__all__ = ["GRANTS", "PERSON_GRANTS", "Authorize", "Grant", "OAuth"]

Grant = Literal["authorization_code", "client_credentials", "device_code"]
GRANTS: tuple[str, ...] = get_args(Grant)
# The grants with which a person permits access.
PERSON_GRANTS = ("authorization_code", "device_code")
# Called with the URL of the page where the user permits access. It shows that page, and returns the
# URL to which the authorization server has redirected the browser.
Authorize = Callable[[str], Awaitable[str]]


class OAuth(Struct, frozen=True, kw_only=True, metaclass=HintingStructMeta):
    """How a client obtains access to a server that requires authorization.

        settings = OAuth(client_id="notes", client_secret=SECRET, grant="client_credentials")
        client = Client(HttpParameters("https://mcp.example.com/mcp", auth=settings))

    All fields are optional. Without any, the client registers itself at the authorization server,
    and the user logs in with the command `concertino login`.

    client_id: the id of a client that was registered at the authorization server before.
    client_secret: the secret of that client.
    issuer: the URL of the authorization server at which the client is registered. If it is set, the
        client logs in at no other server, and sends its secret to no other server.
    client_metadata_url: an https URL of a description of your program (a client id metadata
        document). Authorization servers that accept such documents use the URL as the client's id.
    private_key: a private key in PEM, with which the client authenticates in place of a secret (RFC
        7523). It needs the extra `auth` (`concertino[auth]`).
    key_algorithm: the signature algorithm for the private key.
    grant: how access is obtained:
        - "authorization_code": the user permits access in a browser.
        - "device_code": the user permits access on another device.
        - "client_credentials": with the client's own secret or key, without a user.
    scopes: more scopes to request, in addition to those that the MCP server names.
    redirect_uri: the URL to which the authorization server redirects the browser; "" for a free
        port of this machine.
    authorize: an async function for an application that logs its user in itself; it requires
        redirect_uri. Called with the URL of the login page; shows the page to the user, and returns
        the URL to which the browser was redirected. None if users run `concertino login`.
    Raises ValueError if fields contradict each other. The text shows no secrets.
    """

    client_id: str = ""
    client_secret: str = ""
    issuer: str = ""
    client_metadata_url: str = ""
    private_key: str = ""
    key_algorithm: str = "ES256"
    grant: Grant = "authorization_code"
    scopes: tuple[str, ...] = ()
    redirect_uri: str = ""
    authorize: Authorize | None = None

    def __post_init__(self) -> None:
        # Callers without a type checker may pass anything.
        grant: Any = self.grant
        if grant not in GRANTS:
            raise ValueError(f"grant: expected one of {', '.join(GRANTS)}, got {grant!r}")
        if (self.client_secret or self.private_key) and not self.client_id:
            raise ValueError("client_id: expected one beside client_secret or private_key")
        if self.grant == "client_credentials" and not (self.client_secret or self.private_key):
            raise ValueError("client_credentials: expected client_secret or private_key")
        if self.client_metadata_url or self.redirect_uri:
            self._check_urls()
        if self.authorize is not None and not self.redirect_uri:
            raise ValueError("redirect_uri: expected one beside authorize")

    def _check_urls(self) -> None:
        """Raise ValueError unless browsers and authorization servers may use the URLs."""
        # Not imported at the top: every client imports this module, and few have such URLs.
        from concertino.http_client.server_url import parse_url

        if self.client_metadata_url:
            url = parse_url(self.client_metadata_url)
            if not url.is_tls or url.path == "/":
                raise ValueError("client_metadata_url: expected an https URL with a path")
        if self.redirect_uri:
            try:
                url = parse_url(self.redirect_uri)
            except ValueError as exc:
                raise ValueError(f"redirect_uri: {exc}") from None
            if not url.is_tls and not is_loopback(url.host):
                # The code in the URL would be readable on its way.
                raise ValueError(
                    "redirect_uri: expected an https URL, or an http URL of this machine, got "
                    f"{url.text}"
                )

    def __repr__(self) -> str:
        # The secret and the key must not appear in logs.
        return f"OAuth(client_id={self.client_id!r}, grant={self.grant!r}, issuer={self.issuer!r})"
