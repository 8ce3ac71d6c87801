"""Measure servers whose clients do not read: memory, dropped results, and what others notice.

    python soak/unread_results.py [--sizes 1,5,10] [--tools async,def,...] [--clients one,http,...]
        [--values text|rows|page] [--strict]
    python soak/unread_results.py --read 1 [--sizes 1] [--tools ...] [--values ...]

Each line is a server process of its own, all of whose calls return results of one size that nobody
reads. "Growth" is the peak of the resident memory (VmHWM) above the server at rest. Its bound is
the limit of unread results, 64 MiB for one client and 256 MiB for all, and 64 MiB. Meanwhile
another client sends requests. "Longest" is the CPU time of the longest iteration of the event loop,
and "own" what the tool itself took of it: the time in which an `async` tool makes its results, and
in which the system takes back the memory of those that are dropped, is not the server's. "Ping" is
the most CPU time of the loop's thread from a request to its answer. A row is marked with an
exclamation mark if memory is over its bound, or if the longest iteration or ping without the tool's
own time is over 50 ms; with --strict the exit code is 1 then.

With `--values rows` the tools return a list of dicts, with `--values page` a dataclass with a list
of small dataclasses. Both become structured content and its text, so the message is more than twice
as large as the JSON; 5 MB and more exceed the limit of a message.

With `--read 1` one client makes 200 calls at once, and reads 1 MB/s. It must get all results.

Tools:
async       awaits 10 ms, then makes its result
async-slow  awaits 7 s before
def         makes its result at once
def-wait    blocks for 10 ms before
def-slow    blocks for 7 s before
...-small   the same, after 1 call with a small result
...-32      the same, after 32 calls at once with small results
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

MIB = 2**20
MARGIN_BYTES = 64 * MIB
MAX_LOOP_S = 0.05
# A row ends when no call has begun or ended, and nothing was dropped, for this time.
QUIET_S = 3.5
# ... or at last after this time.
ROW_S = 120.0
ANSWER_S = 60.0
SOURCE = '''
import asyncio
import functools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from concertino import Server

server = Server("unread")
begun = ended = ended_async = measured_size = 0
own_s = free_s = 0.0
longest = (0.0, 0.0)


@server.lifespan
async def watch() -> AsyncIterator[None]:
    """Measure each iteration of the loop, and what the tools take of it."""
    loop = asyncio.get_running_loop()
    run_once = loop._run_once

    def measured() -> None:
        global longest
        before, own_before, ended_before = time.thread_time(), own_s, ended_async
        run_once()
        taken = time.thread_time() - before
        if taken > longest[0]:
            longest = taken, own_s - own_before + (ended_async - ended_before) * free_s

    loop._run_once = measured
    yield


TEXT = "x" * 970


def make_text(size: int) -> str:
    return "x" * size


def make_rows(size: int) -> list[dict[str, Any]]:
    return [{"number": number, "text": TEXT} for number in range(size // 1000)]


@dataclass
class Row:
    number: int
    text: str | None = None


@dataclass
class Page:
    rows: list[Row]


@functools.cache
def make_page(size: int) -> Page:
    # All calls return the same page: its objects take more memory than its JSON, and their memory
    # is the tool's. Each has 41 bytes of JSON, if the number has 5 digits.
    return Page([Row(number, "twelve chars") for number in range(size // 41)])


@server.tool(name="async")
async def wait_async(size: int, wait_s: float) -> RESULT:
    global begun, ended, ended_async, own_s, free_s, measured_size
    begun += 1
    if size != measured_size:
        measured_size = size
        free_s = min(measure_freeing(size) for _ in range(5))
    await asyncio.sleep(wait_s)
    before = time.thread_time()
    result = MAKE(size)
    own_s += time.thread_time() - before
    ended += 1
    ended_async += 1
    return result


def measure_freeing(size: int) -> float:
    """Return how long it takes to free one result."""
    result = MAKE(size)
    before = time.thread_time()
    del result
    return time.thread_time() - before


@server.tool(name="def")
def wait_in_thread(size: int, wait_s: float) -> RESULT:
    global begun, ended
    begun += 1
    if wait_s:
        time.sleep(wait_s)
    ended += 1
    return MAKE(size)


@server.tool
async def counts(reset: bool = False, size: int = 0) -> dict[str, float]:
    global longest
    if reset:
        longest = 0.0, 0.0
        # The memory of the page itself is the tool's.
        make_page(size)
    return {"begun": begun, "ended": ended, "longest_s": longest[0], "own_s": longest[1]}
'''
# The kind of value that tools return -> their annotation, and the function that makes the value.
VALUES = {
    "text": ("str", "make_text"),
    "rows": ("list[dict[str, Any]]", "make_rows"),
    "page": ("Page", "make_page"),
}
# The name of a row's tool -> the tool that is called, and the seconds for which it waits.
TOOLS = {
    "async": ("async", 0.01),
    "async-slow": ("async", 7.0),
    "def": ("def", 0.0),
    "def-wait": ("def", 0.01),
    "def-slow": ("def", 7.0),
}
# The end of a row's name -> how many calls with small results come first.
SMALL_CALLS = {"small": 1, "32": 32}
# The clients of a row -> their number, and the calls that each of them makes.
CLIENTS = {"one": (1, 100), "sockets": (60, 5), "http": (60, 5)}
META: dict[str, object] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
# The calls of the client that reads slowly, and how many bytes it reads at a time.
READER_CALLS = 200
READER_BYTES = 64 * 1024


class Row(NamedTuple):
    """What was measured of one server."""

    growth_bytes: int
    bound_bytes: int
    begun: int
    dropped: int
    longest_s: float
    own_s: float
    ping_s: float

    def is_over(self) -> bool:
        longest_s = max(self.longest_s, self.ping_s) - self.own_s
        return self.growth_bytes > self.bound_bytes or longest_s > MAX_LOOP_S


class Wire:
    """A client that reads only when it is told to.

    address: the path of a Unix socket, or host and port of an HTTP server.
    """

    def __init__(self, address: str | tuple[str, int]) -> None:
        self._is_http = not isinstance(address, str)
        self.sock = socket.socket(socket.AF_INET if self._is_http else socket.AF_UNIX)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(address)
        self._rest = b""

    def send(self, *messages: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(map(self._encode, messages)))

    def _encode(self, message: dict[str, Any]) -> bytes:
        params = {**message.get("params", {}), "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", **message, "params": params}).encode()
        if not self._is_http:
            return body + b"\n"
        name = message["params"].get("name") if "params" in message else None
        named = f"Mcp-Name: {name}\r\n" if name else ""
        return (
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n"
            f"Mcp-Method: {message['method']}\r\n{named}Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def read(self) -> dict[str, Any]:
        """Read one answer; over HTTP it must be a JSON body."""
        if not self._is_http:
            line = self._read_until(b"\n")
            return json.loads(line)
        head = self._read_until(b"\r\n\r\n")
        found = re.search(rb"(?i)content-length: (\d+)", head)
        assert found, head
        size = int(found[1])
        while len(self._rest) < size:
            self._receive()
        body, self._rest = self._rest[:size], self._rest[size:]
        return json.loads(body)

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._rest:
            self._receive()
        data, _, self._rest = self._rest.partition(end)
        return data

    def _receive(self) -> None:
        part = self.sock.recv(MIB)
        assert part, "the server closed the connection"
        self._rest += part


def make_call(id: int | str, tool: str, **arguments: object) -> dict[str, Any]:
    return {"id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


class Server:
    """A server process."""

    def __init__(self, folder: Path, is_http: bool, values: str) -> None:
        annotation, make = VALUES[values]
        source = SOURCE.replace("RESULT", annotation).replace("MAKE", make)
        (folder / "server.py").write_text(source)
        path = str(folder / "s")
        where = ["--http", "127.0.0.1:0"] if is_http else ["--unix", path]
        self._log = folder / "stderr"
        with self._log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "concertino", "serve", str(folder / "server.py"), *where],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        deadline = time.monotonic() + ANSWER_S
        while not (found := re.search(r"Listening on (\S+)", self.log())):
            assert time.monotonic() < deadline, self.log()
            assert self.process.poll() is None, self.log()
            time.sleep(0.05)
        self.address: str | tuple[str, int] = path
        if is_http:
            port = re.search(r":(\d+)/", found[1])
            assert port, found[1]
            self.address = "127.0.0.1", int(port[1])

    def log(self) -> str:
        return self._log.read_text()

    def dropped(self) -> int:
        return sum(map(int, re.findall(r"(\d+) results were dropped", self.log())))

    def memory(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found, status
        return int(found[1]) * 1024

    def loop_cpu_s(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(tool: str, clients: str, size: int, values: str) -> Row:
    """Measure one row. size: the size of each result, or of its JSON, in bytes."""
    name, _, before = tool.rpartition("-")
    small_calls = SMALL_CALLS.get(before, 0)
    called, wait_s = TOOLS[name if small_calls else tool]
    count, calls = CLIENTS[clients]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = Server(Path(folder), clients == "http", values)
        stack.callback(server.close)
        wires = [Wire(server.address) for _ in range(count)]
        other = Wire(server.address)
        for wire in (*wires, other):
            stack.callback(wire.sock.close)
            wire.send({"id": 0, "method": "server/discover"})
            wire.read()
        other.send(make_call("counts", "counts", reset=True, size=size if values == "page" else 0))
        other.read()
        small = [make_call(f"small {n}", called, size=1, wait_s=0.01) for n in range(small_calls)]
        wires[0].send(*small)
        for _ in small:
            wires[0].read()
        # Reset VmHWM, see proc(5).
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
        at_rest = server.memory("VmHWM")
        for wire in wires:
            ids = range(1, calls + 1)
            wire.send(*(make_call(id, called, size=size, wait_s=wait_s) for id in ids))

        slowest = 0.0
        last: object = None
        counts: dict[str, float] = {}
        changed = began = time.monotonic()
        while time.monotonic() < min(changed + QUIET_S, began + ROW_S):
            before = server.loop_cpu_s()
            other.send({"id": "ping", "method": "server/discover"})
            other.read()
            slowest = max(slowest, server.loop_cpu_s() - before)
            other.send(make_call("counts", "counts"))
            counts = other.read()["result"]["structuredContent"]
            now = counts["begun"], counts["ended"], server.dropped()
            if now != last or counts["begun"] != counts["ended"]:
                last, changed = now, time.monotonic()
        growth = server.memory("VmHWM") - at_rest
        budget = 64 * MIB if count == 1 else 256 * MIB
        return Row(
            growth,
            budget + MARGIN_BYTES,
            int(counts["begun"]) - small_calls,
            server.dropped(),
            counts["longest_s"],
            counts["own_s"],
            slowest,
        )


def read_slowly(tool: str, size: int, values: str, rate: float) -> bool:
    """Let one client read at a rate of `rate` MB/s; return whether it got all results.

    size: the size of each result, or of its JSON, in bytes.
    """
    called, wait_s = TOOLS[tool]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = Server(Path(folder), False, values)
        stack.callback(server.close)
        wire = Wire(server.address)
        stack.callback(wire.sock.close)
        at_rest = server.memory("VmRSS")
        ids = range(1, READER_CALLS + 1)
        wire.send(*(make_call(id, called, size=size, wait_s=wait_s) for id in ids))
        began, received, results, answers = time.monotonic(), 0, 0, 0
        data = bytearray()
        while answers < READER_CALLS:
            time.sleep(max(0.0, began + received / (rate * 10**6) - time.monotonic()))
            part = wire.sock.recv(READER_BYTES)
            assert part, "the server closed the connection"
            received += len(part)
            data += part
            if b"\n" in part:
                *lines, data = data.split(b"\n")
                answers += len(lines)
                results += sum("result" in json.loads(line) for line in lines)
        growth = server.memory("VmHWM") - at_rest
        is_over = results < READER_CALLS or growth > 128 * MIB
        print(
            f"{tool:14} {size / 10**6:>3g} MB: {results} of {READER_CALLS} results, "
            f"{server.dropped()} dropped, {received / 10**6:.0f} MB in "
            f"{time.monotonic() - began:.0f} s, growth {growth / MIB:.0f} MiB"
            f"{' !' if is_over else ''}",
            flush=True,
        )
        return not is_over


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [
        "async",
        "async-small",
        "async-slow",
        "def",
        "def-small",
        "def-32",
        "def-wait",
        "def-wait-small",
        "def-slow",
    ]
    parser.add_argument("--sizes", default="1,5,10", help="of results, in MB")
    parser.add_argument("--tools", default=",".join(names))
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--values", choices=VALUES, default="text")
    parser.add_argument("--read", type=float, metavar="MB/S", help="read as slowly as this")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    if args.read:
        rows = [
            read_slowly(tool, int(float(size) * 10**6), args.values, args.read)
            for tool in args.tools.split(",")
            for size in args.sizes.split(",")
        ]
        return int(args.strict and not all(rows))
    print(
        "clients  tool            MB  growth  bound  begun dropped  longest      own     ping",
        flush=True,
    )
    is_over = False
    for clients in args.clients.split(","):
        for tool in args.tools.split(","):
            for size in args.sizes.split(","):
                row = measure(tool, clients, int(float(size) * 10**6), args.values)
                is_over = is_over or row.is_over()
                print(
                    f"{clients:8} {tool:14} {size:>3} {row.growth_bytes / MIB:+7.0f} "
                    f"{row.bound_bytes / MIB:6.0f} {row.begun:6} {row.dropped:7} "
                    f"{row.longest_s * 1e3:6.0f} ms {row.own_s * 1e3:5.0f} ms "
                    f"{row.ping_s * 1e3:5.0f} ms{' !' if row.is_over() else ''}",
                    flush=True,
                )
    return int(is_over and args.strict)


if __name__ == "__main__":
    sys.exit(main())
