"""Clients of servers over HTTP: a real server in both eras, and servers that answer by a script.

Rows of ../shared/spec/HTTP.md in parentheses.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from http_service import HttpService, serving
from loops import on_a_loop

from concertino import Client, Disconnected, RpcError
from concertino.client import HttpParameters
from concertino.client.targets import NEW_SESSION
from concertino.errors import ProtocolError
from concertino.http_client import event_stream
from concertino.http_client.connection import StreamableHttpConnection
from concertino.http_client.credentials import Refusal
from concertino.http_client.exchange import ClientExchange
from concertino.http_client.request_sender import RequestSender
from concertino.http_client.server_url import parse_url
from concertino.jsonrpc.limits import Limits

SERVER = Path(__file__).parent.parent / "http" / "server_for_http.py"
ERAS: list[Literal["modern", "legacy"]] = ["modern", "legacy"]
MODERN = "2026-07-28"


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER) as running:
        yield running


@pytest.mark.parametrize("era", ERAS)
@on_a_loop
async def test_calls_progress_and_questions_in_both_eras(
    service: HttpService, era: Literal["modern", "legacy"]
) -> None:
    seen: list[float] = []

    def report(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    async with Client(service.url, era=era, elicit=lambda *_: {"name": "Ada"}) as client:
        assert client.server_info.name == "http-tests"
        assert "add" in [tool.name for tool in await client.list_tools()]
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        assert await client.call_tool("count", progress=report, into=str) == "counted"
        assert await client.call_tool("ask", into=str) == "hello Ada"

    assert seen == [1, 2]


@pytest.mark.parametrize("era", ERAS)
@on_a_loop
async def test_many_calls_at_once(service: HttpService, era: Literal["modern", "legacy"]) -> None:
    async with Client(service.url, era=era) as client:
        calls = [client.call_tool("add", {"a": i, "b": 1}, into=int) for i in range(40)]
        assert await asyncio.gather(*calls) == list(range(1, 41))


@pytest.mark.parametrize("era", ERAS)
@on_a_loop
async def test_a_cancelled_call_is_cancelled_at_the_server(
    service: HttpService, era: Literal["modern", "legacy"]
) -> None:
    started = asyncio.Event()

    def report(done: float, total: float | None, message: str | None) -> None:
        started.set()

    async with Client(service.url, era=era) as client:
        call = asyncio.create_task(client.call_tool("wait", progress=report))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # The connection goes on.
        assert await client.call_tool("add", {"a": 1, "b": 1}, into=int) == 2
        await asyncio.to_thread(service.read_stderr_until, "wait was cancelled")


@on_a_loop
async def test_a_server_that_nobody_runs_is_an_error_at_the_start() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()

    with pytest.raises(Disconnected, match=f"http://127.0.0.1:{port}/mcp"):
        async with Client(f"http://127.0.0.1:{port}/mcp"):
            pass


class Request:
    """A request as the scripted server got it. headers: by lower-case name."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.message: dict[str, Any] = json.loads(body) if body else {}

    @property
    def rpc(self) -> str:
        return self.message.get("method", self.method)


