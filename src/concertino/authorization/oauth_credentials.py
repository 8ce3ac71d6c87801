"""OAuthCredentials: the Credentials of a connection to an MCP server that requires access tokens.

The access token comes from the stored login, and is refreshed shortly before it expires. When the
server refuses a request, OAuthCredentials refreshes the token or logs in again.

Several processes may use one login, but only one of them refreshes it at a time (logins.py). When
the authorization server refuses a refresh token, this token is removed from the store, unless
another process has stored a newer one meanwhile. When a refresh before the expiry fails, the
old token stays in use until it expires.
"""

from __future__ import annotations

import asyncio
import logging
import time

from concertino.authorization.challenges import bearer_challenge
from concertino.authorization.fetcher import Fetcher
from concertino.authorization.flow import Discovery, LoginFlow, make_fetcher, with_tokens
from concertino.authorization.logins import Login, LoginStore, login_key
from concertino.authorization.settings import PERSON_GRANTS, OAuth
from concertino.authorization.token_endpoint import TokenEndpoint, TokenError
from concertino.errors import AuthorizationError, LoginRequired
from concertino.http_client.credentials import Refusal
from concertino.http_client.server_url import ServerUrl

__all__ = ["OAuthCredentials"]

_log = logging.getLogger("concertino.authorization")

# How long before its expiry a token is refreshed, in seconds. A token that is valid for less than
# ten minutes is refreshed when nine tenths of its time have passed.
MARGIN_S = 60.0
# If such an early refresh has failed, the next one is tried after this time, in seconds.
PAUSE_S = 30.0
# How many times this client logs in with more scopes because of one operation, such as a tool. A
# server that is never satisfied must not make this client log in endlessly.
MAX_STEP_UPS = 2
# How many operations are counted. The oldest one is forgotten.
MAX_OPERATIONS = 1000


