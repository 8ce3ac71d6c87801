"""What a call of our client over HTTP costs: beside a floor without MCP, and a bare POST of httpx2.

python bench/http_client.py [--rounds N] [--calls N]

All send the same request of 2026-07-28 to the same server (http_servers/concertino_http.py), one
after the other on one connection. The floor is an asyncio.Protocol with httptools that knows no
MCP: it writes the same bytes again and again, and decodes the result. Rounds over all rows, so that
a slow minute of the machine falls on all alike: p50 and CPU time of the client's process are the
minima of the rounds' values. httpx2 is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httptools

from concertino import Client

SERVER = Path(__file__).parent / "http_servers" / "concertino_http.py"
TEXT = "x" * 100
REVISION = "2026-07-28"
WARM = 50
Call = Callable[[], Awaitable[object]]
Row = Callable[[str, Callable[[Call], Awaitable[None]]], Awaitable[None]]

META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
PARAMS = {"name": "echo", "arguments": {"text": TEXT}, "_meta": META}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PARAMS}).encode()
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": REVISION,
    "Mcp-Method": "tools/call",
    "Mcp-Name": "echo",
}


class Floor(asyncio.Protocol):
    """Sends one request at a time, and decodes the JSON of its response."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, request: bytes) -> asyncio.Future[Any]:
        self.parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done.set_result(json.loads(self.body))


async def use_floor(url: str, measure: Callable[[Call], Awaitable[None]]) -> None:
    port = int(url.rpartition(":")[2].partition("/")[0])
    lines = {"Host": f"127.0.0.1:{port}", **HEADERS, "Content-Length": str(len(BODY))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    request = f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + BODY
    loop = asyncio.get_running_loop()
    transport, floor = await loop.create_connection(Floor, "127.0.0.1", port)
    await measure(lambda: floor.send(request))
    transport.close()


async def use_concertino(url: str, measure: Callable[[Call], Awaitable[None]]) -> None:
    async with Client(url, era="modern") as client:
        await measure(lambda: client.call_tool("echo", {"text": TEXT}))


async def use_httpx2(url: str, measure: Callable[[Call], Awaitable[None]]) -> None:
    import httpx2

    async with httpx2.AsyncClient() as client:

        async def call() -> None:
            (await client.post(url, content=BODY, headers=HEADERS)).json()

        await measure(call)


async def take(row: Row, url: str, calls: int) -> tuple[float, float]:
    """Return the p50 and the CPU time of a call, in microseconds."""
    times: list[float] = []
    cpu = 0.0

    async def measure(call: Call) -> None:
        nonlocal cpu
        for _ in range(WARM):
            await call()
        began = time.process_time()
        for _ in range(calls):
            start = time.perf_counter()
            await call()
            times.append(time.perf_counter() - start)
        cpu = (time.process_time() - began) / calls

    await row(url, measure)
    return statistics.median(times) * 1e6, cpu * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--calls", type=int, default=1000, metavar="N")
    args = parser.parse_args()
    rows: dict[str, Row] = {"floor": use_floor, "concertino": use_concertino}
    if find_spec("httpx2") is not None:
        rows["httpx2"] = use_httpx2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, os.fspath(SERVER), str(port)], stderr=subprocess.DEVNULL
    )
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        for _ in range(args.rounds):
            for name, row in rows.items():
                found[name].append(
                    asyncio.run(take(row, f"http://127.0.0.1:{port}/mcp", args.calls))
                )
    finally:
        server.kill()
        server.wait()
    floor_p50, floor_cpu = (min(column) for column in zip(*found["floor"], strict=True))
    print("| client | p50 us | CPU us a call | p50 / floor | CPU / floor |\n|---|---|---|---|---|")
    for name, values in found.items():
        p50, cpu = (min(column) for column in zip(*values, strict=True))
        ratios = f"{p50 / floor_p50:.2f} | {cpu / floor_cpu:.2f}"
        print(f"| {name} | {p50:.0f} | {cpu:.0f} | {ratios} |")


if __name__ == "__main__":
    main()