Script = Callable[[Request], Awaitable[bytes]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncGenerator[tuple[str, list[Request]]]:
    """A server that answers each request with the bytes that the script returns.

    Each response ends its connection. Yields the URL, and the requests so far.
    """
    requests: list[Request] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.split("\r\n")
            pairs = (item.partition(":") for item in lines if item)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = line.split(" ")
            request = Request(method, path, headers, body)
            requests.append(request)
            writer.write(await script(request))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", requests


def plain(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    length = f"Content-Length: {len(body)}\r\nConnection: close\r\n"
    return f"HTTP/1.1 {status}\r\n{lines}{length}\r\n".encode() + body


def result(request: Request, value: dict[str, Any], *headers: str) -> bytes:
    # Indented, as some servers send it.
    message = {"jsonrpc": "2.0", "id": request.message["id"], "result": value}
    body = json.dumps(message, indent=1).encode()
    return plain("200 OK", body, "Content-Type: application/json", *headers)


def stream(*events: bytes) -> bytes:
    """A stream that ends with its connection."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(events)


DISCOVERED: dict[str, Any] = {
    "resultType": "complete",
    "supportedVersions": [MODERN],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}


def legacy(request: Request, version: str = "2025-11-25") -> bytes | None:
    """The response of a server of an older revision to the requests that open a session."""
    if request.rpc == "server/discover":
        return plain("400 Bad Request", b"what?")
    if request.rpc == "initialize":
        value: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "old", "version": "1"},
        }
        return result(request, value, "Mcp-Session-Id: s1")
    if request.rpc == "notifications/initialized":
        return plain("202 Accepted")
    if request.rpc in ("GET", "DELETE"):
        return plain("405 Method Not Allowed")
    return None


def script_of_gets(answers: list[bytes]) -> tuple[Script, asyncio.Event]:
    """Return the script of a server of 2025-11-25 that answers each GET by the next of `answers`.

    The event is set at the first GET after them, which is refused for good.
    """
    is_over = asyncio.Event()

    async def script(request: Request) -> bytes:
        if request.rpc == "GET":
            if answers:
                return answers.pop(0)
            is_over.set()
            return plain("405 Method Not Allowed")
        return legacy(request) or plain("202 Accepted")

    return script, is_over


TEXT = {"content": [{"type": "text", "text": "ok"}]}


@on_a_loop
async def test_the_headers_of_the_modern_revision() -> None:
    """(HM-20 to HM-22, HM-41, HM-45, HM-47)"""
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}
    bad = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "a b"}}}

    async def script(request: Request) -> bytes:
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        if request.rpc == "tools/list":
            tools = [{"name": "t\u00fc", "inputSchema": schema}, {"name": "b", "inputSchema": bad}]
            page = {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}
            return result(request, page)
        return result(request, {"resultType": "complete", **TEXT})

    async with scripted(script) as (url, requests):
        target = HttpParameters(url, {"Authorization": "Bearer x"})
        async with Client(target) as client:
            assert [tool.name for tool in await client.list_tools()] == ["t\u00fc"]
            await client.call_tool("t\u00fc", {"r": "eu"})

    discover, listing, call = requests
    for request in requests:
        assert request.method == "POST"
        assert request.headers["mcp-protocol-version"] == MODERN
        assert request.headers["mcp-method"] == request.rpc
        assert request.headers["accept"] == "application/json, text/event-stream"
        assert request.headers["authorization"] == "Bearer x"
        assert "mcp-session-id" not in request.headers
    assert "mcp-name" not in discover.headers
    assert "mcp-name" not in listing.headers
    assert call.headers["mcp-name"] == "=?base64?dMO8?="
    assert call.headers["mcp-param-region"] == "eu"


@on_a_loop
async def test_a_session_is_opened_used_and_ended() -> None:
    """(HL-20, HL-42, HL-46, HL-50, HE-4, HC-1, HC-2)"""

    async def script(request: Request) -> bytes:
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, requests), Client(url) as client:
        await client.call_tool("t")

    names = [request.rpc for request in requests]
    assert names[:3] == ["server/discover", "initialize", "notifications/initialized"]
    # The stream and the call go out at the same time.
    assert sorted(names[3:5]) == ["GET", "tools/call"]
    assert names[5:] == ["DELETE"]
    assert "mcp-session-id" not in requests[1].headers
    for request in requests[2:]:
        assert request.headers["mcp-session-id"] == "s1"
        assert request.headers["mcp-protocol-version"] == "2025-11-25"
        assert "mcp-method" not in request.headers


@on_a_loop
async def test_a_broken_stream_is_resumed_after_the_pause_that_the_server_wants() -> None:
    """(HL-10, HL-32, HC-4, HC-5)"""
    asked: list[Any] = []

    async def script(request: Request) -> bytes:
        if request.rpc == "tools/call":
            asked.append(request.message["id"])
            return stream(b"id: e1\nretry: 20\ndata:\n\n")
        if "last-event-id" in request.headers:
            answer = {"jsonrpc": "2.0", "id": asked[0], "result": TEXT}
            return stream(b"data: %b\n\n" % json.dumps(answer).encode())
        answer_to_opening = legacy(request)
        assert answer_to_opening is not None
        return answer_to_opening

    async with scripted(script) as (url, requests), Client(url) as client:
        assert await client.call_tool("t", into=str) == "ok"
        resumed = [item for item in requests if "last-event-id" in item.headers]
        assert [item.headers["last-event-id"] for item in resumed] == ["e1"]
    assert len(asked) == 1


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the clients, in seconds. None of them waits."""
    lengths: list[float] = []
    send_later = RequestSender.send_later

    def send_now(sender: RequestSender, exchange: ClientExchange, delay_s: float) -> None:
        lengths.append(delay_s)
        send_later(sender, exchange, 0)

    monkeypatch.setattr(RequestSender, "send_later", send_now)
    return lengths


def cut(*events: bytes) -> bytes:
    """A stream whose connection is lost before its end."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks


@pytest.mark.parametrize(
    "breaks",
    [
        [cut(b"id: e2\ndata:\n\n"), cut(), cut(b"id: e2\ndata:\n\n")],
        [b"", plain("502 Bad Gateway", b"busy"), b""],
        [plain("503 Service Unavailable"), cut(b"id: e2\ndata:\n\n"), b""],
    ],
)
@on_a_loop
async def test_a_stream_that_breaks_several_times_is_resumed_each_time(
    breaks: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(HL-32, HC-4): no connection ends in the middle of a stream as a server would end it."""
    monkeypatch.setattr(event_stream, "RETRY_S", 0.01)
    asked: list[Any] = []
    left = list(breaks)

    async def script(request: Request) -> bytes:
        if request.rpc == "tools/call":
            asked.append(request.message["id"])
            return cut(b"id: e1\ndata:\n\n")
        if "last-event-id" in request.headers:
            if left:
                return left.pop(0)
            answer = {"jsonrpc": "2.0", "id": asked[0], "result": TEXT}
            return stream(b"data: %b\n\n" % json.dumps(answer).encode())
        return legacy(request) or plain("202 Accepted")

    async with scripted(script) as (url, _), Client(url) as client:
        assert await client.call_tool("t", into=str) == "ok"
    assert (len(asked), left) == (1, [])


@on_a_loop
async def test_a_session_whose_opening_is_resumed_keeps_its_id(pauses: list[float]) -> None:
    asked: list[Request] = []

    async def script(request: Request) -> bytes:
        if request.rpc == "initialize":
            asked.append(request)
            opened = cut(b"id: e1\ndata:\n\n")
            return opened.replace(b"\r\n", b"\r\nMcp-Session-Id: s1\r\n", 1)
        if "last-event-id" in request.headers:
            _, body = (legacy(asked[0]) or b"").split(b"\r\n\r\n")
            return stream(b"data: %b\n\n" % b"\ndata: ".join(body.splitlines()))
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, requests), Client(url, era="legacy") as client:
        assert await client.call_tool("t", into=str) == "ok"
    ids = {item.headers.get("mcp-session-id") for item in requests if item.rpc != "initialize"}
    assert ids == {"s1"}


@on_a_loop
async def test_a_stream_that_cannot_be_resumed_at_all_fails_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "RETRY_S", 0.01)

    async def script(request: Request) -> bytes:
        if request.rpc == "tools/call":
            return cut(b"id: e1\ndata:\n\n")
        if "last-event-id" in request.headers:
            return plain("502 Bad Gateway", b"busy")
        return legacy(request) or plain("202 Accepted")

    async with scripted(script) as (url, requests), Client(url) as client:
        with pytest.raises(RpcError, match="502 Bad Gateway: busy"):
            await client.call_tool("t")
        assert len([item for item in requests if "last-event-id" in item.headers]) == 4


