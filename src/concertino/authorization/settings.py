"""OAuth: how a client obtains access to a server that asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, get_args

from msgspec import Struct

from concertino.near_names import HintingStructMeta

__all__ = ["GRANTS", "Authorize", "Grant", "OAuth"]

Grant = Literal["authorization_code", "client_credentials", "device_code"]
GRANTS: tuple[str, ...] = get_args(Grant)
# Gets the address of the page where a person permits access, and returns the address to which that
# page has led the browser.
Authorize = Callable[[str], Awaitable[str]]


class OAuth(Struct, frozen=True, kw_only=True, metaclass=HintingStructMeta):
    """How to obtain access to a server that asks for it.

    All are optional: without any, the client registers itself, and a person logs in.
    client_id: the id of a client that was registered with the authorization server before.
    client_secret: the secret of that client.
    issuer: the authorization server that knows this client. The secret goes to no other one.
    client_metadata_url: an https URL that identifies this client and has its description (a client
        id metadata document), for authorization servers that accept one.
    private_key: in PEM, which signs assertions in place of a secret. Extra: auth.
    key_algorithm: with which it signs.
    grant: how access is obtained: by a person in a browser, by a person at another device, or with
        the client's own credentials, without a person.
    scopes: what to ask for, in addition to what the server says.
    redirect_uri: where the authorization server sends the browser. By default a port of this
        machine.
    authorize: shows the page to a person. None: only `concertino login` does that.
    Raises ValueError if two of them do not belong together. The text shows no secrets.
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
        if self.client_metadata_url:
            # Every client has this module, and few have such a URL.
            from concertino.http_client.server_url import parse_url

            url = parse_url(self.client_metadata_url)
            if not url.is_tls or url.path == "/":
                raise ValueError("client_metadata_url: expected an https URL with a path")
        if self.authorize is not None and not self.redirect_uri:
            raise ValueError("redirect_uri: expected one beside authorize")

    def __repr__(self) -> str:
        # Neither the secret nor the key.
        return f"OAuth(client_id={self.client_id!r}, grant={self.grant!r}, issuer={self.issuer!r})"
