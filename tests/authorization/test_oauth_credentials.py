"""Clients of servers that ask for authorization, with a real authorization server."""

from __future__ import annotations

import asyncio
import re
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from authorization_server import AuthorizationServer, Response, as_json, running
from joserfc import jwt
from joserfc.jwk import ECKey
from loops import on_a_loop
from msgspec.structs import replace

from concertino import Client, RpcError
from concertino.authorization import OAuth
from concertino.authorization.logins import LoginStore, login_key
from concertino.authorization.oauth_credentials import OAuthCredentials
from concertino.client import HttpParameters
from concertino.http_client.server_url import parse_url

REDIRECT = "http://127.0.0.1:3000/callback"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CONCERTINO_LOGINS", "file")
    return tmp_path


async def follow(page: str) -> str:
    """Permit access at once: return where the authorization server sends the browser."""

    def read() -> str:
        parts = urlsplit(page)
        connection = HTTPConnection(parts.netloc, timeout=20)
        connection.request("GET", f"{parts.path}?{parts.query}")
        return connection.getresponse().getheader("Location") or ""

    return await asyncio.to_thread(read)


def by_person(**fields: Any) -> OAuth:
    return OAuth(redirect_uri=REDIRECT, authorize=follow, **fields)


async def call(server: AuthorizationServer, auth: OAuth | None, times: int = 1) -> None:
    async with Client(HttpParameters(server.url, auth=auth)) as client:
        for _ in range(times):
            assert await client.call_tool("t", into=str) == "ok"


def stored(server: AuthorizationServer, auth: OAuth | None = None) -> Any:
    auth = auth or OAuth()
    return LoginStore().load_blocking(login_key(server.url, auth.client_id, auth.grant))


@pytest.mark.requirement(
    "DS-1",
    "CR-3",
    "CR-4",
    "CR-7",
    "CA-A",
    "CA-B",
    "CA-C",
    "CA-E",
    "CT-1",
    "CT-3",
    side="authorization",
)
@on_a_loop
async def test_a_login_from_the_challenge_to_the_call_and_its_second_use(state: Path) -> None:
    async with running(AuthorizationServer()) as server:
        await call(server, by_person(), times=2)
        assert server.counts["/authorize"] == 1
        documents = [item for item in server.requests if "/.well-known/" in item.path]
        assert {item.headers["mcp-protocol-version"] for item in documents} == {"2026-07-28"}
        [page] = server.of("/authorize")
        assert page.query["resource"] == server.url
        assert page.query["code_challenge_method"] == "S256"
        assert len(page.query["state"]) >= 32
        assert "scope" not in page.query
        [registration] = server.of("/register")
        assert b'"application_type":"native"' in registration.body
        assert b'"refresh_token"' in registration.body

        # Another process needs no person, and not even the settings.
        before = len(server.requests)
        await call(server, None)
        assert server.paths()[before:] == ["/mcp", "/mcp"]
        assert not [request for request in server.requests if "access-" in str(request.query)]

    [file] = (state / "concertino" / "logins").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600


@on_a_loop
async def test_the_last_login_of_a_person_is_used_whatever_its_options(state: Path) -> None:
    async with running(AuthorizationServer()) as server:
        program = OAuth(grant="client_credentials", client_id="known", client_secret="s3cr:t/ü")
        await call(server, program)
        with pytest.raises(RpcError, match="asks for a login"):
            await call(server, None)
        (state / "concertino" / "logins" / "0.json").write_text("no login")

        await call(server, by_person(client_id="known", client_secret="s3cr:t/ü"))
        await call(server, None)
        first = server.of("/mcp")[-1].headers["authorization"]
        await call(server, by_person())
        await call(server, None)
        second = server.of("/mcp")[-1].headers["authorization"]

        assert (first, second) == tuple(
            f"Bearer {stored(server, OAuth(client_id=id)).access_token}" for id in ("known", "")
        )


@on_a_loop
async def test_no_login_is_made_at_another_issuer_than_the_named_one() -> None:
    async with running(AuthorizationServer()) as server:
        with pytest.raises(RpcError, match=r"made at https://auth\.example only"):
            await call(server, by_person(issuer="https://auth.example"))
        assert not {"/register", "/authorize"} & set(server.paths())
        await call(server, by_person(issuer=server.origin))