@on_a_loop
async def test_an_event_over_the_limit_is_not_requested_again() -> None:
    async def script(request: Request) -> bytes:
        if request.rpc == "tools/call":
            return stream(b"id: e1\ndata:\n\nid: e2\ndata: %b\n\n" % (b"x" * 5000))
        return legacy(request) or plain("202 Accepted")

    async with scripted(script) as (url, requests):
        async with Client(url, limits=Limits(max_message_bytes=4096)) as client:
            with pytest.raises(RpcError, match="more than 4096 bytes"):
                await client.call_tool("t")
        assert not [item for item in requests if "last-event-id" in item.headers]


@on_a_loop
async def test_the_stream_for_the_servers_own_messages_is_opened_again_when_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(HL-24, HC-3)"""
    monkeypatch.setattr(event_stream, "RETRY_S", 0.01)
    answers = [cut(b"id: e1\ndata:\n\n"), b"", plain("502 Bad Gateway"), cut()]
    script, is_open_again = script_of_gets(answers)
    async with scripted(script) as (url, requests), Client(url):
        await is_open_again.wait()
    gets = [item for item in requests if item.rpc == "GET"]
    assert [item.headers.get("last-event-id") for item in gets] == [None, *["e1"] * 4]


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("Retry-After: Fri, 31 Dec 1999 99999999999:59:59 GMT", b""),
        ("Content-Type: application/json", b'{"error":{"message":"\xfc"}}'),
        ("Content-Type: application/json", b'{"id":"\xfc","error":{}}'),
    ],
)
@on_a_loop
async def test_a_refusal_that_cannot_be_read_ends_its_call(header: str, body: bytes) -> None:
    async def script(request: Request) -> bytes:
        if request.rpc == "tools/call":
            return plain("503 Service Unavailable", body, header)
        return result(request, DISCOVERED)

    async with scripted(script) as (url, _), Client(url) as client:
        with pytest.raises(RpcError, match="503 Service Unavailable"):
            await client.call_tool("t")


@on_a_loop
async def test_a_server_that_wants_to_be_polled_is_asked_as_often_as_the_call_takes() -> None:
    """(HL-8 to HL-10)"""
    polls = 0
    asked: list[Any] = []

    async def script(request: Request) -> bytes:
        nonlocal polls
        if request.rpc == "tools/call":
            asked.append(request.message["id"])
            return stream(b"id: a-0\nretry: 1\ndata:\n\n")
        if request.headers.get("last-event-id") == "a-0":
            polls += 1
            if polls < 100:
                return stream(b"id: a-0\nretry: 1\ndata:\n\n")
            answer = {"jsonrpc": "2.0", "id": asked[0], "result": TEXT}
            return stream(b"id: a-1\ndata: %b\n\n" % json.dumps(answer).encode())
        return legacy(request) or plain("202 Accepted")

    async with scripted(script) as (url, _), Client(url, era="legacy") as client:
        assert await client.call_tool("slow", into=str) == "ok"
    assert polls == 100


@on_a_loop
async def test_a_broken_stream_of_the_modern_revision_fails_its_call() -> None:
    """(HM-11): the call may have had effects, so it is not sent again."""

    async def script(request: Request) -> bytes:
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        return stream(b"id: e1\ndata:\n\n")

    async with scripted(script) as (url, requests), Client(url) as client:
        with pytest.raises(RpcError, match="before the answer came"):
            await client.call_tool("t")
        assert [request.rpc for request in requests] == ["server/discover", "tools/call"]


@on_a_loop
async def test_a_401_names_the_challenge_and_is_no_reason_to_fall_back() -> None:
    """(HE-7)"""
    challenge = 'Bearer resource_metadata="https://a.example/meta"'

    async def script(request: Request) -> bytes:
        return plain("401 Unauthorized", b"", f"WWW-Authenticate: {challenge}")

    async with scripted(script) as (url, requests):
        with pytest.raises(RpcError, match="401 Unauthorized") as caught:
            async with Client(url):
                pass
    assert caught.value.data == {"status": 401, "challenge": challenge}
    assert [request.rpc for request in requests] == ["server/discover"]


@on_a_loop
async def test_the_client_waits_as_long_as_a_busy_server_wants() -> None:
    refusals = ["0"]

    async def script(request: Request) -> bytes:
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        if refusals:
            seconds = refusals.pop()
            return plain("503 Service Unavailable", b"", f"Retry-After: {seconds}")
        return result(request, {"resultType": "complete", **TEXT})

    async with scripted(script) as (url, requests), Client(url) as client:
        assert await client.call_tool("t", into=str) == "ok"
        assert len(requests) == 3
        refusals.append("86400")
        with pytest.raises(RpcError, match="503 Service Unavailable"):
            await client.call_tool("t")


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
@on_a_loop
async def test_the_stream_of_a_session_is_opened_when_a_busy_server_wants(
    status: str, pauses: list[float]
) -> None:
    answers = [
        plain(status, b"", "Retry-After: 7"),
        stream(b"retry: 10\nid: e1\ndata:\n\n"),
        plain(status, b"", "Retry-After: 600"),
        plain(status),
    ]
    script, is_open_again = script_of_gets(answers)
    async with scripted(script) as (url, _), Client(url):
        await asyncio.wait_for(is_open_again.wait(), 20)
    # The second refusal in a row demands no pause, so the client makes one of its own.
    assert pauses == [7, 0.02, 600, 2]


class ExpiringToken:
    """Credentials whose token the calls renew."""

    token = "old"

    def header(self) -> str:
        return f"Bearer {self.token}"

    async def prepare(self) -> str:
        return self.header()

    async def on_refusal(self, refusal: Refusal) -> str:
        self.token = "new"
        return self.header()


@on_a_loop
async def test_the_stream_of_a_session_is_opened_again_with_a_renewed_token(
    pauses: list[float],
) -> None:
    is_expired, has_stream = False, asyncio.Event()

    async def script(request: Request) -> bytes:
        nonlocal is_expired
        if is_expired and request.headers.get("authorization") != "Bearer new":
            return plain("401 Unauthorized")
        if request.rpc == "GET":
            if is_expired:
                has_stream.set()
                return plain("405 Method Not Allowed")
            is_expired = True
            return stream(b"id: e1\ndata:\n\n")
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, _):
        connection = StreamableHttpConnection(parse_url(url), Limits(), {}, ExpiringToken())
        async with Client(connection, era="legacy") as client:
            async with asyncio.timeout(20):
                while len(pauses) < 4:
                    await asyncio.sleep(0)
            # The stream ended, and the old token was refused several times since.
            assert pauses[:4] == [1, 2, 4, 8]
            assert await client.call_tool("t", into=str) == "ok"
            await asyncio.wait_for(has_stream.wait(), 20)


@on_a_loop
async def test_a_server_that_ends_each_stream_at_once_is_asked_once_a_second(
    pauses: list[float],
) -> None:
    async def script(request: Request) -> bytes:
        if request.rpc == "GET":
            return stream(b"retry: 0\ndata:\n\n")
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, _), Client(url) as client:
        while len(pauses) < 10:
            assert await client.call_tool("t", into=str) == "ok"
    assert pauses[:10] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1, 1]


@on_a_loop
async def test_a_server_without_a_stream_is_not_asked_again_when_it_is_busy() -> None:
    async def script(request: Request) -> bytes:
        if request.rpc == "GET":
            return plain("503 Service Unavailable")
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, requests), Client(url) as client:
        while "GET" not in [request.rpc for request in requests]:
            assert await client.call_tool("t", into=str) == "ok"
        assert await client.call_tool("t", into=str) == "ok"
    assert [request.rpc for request in requests].count("GET") == 1


@on_a_loop
async def test_the_rest_of_a_response_is_requested_when_a_busy_server_wants(
    pauses: list[float],
) -> None:
    answers = [
        plain("429 Too Many Requests", b"", "Retry-After: 9"),
        plain("503 Service Unavailable", b"", "Retry-After: 0"),
    ]
    asked: list[Any] = []

    async def script(request: Request) -> bytes:
        if request.rpc == "tools/call":
            asked.append(request.message["id"])
            return stream(b"id: a-0\nretry: 10\ndata:\n\n")
        if "last-event-id" in request.headers:
            if answers:
                return answers.pop(0)
            answer = {"jsonrpc": "2.0", "id": asked[0], "result": TEXT}
            return stream(b"id: a-1\ndata: %b\n\n" % json.dumps(answer).encode())
        return legacy(request) or plain("202 Accepted")

    async with scripted(script) as (url, _), Client(url, era="legacy") as client:
        assert await client.call_tool("t", into=str) == "ok"
    assert pauses == [0.01, 9, 2]


@pytest.mark.requirement("CT-2", side="authorization")
@on_a_loop
async def test_redirects_are_followed_within_the_origin_only() -> None:
    """(HC-9)"""
    places = ["/mcp/", "http://localhost:1/mcp"]

    async def script(request: Request) -> bytes:
        if request.path == "/mcp" and request.rpc == "server/discover":
            return plain("307 Temporary Redirect", b"", f"Location: {places[0]}")
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        return plain("307 Temporary Redirect", b"", f"Location: {places[1]}")

    async with scripted(script) as (url, requests), Client(url) as client:
        with pytest.raises(RpcError, match="'http://localhost:1/mcp' is not followed"):
            await client.call_tool("t")
    assert [request.path for request in requests] == ["/mcp", "/mcp/", "/mcp"]


@pytest.mark.parametrize("location", ["Location: ", "X: y"])
@on_a_loop
async def test_a_redirect_to_nowhere_is_not_followed(location: str) -> None:
    async def script(request: Request) -> bytes:
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        return plain("307 Temporary Redirect", b"", location)

    async with scripted(script) as (url, requests), Client(url) as client:
        with pytest.raises(RpcError, match="307 Temporary Redirect"):
            await client.call_tool("t")
    assert [request.rpc for request in requests] == ["server/discover", "tools/call"]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (plain("200 OK", b"<html>", "Content-Type: text/html"), "text/html"),
        (plain("200 OK"), "expected the response to tools/call, got HTTP 200 OK without a body"),
        (plain("202 Accepted"), "got HTTP 202 Accepted without a body"),
        (
            plain(
                "200 OK", b"\x1f\x8b", "Content-Type: application/json", "Content-Encoding: gzip"
            ),
            "got HTTP 200 with application/json in the encoding gzip: b'.x1f",
        ),
        (
            plain("200 OK", b"\x1f\x8b", "Content-Type: text/event-stream", "Content-Encoding: br"),
            "expected a stream of events, got HTTP 200 with text/event-stream in the encoding br",
        ),
        (
            plain("200 OK", b'{"id":1,"error":"?"}', "Content-Type: application/json"),
            r"got HTTP 200 with application/json: b'\{\"id\":1",
        ),
        (
            plain(
                "200 OK",
                b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Boom"}}',
                "Content-Type: application/json",
            ),
            "^Boom",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "closed the connection"),
        (b"SSH-2.0-x\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "Header|head of the response"),
    ],
)
@on_a_loop
async def test_a_response_that_is_none_is_an_error_of_its_call(response: bytes, text: str) -> None:
    """(HC-11)"""

    async def script(request: Request) -> bytes:
        return result(request, DISCOVERED) if request.rpc == "server/discover" else response

    async with scripted(script) as (url, _), Client(url) as client:
        with pytest.raises(RpcError, match=text):
            await client.call_tool("t")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    "frame",
    [
        '{"jsonrpc":"2.0","id":ID,"result":{},"id":1}',
        '{"jsonrpc":"2.0","id":ID,"result":{},"\\u0069d":1}',
        '{"jsonrpc":"2.0","id":ID,"result":{},"method":"x"}',
        '{"jsonrpc":"2.0","id":ID,"result":{},"id":[1]}',
        '{"jsonrpc":"2.0","id":"ID"}',
        '{"jsonrpc":"2.0","id":ID}',
        '{"jsonrpc":"2.0","id":ID,"result":',
        '{"jsonrpc":"2.0","id":ID,"result":"\xff"}',
        '{"jsonrpc":"2.0","id":null,"result":{}}',
        '[{"jsonrpc":"2.0","id":ID,"result":{}}]',
        '{"jsonrpc":"2.0","id":ID,"result"' + "[" * 100_000,
        "17",
    ],
)
@on_a_loop
async def test_a_call_ends_with_its_response_whatever_that_is(
    frame: str, era: Literal["modern", "legacy"], is_stream: bool
) -> None:
    async def script(request: Request) -> bytes:
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        if request.rpc != "tools/call":
            return legacy(request) or b""
        body = frame.replace("ID", str(request.message["id"])).encode("latin-1")
        if is_stream:
            return stream(b"data: " + body + b"\n\n")
        return plain("200 OK", body, "Content-Type: application/json")

    # The time limit of a call is a minute, which nobody waits for.
    async with scripted(script) as (url, _), Client(url, era=era) as client:
        async with asyncio.timeout(20):
            with pytest.raises((RpcError, ProtocolError)):
                await client.call_tool("t")


@on_a_loop
async def test_an_error_in_the_body_of_a_refusal_is_the_error_of_the_call() -> None:
    """(HC-12)"""
    error = {"code": -32602, "message": "no such tool", "data": [1]}

    async def script(request: Request) -> bytes:
        if request.rpc == "server/discover":
            return result(request, DISCOVERED)
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        return plain("400 Bad Request", body, "Content-Type: application/json")

    async with scripted(script) as (url, _), Client(url) as client:
        with pytest.raises(RpcError, match="no such tool") as caught:
            await client.call_tool("t")
    assert (caught.value.code, caught.value.data) == (-32602, [1])


@on_a_loop
async def test_after_a_lost_session_another_is_opened_for_the_refused_call() -> None:
    """(HL-45): 404 to a request with a session id; `initialize` has none."""
    opened = 0

    async def script(request: Request) -> bytes:
        nonlocal opened
        if request.rpc == "initialize":
            assert "mcp-session-id" not in request.headers
            opened += 1
        if request.rpc == "tools/call" and opened == 1:
            return plain("404 Not Found")
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, requests), Client(url) as client:
        assert (await client.call_tool("t")).text == "ok"
        assert opened == 2
        assert [request.rpc for request in requests].count("tools/call") == 2
        assert (await client.call_tool("t")).text == "ok"
        assert opened == 2


@on_a_loop
async def test_sessions_that_are_lost_again_and_again_end_the_call() -> None:
    opened = 0

    async def script(request: Request) -> bytes:
        nonlocal opened
        opened += request.rpc == "initialize"
        return legacy(request) or plain("404 Not Found")

    async with scripted(script) as (url, _), Client(url) as client:
        with pytest.raises(Disconnected, match="the server has ended the session"):
            await client.call_tool("t")
        assert opened == 1 + NEW_SESSION.tries


@on_a_loop
async def test_other_calls_of_a_lost_session_are_not_repeated() -> None:
    """The server may have begun them."""
    calls, over = asyncio.Event(), asyncio.Event()
    begun: list[str] = []

    async def script(request: Request) -> bytes:
        if request.rpc != "tools/call":
            return legacy(request) or plain("404 Not Found")
        name = request.message["params"]["name"]
        begun.append(name)
        if name == "slow":
            calls.set()
            await over.wait()
        return plain("404 Not Found") if begun.count(name) == 1 else result(request, TEXT)

    async with scripted(script) as (url, _), Client(url) as client:
        slow = asyncio.create_task(client.call_tool("slow"))
        await calls.wait()
        assert (await client.call_tool("fast")).text == "ok"
        with pytest.raises(Disconnected, match="the server has ended the session"):
            await slow
        over.set()
    assert begun == ["slow", "fast", "fast"]


@on_a_loop
async def test_a_call_whose_stream_is_lost_with_its_session_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has accepted it before."""
    monkeypatch.setattr(event_stream, "RETRY_S", 0.01)
    calls = 0

    async def script(request: Request) -> bytes:
        nonlocal calls
        if request.rpc == "tools/call":
            calls += 1
            return cut(b"id: e1\ndata:\n\n")
        if "last-event-id" in request.headers:
            return plain("404 Not Found")
        return legacy(request) or plain("202 Accepted")

    async with scripted(script) as (url, _), Client(url) as client:
        with pytest.raises(Disconnected, match="the server has ended the session"):
            await client.call_tool("t")
    assert calls == 1


