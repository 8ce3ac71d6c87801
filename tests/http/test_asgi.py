"""A server in an application under uvicorn: by itself, and at a path of Starlette.

What no ASGI server does on purpose is tried without one.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import (
    WAIT_S,
    Answer,
    HttpService,
    Session,
    ask_modern,
    call,
    modern,
    modern_headers,
    post,
    read_event,
    request,
    text_of,
)
from loops import on_a_loop

from concertino import Context, Server
from concertino.backend import Principal
from concertino.http import AsgiApplication, Authorization, HttpOptions, SharedSessions, asgi
from concertino.http.asgi_channel import AsgiConnection
from concertino.http.connection import HttpConnection, RequestHandler

APPLICATION = '''
import asyncio
import sys

import uvicorn
from concertino import Context, Server

server = Server("shop")
waiting = asyncio.Event()


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def count(context: Context) -> str:
    """Report progress, then end."""
    for number in range(3):
        await context.progress(number, 3)
    return "counted"


@server.tool
async def wait() -> str:
    """Wait until it is cancelled, and say so in the log."""
    print("waits", file=sys.stderr, flush=True)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        print("cancelled", file=sys.stderr, flush=True)
        raise
    return "never"


@server.tool
async def release() -> str:
    """Let finish() end."""
    waiting.set()
    return "released"


@server.tool
async def finish() -> str:
    """Wait for release()."""
    print("waits", file=sys.stderr, flush=True)
    await waiting.wait()
    return "finished"


mcp = server.asgi()

if __name__ == "__main__":
    uvicorn.run(APP, fd=int(sys.argv[1]), log_level="info", access_log=False, ws="none")
'''
PLAIN = APPLICATION.replace("APP,", "mcp,")
STARLETTE = """
from starlette.applications import Starlette
from starlette.routing import Mount, Route

# The lifespan is that of one of them. The other one starts with its first request.
other = server.asgi("/other")
app = Starlette(routes=[Route("/other", other), Mount("/tools", mcp)], lifespan=mcp.lifespan)