@pytest.mark.requirement("AU-21", side="authorization")
@on_a_loop
async def test_without_a_login_the_error_names_the_command() -> None:
    async with running(AuthorizationServer()) as server:
        with pytest.raises(RpcError, match=f"run: concertino login {server.url}"):
            await call(server, None)
        assert "/authorize" not in server.paths()


@pytest.mark.requirement("DS-9", side="authorization")
@on_a_loop
async def test_a_server_without_metadata_has_the_endpoints_of_2025_03_26() -> None:
    async with running(AuthorizationServer()) as server:
        server.has_metadata = False
        await call(server, by_person())

        assert [server.counts[path] for path in ("/register", "/authorize", "/token")] == [1, 1, 1]
        [page] = server.of("/authorize")
        assert page.query["code_challenge_method"] == "S256"


@on_a_loop
async def test_a_server_without_metadata_and_endpoints_may_want_no_login() -> None:
    async with running(AuthorizationServer()) as server:
        server.has_metadata = False
        with pytest.raises(RpcError, match="send a token that you have in a header"):
            await call(server, None)
        assert "/register" not in server.paths()

        server.has_registration = False
        with pytest.raises(RpcError, match=r"/register: .* \(HTTP 404\).* has no metadata"):
            await call(server, by_person())


@on_a_loop
async def test_an_expired_login_is_a_reason_to_log_in_again_without_metadata_too() -> None:
    async with running(AuthorizationServer()) as server:
        server.has_metadata = False
        await call(server, by_person())
        server.access.clear()
        server.refresh.clear()
        with pytest.raises(RpcError, match=f"asks for a login; run: concertino login {server.url}"):
            await call(server, None)


@pytest.mark.requirement("CR-6", side="authorization")
@on_a_loop
async def test_a_secret_is_sent_to_endpoints_without_metadata_only_if_their_issuer_is_set() -> None:
    auth = OAuth(client_id="known", client_secret="s3cr:t/ü", grant="client_credentials")
    async with running(AuthorizationServer()) as server:
        server.has_metadata = False
        with pytest.raises(RpcError, match=r"has no metadata; .* set issuer='http"):
            await call(server, auth)
        assert "/token" not in server.paths()

        await call(server, replace(auth, issuer=server.origin))
        assert server.counts["/token"] == 1


class GuardedServer(AuthorizationServer):
    """A server of 2025-03-26 that answers 401 at each path which it does not have."""

    has_issuer = True

    async def answer(self, request: Any) -> Response:
        is_issuer = request.path == "/.well-known/oauth-authorization-server"
        self.has_metadata = self.has_issuer and is_issuer
        response = await super().answer(request)
        return (401, {}, b"") if response[0] == 404 else response


@on_a_loop
async def test_the_metadata_of_a_server_that_refuses_all_other_paths_is_found() -> None:
    async with running(GuardedServer()) as server:
        await call(server, by_person())
        assert server.counts["/token"] == 1

        server.has_issuer = False
        with pytest.raises(RpcError, match=r"metadata cannot be read .*HTTP 401.* an API key"):
            await call(server, by_person(client_id="other"))
        assert server.counts["/token"] == 1


@on_a_loop
async def test_without_a_stored_login_only_the_first_request_waits_for_the_store(
    state: Path,
) -> None:
    credentials = OAuthCredentials(parse_url("https://example.com/mcp"))
    assert credentials.header() is None
    assert await credentials.prepare() == ""
    assert credentials.header() == ""


@on_a_loop
async def test_an_own_header_is_sent_and_nobody_is_asked() -> None:
    async with running(AuthorizationServer()) as server:
        target = HttpParameters(server.url, {"authorization": "Bearer mine"}, by_person())
        with pytest.raises(RpcError, match="401"):
            async with Client(target):
                pass
        assert set(server.paths()) == {"/mcp"}


@pytest.mark.requirement("CT-4", side="authorization")
@on_a_loop
async def test_many_refused_calls_lead_to_one_login() -> None:
    async with running(AuthorizationServer()) as server:
        async with Client(HttpParameters(server.url, auth=by_person())) as client:
            server.access.clear()
            server.refresh.clear()
            await asyncio.gather(*(client.call_tool("t") for _ in range(20)))
        assert server.counts["/authorize"] == 2


