"""The authorization server of the official Python SDK (mcp.server.auth) in this process, whose
tokens a server of ours verifies: discovery, registration, PKCE, a token, calls, a refresh and more
scopes, with the official client and with ours.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import mcp
import pytest
import uvicorn
from http_service import serving
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
)
from mcp.server.auth.routes import build_metadata, create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyHttpUrl, AnyUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from verifiers.issuer import Issuer

from concertino import Client
from concertino.authorization import OAuth
from concertino.client import HttpParameters

SERVER = Path(__file__).parents[1] / "http" / "server_with_scopes.py"
REDIRECT = "http://127.0.0.1:9/callback"
LIMIT_S = 60.0


class Provider:
    """The memory of the authorization server: clients, codes and refresh tokens, each valid once.

    lifetime_s: of access tokens. counts: how often each grant was used.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.lifetime_s = 300
        self.counts: Counter[str] = Counter()
        self.resources: set[str | None] = set()
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        assert client.client_id is not None
        code = secrets.token_hex(16)
        self.counts["authorize"] += 1
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or ["read"],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        fields = {"code": code, "state": params.state or "", "iss": self.issuer.url}
        return f"{params.redirect_uri}?{urlencode(fields)}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        self.counts["code"] += 1
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.counts["refresh"] += 1
        return self._issue(client, refresh_token.scopes, refresh_token.resource)

    def _issue(
        self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None
    ) -> OAuthToken:
        assert client.client_id is not None
        self.resources.add(resource)
        refresh = RefreshToken(
            token=secrets.token_hex(16),
            client_id=client.client_id,
            scopes=scopes,
            resource=resource,
        )
        self.refresh[refresh.token] = refresh
        token = self.issuer.token(
            aud=resource,
            client_id=client.client_id,
            scope=" ".join(scopes),
            exp=time.time() + self.lifetime_s,
        )
        return OAuthToken(
            access_token=token,
            expires_in=self.lifetime_s,
            scope=" ".join(scopes),
            refresh_token=refresh.token,
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        return None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.refresh.pop(token.token, None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def authorization_server() -> Iterator[Provider]:
    """Run the official SDK's authorization server. Its keys are at /jwks."""
    port = free_port()
    issuer = Issuer(f"http://127.0.0.1:{port}")
    provider = Provider(issuer)
    scopes = ["read", "write", "admin"]
    # A client that registers without scopes may ask for all of them later.
    registration = ClientRegistrationOptions(
        enabled=True, valid_scopes=scopes, default_scopes=scopes
    )
    revocation = RevocationOptions(enabled=True)
    metadata = build_metadata(AnyHttpUrl(issuer.url), None, registration, revocation)
    document = metadata.model_dump(mode="json", exclude_none=True)
    # With the place of the keys, which the SDK leaves out, and the issuer as the tokens have it.
    document |= {"jwks_uri": f"{issuer.url}/jwks", "issuer": issuer.url}

    async def describe(_: Request) -> Response:
        return JSONResponse(document)

    async def keys(_: Request) -> Response:
        return JSONResponse(json.loads(issuer.jwks()))

    app = Starlette(
        routes=[
            Route("/.well-known/oauth-authorization-server", describe),
            Route("/jwks", keys),
            *create_auth_routes(
                provider,
                AnyHttpUrl(issuer.url),
                client_registration_options=registration,
                revocation_options=revocation,
            ),
        ]
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + LIMIT_S
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield provider
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)


@contextmanager
def both() -> Iterator[tuple[Provider, str]]:
    """Run the authorization server, and a server of ours that needs its tokens. Gives its URL."""
    with authorization_server() as provider:
        port = free_port()
        url = f"http://127.0.0.1:{port}/mcp"
        with serving(
            SERVER, "--http", f"127.0.0.1:{port}", "--public-url", url, "--auth-issuer",
            provider.issuer.url, "--auth-scope", "read",
        ):  # fmt: skip
            yield provider, url


async def permit(page: str) -> str:
    """Permit access as a person does: return where the browser is sent."""

    def read() -> str:
        parts = urlsplit(page)
        connection = HTTPConnection(parts.netloc, timeout=LIMIT_S)
        connection.request("GET", f"{parts.path}?{parts.query}")
        location = connection.getresponse().getheader("Location")
        connection.close()
        assert location is not None
        return location

    return await asyncio.to_thread(read)


class Storage:
    """Where the official client keeps its tokens."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def with_official_client(
    url: str, mode: str, talk: Callable[[mcp.Client], Awaitable[None]]
) -> None:
    answers: list[str] = []

    async def redirect(page: str) -> None:
        answers.append(await permit(page))

    async def callback() -> AuthorizationCodeResult:
        fields = {name: value[0] for name, value in parse_qs(urlsplit(answers[-1]).query).items()}
        return AuthorizationCodeResult(**fields)

    metadata = OAuthClientMetadata(
        redirect_uris=[AnyUrl(REDIRECT)], client_name="official", scope="read"
    )
    auth = OAuthClientProvider(url, metadata, Storage(), redirect, callback)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=LIMIT_S) as http,
        mcp.Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        await talk(client)


@pytest.mark.requirement("AU-23", side="authorization")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_official_client_logs_in_calls_and_refreshes(mode: str) -> None:
    with both() as (provider, url):
        # Expired as soon as it is used again: the client refreshes before the next request.
        provider.lifetime_s = 1

        async def talk(client: mcp.Client) -> None:
            for _ in range(2):
                [block] = (await client.call_tool("whoami", {})).content
                assert json.loads(block.text)[0] == "alice"  # type: ignore[union-attr]
                provider.lifetime_s = 300
                await asyncio.sleep(1.1)

        asyncio.run(asyncio.wait_for(with_official_client(url, mode, talk), LIMIT_S))
        assert provider.counts["authorize"] == provider.counts["code"] == 1
        assert provider.counts["refresh"] >= 1
        assert provider.resources == {url}


@pytest.mark.requirement("AU-23", side="authorization")
@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_our_client_logs_in_refreshes_and_asks_for_more_scopes(
    era: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CONCERTINO_LOGINS", "file")

    with both() as (provider, url):
        provider.lifetime_s = 1
        auth = OAuth(redirect_uri=REDIRECT, authorize=permit)

        async def talk() -> None:
            async with Client(HttpParameters(url, auth=auth), era=era) as client:
                assert (await client.call_tool("whoami", into=list[str]))[0] == "alice"
                provider.lifetime_s = 300
                await asyncio.sleep(1.1)
                assert (await client.call_tool("whoami", into=list[str]))[2:] == ["read"]
                assert provider.counts == {"authorize": 1, "code": 1, "refresh": 1}
                # 403 with the missing scopes: the person permits those too.
                assert await client.call_tool("change", {"text": "x"}, into=str)
                assert (await client.call_tool("whoami", into=list[str]))[2:] == ["read", "write"]

        asyncio.run(asyncio.wait_for(talk(), LIMIT_S))
        assert provider.counts["authorize"] == 2
        assert provider.resources == {url}
