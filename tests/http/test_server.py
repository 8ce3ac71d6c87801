"""The limits of an HTTP server: what slow, silent and greedy clients may do. In this process, with
short time limits, over real sockets.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from http_service import (
    INITIALIZE,
    WAIT_S,
    Answer,
    Session,
    call,
    modern,
    modern_headers,
    post,
    request,
    serving,
    text_of,
)
from loops import on_a_loop
from tls_certificates import write_certificate

from concertino import Context, Limits, Server
from concertino.backend import Host
from concertino.http.exchange import Exchange
from concertino.http.options import HttpOptions
from concertino.http.server import HttpServer
from concertino.http.time_limits import HttpTimeouts
from concertino.http.tls import Tls
from concertino.transports import listen_tcp, listen_unix

SERVER = Path(__file__).with_name("server_for_http.py")
PATIENT = 1000.0
# Limits that no test reaches, but for those that it sets.
USUAL = HttpTimeouts(PATIENT, PATIENT, PATIENT, PATIENT, PATIENT, PATIENT)
SHORT_S = 0.05


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, message: Any, headers: dict[str, str]) -> None:
        body = json.dumps(message).encode()
        lines = ["POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self.send("\r\n".join(lines).encode() + body)

    async def read_head(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def read_response(self) -> tuple[int, bytes]:
        """The status and the body of the next response, which has a Content-Length."""
        head = await self.read_head()
        length = next(
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        async with asyncio.timeout(WAIT_S):
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def read_until(self, text: bytes) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readuntil(text)

    async def read_exactly(self, count: int) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readexactly(count)

    async def read_rest(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read()


def make_server() -> Server:
    server = Server("limits", version="1")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def large(size: int) -> str:
        return "x" * size

    @server.tool
    async def stream(context: Context, size: int) -> str:
        await context.progress(1, message="x" * size)
        await asyncio.Event().wait()
        return ""

    @server.tool
    async def ask(context: Context) -> str:
        roots = await context.roots(key="roots")
        return f"{len(roots)} roots"

    @server.tool
    async def wait(context: Context, progress: bool = False) -> str:
        if progress:
            await context.progress(1)
        await asyncio.Event().wait()
        return ""

    return server


class Rig:
    """An HTTP server in this process, and its clients."""

    def __init__(self, host: Host, server: HttpServer, port: int) -> None:
        self.host = host
        self.server = server
        self.port = port
        self.clients: list[Client] = []

    async def connect(self, read_ahead: int = 2**24, trusted: str | None = None) -> Client:
        """read_ahead: how many bytes the client's process takes before the test reads them.
        trusted: the certificate of the server, for a connection with TLS.
        """
        sock = socket.socket()
        if read_ahead < 2**24:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, read_ahead)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        tls = None if trusted is None else ssl.create_default_context(cafile=trusted)
        name = None if tls is None else "localhost"
        streams = await asyncio.open_connection(
            sock=sock, limit=read_ahead, ssl=tls, server_hostname=name
        )
        client = Client(*streams)
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(
    options: HttpOptions, limits: Limits | None = None, server: Server | None = None
) -> AsyncIterator[Rig]:
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    async with Host(server or make_server(), limits) as host:
        http = HttpServer(host, [listener], options)
        await http.start()
        rig = Rig(host, http, port)
        try:
            yield rig
        finally:
            for client in rig.clients:
                client.writer.transport.abort()
            host.drain()
            http.stop()
            async with asyncio.timeout(WAIT_S):
                await http.closed


async def open_session(client: Client, revision: str = "2025-11-25") -> dict[str, str]:
    """Open a session, and return the headers of its requests."""
    params = {**INITIALIZE["params"], "protocolVersion": revision, "capabilities": {"roots": {}}}
    client.post({**INITIALIZE, "params": params}, {"Accept": "application/json"})
    head = await client.read_head()
    (line,) = [line for line in head.split(b"\r\n") if line.startswith(b"Mcp-Session-Id")]
    await client.read_until(b"}}}")
    return {
        "Accept": "application/json",
        "Mcp-Session-Id": line.partition(b": ")[2].decode(),
        "Mcp-Protocol-Version": revision,
    }


ECHO = modern("tools/call", name="echo", arguments={"text": "hi"})
POST_HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@on_a_loop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running(HttpOptions(timeouts=USUAL)) as rig:
        client = await rig.connect()
        for id in range(50):
            message = modern("tools/call", id=id, name="echo", arguments={"text": "hi"})
            client.post(message, modern_headers(message))

        ids = [json.loads((await client.read_response())[1])["id"] for _ in range(50)]

        assert ids == list(range(50))


@on_a_loop
async def test_a_slow_head_is_refused() -> None:
    options = HttpOptions(timeouts=HttpTimeouts(SHORT_S, PATIENT, PATIENT, PATIENT, PATIENT))
    async with running(options) as rig:
        client = await rig.connect()
        client.send(b"POST /mcp HTTP/1.1\r\nHost:")

        assert (await client.read_response())[0] == 408
        assert await client.read_rest() == b""


@on_a_loop
async def test_a_slow_body_is_refused() -> None:
    options = HttpOptions(timeouts=HttpTimeouts(PATIENT, SHORT_S, PATIENT, PATIENT, PATIENT))
    async with running(options) as rig:
        client = await rig.connect()
        client.send(POST_HEAD + b"Content-Length: 5\r\n\r\nab")

        assert (await client.read_response())[0] == 408


@on_a_loop
async def test_an_idle_connection_is_closed() -> None:
    options = HttpOptions(timeouts=HttpTimeouts(PATIENT, PATIENT, SHORT_S, PATIENT, PATIENT))
    async with running(options) as rig:
        client = await rig.connect()
        client.post(ECHO, modern_headers(ECHO))
        await client.read_response()

        assert await client.read_rest() == b""


@pytest.mark.parametrize("progress", [False, True])
@on_a_loop
async def test_a_silent_call_gets_a_stream_with_comments(progress: bool) -> None:
    options = HttpOptions(timeouts=HttpTimeouts(PATIENT, PATIENT, PATIENT, SHORT_S, PATIENT))
    async with running(options) as rig:
        client = await rig.connect()
        message = modern("tools/call", name="wait", arguments={"progress": progress},
                         _meta={"progressToken": 1})  # fmt: skip
        client.post(message, modern_headers(message))

        assert b"text/event-stream" in await client.read_head()
        await client.read_until(b":\r\n\r\n")
        await client.read_until(b":\r\n\r\n")


@on_a_loop
async def test_a_silent_call_gets_comments_over_tls(tmp_path: Path) -> None:
    """asyncio's TLS calls pause_writing() even if no output waits."""
    cert, key = map(str, write_certificate(tmp_path))
    timeouts = HttpTimeouts(PATIENT, PATIENT, PATIENT, SHORT_S, PATIENT)
    async with running(HttpOptions(tls=Tls(cert, key), timeouts=timeouts)) as rig:
        client = await rig.connect(trusted=cert)
        message = modern("tools/call", name="wait", arguments={})
        client.post(message, modern_headers(message))

        assert b"text/event-stream" in await client.read_head()
        await client.read_until(b":\r\n\r\n")
        await client.read_until(b":\r\n\r\n")


