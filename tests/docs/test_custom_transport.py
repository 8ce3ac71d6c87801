"""docs/how-to/custom-transport.md: its WebSocket Connection at both ends, with the `websockets`
package by itself at the other end.

tests/interop/test_docs_pages.py has the official TypeScript client there.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, blocks, environment, paste

from concertino import Disconnected, Limits, Server
from concertino.backend import Host
from concertino.transports import connect

PAGE = DOCS / "how-to" / "custom-transport.md"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where the page's WebSocket server listens."""
    names = paste(PAGE, tmp_path)
    assert names == ["websocket_connection.py", "websocket_server.py", "websocket_client.py"]
    command = [sys.executable, "websocket_server.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def test_the_connection_is_as_short_as_it_says() -> None:
    page = (PAGE).read_text()
    connection = next(
        block for block in blocks(page, "python") if block.startswith("# websocket_connection.py")
    )
    assert len(connection.splitlines()) <= 65


def test_the_page_s_client_calls_the_page_s_server(address: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "websocket_client.py", address],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "{'result': 6.0}\n", done.stderr
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.requirement("FR-15", "FR-16")
def test_a_plain_websocket_client_is_served_and_one_message_is_one_frame(address: str) -> None:
    from websockets.sync.client import connect

    with connect(address, subprotocols=["mcp"]) as socket:  # pyright: ignore
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        socket.send(
            json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}, indent=1
            )
        )
        assert json.loads(socket.recv(10))["result"]["serverInfo"]["name"] == "shop"
        for number in range(2, 302):
            call = {"name": "price", "arguments": {"item": "plum", "amount": number}}
            socket.send(
                json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
            )
        answers = [json.loads(socket.recv(10)) for _ in range(2, 302)]
        assert [answer["result"]["structuredContent"]["result"] for answer in answers] == [
            1.5 * number for number in range(2, 302)
        ]
        socket.send("{no json")
        assert json.loads(socket.recv(10))["error"]["code"] == -32700


def test_a_web_page_is_refused(address: str) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus, match="403"):
        connect(address, origin="http://example.com")  # pyright: ignore


# In this process, so that both ends can be looked at


@pytest.fixture
def connection_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page's class."""
    paste(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "websocket_connection", raising=False)
    return import_module("websocket_connection").WebSocketConnection


server = Server("sizes")
started: asyncio.Event


@server.tool
async def big(count: int) -> str:
    return "x" * count


@server.tool
async def never() -> str:
    started.set()
    await asyncio.Event().wait()
    return "never"


@asynccontextmanager
async def connect_plain_client(
    connection_class: Any, **settings: Any
) -> AsyncIterator[tuple[Any, list[Any]]]:
    """A plain client connected to `server`; and the Connections of this end, made so far."""
    import websockets

    global started
    started = asyncio.Event()
    made: list[Any] = []
    limits = Limits(max_message_bytes=3_000_000, max_unread_bytes=4_000_000, drain_s=0.2)
    async with Host(server, limits) as host:

        async def one(socket: Any) -> None:
            made.append(connection_class(socket))
            await asyncio.wait([host.attach(made[-1]).closed])

        async with (
            websockets.serve(
                one, "127.0.0.1", 0, max_size=limits.max_message_bytes, close_timeout=2
            ) as at,
            asyncio.timeout(30),
        ):
            port = at.sockets[0].getsockname()[1]
            async with websockets.connect(
                f"ws://127.0.0.1:{port}", max_size=None, **settings
            ) as client:
                await client.send(json.dumps(OPENING))
                await client.recv()
                yield client, made


OPENING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25"},
}


def call(id: int, name: str, **arguments: Any) -> str:
    params = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


def test_a_client_that_does_not_read_is_held_back_and_loses_nothing(connection_class: Any) -> None:
    async def talk() -> None:
        async with connect_plain_client(connection_class, max_queue=1) as (client, [connection]):
            held_back = asyncio.Event()
            pause, write = connection.pause, connection.write
            held: list[int] = []

            def note_pause(paused: bool) -> None:
                pause(paused)
                if paused:
                    held_back.set()

            def note_held(frame: bytes, request_id: object) -> int:
                held.append(write(frame, request_id))
                return held[-1]

            connection.pause, connection.write = note_pause, note_held
            for id in range(1, 201):
                await client.send(call(id, "big", count=100_000))
            await held_back.wait()
            answers = [json.loads(await client.recv()) for _ in range(200)]
            assert sorted(answer["id"] for answer in answers) == list(range(1, 201))
            assert all(len(answer["result"]["content"][0]["text"]) == 100_000 for answer in answers)
            # Of 20 MB. On Python 3.11 calls that a task receives run one loop iteration later, all
            # that may be in flight at a time: high_water_bytes alone does not bound what they add.
            assert 1_000_000 < max(held) <= 4_000_000

    asyncio.run(talk())


def test_a_message_over_the_limit_ends_the_connection_and_the_next_client_is_served(
    connection_class: Any,
) -> None:
    from websockets.exceptions import ConnectionClosed

    async def talk() -> None:
        async with connect_plain_client(connection_class) as (client, _):
            await client.send("x" * 3_000_001)
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009  # RFC 6455 section 7.4.1: message too big
        async with connect_plain_client(connection_class) as (client, _):
            await client.send(call(1, "big", count=2))
            assert json.loads(await client.recv())["result"]["content"][0]["text"] == "xx"

    asyncio.run(talk())


@pytest.mark.requirement("FR-16")
@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_client_that_leaves_during_a_call_cancels_it(how: str, connection_class: Any) -> None:
    async def talk() -> None:
        async with connect_plain_client(connection_class) as (client, [connection]):
            await client.send(call(1, "never"))
            await started.wait()
            if how == "abort":
                client.transport.abort()
            else:
                await client.close()
            await asyncio.wait(connection._tasks)  # both end by themselves

    asyncio.run(talk())


def test_the_caller_s_end_speaks_to_any_server_and_hears_of_its_end(connection_class: Any) -> None:
    import websockets

    async def scripted(socket: Any) -> None:
        """A server of twelve lines that is not concertino's."""
        async for text in socket:
            request = json.loads(text)
            if request["method"] == "leave":
                await socket.close()
                return
            said = json.dumps(
                {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "heard"}}
            )
            await socket.send(said)
            await socket.send(
                json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": request["params"]})
            )

    async def talk() -> None:
        heard: list[tuple[str, dict[str, Any]]] = []
        async with (
            asyncio.timeout(30),
            websockets.serve(scripted, "127.0.0.1", 0, max_size=None) as at,
        ):
            port = at.sockets[0].getsockname()[1]
            socket = await websockets.connect(f"ws://127.0.0.1:{port}", max_size=None)
            client = connect(
                connection_class(socket), lambda method, params: heard.append((method, params))
            )
            for text in ("a", "é\u2028" * 400_000):
                assert await client.request("echo", {"text": text}) == {"text": text}
            assert heard == [("notifications/message", {"data": "heard"})] * 2
            with pytest.raises(Disconnected):
                await client.request("leave")
            await client.aclose()

    asyncio.run(talk())
