"""WebSockets at the MCP endpoint: the client of the package `websockets`, and raw bytes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_service import WAIT_S, modern
from loops import on_a_loop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from concertino import Context, Limits, Server
from concertino.backend import Host, Principal
from concertino.http import (
    Authorization,
    HttpOptions,
    HttpServer,
    HttpTimeouts,
    PrincipalLimits,
)
from concertino.transports import listen_tcp

PATIENT = 1000.0
USUAL = HttpTimeouts(PATIENT, PATIENT, PATIENT, PATIENT, PATIENT, PATIENT)
MAX_BYTES = 64 * 1024
cancelled = asyncio.Event()


def make_server() -> Server:
    server = Server("websocket")

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def count(context: Context) -> str:
        for step in (1, 2):
            await context.progress(step, 2)
        return "counted"

    @server.tool
    async def wait() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    @server.tool
    async def whoami(context: Context) -> str:
        return "" if context.principal is None else context.principal.subject

    return server


class Rig:
    def __init__(self, host: Host, server: HttpServer, port: int) -> None:
        self.host = host
        self.server = server
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    def connect(self, token: str = "", path: str = "/mcp", **options: Any) -> connect:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return connect(
            f"ws://127.0.0.1:{self.port}{path}", additional_headers=headers, proxy=None, **options
        )

    async def open_raw(self, **headers: str) -> asyncio.StreamReader:
        """Send a handshake, and return the reader. The writer is the last of `writers`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        given = {
            "Host": f"localhost:{self.port}",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        lines = [f"{name}: {value}" for name, value in given.items() if value]
        writer.write("\r\n".join(["GET /mcp HTTP/1.1", *lines, "", ""]).encode())
        return reader


@asynccontextmanager
async def running(
    options: HttpOptions | None = None, limits: Limits | None = None
) -> AsyncGenerator[Rig]:
    listener = listen_tcp("127.0.0.1", 0)
    chosen = options or HttpOptions(websocket=True, timeouts=USUAL)
    async with Host(make_server(), limits or Limits(max_message_bytes=MAX_BYTES)) as host:
        http = HttpServer(host, [listener], chosen)
        await http.start()
        rig = Rig(host, http, listener.socket.getsockname()[1])
        try:
            yield rig
        finally:
            for writer in rig.writers:
                writer.transport.abort()
            host.drain()
            http.stop()
            await http.closed


async def ask(client: ClientConnection, message: Any) -> Any:
    await client.send(json.dumps(message))
    return json.loads(await client.recv())


def frame(opcode: int, data: bytes, *, fin: bool = True, length: int | None = None) -> bytes:
    """A masked frame (RFC 6455, section 5.2), with a mask of zeros."""
    size = len(data) if length is None else length
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 2**16:
        head += bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", size)
    return head + b"\0\0\0\0" + data


TEXT, CONTINUATION, BINARY, PING = 1, 0, 2, 9


async def read_close(reader: asyncio.StreamReader) -> int:
    """The code of the close frame with which the server ends the connection."""
    data = await reader.read()
    # 0x88: fin and the opcode 8. Nothing follows a close frame.
    at = data.rindex(b"\x88")
    assert data[at + 1] == len(data) - at - 2
    code: int = struct.unpack("!H", data[at + 2 : at + 4])[0]
    return code


INITIALIZE = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {},
               "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
ECHO = modern("tools/call", name="echo", arguments={"text": "hi"})


@on_a_loop
async def test_both_eras_are_served() -> None:
    async with running() as rig, rig.connect(subprotocols=["mcp"]) as client:
        assert client.subprotocol == "mcp"
        opened = await ask(client, INITIALIZE)
        assert opened["result"]["protocolVersion"] == "2025-11-25"
        await client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "count", "_meta": {"progressToken": "t"}}}  # fmt: skip
        await client.send(json.dumps(call))
        received = [json.loads(await client.recv()) for _ in range(3)]
        assert [item.get("method") for item in received] == ["notifications/progress"] * 2 + [None]
        assert received[-1]["result"]["content"][0]["text"] == "counted"

    async with running() as rig, rig.connect(compression="deflate") as client:
        assert client.subprotocol is None
        # Compression is not accepted.
        assert client.protocol.extensions == []
        answer = await ask(client, ECHO)
        assert answer["result"]["content"][0]["text"] == "hi"