@on_a_loop
async def test_a_session_that_is_not_used_ends() -> None:
    options = HttpOptions(timeouts=HttpTimeouts(PATIENT, PATIENT, PATIENT, PATIENT, PATIENT, 0.05))
    async with running(options) as rig:
        client = await rig.connect()
        client.post(INITIALIZE, {})
        assert (await client.read_response())[0] == 200

        async with asyncio.timeout(WAIT_S):
            while rig.host.connections:
                await asyncio.wait([item.closed for item in rig.host.connections])


@on_a_loop
async def test_a_call_of_a_session_starts_when_an_earlier_response_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, and not when the session counts its unread output the next time."""
    monkeypatch.setattr("concertino.http.session_output.CHECK_S", PATIENT)
    async with running(HttpOptions(timeouts=USUAL)) as rig:
        slow, other = await rig.connect(read_ahead=2**16), await rig.connect()
        headers = await open_session(other)
        slow.post(call(1, "large", size=8_000_000), headers)
        length = re.search(rb"Content-Length: (\d+)", await slow.read_head())
        assert length is not None

        other.post(call(2, "echo", text="hi"), headers)
        response = asyncio.ensure_future(other.read_response())
        await slow.read_exactly(int(length[1]))

        assert text_of(json.loads((await response)[1])) == "hi"


@on_a_loop
async def test_requests_that_wait_are_forgotten_when_their_client_leaves() -> None:
    """A session whose output is unread keeps no bodies of clients that have gone."""
    async with running(HttpOptions(timeouts=USUAL)) as rig:
        slow = await rig.connect(read_ahead=2**16)
        headers = await open_session(slow)
        slow.post(call(1, "large", size=8_000_000), headers)
        await slow.read_head()
        for id in range(2, 5):
            leaving = await rig.connect()
            leaving.post(call(id, "echo", text="hi"), headers)
            leaving.writer.write_eof()
            # The server notices the end of the input, and closes the connection.
            assert await leaving.read_rest() == b""

        # Earlier tests may have left some in cycles of references.
        gc.collect()
        waiting = [item for item in gc.get_objects() if type(item) is Exchange]
        assert [exchange.body for exchange in waiting if exchange.is_done] == []


@on_a_loop
async def test_a_request_that_waits_can_be_cancelled() -> None:
    async with running(HttpOptions(timeouts=USUAL)) as rig:
        slow, waiting, other = [await rig.connect(read_ahead=2**16) for _ in range(3)]
        headers = await open_session(other)
        slow.post(call(1, "large", size=8_000_000), headers)
        await slow.read_head()
        waiting.post(call(2, "echo", text="hi"), headers)
        again = await rig.connect()
        again.post(call(3, "echo", text="hi"), {**headers, "Accept": "text/event-stream"})

        for id in (2, 3):
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": id}}
            other.post({"jsonrpc": "2.0", **cancelled}, headers)
            assert (await other.read_head()).startswith(b"HTTP/1.1 202")

        # They end without a response, while the large one is still unread.
        assert (await waiting.read_head()).startswith(b"HTTP/1.1 204")
        assert b"text/event-stream" in await again.read_head()
        assert await again.read_until(b"0\r\n\r\n") == b"0\r\n\r\n"


@on_a_loop
async def test_the_oldest_session_makes_room_for_a_new_one() -> None:
    async with running(HttpOptions(max_sessions=1, timeouts=USUAL)) as rig:
        client = await rig.connect()
        sessions: list[str] = []
        for _ in range(2):
            client.post(INITIALIZE, {})
            head = await client.read_head()
            sessions.append(head.partition(b"Mcp-Session-Id: ")[2].partition(b"\r\n")[0].decode())
            await client.read_until(b"}}}")

        statuses: list[int] = []
        for session in sessions:
            client.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"Mcp-Session-Id": session})
            statuses.append((await client.read_response())[0])

        assert statuses == [404, 200]


@on_a_loop
async def test_an_idle_connection_makes_room_and_a_busy_one_does_not() -> None:
    async with running(HttpOptions(max_connections=1, timeouts=USUAL)) as rig:
        idle = await rig.connect()
        idle.post(ECHO, modern_headers(ECHO))
        await idle.read_response()
        busy = await rig.connect()
        message = modern("tools/call", name="wait", arguments={"progress": True},
                         _meta={"progressToken": 1})  # fmt: skip
        busy.post(message, modern_headers(message))
        await busy.read_head()
        assert await idle.read_rest() == b""

        third = await rig.connect()

        status, _ = await third.read_response()
        assert status == 503


@on_a_loop
async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    limits = Limits(max_message_bytes=100_000)
    async with running(HttpOptions(timeouts=USUAL), limits) as rig:
        client = await rig.connect()
        client.send(POST_HEAD + b"Content-Length: 100001\r\n\r\n")
        assert (await client.read_response())[0] == 413

        chunked = await rig.connect()
        chunked.send(POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n" + b"x" * 200_000)
        assert (await chunked.read_response())[0] == 413


@on_a_loop
async def test_many_large_bodies_at_once_are_limited_together() -> None:
    limits = Limits(max_message_bytes=1_000_000)
    async with running(HttpOptions(timeouts=USUAL), limits) as rig:
        for _ in range(4):
            client = await rig.connect()
            client.send(POST_HEAD + b"Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
            assert b"100 Continue" in await client.read_head()

        late = await rig.connect()
        late.send(POST_HEAD + b"Content-Length: 1000000\r\n\r\n")

        assert (await late.read_response())[0] == 503


@on_a_loop
async def test_expect_gets_its_answer_only_if_the_head_is_accepted() -> None:
    async with running(HttpOptions(timeouts=USUAL)) as rig:
        client = await rig.connect()
        client.send(
            POST_HEAD.replace(b"localhost", b"evil.example.com")
            + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        )

        assert (await client.read_response())[0] == 403


async def ask(rig: Rig, headers: dict[str, str], id: int) -> tuple[Client, int]:
    """Call a tool that asks a question. Returns the stream of the call, and the question's id."""
    client = await rig.connect()
    client.post(call(id, "ask"), {**headers, "Accept": "text/event-stream"})
    question = await client.read_until(b'"method":"roots/list"')
    match = re.search(rb'"id":(\d+)', question)
    assert match is not None
    return client, int(match[1])