@on_a_loop
async def test_a_server_that_goes_while_its_connection_is_idle_is_an_error() -> None:
    """The request is sent again, since the server may not have seen it, but only once."""
    server: asyncio.Server

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        message = json.loads(await reader.readexactly(size))
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": DISCOVERED}
        body = json.dumps(answer).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        # The next request comes on this connection, and gets not one byte.
        await reader.readuntil(b"\r\n\r\n")
        server.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Client(f"http://127.0.0.1:{port}/mcp", era="modern") as client:
        with pytest.raises(RpcError, match=f"http://127.0.0.1:{port}/mcp: .*111"):
            await asyncio.wait_for(client.list_tools(), 20)


@on_a_loop
async def test_a_server_without_a_stream_of_its_own_may_answer_404_to_the_get() -> None:
    """(HC-2): that is no sign of a lost session."""

    async def script(request: Request) -> bytes:
        if request.rpc == "GET":
            return plain("404 Not Found")
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, requests), Client(url) as client:
        assert await client.call_tool("t", into=str) == "ok"
        while "GET" not in [request.rpc for request in requests]:
            await asyncio.sleep(0)
        assert await client.call_tool("t", into=str) == "ok"


@on_a_loop
async def test_the_stream_of_a_session_is_opened_again_after_a_bad_gateway() -> None:
    """(HC-3)"""
    opened = asyncio.Event()
    streams = [
        stream(b"retry: 10\ndata:\n\n"),
        plain("502 Bad Gateway"),
        stream(b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'),
    ]

    async def script(request: Request) -> bytes:
        if request.rpc == "GET":
            if len(streams) == 1:
                opened.set()
            return streams.pop(0) if streams else plain("405 Method Not Allowed")
        return legacy(request) or result(request, TEXT)

    async with scripted(script) as (url, _), Client(url):
        await asyncio.wait_for(opened.wait(), 20)


@on_a_loop
async def test_a_response_that_is_split_at_each_byte() -> None:
    def split(data: bytes) -> list[bytes]:
        return [data[at : at + 1] for at in range(len(data))]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = await reader.readexactly(length)
        request = Request("POST", "/mcp", {}, body)
        value = DISCOVERED if request.rpc == "server/discover" else {"resultType": "complete"}
        message = {"jsonrpc": "2.0", "id": request.message["id"], "result": {**value, **TEXT}}
        events = b": hello\r\n\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"
        for piece in split(stream(events)):
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with Client(url) as client:
            assert await client.call_tool("t", into=str) == "ok"


@on_a_loop
async def test_two_responses_at_once_do_not_mix_up_two_calls() -> None:
    """A second response would be taken for that to the next request, and show another's data."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            except asyncio.IncompleteReadError:
                break
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            request = Request("POST", "/mcp", {}, await reader.readexactly(length))
            id = request.message["id"]
            if request.rpc == "server/discover":
                writer.write(kept(id, DISCOVERED))
                continue
            forged = {"content": [{"type": "text", "text": "forged"}]}
            writer.write(kept(id, {"resultType": "complete", **TEXT}) + kept(id + 1, forged))
        writer.close()

    def kept(id: int, value: dict[str, Any]) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": id, "result": value}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        return f"{head}\r\n\r\n".encode() + body

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        async with Client(url) as client:
            for _ in range(5):
                assert await client.call_tool("t", into=str) == "ok"


@pytest.mark.parametrize("is_error", [False, True])
@on_a_loop
async def test_a_server_that_lists_older_revisions_only_gets_a_handshake(is_error: bool) -> None:
    """(HE-8): the Go SDK with sessions answers server/discover so."""
    versions = ["2025-11-25", "2025-06-18"]

    async def script(request: Request) -> bytes:
        if request.rpc != "server/discover":
            return legacy(request) or result(request, TEXT)
        if not is_error:
            return result(request, {**DISCOVERED, "supportedVersions": versions})
        error = {"code": -32022, "message": "no", "data": {"supported": versions}}
        body = {"jsonrpc": "2.0", "id": request.message["id"], "error": error}
        kind = "Content-Type: application/json"
        return plain("400 Bad Request", json.dumps(body).encode(), kind)

    async with scripted(script) as (url, _), Client(url) as client:
        assert client.protocol_version == "2025-11-25"
        assert await client.call_tool("t", into=str) == "ok"