@pytest.mark.requirement("CA-C", "CT-5", "CT-6", side="authorization")
@on_a_loop
async def test_more_scopes_are_asked_for_when_a_call_needs_them() -> None:
    """The union of what was asked for before and what the challenge says."""
    async with running(AuthorizationServer()) as server:
        server.challenge_scopes = "read"
        server.needed_scopes = {"write"}
        await call(server, by_person())
        assert [page.query["scope"] for page in server.of("/authorize")] == ["read", "read write"]
        assert set(stored(server).scopes) == {"read", "write"}


@pytest.mark.requirement("CT-7", side="authorization")
@on_a_loop
async def test_scopes_that_are_never_granted_are_not_asked_for_for_ever() -> None:
    async with running(AuthorizationServer()) as server:
        server.needed_scopes = {"never"}
        issue = server._issue
        server._issue = lambda scopes, has_refresh=True: issue("", has_refresh)  # type: ignore[method-assign]
        with pytest.raises(RpcError, match="403"):
            await call(server, by_person())
        assert server.counts["/authorize"] <= 3


@pytest.mark.requirement("CA-C", "CA-D", side="authorization")
@pytest.mark.parametrize(
    ("offered", "asked"), [(["offline_access", "a"], "a offline_access"), (["a"], "a")]
)
@on_a_loop
async def test_offline_access_is_asked_for_where_it_is_offered(
    offered: list[str], asked: str
) -> None:
    async with running(AuthorizationServer()) as server:
        server.metadata = {"scopes_supported": offered}
        server.resource = {"scopes_supported": ["a"]}
        await call(server, by_person())
        assert server.of("/authorize")[0].query["scope"] == asked


@pytest.mark.requirement("CR-1", "CR-5", "CR-9", side="authorization")
@on_a_loop
async def test_a_known_client_shows_its_secret_encoded() -> None:
    """RFC 6749 section 2.3.1: both are form-encoded before Base64. The server decodes them."""
    async with running(AuthorizationServer()) as server:
        await call(server, by_person(client_id="known", client_secret="s3cr:t/ü"))
        assert "/register" not in server.paths()
        assert server.of("/token")[0].headers["authorization"].startswith("Basic ")


@pytest.mark.requirement("CR-6", side="authorization")
@on_a_loop
async def test_a_known_client_is_not_shown_to_another_authorization_server() -> None:
    auth = by_person(client_id="known", client_secret="s3cr:t/ü", issuer="https://other.example")
    async with running(AuthorizationServer()) as server:
        with pytest.raises(RpcError, match=r"is registered at https://other\.example"):
            await call(server, auth)
        assert "/token" not in server.paths()


@pytest.mark.requirement("CR-1", "CR-2", side="authorization")
@on_a_loop
async def test_a_client_id_document_is_preferred_to_a_registration() -> None:
    url = "https://client.example/me.json"
    async with running(AuthorizationServer()) as server:
        server.metadata = {"client_id_metadata_document_supported": True}
        server.clients[url] = ""
        await call(server, by_person(client_metadata_url=url))
        assert server.of("/authorize")[0].query["client_id"] == url
        assert "/register" not in server.paths()


@pytest.mark.requirement("CR-1", side="authorization")
@on_a_loop
async def test_without_any_way_to_register_the_error_says_what_to_do() -> None:
    async with running(AuthorizationServer()) as server:
        server.has_registration = False
        with pytest.raises(RpcError, match="--client-id ID"):
            await call(server, by_person())


@pytest.mark.requirement("AU-20", side="authorization")
@on_a_loop
async def test_client_credentials_need_no_person() -> None:
    auth = OAuth(client_id="known", client_secret="s3cr:t/ü", grant="client_credentials")
    async with running(AuthorizationServer()) as server:
        await call(server, auth)
        assert server.of("/token")[0].form["grant_type"] == "client_credentials"
        # The next process uses the token, and gets another one when it has expired.
        await call(server, auth)
        assert server.counts["/token"] == 1
        server.access.clear()
        await call(server, auth)
        assert server.counts["/token"] == 2


@pytest.mark.requirement("AU-20", side="authorization")
@on_a_loop
async def test_client_credentials_with_a_private_key() -> None:
    key = ECKey.generate_key("P-256")
    pem = key.as_pem(private=True).decode()
    auth = OAuth(client_id="robot", private_key=pem, grant="client_credentials")
    async with running(AuthorizationServer()) as server:
        await call(server, auth)
        [request] = server.of("/token")
    form = request.form
    assert "client_id" not in form
    claims = jwt.decode(form["client_assertion"], key, algorithms=["ES256"]).claims
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("robot", "robot", server.origin)
    assert claims["exp"] <= time.time() + 301