@on_a_loop
async def test_an_answer_that_is_too_large_ends_its_question_if_the_client_expects_100() -> None:
    limits = Limits(max_message_bytes=20_000)
    async with running(HttpOptions(timeouts=USUAL), limits) as rig:
        other = await rig.connect()
        headers = await open_session(other)
        stream, question = await ask(rig, headers, 7)

        body = b'{"jsonrpc":"2.0","id":%d,"result":{"roots":["%b"]}}' % (question, b"x" * 30_000)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Expect: 100-continue", f"Content-Length: {len(body)}", "", ""]
        other.send(POST_HEAD + "\r\n".join(lines).encode())
        assert (await other.read_head()).startswith(b"HTTP/1.1 100 ")
        other.send(body)

        assert (await other.read_response())[0] == 413
        assert b"the answer is larger than 20000 bytes" in await stream.read_until(b"0\r\n\r\n")


@on_a_loop
async def test_a_batch_of_answers_that_is_too_large_ends_all_of_its_questions() -> None:
    limits = Limits(max_message_bytes=20_000)
    async with running(HttpOptions(timeouts=USUAL), limits) as rig:
        other = await rig.connect()
        headers = await open_session(other, "2025-03-26")
        (one, first), (two, second), (three, third) = [
            await ask(rig, headers, n) for n in (1, 2, 3)
        ]

        text = "x" * 15_000
        batch = [{"jsonrpc": "2.0", "id": id, "result": {"roots": [text]}} for id in (first, third)]
        other.post(batch, headers)

        assert (await other.read_response())[0] == 413
        for stream in (one, three):
            end = await stream.read_until(b"0\r\n\r\n")
            assert b"the answer is larger than 20000 bytes" in end
        late = await rig.connect()
        late.post({"jsonrpc": "2.0", "id": second, "result": {"roots": []}}, headers)
        assert b"0 roots" in await two.read_until(b"0\r\n\r\n")