class OAuthCredentials:
    """Provides access tokens for one MCP server: from the stored login, or by a new login.

    It implements Credentials (http_client/credentials.py). The connection calls header() for each
    request, prepare() if that returns None, and on_refusal() if the server has refused a request.
    server: the URL of the MCP server.
    settings: how to log in; None to use only logins that `concertino login` has stored.
    store: the stored logins; None for those of this user.
    """

    def __init__(
        self, server: ServerUrl, settings: OAuth | None = None, store: LoginStore | None = None
    ) -> None:
        self._server = server
        self._settings = settings or OAuth()
        self._store = store or LoginStore()
        # The name of the login in the store; chosen when the login is read.
        self._key = ""
        self._login: Login | None = None
        # Whether the login was read from the store.
        self._is_read = False
        self._fetcher: Fetcher | None = None
        # Held while a request reads, refreshes or makes the login, so that the other requests of
        # this connection wait. Other processes wait for the lock of the login in the store.
        self._lock = asyncio.Lock()
        # Until this time, by the monotonic clock, tokens are refreshed only after their expiry.
        self._paused_until = 0.0
        # Operation -> how many times this client has logged in with more scopes because of it.
        self._step_ups: dict[str, int] = {}

    def _choose_key(self) -> str:
        """Return the key in the store of the login to use.

        - Settings with a client id, another grant than the default or `authorize` have a login of
          their own.
        - With other settings, use the login at this server with the newest access token, whatever
          options `concertino login` had. If there is none, return the key for a future login.
        """
        settings, server = self._settings, self._server.text
        has_default_grant = settings.grant == PERSON_GRANTS[0]
        if not settings.client_id and has_default_grant and settings.authorize is None:
            return self._store.newest_key(server)
        return login_key(server, settings.client_id, settings.grant)

    # Credentials

    def header(self) -> str | None:
        """Return the value of the header Authorization for a request, without waiting.

        - "": no usable login is stored. Send the request without the header.
        - None: a token must be read or refreshed first. Await prepare(), which returns the header.
        """
        login = self._login
        if login is not None and login.is_valid(self._margin_s(login)):
            return f"Bearer {login.access_token}"
        if not self._is_read:
            return None
        can_refresh = login is not None and login.refresh_token
        return None if can_refresh else ""

    def _margin_s(self, login: Login) -> float:
        """Return how long before its expiry the token is refreshed, in seconds.

        Returns 0 to use the token until it expires: if it cannot be refreshed, or if a refresh has
        just failed.
        """
        if login.expires_at is None or not login.refresh_token:
            return 0.0
        if time.monotonic() < self._paused_until:
            return 0.0
        return min(MARGIN_S, (login.expires_at - login.obtained_at) / 10)

    async def prepare(self) -> str:
        """Read and refresh the stored login if necessary, and return the header Authorization.

        Returns "" if there is no usable login. Then send the request without the header: the server
        refuses it, and its challenge says how to log in.
        Raises AuthorizationError and OSError if the token has expired and cannot be refreshed.
        """
        async with self._lock:
            if (header := self.header()) is not None:
                return header
            if not self._is_read:
                self._key = self._choose_key()
                self._login = await self._store.load(self._key)
                self._is_read = True
                if (header := self.header()) is not None:
                    return header
            # After the login was read, header() returns None only for a login with a refresh token.
            assert self._login is not None
            await self._refresh(self._login.access_token)
            return self._valid_header()

    def _valid_header(self) -> str:
        """Return the header with the access token; "" if there is none that is valid."""
        login = self._login
        return f"Bearer {login.access_token}" if login is not None and login.is_valid() else ""

    async def on_refusal(self, refusal: Refusal) -> str | None:
        """Refresh the login or log in again, after the server has refused a request.

        Returns the header Authorization with which to repeat the request; None if repeating cannot
        help.

        - Status 401: refreshes the token. If that is not possible, logs in again.
        - Status 403 with the error `insufficient_scope`: logs in with more scopes, at most twice
          for each operation, such as the call of one tool.
        - Any other 403: returns None.

        If another request or process has obtained a newer token meanwhile, only returns that token.
        refusal: the refused request, and the server's challenge.
        Raises LoginRequired if a person must log in, another AuthorizationError if the login fails,
        and OSError if a server cannot be reached.
        """
        challenge = bearer_challenge(refusal.challenge)
        sent = refusal.sent.removeprefix("Bearer ")
        lacks_scopes = refusal.status == 403
        if lacks_scopes and challenge.get("error") != "insufficient_scope":
            return None
        async with self._lock:
            if self._has_newer(sent):
                return self._valid_header()
            if lacks_scopes and not self._may_step_up(refusal.operation):
                return None
            flow = await self._make_flow()
            # `concertino login` may have stored a login under another key.
            self._key = self._choose_key()
            async with self._store.lock(self._key):
                # Another process may have obtained a newer token before this one got the lock.
                self._login = await self._store.load(self._key)
                if not self._has_newer(sent):
                    discovery = await flow.discover(challenge, self._login)
                    # A refreshed token has the same scopes.
                    if lacks_scopes or not await self._try_refresh(discovery):
                        await self._log_in(flow, discovery)
            return self._valid_header()

    def _has_newer(self, sent: str) -> bool:
        """Return whether there is a valid access token other than the refused one, `sent`.

        Another request or another process may have obtained it meanwhile.
        """
        login = self._login
        return login is not None and login.is_valid() and login.access_token != sent

    async def _try_refresh(self, discovery: Discovery) -> bool:
        """Refresh the login, after the server has refused its token.

        The caller holds the lock of the login in the store.
        Returns whether the login was refreshed. That is not possible if there is no refresh token,
        if the MCP server has changed to another authorization server, or if the authorization
        server refuses.
        """
        login = self._login
        issuer = discovery.issuer_metadata.issuer
        if login is None or not login.refresh_token or login.issuer != issuer:
            return False
        try:
            await self._request_tokens(login)
        except TokenError:
            return False
        return True

    def _may_step_up(self, operation: str) -> bool:
        """Return whether to log in with more scopes because of an operation, and count it.

        operation: the MCP method of the refused request, and the name of its tool, prompt or
            resource, such as `tools/call add`.
        """
        tries = self._step_ups.get(operation, 0)
        if tries >= MAX_STEP_UPS:
            return False
        if len(self._step_ups) >= MAX_OPERATIONS:
            del self._step_ups[next(iter(self._step_ups))]
        self._step_ups[operation] = tries + 1
        return True

    async def _log_in(self, flow: LoginFlow, discovery: Discovery) -> None:
        """Log in and store the login.

        The caller holds the lock of the login in the store. Raises LoginRequired, or another
        AuthorizationError, if only the command `concertino login` can log in: the grant needs a
        user, and `settings.authorize` does not ask the user.
        """
        settings = self._settings
        asks_user = settings.grant == "authorization_code" and settings.authorize is not None
        if settings.grant != "client_credentials" and not asks_user:
            command = self._login_command(discovery)
            login = self._login
            issuer = discovery.issuer_metadata.issuer
            has_logged_in = login is not None and login.issuer == issuer
            if discovery.has_default_endpoints and not has_logged_in:
                # The endpoints may not exist: the server may want an API key in a header.
                raise AuthorizationError(
                    f"{self._server.text} asks for authorization, and has no metadata about it: "
                    "send a token that you have in a header (HttpParameters(url, headers), or "
                    "headers in a server file); or, if the server has the endpoints of revision "
                    f"2025-03-26, run: {command}"
                )
            raise LoginRequired(f"{self._server.text} asks for a login; run: {command}", command)
        login = await flow.log_in(discovery, self._login)
        await self._store.save(self._key, login)
        self._login = login

    def _login_command(self, discovery: Discovery) -> str:
        """Return the command with which the user logs in at this server."""
        words = f"concertino login {self._server.text}"
        client_id, secret, issuer = _registered_client(self._settings, self._login)
        if client_id:
            words += f" --client-id {client_id}"
        if secret:
            words += " --client-secret-env NAME"
        if secret and issuer:
            words += f" --issuer {issuer}"
        if self._settings.grant == "device_code":
            words += " --device"
        if discovery.challenge.get("error") == "insufficient_scope":
            for scope in discovery.challenge.get("scope", "").split():
                words += f" --scope {scope}"
        return words

    # Refresh

    async def _refresh(self, old_token: str) -> None:
        """Refresh the login, unless another process has done so meanwhile.

        If the refresh fails while the old access token is still valid, only logs the failure.
        old_token: the access token that has expired or will expire soon.
        """
        async with self._store.lock(self._key):
            self._login = login = await self._store.load(self._key)
            if login is None or not login.refresh_token:
                return
            if login.access_token != old_token and login.is_valid():
                return
            try:
                await self._request_tokens(login)
            except (OSError, AuthorizationError) as exc:
                if not login.is_valid():
                    # After a TokenError, the request is sent without a token. The server refuses
                    # it, and on_refusal() logs in again.
                    if isinstance(exc, TokenError):
                        return
                    raise
                _log.warning("the token is not renewed ahead of time: %s", exc)
                self._paused_until = time.monotonic() + PAUSE_S

    async def _request_tokens(self, login: Login) -> None:
        """Refresh a login that was just read, and store the new tokens.

        The caller holds the lock of the login in the store.
        Raises TokenError if the authorization server refuses. A refresh token that is not valid any
        more is then removed from the store.
        """
        fetcher = await self._get_fetcher()
        endpoint = TokenEndpoint(
            fetcher, login.issuer, login.token_endpoint, login.client, self._settings
        )
        try:
            tokens = await endpoint.refresh(login)
        except TokenError as exc:
            if exc.code == "invalid_grant":
                await self._remove_token(login)
            raise
        self._login = with_tokens(login, tokens)
        await self._store.save(self._key, self._login)

    async def _remove_token(self, refused: Login) -> None:
        """Remove the refresh token of a login from the store, unless a newer token is stored.

        The access token is also removed if it has expired.
        """
        current = await self._store.load(self._key)
        if current is not None and current.refresh_token == refused.refresh_token:
            rest = current.without_refresh() if current.is_valid() else current.without_tokens()
            await self._store.save(self._key, rest)
            self._login = rest

    async def _get_fetcher(self) -> Fetcher:
        if self._fetcher is None:
            self._fetcher = await make_fetcher(self._server)
        return self._fetcher

    async def _make_flow(self) -> LoginFlow:
        return LoginFlow(self._server, self._settings, await self._get_fetcher())


def _registered_client(settings: OAuth, login: Login | None) -> tuple[str, str, str]:
    """Return the id and the secret of the client that the user has registered, and its issuer.

    Each is "" if it is not known.
    login: the previous login; None if there was none.
    """
    if settings.client_id:
        return settings.client_id, settings.client_secret, settings.issuer
    if login is None or login.client.is_registered_by_us:
        return "", "", ""
    return login.client.client_id, login.client.client_secret, login.issuer
