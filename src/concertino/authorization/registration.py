"""identify_client(): chooses the OAuth client with whose id this program logs in.

An authorization server knows each program that requests tokens as a *client* with an id. There are
four ways to get an id, and the first possible one is used:

1. The client that the user has registered, and named in the settings.
2. A client id metadata document: the id is the URL of the client's description.
3. The client of the previous login.
4. A new client, which is registered now (dynamic registration, RFC 7591).

Spec: 2026-07-28 basic/authorization "Client Registration".
"""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from concertino.authorization.fetcher import Fetcher
from concertino.authorization.logins import ClientIdentity
from concertino.authorization.metadata import IssuerMetadata
from concertino.authorization.settings import OAuth
from concertino.authorization.token_endpoint import choose_auth_method
from concertino.errors import AuthorizationError

__all__ = ["identify_client"]

# The name under which the client is registered. Users see it on the page of a login.
CLIENT_NAME = "concertino"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class _Registration(Struct, frozen=True):
    """The response to a dynamic registration (RFC 7591, section 3.2.1)."""

    client_id: str
    client_secret: str = ""
    token_endpoint_auth_method: str = ""
    client_secret_expires_at: float = 0


class _Failure(Struct, frozen=True):
    """The error response to a dynamic registration (RFC 7591, section 3.2.2)."""

    error: str = ""
    error_description: str = ""


_decoder = Decoder(_Registration)
_failure_decoder = Decoder(_Failure)


async def identify_client(
    fetcher: Fetcher,
    metadata: IssuerMetadata,
    settings: OAuth,
    redirect_uri: str,
    previous: ClientIdentity | None,
    previous_issuer: str,
) -> ClientIdentity:
    """Choose the OAuth client with whose id to log in, and register one if there is none.

    Returns the first of these clients that can be used: the client in the settings, the client that
    `settings.client_metadata_url` describes, the client of the previous login, a new client.

    fetcher: sends the request for a registration.
    metadata: the metadata of the authorization server.
    settings: the user's settings, which may name a client.
    redirect_uri: the redirect URI of this login; "" if it needs none.
    previous: the client of the previous login; None if there was none. This client can be used
        again only if this program has registered it at the same server, with the same redirect URI.
    previous_issuer: the issuer identifier (URL) of the authorization server of the previous login;
        "" if there was none.
    Raises AuthorizationError if there is no such client, or if the client in the settings belongs
    to another authorization server. Raises OSError if the server cannot be reached.
    """
    if settings.client_id:
        return _registered_before(metadata, settings, previous_issuer)
    if settings.issuer not in ("", metadata.issuer):
        raise AuthorizationError(
            f"the server names the authorization server {metadata.issuer}, and the login was to be "
            f"made at {settings.issuer} only"
        )
    if settings.client_metadata_url and metadata.client_id_metadata_document_supported:
        # Such a client has no secret (auth_method "none").
        return ClientIdentity(client_id=settings.client_metadata_url)
    if (
        previous is not None
        and previous_issuer == metadata.issuer
        and _is_usable(previous, redirect_uri)
    ):
        return previous
    if metadata.registration_endpoint:
        return await _register(fetcher, metadata, settings, redirect_uri)
    raise AuthorizationError(
        f"{metadata.issuer}: this authorization server registers no clients by itself; register "
        "one there, and pass its id: concertino login URL --client-id ID, or "
        "OAuth(client_id=...)"
    )


def _registered_before(
    metadata: IssuerMetadata, settings: OAuth, previous_issuer: str
) -> ClientIdentity:
    """Return the client in the settings, which the user has registered.

    Raises AuthorizationError if the client is registered at another authorization server, because
    only that server may get its secret.
    """
    expected = settings.issuer or previous_issuer
    if expected and expected != metadata.issuer:
        raise AuthorizationError(
            f"the client {settings.client_id!r} is registered at {expected}, and the server now "
            f"names {metadata.issuer}: its secret must not go there; if this is right, log out, "
            "and log in with a client that is registered there"
        )
    method = choose_auth_method(
        metadata, has_secret=bool(settings.client_secret), has_key=bool(settings.private_key)
    )
    return ClientIdentity(
        client_id=settings.client_id, client_secret=settings.client_secret, auth_method=method
    )


def _is_usable(client: ClientIdentity, redirect_uri: str) -> bool:
    """Return whether a client of an earlier login can be used with this redirect URI."""
    is_valid = not client.expires_at or time.time() < client.expires_at
    return client.is_registered_by_us and is_valid and client.redirect_uri == redirect_uri


async def _register(
    fetcher: Fetcher, metadata: IssuerMetadata, settings: OAuth, redirect_uri: str
) -> ClientIdentity:
    """Register a client for this program, and return it.

    redirect_uri: the redirect URI of this login; "" if it needs none.
    Raises AuthorizationError if the server refuses, and OSError if it cannot be reached.
    """
    offered = metadata.token_endpoint_auth_methods_supported
    # A program on a user's machine cannot keep a secret, so it requests none if possible.
    if offered is None or "none" in offered:
        method = "none"
    else:
        method = choose_auth_method(metadata, has_secret=True, has_key=False)
    # Not for client_credentials, for which OAuth requires a client_id.
    grants = ["authorization_code", "refresh_token"]
    if settings.grant == "device_code":
        grants = [DEVICE_GRANT, "refresh_token"]
    request: dict[str, Any] = {
        "client_name": CLIENT_NAME,
        "grant_types": grants,
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    if redirect_uri:
        request |= {"redirect_uris": [redirect_uri], "response_types": ["code"]}
    url = metadata.registration_endpoint
    response = await fetcher.post_json(url, request)
    if response.status not in (200, 201):
        try:
            failure = response.decode(_failure_decoder)
        except AuthorizationError:
            failure = _Failure()
        reason = failure.error_description or failure.error or f"HTTP {response.status}"
        raise AuthorizationError(
            f"{url}: the authorization server does not register this client ({reason[:300]}); "
            "register one there, and pass its id: concertino login URL --client-id ID"
        )
    given = response.decode(_decoder)
    return ClientIdentity(
        client_id=given.client_id,
        client_secret=given.client_secret,
        auth_method=given.token_endpoint_auth_method or method,
        redirect_uri=redirect_uri,
        is_registered_by_us=True,
        expires_at=given.client_secret_expires_at if given.client_secret else 0,
    )