@on_a_loop
async def test_many_calls_at_once_and_each_answer_in_a_frame_of_its_own() -> None:
    async with running() as rig, rig.connect() as client:
        for id in range(100):
            # Line feeds between the tokens are white space.
            await client.send(json.dumps({**ECHO, "id": id}, indent=1))

        answers = [json.loads(await client.recv()) for _ in range(100)]

        assert sorted(item["id"] for item in answers) == list(range(100))


@on_a_loop
async def test_a_message_may_come_in_fragments_and_split_at_each_byte() -> None:
    async with running() as rig:
        reader = await rig.open_raw()
        await reader.readuntil(b"\r\n\r\n")
        text = json.dumps(ECHO).encode()
        data = (
            frame(TEXT, text[:7], fin=False)
            + frame(PING, b"p")
            + frame(CONTINUATION, b"", fin=False)
            + frame(CONTINUATION, text[7:])
        )
        for byte in data:
            rig.writers[-1].write(bytes([byte]))
            await asyncio.sleep(0)

        # The pong comes first: RFC 6455 allows control frames between fragments.
        assert await reader.readexactly(3) == b"\x8a\x01p"
        assert b'"text":"hi"' in await reader.readuntil(b"}]")


@on_a_loop
async def test_frames_may_follow_the_handshake_at_once() -> None:
    async with running() as rig:
        reader = await rig.open_raw()
        rig.writers[-1].write(frame(TEXT, json.dumps(ECHO).encode()))

        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b'"text":"hi"' in await reader.readuntil(b"}]")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(BINARY, b"{}"), 1003),
        (frame(TEXT, b'"\xff"'), 1007),
        (frame(TEXT, b"", length=MAX_BYTES + 1), 1009),
        (frame(TEXT, b"x" * (MAX_BYTES - 1), fin=False) + frame(CONTINUATION, b"xx"), 1009),
        (frame(TEXT, b"", length=2**62), 1009),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(3, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        # Not masked.
        (b"\x81\x02{}", 1002),
    ],
)
@on_a_loop
async def test_what_a_client_must_not_send_ends_the_connection(data: bytes, code: int) -> None:
    async with running() as rig:
        reader = await rig.open_raw()
        await reader.readuntil(b"\r\n\r\n")
        rig.writers[-1].write(data)

        assert await read_close(reader) == code
        # The others are served.
        async with rig.connect() as client:
            assert (await ask(client, ECHO))["id"] == 1


@on_a_loop
async def test_malformed_json_is_answered() -> None:
    async with running() as rig, rig.connect() as client:
        await client.send("{")
        assert json.loads(await client.recv())["error"]["code"] == -32700
        assert (await ask(client, ECHO))["id"] == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example.com"}, 403),
        ({"Origin": "https://evil.example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_WebSocket_Version": "8"}, 400),
        ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Sec_WebSocket_Key": ""}, 400),
        ({"Connection": "keep-alive"}, 426),
        # No WebSocket is wanted, so this is a GET without a session.
        ({"Upgrade": "h2c"}, 405),
    ],
)
@on_a_loop
async def test_a_handshake_that_is_refused(headers: dict[str, str], status: int) -> None:
    async with running() as rig:
        reader = await rig.open_raw(**headers)

        assert (await reader.readline()).startswith(b"HTTP/1.1 %d " % status)


@on_a_loop
async def test_pages_of_this_machine_may_connect() -> None:
    async with running() as rig:
        reader = await rig.open_raw(Origin="http://localhost:3000")

        assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")


@on_a_loop
async def test_without_the_option_there_are_no_websockets() -> None:
    async with running(HttpOptions(timeouts=USUAL)) as rig:
        with pytest.raises(InvalidStatus) as refusal:
            async with rig.connect():
                pass
        assert refusal.value.response.status_code == 405


def verify(token: str) -> Principal | None:
    if token == "short":
        return Principal("ada", expires=time.time() + 0.2)
    return Principal(token) if token in ("ada", "bob") else None


AUTHORIZED = HttpOptions(
    websocket=True,
    timeouts=USUAL,
    authorization=Authorization((verify,)),
    principal_limits=PrincipalLimits(max_requests=2, rate="4/0.2"),
)