if __name__ == "__main__":
"""
MOUNTED = APPLICATION.replace('if __name__ == "__main__":\n', STARLETTE).replace("APP,", "app,")


def start(folder: Path, source: str) -> HttpService:
    file = folder / "shop.py"
    file.write_text(source)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, str(file), str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno()],
        )
    service = HttpService(process, f"http://127.0.0.1:{port}/mcp")
    service.read_stderr_until("Uvicorn running")
    return service


def end(service: HttpService) -> None:
    service.close_connections()
    service.process.kill()
    service.process.wait()
    assert service.process.stderr is not None
    service.process.stderr.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    service = start(tmp_path_factory.mktemp("plain"), PLAIN)
    yield service
    end(service)


def test_calls_after_large_results_are_answered(service: HttpService) -> None:
    connection = service.connect()
    for text in ("x" * 1_100_000, "one", "x" * 2_000_000, "two"):
        answer = ask_modern(connection, "tools/call", name="echo", arguments={"text": text})
        assert (answer.status, text_of(answer.json)) == (200, text)


def test_a_call_is_answered(service: HttpService) -> None:
    connection = service.connect()
    for text in ("one", "two"):
        answer = ask_modern(connection, "tools/call", name="echo", arguments={"text": text})
        assert (answer.status, text_of(answer.json)) == (200, text)
        assert answer.headers["Content-Type"] == "application/json"


def test_progress_comes_as_a_stream(service: HttpService) -> None:
    answer = ask_modern(
        service.connect(),
        "tools/call",
        name="count",
        arguments={},
        _meta={"progressToken": "p"},
    )
    assert answer.headers["Content-Type"] == "text/event-stream"
    *progress, result = answer.messages
    assert [message["params"]["progress"] for message in progress] == [0, 1, 2]
    assert text_of(result) == "counted"


def test_a_client_that_leaves_cancels_its_call(service: HttpService) -> None:
    connection = service.connect()
    message = modern("tools/call", name="wait", arguments={})
    headers = {"Content-Type": "application/json", **modern_headers(message)}
    connection.request("POST", "/mcp", json.dumps(message), headers)
    service.read_stderr_until("waits")
    connection.close()
    service.read_stderr_until("cancelled")


def test_a_session_goes_on_when_its_client_has_lost_a_connection(service: HttpService) -> None:
    session = Session(service)
    connection = service.connect()
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **session.headers,
    }
    connection.request("POST", "/mcp", json.dumps(call(7, "finish")), headers)
    service.read_stderr_until("waits")
    connection.close()
    assert text_of(session.call(8, "release").json) == "released"
    # The stream of the lost request is the first one after that of `initialize`.
    stream = session.get(**{"Last-Event-ID": "2-0"})
    event = read_event(stream)
    while not event.get("data"):
        event = read_event(stream)
    assert text_of(json.loads(event["data"])) == "finished"
    assert Answer(request(session.connection, "DELETE", None, session.headers)).status == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example.com"}, 403),
        ({"Origin": "https://evil.example.com"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Accept": "text/html"}, 406),
    ],
)
def test_the_same_checks_hold(service: HttpService, headers: dict[str, str], status: int) -> None:
    message = modern("tools/list")
    assert post(service.connect(), message, {**modern_headers(message), **headers}).status == status


def test_a_large_body_in_chunks_is_read(service: HttpService) -> None:
    text = "x" * 300_000
    message = modern("tools/call", name="echo", arguments={"text": text})
    data = json.dumps(message).encode()
    pieces = (data[at : at + 65536] for at in range(0, len(data), 65536))
    connection = service.connect()
    headers = {"Content-Type": "application/json", **modern_headers(message)}
    connection.request("POST", "/mcp", pieces, headers, encode_chunked=True)
    answer = Answer(connection.getresponse())
    assert text_of(answer.json) == text


def test_a_body_above_the_limit_is_refused(service: HttpService) -> None:
    connection = service.connect()
    connection.putrequest("POST", "/mcp")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(100 * 2**20))
    connection.endheaders()
    try:
        for _ in range(100):
            connection.send(b" " * 2**20)
    except OSError:
        # The server has closed the connection while more was sent.
        pass
    try:
        assert connection.getresponse().status == 413
    except (ConnectionError, http.client.HTTPException):
        # The response was lost with the connection.
        pass
    assert ask_modern(service.connect(), "tools/list").status == 200


def test_other_paths_are_not_found(service: HttpService) -> None:
    assert Answer(request(service.connect(), "GET", path="/other")).status == 404


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/other", 404), ("/mcp", 405)])
def test_a_response_to_head_has_no_body(service: HttpService, path: str, status: int) -> None:
    connection = service.connect()
    for _ in range(2):
        answer = Answer(request(connection, "HEAD", None, {}, path))
        assert (answer.status, answer.body) == (status, b"")
        assert int(answer.headers["Content-Length"]) > 0


def test_it_is_served_below_what_it_is_mounted_at(tmp_path: Path) -> None:
    service = start(tmp_path, MOUNTED)
    try:
        for path in ("/other", "/tools/", "/tools/mcp"):
            message = modern("tools/call", name="echo", arguments={"text": "here"})
            answer = Answer(
                request(service.connect(), "POST", message, modern_headers(message), path)
            )
            assert text_of(answer.json) == "here"
    finally:
        end(service)


def test_the_end_of_the_application_ends_calls_and_sessions(tmp_path: Path) -> None:
    service = start(tmp_path, PLAIN)
    try:
        session = Session(service)
        stream = session.get()
        assert stream.status == 200
        began = time.monotonic()
        service.process.terminate()
        # uvicorn waits for open responses before it ends the lifespan.
        stream.close()
        service.close_connections()
        assert service.process.wait(WAIT_S) in (0, -15)
        assert time.monotonic() - began < WAIT_S
        assert re.search("Traceback", service.process.stderr.read()) is None
    finally:
        end(service)


async def send_over_asgi(
    mcp: AsgiApplication,
    scope: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    message: dict[str, Any] | None = None,
    on_send: Callable[[Any], object] = id,
) -> list[Any]:
    """Send a request without an ASGI server, and return the messages of the response.

    on_send: called with each message of the response.
    """
    message = message or modern("tools/list")
    usual = {"Host": "localhost", "Accept": "application/json",
             "Content-Type": "application/json", **modern_headers(message)}  # fmt: skip
    named = {**usual, **(headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    about = {"type": "http", "method": "POST", "path": "/mcp", "headers": pairs}
    messages: list[Any] = []
    body = json.dumps(message).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(outgoing: Any) -> None:
        on_send(outgoing)
        messages.append(outgoing)

    await mcp({**about, **(scope or {})}, receive, send)
    return messages


@on_a_loop
async def test_requests_that_come_during_the_start_are_answered() -> None:
    mcp = Server("shop", version="1").asgi()

    answers = await asyncio.gather(*(send_over_asgi(mcp) for _ in range(3)))

    assert [messages[0]["status"] for messages in answers] == [200] * 3
    await mcp.close()


@pytest.mark.parametrize(
    ("root_path", "path", "status"),
    [
        ("", "/mcp", 200),
        ("/api", "/api/mcp", 200),
        ("/api/", "/api/mcp/", 200),
        # As before ASGI 2.3. The mount's path may begin like that of the endpoint.
        ("/api", "/mcp", 200),
        ("/m", "/mcp", 200),
        ("/mcp", "/mcp", 200),
        ("/mcp", "/mcp/mcp", 200),
        ("/api", "/apimcp", 404),
        ("/api", "/api/other", 404),
    ],
)
@on_a_loop
async def test_the_endpoint_is_below_the_path_of_the_mount(
    root_path: str, path: str, status: int
) -> None:
    mcp = Server("shop", version="1").asgi()

    messages = await send_over_asgi(mcp, {"root_path": root_path, "path": path})

    assert messages[0]["status"] == status
    await mcp.close()


@on_a_loop
async def test_the_usual_response_has_the_headers_of_an_http_server() -> None:
    mcp = Server("shop", version="1").asgi(options=HttpOptions(origins=("https://page.example",)))

    start, body = await send_over_asgi(mcp, headers={"Origin": "https://page.example"})

    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"cache-control": b"no-store",
        b"content-length": str(len(body["body"])).encode(),
        b"access-control-allow-origin": b"https://page.example",
        b"access-control-expose-headers": b"Mcp-Session-Id, WWW-Authenticate",
        b"vary": b"Origin",
    }
    assert not body["more_body"]
    await mcp.close()


@on_a_loop
async def test_a_middleware_may_change_the_headers_of_a_response() -> None:
    mcp = Server("shop", version="1").asgi()

    first, _ = await send_over_asgi(mcp)
    first["headers"].append((b"x-request-id", b"1"))
    second, _ = await send_over_asgi(mcp)

    assert b"x-request-id" not in dict(second["headers"])
    await mcp.close()


@pytest.mark.parametrize("text", ["short", "long" * 10_000])
@on_a_loop
async def test_a_call_is_answered_while_the_application_ends(text: str) -> None:
    server = Server("shop", version="1")
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    @server.tool
    async def wait() -> str:
        """Wait until the application ends."""
        has_begun.set()
        await may_end.wait()
        return text

    mcp = server.asgi()
    message = modern("tools/call", name="wait", arguments={})
    answering = asyncio.ensure_future(send_over_asgi(mcp, message=message))
    await has_begun.wait()
    closing = asyncio.ensure_future(mcp.close())
    await asyncio.sleep(0)
    may_end.set()

    start, *parts = await answering

    assert start["status"] == 200
    assert text_of(json.loads(b"".join(part["body"] for part in parts))) == text
    await closing


@on_a_loop
async def test_a_stream_ends_although_the_asgi_server_never_lets_it_wait() -> None:
    server = Server("shop", version="1")

    @server.tool
    async def count(context: Context) -> str:
        """Report progress, then end."""
        for number in range(4):
            await context.progress(number, 4)
            await asyncio.sleep(0)
        return "counted"

    mcp = server.asgi()
    message = modern("tools/call", name="count", arguments={}, _meta={"progressToken": 1})

    async with asyncio.timeout(WAIT_S):
        _, *events = await send_over_asgi(
            mcp, headers={"Accept": "application/json, text/event-stream"}, message=message
        )

    assert b"counted" in events[-1]["body"]
    assert not events[-1]["more_body"]
    await mcp.close()


@pytest.mark.parametrize("size", [100, 10_000])
@on_a_loop
async def test_a_result_counts_as_unread_until_the_asgi_server_takes_it(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[HttpConnection] = []

    class RecordedConnection(AsgiConnection):
        def __init__(self, handler: RequestHandler) -> None:
            super().__init__(handler)
            connections.append(self)

    monkeypatch.setattr(asgi, "AsgiConnection", RecordedConnection)
    server = Server("shop", version="1")

    @server.tool
    async def fill() -> str:
        """Return a text."""
        return "x" * size

    mcp = server.asgi()
    unread: list[int] = []

    def note(_: object) -> None:
        unread.append(connections[0].unread_bytes)

    for _ in range(2):
        await send_over_asgi(
            mcp, message=modern("tools/call", name="fill", arguments={}), on_send=note
        )

    (connection,) = connections
    assert connection.unread_bytes == 0
    assert [held > size for held in unread] == [size > 4096, False] * 2
    await mcp.close()


WITHOUT_NATS = SharedSessions("nats://127.0.0.1:1", "127.0.0.1:0", "/nonexistent")


@on_a_loop
async def test_options_that_cannot_be_used_fail_each_request_and_the_lifespan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mcp = Server("shop", version="1").asgi(options=HttpOptions(shared_sessions=WITHOUT_NATS))
    errors: list[ValueError] = []
    for pause_s in (60.0, 60.0, 0.0):
        monkeypatch.setattr(asgi, "RETRY_S", pause_s)
        with pytest.raises(ValueError, match="nonexistent") as caught:
            await send_over_asgi(mcp)
        errors.append(caught.value)
    # A start that has failed is tried again after a pause, and not for each request.
    assert errors[0] is errors[1]
    assert errors[1] is not errors[2]
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(outgoing: Any) -> None:
        messages.append(outgoing)

    await mcp({"type": "lifespan"}, receive, send)

    (failed,) = messages
    assert failed["type"] == "lifespan.startup.failed"
    assert "nonexistent" in failed["message"]


@pytest.mark.parametrize(
    ("client", "status"),
    [
        # A trusted proxy says that the client has sent its token without TLS.
        (("10.0.0.1", 4711), 403),
        (("192.0.2.7", 4711), 200),
        # Such as from `uvicorn --uds`: an ASGI server need not know the client.
        (None, 200),
    ],
)
@on_a_loop
async def test_proxies_are_trusted_by_the_address_that_the_asgi_server_names(
    client: tuple[str, int] | None, status: int
) -> None:
    options = HttpOptions(
        authorization=Authorization((Principal,)),
        public_url="https://mcp.example",
        behind_proxy=True,
        trusted_proxies=("10.0.0.0/8",),
    )
    mcp = Server("shop", version="1").asgi(options=options)

    messages = await send_over_asgi(
        mcp, {"client": client}, {"Authorization": "Bearer t", "X-Forwarded-Proto": "http"}
    )

    assert messages[0]["status"] == status
    await mcp.close()


class AnnVerifier:
    """Accepts each token as ann's."""

    issuers = ("https://as.example",)

    def verify(self, token: str) -> Principal:
        return Principal("ann", self.issuers[0])


@on_a_loop
async def test_the_metadata_of_a_mounted_server_are_outside_of_the_mount() -> None:
    options = HttpOptions(
        authorization=Authorization((AnnVerifier(),)), public_url="https://mcp.example/tools"
    )
    mcp = Server("shop", version="1").asgi(options=options)
    host = {"Host": "mcp.example"}
    path = "/.well-known/oauth-protected-resource/tools"

    start, _ = await send_over_asgi(mcp, {"root_path": "/tools", "path": "/tools/"}, host)
    found, body = await send_over_asgi(mcp, {"path": path, "method": "GET"}, host)

    assert start["status"] == 401
    challenge = dict(start["headers"])[b"www-authenticate"].decode()
    assert f'resource_metadata="https://mcp.example{path}"' in challenge
    assert found["status"] == 200
    assert json.loads(body["body"])["resource"] == "https://mcp.example/tools"
    await mcp.close()
