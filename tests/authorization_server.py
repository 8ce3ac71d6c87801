"""An MCP server and its authorization server in one process of asyncio, for tests of clients.

The authorization server keeps to the strict rules: PKCE, exact redirects, refresh tokens that are
valid once, and the end of a login whose old refresh token is shown again. What happens is counted.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

Response = tuple[int, dict[str, str], bytes]
MODERN = "2026-07-28"


class Request:
    """A request as a server got it. headers: by lower-case name. peer_port: of its sender."""

    def __init__(
        self, method: str, target: str, headers: dict[str, str], body: bytes, peer_port: int
    ) -> None:
        self.peer_port = peer_port
        parts = urlsplit(target)
        self.method = method
        self.path = parts.path
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.headers = headers
        self.body = body

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


def as_json(value: Any, status: int = 200) -> Response:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


class AuthorizationServer:
    """Both servers. Tests change its attributes.

    Attributes:
    requests: all requests, in order.
    lifetime_s: of access tokens. 0: those are not accepted either, as if it had passed.
    needed_scopes: what a call needs; a token without them gets 403.
    has_registration: whether clients can register.
    has_metadata: whether the two documents exist, and the challenge names the first one. Without,
        it is a server of 2025-03-26.
    metadata, resource: members of the two documents that replace the usual ones; None removes one.
    extra_response: parameters of the response to the login that replace the usual ones.
    before_token: awaited before a request for tokens is handled.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.requests: list[Request] = []
        self.counts: Counter[str] = Counter()
        self.lifetime_s = 3600.0
        self.needed_scopes: set[str] = set()
        self.challenge_scopes = ""
        self.has_registration = True
        self.has_metadata = True
        self.metadata: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.extra_response: dict[str, str | None] = {}
        self.before_token: Callable[[Request], Awaitable[None]] | None = None
        self.token_failure: Response | None = None
        self.clients: dict[str, str] = {"known": "s3cr:t/ü"}
        self.codes: dict[str, dict[str, str]] = {}
        self.access: dict[str, str] = {}
        self.refresh: dict[str, str] = {}
        self.used_refresh: set[str] = set()
        self.device_polls = 0
        self.reuses = 0
        self._number = 0

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def of(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        self.counts[request.path] += 1
        handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/mcp": self._mcp,
            "/.well-known/oauth-protected-resource/mcp": self._describe_resource,
            "/.well-known/oauth-authorization-server": self._describe_issuer,
            "/register": self._register,
            "/authorize": self._authorize,
            "/device": self._device,
            "/token": self._token,
            "/revoke": self._revoke,
        }
        handler = handlers.get(request.path)
        if request.path.startswith("/.well-known/") and not self.has_metadata:
            handler = None
        return (404, {}, b"") if handler is None else await handler(request)

    # The MCP server

    async def _mcp(self, request: Request) -> Response:
        if request.method != "POST":
            return 405, {}, b""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        metadata = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
        if token not in self.access and not self.has_metadata:
            return 401, {"WWW-Authenticate": "Bearer"}, b""
        if token not in self.access:
            scope = f', scope="{self.challenge_scopes}"' if self.challenge_scopes else ""
            return 401, {"WWW-Authenticate": f"Bearer {metadata}{scope}"}, b""
        message = json.loads(request.body)
        missing = self.needed_scopes - set(self.access[token].split())
        if missing and message["method"] == "tools/call":
            scope = f'scope="{" ".join(sorted(missing))}"'
            challenge = f'Bearer error="insufficient_scope", {scope}, {metadata}'
            return 403, {"WWW-Authenticate": challenge}, b""
        value: dict[str, Any] = {"resultType": "complete"}
        if message["method"] == "server/discover":
            value |= {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            value |= {"ttlMs": 0, "cacheScope": "private"}
        else:
            value["content"] = [{"type": "text", "text": "ok"}]
        return as_json({"jsonrpc": "2.0", "id": message["id"], "result": value})

    # Documents

    async def _describe_resource(self, _: Request) -> Response:
        value = {"resource": self.url, "authorization_servers": [self.origin], **self.resource}
        return as_json({name: item for name, item in value.items() if item is not None})

    async def _describe_issuer(self, _: Request) -> Response:
        value = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "revocation_endpoint": f"{self.origin}/revoke",
            "device_authorization_endpoint": f"{self.origin}/device",
            "registration_endpoint": f"{self.origin}/register" if self.has_registration else None,
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            **self.metadata,
        }
        return as_json({name: item for name, item in value.items() if item is not None})

    # The authorization server

    async def _register(self, request: Request) -> Response:
        if not self.has_registration:
            return 404, {}, b""
        self._number += 1
        id = f"client-{self._number}"
        self.clients[id] = ""
        return as_json({"client_id": id, **json.loads(request.body)}, 201)

    async def _authorize(self, request: Request) -> Response:
        query = request.query
        self._number += 1
        code = f"code-{self._number}"
        self.codes[code] = query
        response: dict[str, str | None] = {"code": code, "state": query["state"]}
        response |= self.extra_response
        fields = {name: value for name, value in response.items() if value is not None}
        return 302, {"Location": f"{query['redirect_uri']}?{urlencode(fields)}"}, b""

    async def _device(self, _: Request) -> Response:
        return as_json(
            {
                "device_code": "device-1",
                "user_code": "ABCD-EFGH",
                "verification_uri": f"{self.origin}/pair",
                "expires_in": 60,
                "interval": 0,
            }
        )

    def _client_of(self, request: Request) -> str | None:
        """The client that a request shows, if its secret is right."""
        header = request.headers.get("authorization", "")
        if header.startswith("Basic "):
            words = base64.b64decode(header.removeprefix("Basic ")).decode()
            id, secret = (unquote(word) for word in words.split(":"))
        else:
            id, secret = request.form.get("client_id", ""), ""
        return id if self.clients.get(id) == secret else None

    async def _token(self, request: Request) -> Response:
        if self.before_token is not None:
            await self.before_token(request)
        if self.token_failure is not None:
            return self.token_failure
        form = request.form
        if self._client_of(request) is None and not form.get("client_assertion"):
            return as_json({"error": "invalid_client"}, 401)
        if form.get("resource") != self.url:
            return as_json({"error": "invalid_target"}, 400)
        grants: dict[str, Callable[[dict[str, str]], Response]] = {
            "authorization_code": self._by_code,
            "refresh_token": self._by_refresh,
            "client_credentials": lambda form: self._issue(form.get("scope", ""), False),
            "urn:ietf:params:oauth:grant-type:device_code": self._by_device,
        }
        return grants[form["grant_type"]](form)

    def _by_code(self, form: dict[str, str]) -> Response:
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            asked is None
            or asked["code_challenge"] != challenge
            or asked["redirect_uri"] != form["redirect_uri"]
        ):
            return as_json({"error": "invalid_grant"}, 400)
        return self._issue(asked.get("scope", ""))

    def _by_device(self, form: dict[str, str]) -> Response:
        self.device_polls += 1
        if self.device_polls < 2:
            return as_json({"error": "authorization_pending"}, 400)
        return self._issue(form.get("scope", ""))

    def _by_refresh(self, form: dict[str, str]) -> Response:
        token = form["refresh_token"]
        if token in self.used_refresh:
            # Somebody has copied it: the whole login ends.
            self.reuses += 1
            self.access.clear()
            self.refresh.clear()
        if token not in self.refresh:
            return as_json({"error": "invalid_grant", "error_description": "unknown"}, 400)
        self.used_refresh.add(token)
        return self._issue(self.refresh.pop(token))

    def _issue(self, scopes: str, has_refresh: bool = True) -> Response:
        self._number += 1
        value: dict[str, Any] = {
            "access_token": f"access-{self._number}-{'x' * 20}",
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
            "scope": scopes,
        }
        if self.lifetime_s > 0:
            self.access[value["access_token"]] = scopes
        if has_refresh:
            value["refresh_token"] = f"refresh-{self._number}-{'y' * 20}"
            self.refresh[value["refresh_token"]] = scopes
        return as_json(value)

    async def _revoke(self, request: Request) -> Response:
        self.refresh.pop(request.form["token"], None)
        return 200, {}, b""


@asynccontextmanager
async def running(server: AuthorizationServer) -> AsyncGenerator[AuthorizationServer]:
    """Serve at a free port. A response ends its connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.split("\r\n")
            pairs = (item.partition(":") for item in lines if item)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = line.split(" ")
            port = writer.get_extra_info("peername")[1]
            request = Request(method, target, headers, body, port)
            status, extra, content = await server.answer(request)
            extra = {**extra, "Content-Length": str(len(content)), "Connection": "close"}
            text = "".join(f"{name}: {value}\r\n" for name, value in extra.items())
            writer.write(f"HTTP/1.1 {status} X\r\n{text}\r\n".encode() + content)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        server.origin = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server