async def send_without_reading(client: socket.socket, port: int, message: Any) -> None:
    """Send a request on a connection that holds little output which the client does not read."""
    body = json.dumps(message).encode()
    lines = [f"{name}: {value}" for name, value in modern_headers(message).items()]
    head = [POST_HEAD.decode()[:-2], *lines, f"Content-Length: {len(body)}", "", ""]
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, "\r\n".join(head).encode() + body)


async def wait_until_disconnected(rig: Any, message: Any) -> None:
    """Send a request, read nothing, and wait until the server has closed the connection."""
    with socket.socket() as client:
        await send_without_reading(client, rig.port, message)
        async with asyncio.timeout(WAIT_S):
            while not rig.host.connections:
                await asyncio.sleep(0)
            await asyncio.wait([item.closed for item in rig.host.connections])


@on_a_loop
async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    options = HttpOptions(timeouts=HttpTimeouts(PATIENT, PATIENT, PATIENT, PATIENT, SHORT_S))
    async with running(options) as rig:
        message = modern("tools/call", name="large", arguments={"size": 9_000_000})
        await wait_until_disconnected(rig, message)


@on_a_loop
async def test_a_client_that_reads_nothing_of_a_stream_is_disconnected() -> None:
    """Although the comments that keep the stream alive add to the unread output."""
    options = HttpOptions(timeouts=HttpTimeouts(PATIENT, PATIENT, PATIENT, SHORT_S, 4 * SHORT_S))
    async with running(options) as rig:
        message = modern("tools/call", name="stream", arguments={"size": 9_000_000},
                         _meta={"progressToken": 1})  # fmt: skip
        await wait_until_disconnected(rig, message)


