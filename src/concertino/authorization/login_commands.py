"""log_in(), log_out(), list_logins(): do what `concertino login`, `logout` and `whoami` ask for.

The modules of these commands parse the options and print; the functions here need no terminal.
"""

from __future__ import annotations

from shlex import quote
from typing import Any

from concertino.authorization.challenges import bearer_challenge
from concertino.authorization.fetcher import Fetcher
from concertino.authorization.flow import LoginFlow, PageOpener, make_fetcher
from concertino.authorization.logins import Login, LoginStore, login_key
from concertino.authorization.settings import OAuth
from concertino.authorization.token_endpoint import TokenEndpoint
from concertino.errors import AuthorizationError
from concertino.http_client.server_url import ServerUrl, parse_url
from concertino.protocol.revisions import MODERN

__all__ = ["list_logins", "log_in", "log_out"]

ACCEPT = "application/json, text/event-stream"


async def log_in(
    url: str, settings: OAuth, opener: PageOpener, store: LoginStore | None = None
) -> Login:
    """Log in at an MCP server, store the login, and return it.

    Waits until the user has permitted access, if the settings need a user.
    url: the URL of the server.
    settings: how to log in.
    opener: shows pages to the user.
    store: stores the login; None for the store of this user.
    Raises AuthorizationError if the login fails or the server requires no login, ValueError for a
    malformed URL, and OSError if a server cannot be reached.
    """
    server = parse_url(url)
    store = store or LoginStore()
    fetcher = await make_fetcher(server)
    flow = LoginFlow(server, settings, fetcher, opener)
    status, header = await _send_without_token(fetcher, server)
    key = login_key(server.text, settings.client_id, settings.grant)
    previous = await store.load(key)
    try:
        discovery = await flow.discover(bearer_challenge(header), previous)
    except AuthorizationError as exc:
        # The server has served the request without a token.
        if status < 400:
            raise AuthorizationError(f"{server.text} asks for no login") from exc
        raise
    if discovery.has_default_endpoints and status < 400:
        raise AuthorizationError(f"{server.text} asks for no login")
    if settings.client_secret and not settings.issuer and previous is None:
        # A malicious server could name an authorization server of its own, to get the secret.
        issuer = discovery.issuer_metadata.issuer
        raise AuthorizationError(
            f"the client's secret would go to {issuer}, which {server.text} names; if the client "
            f"is registered there, add --issuer {quote(issuer)}"
        )
    login = await flow.log_in(discovery, previous)
    async with store.lock(key):
        await store.save(key, login)
    return login


async def _send_without_token(fetcher: Fetcher, server: ServerUrl) -> tuple[int, str]:
    """Send server/discover without a token, so that the server challenges this client.

    Returns the status of the response, and its header WWW-Authenticate ("" without one).
    """
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MODERN.name,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "server/discover",
        "params": {"_meta": meta},
    }
    headers = {
        "Accept": ACCEPT,
        "MCP-Protocol-Version": MODERN.name,
        "Mcp-Method": "server/discover",
    }
    response = await fetcher.post_json(server.text_with_query, message, headers)
    return response.status, response.headers.get("www-authenticate", "")


async def log_out(url: str, store: LoginStore | None = None) -> list[Login]:
    """Remove all logins at an MCP server, and return them; [] if there is none.

    Their tokens are revoked if the authorization server has a revocation endpoint.
    url: the URL of the MCP server.
    store: the stored logins; None for those of this user.
    Raises AuthorizationError if a login cannot be read, and ValueError for a malformed URL.
    """
    server = parse_url(url)
    store = store or LoginStore()
    removed: list[Login] = []
    for key, login in list_logins(store):
        if login.server != server.text:
            continue
        async with store.lock(key):
            # Another process may have refreshed the tokens before the lock was held.
            current = await store.load(key) or login
            await store.remove(key)
        await _revoke(server, current)
        removed.append(current)
    return removed


async def _revoke(server: ServerUrl, login: Login) -> None:
    """Revoke the tokens of a login (RFC 7009).

    Failures are ignored: this client has removed its tokens, and they expire anyway.
    """
    token = login.refresh_token or login.access_token
    if not login.revocation_endpoint or not token:
        return
    # Without settings: a client with a private key, which the store does not have, cannot revoke.
    endpoint = TokenEndpoint(
        await make_fetcher(server), login.issuer, login.token_endpoint, login.client, OAuth()
    )
    try:
        await endpoint.post(login.revocation_endpoint, {"token": token})
    except (OSError, AuthorizationError):
        pass


def list_logins(store: LoginStore | None = None) -> list[tuple[str, Login]]:
    """Return (key, login) for each stored login, sorted by server.

    The key is the name of the login in the store. Blocks while the system's keyring is locked.
    store: the stored logins; None for those of this user.
    Raises AuthorizationError if a login cannot be read.
    """
    store = store or LoginStore()
    logins = ((key, store.load_blocking(key)) for key in store.names())
    found = [(key, login) for key, login in logins if login is not None]
    return sorted(found, key=lambda item: item[1].server)
