"""Real HTTP servers for tests, and a client that speaks HTTP through the standard library."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warm_commands import start_python

MODERN = "2026-07-28"
BOTH = "application/json, text/event-stream"
WAIT_S = 30.0  # an upper bound, reached only by what is broken
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class HttpService:
    """A server process. url: that of its MCP endpoint."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        self._connections: list[http.client.HTTPConnection] = []

    def connect(self) -> http.client.HTTPConnection:
        """A new connection, which is closed at the end of the service."""
        connection = http.client.HTTPConnection(*self.address, timeout=WAIT_S)
        self._connections.append(connection)
        return connection

    def close_connections(self) -> None:
        for connection in self._connections:
            connection.close()

    def read_stderr_until(self, text: str) -> str:
        assert self.process.stderr is not None
        lines: list[str] = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} not in {''.join(lines)}")

    def end(self) -> str:
        """End the server, and return what it has written to stderr since."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=WAIT_S)
        return errors


@contextmanager
def serving(target: Path | str, *options: str, **variables: str) -> Iterator[HttpService]:
    """A server behind `concertino serve TARGET --http`, on a free port."""
    address = [] if "--http" in options else ["--http", "127.0.0.1:0"]
    process = start_python(
        [sys.executable, "-m", "concertino", "serve", str(target), *address, *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.search(r"Listening on (https?://\S+|unix:\S+)", line):
                url = match[1] if match[1].startswith("http") else "http://localhost:1/mcp"
                service = HttpService(process, url)
                try:
                    yield service
                finally:
                    service.close_connections()
                break
        else:
            raise AssertionError("the server has ended before it listened")
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


class Answer:
    """A response that was read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, str]]:
        return parse_events(self.body)

    @property
    def messages(self) -> list[Any]:
        return [json.loads(event["data"]) for event in self.events if event.get("data")]


def parse_events(body: bytes) -> list[dict[str, str]]:
    """Server-sent events by the rules of the WHATWG, as far as a server of ours can send them."""
    events: list[dict[str, str]] = []
    for block in re.split(r"(?:\r\n|\n|\r){2}", body.decode()):
        fields: dict[str, str] = {}
        for line in re.split(r"\r\n|\n|\r", block):
            name, colon, value = line.partition(":")
            if colon and name:
                fields[name] = value.removeprefix(" ")
        if fields:
            events.append(fields)
    return events


def request(
    connection: http.client.HTTPConnection,
    method: str,
    body: object = None,
    headers: Mapping[str, str] = {},
    path: str = "/mcp",
) -> http.client.HTTPResponse:
    """Send a request, and return the response before its body is read."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    usual = {"Content-Type": "application/json", "Accept": BOTH} if method == "POST" else {}
    chosen = {name: value for name, value in {**usual, **headers}.items() if value}
    connection.request(method, path, data, chosen)
    return connection.getresponse()


def post(
    connection: http.client.HTTPConnection, body: object, headers: Mapping[str, str] = {}
) -> Answer:
    return Answer(request(connection, "POST", body, headers))


def modern(method: str, id: int = 1, **params: Any) -> dict[str, Any]:
    """A request of 2026-07-28."""
    meta = {**META, **params.pop("_meta", {})}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}}


def modern_headers(message: Mapping[str, Any]) -> dict[str, str]:
    """The headers that a client of 2026-07-28 has to send with a request."""
    params = message["params"]
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": message["method"]}
    name = params.get("uri") if message["method"] == "resources/read" else params.get("name")
    return headers if name is None else {**headers, "Mcp-Name": name}


def ask_modern(connection: http.client.HTTPConnection, method: str, **params: Any) -> Answer:
    message = modern(method, **params)
    return post(connection, message, modern_headers(message))


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Session:
    """A session of a revision before 2026-07-28, on one connection for POSTs."""

    def __init__(self, service: HttpService, revision: str = "2025-11-25") -> None:
        self.service = service
        self.connection = service.connect()
        self.opened = post(
            self.connection,
            {
                "jsonrpc": "2.0",
                "id": 0,
                "method": "initialize",
                "params": {
                    "protocolVersion": revision,
                    "capabilities": {"elicitation": {}},
                    "clientInfo": {"name": "test", "version": "1"},
                },
            },
        )
        assert self.opened.status == 200, self.opened.body
        self.headers = {
            "Mcp-Session-Id": self.opened.headers["Mcp-Session-Id"],
            "MCP-Protocol-Version": revision,
        }
        assert self.post(INITIALIZED).status == 202

    def post(self, body: object, **headers: str) -> Answer:
        return post(self.connection, body, {**self.headers, **headers})

    def call(self, id: int, name: str, meta: object = None, **arguments: Any) -> Answer:
        return self.post(call(id, name, meta, **arguments))

    def get(self, **headers: str) -> http.client.HTTPResponse:
        """Open a stream on a connection of its own."""
        wanted = {"Accept": "text/event-stream", **self.headers, **headers}
        return request(self.service.connect(), "GET", None, wanted)


def call(id: int, name: str, meta: object = None, **arguments: Any) -> dict[str, Any]:
    """A tools/call of a revision before 2026-07-28."""
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if meta is not None:
        params["_meta"] = meta
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def read_event(response: http.client.HTTPResponse) -> dict[str, str]:
    """Read the next event of a stream, without comments."""
    block = b""
    while True:
        line = response.readline()
        assert line, f"the stream has ended after {block!r}"
        block += line
        if line in (b"\n", b"\r\n"):
            events = parse_events(block)
            if events:
                return events[0]
            block = b""


def text_of(message: Any) -> str:
    """The text of a tool's result."""
    (block,) = message["result"]["content"]
    text: str = block["text"]
    return text