@on_a_loop
async def test_a_websocket_belongs_to_the_principal_of_its_handshake() -> None:
    async with running(AUTHORIZED) as rig:
        for token in ("", "eve"):
            with pytest.raises(InvalidStatus) as refusal:
                async with rig.connect(token):
                    pass
            assert refusal.value.response.status_code == 401
            assert "Bearer" in refusal.value.response.headers["WWW-Authenticate"]

        async with rig.connect("ada") as ada, rig.connect("bob") as bob:
            for client, name in ((ada, "ada"), (bob, "bob")):
                answer = await ask(client, modern("tools/call", name="whoami", arguments={}))
                assert answer["result"]["content"][0]["text"] == name
            # An open WebSocket is a request that is under way.
            async with rig.connect("ada"):
                with pytest.raises(InvalidStatus) as refusal:
                    async with rig.connect("ada"):
                        pass
                assert refusal.value.response.status_code == 429


@on_a_loop
async def test_messages_above_the_rate_wait() -> None:
    async with running(AUTHORIZED) as rig, rig.connect("ada") as client:
        began = time.monotonic()
        for id in range(12):
            await client.send(json.dumps({**ECHO, "id": id}))
        ids = [json.loads(await client.recv())["id"] for _ in range(12)]

        assert ids == list(range(12))
        # Three of the handshake's period and the next two: 4 in each 0.2 s.
        assert time.monotonic() - began >= 0.4


@on_a_loop
async def test_a_websocket_ends_with_its_token() -> None:
    async with running(AUTHORIZED) as rig, rig.connect("short") as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()

        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token has expired")


@on_a_loop
async def test_a_client_that_leaves_cancels_its_calls() -> None:
    cancelled.clear()
    async with running() as rig:
        async with rig.connect() as client:
            await client.send(json.dumps(modern("tools/call", name="wait", arguments={})))
            await ask(client, ECHO)
        await cancelled.wait()
        while rig.host.connections:
            await asyncio.sleep(0.01)


@on_a_loop
async def test_the_end_of_the_server_is_a_close_frame() -> None:
    async with running() as rig, rig.connect() as client:
        await ask(client, ECHO)
        rig.host.drain()
        rig.server.stop()
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()

        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        await rig.server.closed


@on_a_loop
async def test_a_silent_client_gets_pings_and_one_that_is_gone_is_disconnected() -> None:
    timeouts = HttpTimeouts(PATIENT, PATIENT, PATIENT, 0.05, PATIENT, PATIENT)
    options = HttpOptions(websocket=True, timeouts=timeouts)
    async with running(options) as rig, rig.connect() as client:
        reader = await rig.open_raw()
        await reader.readuntil(b"\r\n\r\n")
        # This one answers no ping.
        assert await reader.read() == b"\x89\x00"

        # That one has, for as long.
        assert (await ask(client, ECHO))["id"] == 1


@on_a_loop
async def test_a_client_that_reads_nothing_is_read_no_more() -> None:
    """Its pings are not answered without a limit."""
    async with running() as rig:
        reader = await rig.open_raw()
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # pyright: ignore
        writer = rig.writers[-1]
        flood = frame(PING, b"x" * 125) * 1000
        # The buffers of the system take some. At 64 MiB, the server would have read it all.
        for _ in range(64 * 2**20 // len(flood)):
            writer.write(flood)
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
        assert writer.transport.get_write_buffer_size() > 0
        (connection,) = rig.server.connections._connections  # pyright: ignore
        assert connection.unread_bytes < 2**20


@on_a_loop
async def test_large_messages_together_are_limited() -> None:
    """Four of the largest size may be under way, and the next one is asked to come back later."""
    limits = Limits(max_message_bytes=2**20)
    async with running(limits=limits) as rig:
        part = frame(TEXT, b"x" * (2**20 - 1), fin=False)
        readers: list[asyncio.StreamReader] = []
        for _ in range(4):
            readers.append(await rig.open_raw())
            await readers[-1].readuntil(b"\r\n\r\n")
            rig.writers[-1].write(part + frame(PING, b""))
            # The pong: all of it has been read.
            assert await readers[-1].readexactly(2) == b"\x8a\x00"

        reader = await rig.open_raw()
        await reader.readuntil(b"\r\n\r\n")
        rig.writers[-1].write(part)
        async with asyncio.timeout(WAIT_S):
            assert await read_close(reader) == 1013