@pytest.mark.requirement("CR-8", side="authorization")
@on_a_loop
async def test_a_function_that_shows_the_page_and_fails_ends_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def show(page: str) -> str:
        raise RuntimeError("no screen")

    async with running(AuthorizationServer()) as server:
        with pytest.raises(RpcError, match="401 Unauthorized: RuntimeError"):
            await call(server, OAuth(redirect_uri=REDIRECT, authorize=show))
    assert "the login has failed" in caplog.text


@on_a_loop
async def test_a_response_to_the_login_that_is_no_url_ends_the_call() -> None:
    async def show(page: str) -> str:
        return "http://["

    async with running(AuthorizationServer()) as server:
        with pytest.raises(RpcError, match="the response to the login is no URL"):
            await call(server, OAuth(redirect_uri=REDIRECT, authorize=show))


@pytest.mark.parametrize("url", ["http://a.example/cb", "file:///cb", "javascript:x", "/cb"])
def test_a_redirect_uri_has_tls_or_is_of_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match="redirect_uri: expected"):
        OAuth(redirect_uri=url)
    for allowed in ("https://a.example/cb", "http://127.0.0.1:1/cb", "http://localhost:3000/cb"):
        assert OAuth(redirect_uri=allowed).redirect_uri == allowed


@pytest.mark.requirement("AU-22", side="authorization")
def test_the_text_of_the_settings_shows_no_secrets() -> None:
    auth = OAuth(client_id="known", client_secret="hunter2", private_key="hunter3")
    assert "hunter" not in repr(auth)
    assert "hunter" not in repr(HttpParameters("https://a.example/mcp", auth=auth))


