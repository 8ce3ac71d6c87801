"""The endpoints of 2024-11-05: a real server, raw requests. Rows HX-1 to HX-6 of HTTP.md."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import Answer, HttpService, call, post, read_event, request, serving, text_of

SERVER = Path(__file__).with_name("server_for_http.py")


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def service(request: pytest.FixtureRequest) -> Iterator[HttpService]:
    with serving(SERVER, "--http-sse", *request.param) as running:
        if request.param:
            running.read_stderr_until("2 workers serve")
        yield running


class OldClient:
    """A client of 2024-11-05."""

    def __init__(self, service: HttpService, path: str = "/sse", **headers: str) -> None:
        self.service = service
        self.headers = headers
        self.connection = service.connect()
        wanted = {"Accept": "text/event-stream", **headers}
        self.stream = request(self.connection, "GET", None, wanted, path)
        assert self.stream.status == 200
        assert self.stream.headers["Content-Type"] == "text/event-stream"
        first = read_event(self.stream)
        assert first["event"] == "endpoint"
        self.path = first["data"]

    def send(self, message: Any, **headers: str) -> Answer:
        given = {**self.headers, **headers}
        return Answer(request(self.service.connect(), "POST", message, given, self.path))

    def read(self) -> Any:
        event = read_event(self.stream)
        assert event["event"] == "message"
        return json.loads(event["data"])

    def initialize(self) -> Any:
        params = {
            "protocolVersion": "2024-11-05",
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "old", "version": "1"},
        }
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        answer = self.send(message)
        assert (answer.status, answer.body) == (202, b"")
        opened = self.read()
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return opened

    def close(self) -> None:
        self.stream.close()
        self.connection.close()


def test_a_session_from_its_beginning_to_its_end(service: HttpService) -> None:
    client = OldClient(service)
    # Unguessable: 128 bits.
    assert client.path.startswith("/messages?session_id=")
    assert len(client.path.partition("=")[2]) >= 32

    assert client.initialize()["result"]["protocolVersion"] == "2024-11-05"
    assert client.send(call(1, "add", a=1, b=2)).status == 202
    assert text_of(client.read()) == "3"
    client.send(call(2, "count", {"progressToken": "t"}))
    assert [client.read().get("method") for _ in range(3)] == ["notifications/progress"] * 2 + [
        None
    ]

    # The end of the stream cancels what is under way, and is the end of the session.
    client.send(call(3, "wait"))
    service.read_stderr_until("waiting")
    client.close()
    service.read_stderr_until("wait was cancelled")
    answer = client.send({"jsonrpc": "2.0", "id": 4, "method": "ping"})
    assert answer.status == 404


def test_the_server_can_ask_the_client(tmp_path: Path) -> None:
    source = """
from concertino import Context, Server

server = Server("asking")


@server.tool
async def roots(context: Context) -> list[str]:
    return [root.uri for root in await context.roots()]
"""
    path = tmp_path / "asking.py"
    path.write_text(source)
    with serving(path, "--http-sse") as service:
        client = OldClient(service)
        client.initialize()
        client.send(call(1, "roots"))
        question = client.read()
        assert question["method"] == "roots/list"
        result = {"roots": [{"uri": "file:///a"}]}
        client.send({"jsonrpc": "2.0", "id": question["id"], "result": result})

        assert "file:///a" in json.dumps(client.read())
        client.close()


def test_sessions_do_not_mix(service: HttpService) -> None:
    first, second = OldClient(service), OldClient(service)
    assert first.path != second.path
    for number, client in enumerate((first, second)):
        client.initialize()
        client.send(call(1, "add", a=number, b=10))
    assert [text_of(client.read()) for client in (first, second)] == ["10", "11"]
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/sse", {}, 405),
        ("GET", "/messages", {"Accept": "text/event-stream"}, 405),
        ("GET", "/sse", {"Accept": "application/json"}, 406),
        ("GET", "/sse", {"Accept": "text/event-stream", "Origin": "https://evil.example"}, 403),
        ("GET", "/sse", {"Accept": "text/event-stream", "Host": "evil.example"}, 403),
        ("POST", "/messages", {}, 404),
        ("POST", "/messages?session_id=0", {}, 404),
        ("POST", "/messages?session_id=0", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_what_is_refused(
    service: HttpService, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"} if method == "POST" else None

    assert Answer(request(service.connect(), method, body, headers, path)).status == status


def test_malformed_messages_are_answered_on_the_stream(service: HttpService) -> None:
    client = OldClient(service)
    assert client.send(b"{").status == 202
    assert client.read()["error"]["code"] == -32700
    client.close()


def test_without_the_option_there_are_no_such_paths() -> None:
    with serving(SERVER) as service:
        wanted = {"Accept": "text/event-stream"}
        assert Answer(request(service.connect(), "GET", None, wanted, "/sse")).status == 404
        assert post(service.connect(), {}).status == 400


def test_a_session_belongs_to_its_principal() -> None:
    verifier = Path(__file__).with_name("verifier_for_http.py")
    with serving(SERVER, "--http-sse", "--auth", f"{verifier}:verify") as service:
        bearer = {"Authorization": "Bearer good-ada"}
        client = OldClient(service, **bearer)
        client.initialize()
        client.send(call(1, "whoami"))
        assert text_of(client.read()) == "good-ada"

        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert client.send(ping, Authorization="Bearer good-bob").status == 404
        assert client.send(ping, Authorization="Bearer bad").status == 401
        client.close()
        answer = request(service.connect(), "GET", None, {"Accept": "text/event-stream"}, "/sse")
        assert answer.status == 401


def test_the_end_of_the_server_ends_the_streams() -> None:
    with serving(SERVER, "--http-sse") as service:
        client = OldClient(service)
        client.initialize()

        service.end()

        # A complete response: an incomplete one would raise.
        assert client.stream.read() == b""
        assert service.process.returncode == 0


APPLICATION = """
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from concertino import Server
from concertino.http import HttpOptions

server = Server("mounted")


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


mcp = server.asgi(options=HttpOptions(sse=True))
app = Starlette(routes=[Mount("/tools", mcp)])

if __name__ == "__main__":
    target = {"alone": mcp, "mounted": app}[sys.argv[1]]
    uvicorn.run(target, fd=int(sys.argv[2]), access_log=False, ws="none")
"""


@pytest.mark.parametrize(("target", "prefix"), [("alone", ""), ("mounted", "/tools")])
def test_an_asgi_application_serves_both_endpoints(
    target: str, prefix: str, tmp_path: Path
) -> None:
    file = tmp_path / "app.py"
    file.write_text(APPLICATION)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, str(file), target, str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno()],
        )
        port = listener.getsockname()[1]
    service = HttpService(process, f"http://127.0.0.1:{port}/mcp")
    try:
        service.read_stderr_until("Uvicorn running")
        client = OldClient(service, path=f"{prefix}/sse")
        assert client.path.startswith(f"{prefix}/messages?session_id=")
        assert client.initialize()["result"]["protocolVersion"] == "2024-11-05"
        client.send(call(1, "add", a=1, b=2))
        assert text_of(client.read()) == "3"
        client.close()
    finally:
        service.close_connections()
        process.kill()
        process.communicate()
