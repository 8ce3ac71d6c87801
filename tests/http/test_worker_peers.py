"""Two workers in one process: each HttpServer has the sessions whose ids say so."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_service import BOTH, INITIALIZE, call
from loops import on_a_loop

from concertino import Context, Server
from concertino.http.authorization import Authorization
from concertino.http.options import HttpOptions
from concertino.http.server import HttpServer
from concertino.http.worker_peers import WorkerPeers
from concertino.protocol.principal import Principal
from concertino.runtime.host import Host
from concertino.runtime.worker_link import WorkerPlace
from concertino.transports.listeners import listen_tcp

ADDRESS = re.compile(r"http://([\d.]+):(\d+)/mcp")
# A worker that ends in the middle of a response.
CUT_BODY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
CUT_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\ndata: {}\n\n\r\n"
)


class Reply:
    """A response as it came. is_whole: whether its end has come."""

    def __init__(self, received: bytes) -> None:
        head, _, self.body = received.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (item.partition(":") for item in lines)
        }
        if "content-length" in self.headers:
            self.is_whole = len(self.body) == int(self.headers["content-length"])
        else:
            self.is_whole = self.body.endswith(b"0\r\n\r\n")


class Worker:
    """One HttpServer of several, and where it listens."""

    def __init__(self, place: WorkerPlace, server: HttpServer) -> None:
        self.peers = WorkerPeers(place)
        match = ADDRESS.fullmatch(server.addresses[0])
        assert match is not None
        self.address = (match[1], int(match[2]))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)

    async def request(self, method: str, body: object = None, **headers: str) -> Reply:
        reader, writer = await self.connect()
        writer.write(encode_request(method, body, headers))
        async with asyncio.timeout(30):
            received = await reader.read()
        writer.close()
        return Reply(received)

    async def open_session(self, **headers: str) -> str:
        return (await self.request("POST", INITIALIZE, **headers)).headers["mcp-session-id"]


def encode_request(method: str, body: object, headers: dict[str, str]) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    usual = {"Host": "localhost", "Accept": BOTH, "Content-Type": "application/json"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**usual, **named}.items())
    head = f"{method} /mcp HTTP/1.1\r\n{lines}Connection: close\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


@asynccontextmanager
async def two_workers(
    server: Server, folder: Path, options: HttpOptions | None = None
) -> AsyncGenerator[list[Worker]]:
    started: list[tuple[Host, HttpServer]] = []
    workers: list[Worker] = []
    try:
        for number in (1, 2):
            host = await Host(server).__aenter__()
            place = WorkerPlace(-1, number, 2, folder)
            listener = listen_tcp("127.0.0.1", 0)
            http = HttpServer(host, [listener], options, None, WorkerPeers(place))
            await http.start()
            started.append((host, http))
            workers.append(Worker(place, http))
        yield workers
    finally:
        for host, http in started:
            host.drain()
            http.stop()
        for host, http in started:
            await http.closed
            await host.__aexit__(None, None, None)


def a_server() -> Server:
    server = Server("shared")

    @server.tool
    async def large(size: int) -> str:
        return "x" * size

    @server.tool
    async def count(context: Context) -> str:
        await context.progress(1, 2)
        return "counted"

    return server


def test_an_id_names_the_worker_that_has_made_it(tmp_path: Path) -> None:
    workers = [WorkerPeers(WorkerPlace(-1, number, 3, tmp_path)) for number in (1, 2, 3)]

    for number, worker in enumerate(workers, 1):
        ids = {worker.create_id() for _ in range(20)}
        assert len(ids) == 20
        assert {peer.find_owner(id) for peer in workers for id in ids} == {number}
    assert workers[0].find_owner("no-hex") is None


@on_a_loop
async def test_another_worker_passes_json_streams_and_refusals_on(tmp_path: Path) -> None:
    async with two_workers(a_server(), tmp_path) as (first, second):
        session = {"Mcp_Session_Id": await first.open_session()}

        plain = await second.request("POST", call(1, "large", size=3), **session)
        stream = await second.request("POST", call(2, "count", {"progressToken": 1}), **session)
        wrong = await second.request("GET", None, Last_Event_ID="99-1", **session)
        ended = await second.request("DELETE", None, **session)
        late = [await item.request("DELETE", None, **session) for item in (first, second)]

        assert json.loads(plain.body)["result"]["content"][0]["text"] == "xxx"
        assert (plain.status, plain.is_whole) == (200, True)
        assert stream.headers["content-type"] == "text/event-stream"
        assert (b"counted" in stream.body, stream.is_whole) == (True, True)
        assert (wrong.status, ended.status) == (400, 204)
        assert [item.status for item in late] == [404, 404]


@on_a_loop
async def test_a_stream_begins_before_its_first_event(tmp_path: Path) -> None:
    async with two_workers(a_server(), tmp_path) as (first, second):
        id = await first.open_session()
        reader, writer = await second.connect()
        writer.write(encode_request("GET", None, {"Mcp-Session-Id": id}))
        # Within less than the 15 s after which a comment would follow.
        async with asyncio.timeout(12):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


@on_a_loop
async def test_an_id_that_no_worker_has_made_is_unknown(tmp_path: Path) -> None:
    async with two_workers(a_server(), tmp_path) as (first, second):
        unknown = first.peers.create_id()
        for id in (unknown, "zz", "a" * 9000):
            for worker in (first, second):
                reply = await worker.request("POST", call(1, "count"), Mcp_Session_Id=id)
                assert reply.status == 404


@on_a_loop
async def test_a_session_is_unknown_to_another_user_at_every_worker(tmp_path: Path) -> None:
    async def verify(token: str) -> Principal | None:
        return Principal(token, issuer="https://issuer.example")

    options = HttpOptions(authorization=Authorization((verify,)))
    async with two_workers(a_server(), tmp_path, options) as (first, second):
        ann, bob = {"Authorization": "Bearer ann"}, {"Authorization": "Bearer bob"}
        session = {"Mcp_Session_Id": await first.open_session(**ann)}
        for worker in (first, second):
            own = await worker.request("POST", call(1, "count"), **session, **ann)
            other = await worker.request("POST", call(2, "count"), **session, **bob)
            nobody = await worker.request("POST", call(3, "count"), **session)
            assert (own.status, other.status, nobody.status) == (200, 404, 401)


@on_a_loop
@pytest.mark.parametrize("accept", [BOTH, "text/event-stream"])
async def test_a_large_result_arrives_whole_though_the_client_reads_late(
    tmp_path: Path, accept: str
) -> None:
    async with two_workers(a_server(), tmp_path) as (first, second):
        id, size = await first.open_session(), 8_000_000
        reader, writer = await second.connect()
        headers = {"Mcp-Session-Id": id, "Accept": accept}
        writer.write(encode_request("POST", call(1, "large", size=size), headers))
        # The reader stops reading the socket when it holds more than its limit. Meanwhile requests
        # of other sessions are served.
        other = await first.open_session()
        assert (await second.request("POST", call(2, "count"), Mcp_Session_Id=other)).status == 200

        async with asyncio.timeout(60):
            received = Reply(await reader.read())
        writer.close()

        assert received.is_whole
        assert received.body.count(b"x") >= size


@on_a_loop
@pytest.mark.parametrize(
    ("response", "status"),
    [
        (b"", 502),
        (b"HTTP/1.1 200 OK\r\n", 502),
        (b"x" * 100_000, 502),
        (CUT_BODY, 200),
        (CUT_STREAM, 200),
    ],
    ids=["nothing", "half a head", "no HTTP", "half a body", "half a stream"],
)
async def test_a_worker_that_dies_during_a_call_gives_an_error_or_a_cut_stream(
    tmp_path: Path, response: bytes, status: int
) -> None:
    async with two_workers(a_server(), tmp_path) as (first, _):
        dying = WorkerPeers(WorkerPlace(-1, 2, 2, tmp_path))
        (tmp_path / "worker-2").unlink()

        async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
            await writer.drain()
            # The kernel closes the sockets of a process that has died.
            writer.close()

        async with await asyncio.start_unix_server(die, tmp_path / "worker-2"):
            id = dying.create_id()
            reply = await first.request("POST", call(1, "count"), Mcp_Session_Id=id)

        assert reply.status == status
        if status == 200:
            assert not reply.is_whole
            assert b"{" in reply.body
        else:
            assert "may have run" in json.loads(reply.body)["error"]["message"]


@on_a_loop
async def test_a_client_that_leaves_ends_the_connection_between_the_workers(
    tmp_path: Path,
) -> None:
    async with two_workers(a_server(), tmp_path) as (first, _):
        (tmp_path / "worker-2").unlink()
        arrived, left = asyncio.Event(), asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            arrived.set()
            while await reader.read(65536):
                pass
            left.set()
            writer.close()

        async with await asyncio.start_unix_server(wait, tmp_path / "worker-2"):
            id = WorkerPeers(WorkerPlace(-1, 2, 2, tmp_path)).create_id()
            _, writer = await first.connect()
            writer.write(encode_request("POST", call(1, "count"), {"Mcp-Session-Id": id}))
            async with asyncio.timeout(30):
                await arrived.wait()
                writer.close()
                await left.wait()


@on_a_loop
async def test_what_no_worker_has_sent_is_refused_at_the_private_socket(tmp_path: Path) -> None:
    async with two_workers(a_server(), tmp_path):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "worker-1")
        writer.write(encode_request("POST", call(1, "count"), {"Mcp-Session-Id": "x"}))
        async with asyncio.timeout(30):
            assert Reply(await reader.read()).status == 400
        writer.close()