@pytest.mark.requirement("DS-4", "DS-7", "DS-8", "CA-I", "CT-9", side="authorization")
@pytest.mark.parametrize(
    ("metadata", "resource", "text"),
    [
        ({"issuer": "https://other.example"}, {}, "must not be used"),
        ({"issuer": "SLASH"}, {}, "must not be used"),
        ({"code_challenge_methods_supported": None}, {}, "PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, {}, "PKCE"),
        ({"authorization_endpoint": "javascript:alert(1)"}, {}, "authorization_endpoint"),
        ({"authorization_endpoint": "file:///etc/passwd"}, {}, "authorization_endpoint"),
        ({"authorization_endpoint": "http://a.example/x"}, {}, "expected https"),
        ({}, {"resource": "http://127.0.0.1:1/mcp"}, "for another server"),
        ({}, {"resource": "https://evil.example/mcp"}, "for another server"),
        ({}, {"authorization_servers": []}, "authorization_servers"),
        ({}, {"authorization_servers": ["http://169.254.169.254"]}, "169.254.169.254"),
    ],
)
@on_a_loop
async def test_metadata_that_must_not_be_trusted(
    metadata: dict[str, Any], resource: dict[str, Any], text: str
) -> None:
    async with running(AuthorizationServer()) as server:
        if metadata.get("issuer") == "SLASH":
            metadata = {"issuer": f"{server.origin}/"}
        server.metadata, server.resource = metadata, resource
        with pytest.raises(RpcError, match=re.escape(text)):
            await call(server, by_person())
        assert "/authorize" not in server.paths()
        assert "/token" not in server.paths()


@pytest.mark.requirement("CA-E", "CA-F", "CA-G", "CA-H", side="authorization")
@pytest.mark.parametrize(
    ("is_promised", "response", "text"),
    [
        (True, {}, "does not say who sends it"),
        (True, {"iss": "https://other.example"}, "is not from"),
        (False, {"iss": "https://other.example"}, "is not from"),
        (False, {"iss": "https://other.example", "error": "hunter2"}, "is not from"),
        (False, {"state": "x" * 43}, "another request"),
        (False, {"state": None}, "another request"),
        (False, {"code": None}, "no code"),
        (False, {"code": None, "error": "access_denied"}, "access_denied"),
    ],
)
@on_a_loop
async def test_responses_to_a_login_that_must_not_be_trusted(
    is_promised: bool, response: dict[str, str | None], text: str
) -> None:
    """RFC 9207 section 2.4, and `state`."""
    async with running(AuthorizationServer()) as server:
        server.metadata = {"authorization_response_iss_parameter_supported": is_promised}
        server.extra_response = response
        with pytest.raises(RpcError, match=text) as caught:
            await call(server, by_person())
        assert "hunter2" not in str(caught.value)
        assert "/token" not in server.paths()


@pytest.mark.requirement("DS-5", "CR-6", "CT-8", side="authorization")
@on_a_loop
async def test_another_authorization_server_means_another_registration() -> None:
    async with running(AuthorizationServer()) as old, running(AuthorizationServer()) as new:
        await call(old, by_person())
        old.resource = {"authorization_servers": [new.origin]}
        old.access.clear()
        old.access = new.access
        token, new_url = new._token, old.url

        async def accept(request: Any) -> Any:
            # The new server issues tokens for the old one's resource.
            new.origin, origin = new_url.removesuffix("/mcp"), new.origin
            try:
                return await token(request)
            finally:
                new.origin = origin

        new._token = accept  # type: ignore[method-assign]
        await call(old, by_person())
        assert new.counts["/register"] == 1
        assert old.counts["/register"] == 1
        assert stored(old).issuer == new.origin


@on_a_loop
async def test_an_empty_name_among_the_authorization_servers_is_not_chosen() -> None:
    async with running(AuthorizationServer()) as server:
        server.resource = {"authorization_servers": [server.origin, ""]}
        await call(server, by_person())
        assert stored(server).issuer == server.origin


# Refresh


@pytest.mark.requirement("CA-B", "CT-4", side="authorization")
@on_a_loop
async def test_an_expired_token_is_refreshed_before_it_is_sent() -> None:
    async with running(AuthorizationServer()) as server:
        await call(server, by_person())
        expire(server)
        before = len(server.requests)
        await call(server, None)
        assert server.paths()[before:] == ["/token", "/mcp", "/mcp"]
        assert server.of("/token")[-1].form["resource"] == server.url


def expire(server: AuthorizationServer, seconds: float = -1.0) -> None:
    store, login = LoginStore(), stored(server)
    store.save_blocking(
        login_key(server.url, "", "authorization_code"), login_expiring(login, seconds)
    )
    if seconds < 0:
        server.access.clear()


def login_expiring(login: Any, seconds: float) -> Any:
    return replace(login, expires_at=time.time() + seconds, obtained_at=time.time() - 3600)


@on_a_loop
async def test_a_refresh_ahead_of_time_that_fails_keeps_the_token() -> None:
    async with running(AuthorizationServer()) as server:
        await call(server, by_person())
        expire(server, 30)
        server.token_failure = as_json({"error": "server_error"}, 500)
        await call(server, None, times=3)
        # It is not tried again with each call.
        assert server.counts["/token"] == 2
        server.token_failure = None
        await call(server, None)
        assert server.counts["/token"] == 3


@pytest.mark.requirement("CT-4", side="authorization")
@on_a_loop
async def test_a_refused_refresh_token_is_removed_and_a_newer_one_is_kept() -> None:
    async with running(AuthorizationServer()) as server:
        await call(server, by_person())
        expire(server)
        server.refresh.clear()
        with pytest.raises(RpcError, match="concertino login"):
            await call(server, None)
        assert (stored(server).refresh_token, stored(server).access_token) == ("", "")
        assert stored(server).client.client_id == "client-1"

        # Another process logs in between the request and its refusal.
        await call(server, by_person())
        newer = stored(server)
        expire(server)
        server.refresh.clear()

        async def log_in(_: Any) -> None:
            LoginStore().save_blocking(login_key(server.url, "", "authorization_code"), newer)
            server.access[newer.access_token] = ""
            server.before_token = None

        changed = replace(login_expiring(newer, -1), refresh_token="gone")
        LoginStore().save_blocking(login_key(server.url, "", "authorization_code"), changed)
        server.before_token = log_in
        await call(server, None)
        assert stored(server).refresh_token == newer.refresh_token


@pytest.mark.requirement("AU-22", side="authorization")
@on_a_loop
async def test_no_token_is_in_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with running(AuthorizationServer()) as server:
        await call(server, by_person())
        expire(server, 30)
        server.token_failure = as_json({"error": "server_error"}, 500)
        await call(server, None)
    assert "not renewed ahead of time" in caplog.text
    assert not re.search("access-|refresh-|code-", caplog.text)