@on_a_loop
async def test_health_follows_the_start() -> None:
    opening = asyncio.Event()

    server = Server("slow", version="1")

    @server.lifespan
    async def open_slowly() -> AsyncIterator[None]:
        await opening.wait()
        yield

    async with running(HttpOptions(timeouts=USUAL), server=server) as rig:
        client = await rig.connect()
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = await client.read_response()
        opening.set()
        await asyncio.wait([rig.host.started])
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert before == (503, b'{"status":"starting"}')
        assert await client.read_response() == (200, b'{"status":"ok"}')


@on_a_loop
async def test_a_listed_origin_may_read_the_responses() -> None:
    app = "https://app.example.com"
    async with running(HttpOptions((app,), timeouts=USUAL)) as rig:
        client = await rig.connect()
        client.send(
            f"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: {app}\r\n"
            "Access-Control-Request-Method: POST\r\n\r\n".encode()
        )
        preflight = await client.read_head()
        client.post(ECHO, {**modern_headers(ECHO), "Origin": app})
        answer = await client.read_head()

        assert preflight.startswith(b"HTTP/1.1 204")
        assert f"Access-Control-Allow-Origin: {app}".encode() in preflight
        assert f"Access-Control-Allow-Origin: {app}".encode() in answer


def test_a_signal_ends_the_server_with_many_open_streams() -> None:
    """Within the drain time, 2 s by default, and half a second. The end of each stream arrives."""
    with serving(SERVER) as service:
        session = Session(service)
        streams = [request(service.connect(), "POST", call(id, "wait", {"progressToken": id}),
                           session.headers) for id in range(1, 51)]  # fmt: skip
        listening = [session.get()]
        message = modern("subscriptions/listen", notifications={"toolsListChanged": True})
        for _ in range(50):
            listening.append(request(service.connect(), "POST", message, modern_headers(message)))

        service.process.send_signal(signal.SIGTERM)

        for stream in (*streams, *listening):
            stream.read()
        assert service.process.wait(WAIT_S) == 0


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(SERVER, "--http", f"unix:{path}") as service:
        assert os.stat(path).st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_S)
            client.connect(str(path))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")

        service.end()

    assert not path.exists()


def test_the_user_of_a_unix_socket_is_the_principal(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(SERVER, "--http", f"unix:{path}") as service:
        connection = service.connect()
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(WAIT_S)
        connection.sock.connect(str(path))
        message = modern("tools/call", name="whoami", arguments={})
        answers = [post(connection, message, modern_headers(message)) for _ in range(2)]

        assert [text_of(answer.json) for answer in answers] == [f"unix:{os.geteuid()}"] * 2


def test_calls_under_way_at_a_signal_are_answered() -> None:
    with serving(SERVER) as service:
        session = Session(service)
        stream = request(service.connect(), "POST", call(1, "wait", {"progressToken": 1}),
                         session.headers)  # fmt: skip
        service.process.send_signal(signal.SIGTERM)
        answer = Answer(stream)

        assert answer.messages[-1]["error"]["message"] == "the server is shutting down"


class NoPeers:
    """SessionPeers that cannot be reached."""

    async def serve(self, make: object) -> NoReturn:
        raise OSError("sessions cannot be shared")

    def create_id(self) -> str:
        return "id"

    def pass_on(self, exchange: object, id: str) -> bool:
        return False


@pytest.mark.parametrize("has_tls", [False, True])
@on_a_loop
async def test_a_start_that_fails_closes_the_listeners(tmp_path: Path, has_tls: bool) -> None:
    listeners = [listen_tcp("127.0.0.1", 0), listen_unix(tmp_path / "http.sock")]
    tls = Tls(*map(str, write_certificate(tmp_path))) if has_tls else None
    async with Host(make_server()) as host:
        http = HttpServer(host, listeners, HttpOptions(tls=tls), peers=NoPeers())
        with pytest.raises(OSError, match="cannot be shared"):
            await http.start()
        await http.closed

    assert not (tmp_path / "http.sock").exists()
    assert [listener.socket.fileno() for listener in listeners] == [-1, -1]
