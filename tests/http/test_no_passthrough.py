"""A proxy behind authorization: its server gets nothing of the HTTP requests of a caller."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from authorization_server import AuthorizationServer, Request, Response, as_json, running
from http_service import INITIALIZE, INITIALIZED, modern, modern_headers, post
from loops import on_a_loop

from concertino.authorization import OAuth
from concertino.backend import Host, Principal
from concertino.client import HttpParameters
from concertino.http import Authorization, HttpOptions, HttpServer
from concertino.proxy import Proxy
from concertino.transports import listen_tcp

MARK = "of-the-caller"
# Whatever a browser, another proxy or a program may send.
HEADERS = {
    "Authorization": f"Bearer {MARK}",
    "Cookie": f"session={MARK}",
    "Forwarded": f"for={MARK}",
    "Last-Event-ID": MARK,
    "Proxy-Authorization": f"Basic {MARK}",
    "Referer": f"https://example.com/{MARK}",
    "Traceparent": MARK,
    "User-Agent": MARK,
    "X-Api-Key": MARK,
    "X-Forwarded-For": MARK,
    "Mcp-Param-Region": MARK,
    "Mcp-Other": MARK,
}
# What the proxy says by itself, to the server and to the authorization server.
EXPECTED = {
    "accept", "authorization", "connection", "content-length", "content-type", "host",
    "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id",
}  # fmt: skip
TEXT = {"content": [{"type": "text", "text": "ok"}]}


class Upstream(AuthorizationServer):
    """A server that redirects, asks for a token, and in 2025-11-25 breaks off its streams.

    called: the id of the newest call, in 2025-11-25.
    """

    called: object = None

    async def answer(self, request: Request) -> Response:
        if request.path == "/mcp":
            self.requests.append(request)
            return 307, {"Location": "/moved"}, b""
        if request.path != "/moved":
            return await super().answer(request)
        self.requests.append(request)
        message = json.loads(request.body or b"{}")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.access or "io.modelcontextprotocol" in request.body.decode():
            return await self._mcp(request)
        stream = {"Content-Type": "text/event-stream"}
        if request.method == "GET" and "last-event-id" in request.headers:
            response = json.dumps({"jsonrpc": "2.0", "id": self.called, "result": TEXT})
            return 200, stream, f"data: {response}\n\n".encode()
        if message.get("method") == "initialize":
            info = {"name": "upstream", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            response = {"jsonrpc": "2.0", "id": message["id"]}
            status, headers, body = as_json(response | {"result": {**result, "serverInfo": info}})
            return status, {**headers, "Mcp-Session-Id": "of-the-proxy"}, body
        if message.get("method") == "tools/call":
            self.called = message["id"]
            return 200, stream, b"id: e1\nretry: 0\ndata:\n\n"
        return (202 if "method" in message else 405), {}, b""


def verify(token: str) -> Principal | None:
    return Principal("ada") if token == MARK else None


@asynccontextmanager
async def calling(proxy: Proxy) -> AsyncIterator[tuple[str, int]]:
    """Serve a proxy over HTTP behind tokens, and provide its address."""
    listener = listen_tcp("127.0.0.1", 0)
    options = HttpOptions(authorization=Authorization((verify,)))
    async with Host(proxy) as host:
        http = HttpServer(host, [listener], options)
        await http.start()
        yield "127.0.0.1", listener.socket.getsockname()[1]
        host.drain()
        http.stop()
        await http.closed


def call_tool(address: tuple[str, int], revision: str) -> Any:
    """Call a tool of the proxy, with all HEADERS, and return the result."""
    connection = HTTPConnection(*address, timeout=20)
    try:
        if revision == "2026-07-28":
            message = modern("tools/call", name="t", arguments={})
            answer = post(connection, message, {**HEADERS, **modern_headers(message)})
        else:
            opened = post(connection, INITIALIZE, HEADERS)
            session = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
            headers = {**HEADERS, **session, "MCP-Protocol-Version": revision}
            post(connection, INITIALIZED, headers)
            params = {"name": "t", "arguments": {}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = post(connection, message, headers)
        assert answer.status == 200, answer.body
        [message] = answer.messages or [answer.json]
        return message["result"]
    finally:
        connection.close()


@pytest.mark.requirement("RS-12", side="authorization")
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@on_a_loop
async def test_nothing_of_a_caller_s_request_reaches_a_server_at_a_url(
    revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with running(Upstream()) as upstream:
        auth = OAuth(client_id="known", client_secret="s3cr:t/ü", grant="client_credentials")
        target = HttpParameters(upstream.url, auth=auth)
        proxy = Proxy(target, era="modern" if revision == "2026-07-28" else "legacy")
        async with calling(proxy) as address:
            result = await asyncio.to_thread(call_tool, address, revision)
            assert result["content"] == TEXT["content"]

    seen = {(request.method, request.path) for request in upstream.requests}
    assert seen >= {("POST", "/mcp"), ("POST", "/moved"), ("POST", "/token")}
    assert ("GET", "/.well-known/oauth-protected-resource/mcp") in seen
    resumed = [item for item in upstream.requests if "last-event-id" in item.headers]
    assert [item.headers["last-event-id"] for item in resumed] == ["e1"] * (revision < "2026")
    for request in upstream.requests:
        assert request.headers.keys() <= EXPECTED
        assert MARK not in str(request.headers) + str(request.query)
        assert MARK.encode() not in request.body


@on_a_loop
async def test_nothing_of_a_caller_s_request_reaches_a_server_of_stdin_and_stdout(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    program = tmp_path / "server.py"
    program.write_text(
        "import json, os, sys\n"
        f"log = open({str(log)!r}, 'w', buffering=1)\n"
        "log.write(f'{sys.argv} {dict(os.environ)}')\n"
        "for line in sys.stdin:\n"
        "    log.write(line)\n"
        "    message = json.loads(line)\n"
        "    result = {'resultType': 'complete', 'content': []}\n"
        "    if message['method'] == 'server/discover':\n"
        "        result = {'resultType': 'complete', 'supportedVersions': ['2026-07-28'],\n"
        "            'capabilities': {'tools': {}}, 'ttlMs': 0, 'cacheScope': 'private'}\n"
        "    if 'id' in message:\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': result}),\n"
        "            flush=True)\n"
    )
    async with calling(Proxy([sys.executable, str(program)])) as address:
        result = await asyncio.to_thread(call_tool, address, "2026-07-28")
        assert result["content"] == []
    assert "tools/call" in log.read_text()
    assert MARK not in log.read_text()
