"""What a call over HTTP costs: our server, floors that know no MCP, and comparable servers.

python bench/http_server.py [--rounds N] [--seconds S] [--only NAME...] [--json FILE]

The module is not called http.py, because it would then hide the standard library's `http` from
every script in this folder.

The load client (http_servers/load.c) sends one echo call of 100 bytes of text again and again, on
one and on 64 connections, and checks status, id and text of each answer. Rounds over all rows, so
that a slow minute of the machine falls on all alike: medians of times, minima of CPU time. CPU is
that of the server and its children, with all threads, from the kernel's scheduler; on a busy
machine it is the only column that says something. Server and client run on cores of their own if
there are two.

modern: 2026-07-28, no session. session: 2025-11-25, answers as JSON. stream: 2025-11-25, answers as
events. Idle connections are measured by http_idle.py.
Needs Linux and a C compiler; what cannot be installed is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import pick_cores
from workshop import (
    BENCH,
    WORK,
    BuildError,
    Place,
    build_places,
    describe_interpreter,
    run,
    server_environment,
)

PROGRAMS = BENCH / "http_servers"
TEXT = "x" * 90 + "0123456789"
ID = "@" * 10
AT_ONCE = 64
WARM_MS = 400
START_LIMIT_S = 30.0
BOTH = "application/json, text/event-stream"


@dataclass(frozen=True)
class Row:
    """One server in one mode. command: {python}, {node} and {bin} are filled in by the workshop."""

    name: str
    label: str
    place: str
    command: tuple[str, ...]
    mode: str
    path: str = "/mcp"
    accept: str = BOTH


def python(script: str, *options: str) -> tuple[str, ...]:
    return ("{python}", str(PROGRAMS / script), "PORT", *options)


OURS = python("concertino_http.py")
STREAM = "text/event-stream"
ROWS = (
    Row("floor", "floor: asyncio + httptools, no MCP", "http_floor", python("floor.py"), "modern"),
    Row(
        "floor-uvloop",
        "the same with uvloop",
        "http_floor",
        python("floor.py", "--uvloop"),
        "modern",
    ),
    Row("uvicorn", "floor: uvicorn, no MCP", "http_floor", python("uvicorn_echo.py"), "modern"),
    Row("concertino", "**concertino**", "concertino", OURS, "modern"),
    Row("concertino-session", "**concertino**", "concertino", OURS, "session"),
    Row("concertino-stream", "**concertino**", "concertino", OURS, "stream", accept=STREAM),
    Row(
        "concertino-asgi",
        "**concertino**, under uvicorn",
        "concertino",
        python("concertino_asgi.py"),
        "modern",
    ),
    Row("mcp", "mcp", "mcp", python("mcp_http.py"), "modern"),
    Row("mcp-session", "mcp", "mcp", python("mcp_http.py", "--json"), "session"),
    Row("mcp-stream", "mcp", "mcp", python("mcp_http.py"), "stream"),
    Row("fastmcp", "FastMCP", "fastmcp", python("fastmcp_http.py"), "modern"),
    Row("fastmcp-stream", "FastMCP", "fastmcp", python("fastmcp_http.py"), "stream"),
    Row(
        "ts2",
        "TypeScript SDK v2",
        "node",
        ("{node}", "{servers}/typescript_http.mjs", "PORT"),
        "modern",
    ),
    Row("go", "Go SDK, stateless", "go_http", ("{bin}/go_http", "PORT", "stateless"), "modern"),
    Row("go-session", "Go SDK", "go_http", ("{bin}/go_http", "PORT", "json"), "session"),
    Row("go-stream", "Go SDK", "go_http", ("{bin}/go_http", "PORT"), "stream"),
    Row("rmcp", "rmcp (Rust)", "rmcp", ("{bin}/rmcp_http", "PORT", "stateless"), "modern"),
    Row("rmcp-stream", "rmcp (Rust)", "rmcp", ("{bin}/rmcp_http", "PORT"), "stream"),
)
REVISIONS = {"modern": "2026-07-28", "session": "2025-11-25", "stream": "2025-11-25"}


class Running:
    """A server process that listens.

    start_ms, start_cpu_ms: from the start of the process until it accepted a connection.
    """

    def __init__(self, command: list[str], environment: dict[str, str], core: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [word.replace("PORT", str(self.port)) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(WORK / "http_server.stderr").open("wb"),
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            start_new_session=True,
        )
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"it has ended: {self.last_line()}")
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                if time.perf_counter() - began > START_LIMIT_S:
                    self.end()
                    raise RuntimeError("it does not listen") from None
                time.sleep(0.002)
        self.start_ms = (time.perf_counter() - began) * 1000
        self.start_cpu_ms = self.cpu_us / 1000

    def last_line(self) -> str:
        lines = (WORK / "http_server.stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    @property
    def cpu_us(self) -> float:
        """CPU time so far of the process and its children, with all threads."""
        total = 0
        for process in (self.process.pid, *_children(self.process.pid)):
            for task in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    total += int(task.read_text().split()[0])
        return total / 1000

    @property
    def rss_kb(self) -> int:
        total = 0
        for process in (self.process.pid, *_children(self.process.pid)):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        total += int(line.split()[1])
        return total

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for listing in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listing.read_text().split()):
                found += [child, *_children(child)]
    return found


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str], core: int) -> Iterator[Running]:
    server = Running(command, environment, core)
    try:
        yield server
    finally:
        server.end()


# Requests


def encode_request(row: Row, port: int, body: object, headers: dict[str, str]) -> bytes:
    data = json.dumps(body, separators=(",", ":")).replace(f'"{ID}"', ID).encode()
    lines = [
        f"POST {row.path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        f"Accept: {row.accept}",
        f"Content-Length: {len(data)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def post(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Send a request on a connection of its own. Returns the head and the body of the response."""
    with socket.create_connection(("127.0.0.1", port), timeout=START_LIMIT_S) as sock:
        sock.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        data = b""
        while block := sock.recv(65536):
            data += block
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def make_request(row: Row, port: int) -> bytes:
    """Return the request of one echo call. Opens a session first, if the row has one."""
    params: dict[str, Any] = {"name": "echo", "arguments": {"text": TEXT}}
    call = {"jsonrpc": "2.0", "id": ID, "method": "tools/call", "params": params}
    if row.mode == "modern":
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": REVISIONS["modern"],
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        headers = {
            "MCP-Protocol-Version": REVISIONS["modern"],
            "Mcp-Method": "tools/call",
            "Mcp-Name": "echo",
        }
        return encode_request(row, port, call, headers)

    offer = {
        "protocolVersion": REVISIONS[row.mode],
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": offer}
    head, body = post(port, encode_request(row, port, initialize, {}))
    headers = {"MCP-Protocol-Version": REVISIONS[row.mode]}
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "mcp-session-id":
            headers["Mcp-Session-Id"] = value.strip()
    if "Mcp-Session-Id" not in headers:
        raise RuntimeError(f"no session: {head[:80]!r} {body[:200]!r}")
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    post(port, encode_request(row, port, initialized, headers))
    return encode_request(row, port, call, headers)


# Measures


@dataclass
class Bench:
    load: Path
    server_core: int
    client_core: int
    seconds: float
    environment: dict[str, str]
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def note(self, row: Row, **figures: float) -> None:
        taken = self.figures.setdefault(row.name, {})
        for name, value in figures.items():
            taken.setdefault(name, []).append(value)

    def measure(self, row: Row, command: list[str]) -> None:
        """Take all measures of a row once, with a fresh process."""
        with running(command, self.environment, self.server_core) as server:
            self.note(row, start_ms=server.start_ms, start_cpu_ms=server.start_cpu_ms)
            request = make_request(row, server.port)
            self.note(row, idle_mb=server.rss_kb * 1024 / 1e6)
            for connections in (1, AT_ONCE):
                self.load_with(row, server, request, connections)
            self.note(row, after_mb=server.rss_kb * 1024 / 1e6)

    def load_with(self, row: Row, server: Running, request: bytes, connections: int) -> None:
        file = WORK / "request"
        file.write_bytes(request)
        client = subprocess.Popen(
            [
                str(self.load),
                str(server.port),
                str(connections),
                str(WARM_MS),
                str(int(self.seconds * 1000)),
                str(file),
                TEXT,
                str(self.client_core),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert client.stdin is not None
        assert client.stdout is not None
        times: list[float] = []
        for _ in range(2):
            if not client.stdout.readline():
                break
            times.append(server.cpu_us)
            client.stdin.write(b"\n")
        rest, errors = client.communicate(timeout=START_LIMIT_S)
        if client.returncode != 0 or len(times) != 2:
            raise RuntimeError(errors.decode(errors="replace").strip()[:300])
        result = json.loads(rest)
        if result["wrong"]:
            raise RuntimeError(f"{result['wrong']} wrong answers: {errors[:300]!r}")
        prefix = f"c{connections}_"
        calls = max(1, result["calls"])
        self.note(
            row,
            **{
                prefix + "cpu_us": (times[1] - times[0]) / calls,
                prefix + "p50_us": result["p50_us"],
                prefix + "p99_us": result["p99_us"],
                prefix + "calls_s": result["calls"] / result["seconds"],
            },
        )


def merge(figures: dict[str, list[float]]) -> dict[str, float]:
    """Return the minimum of CPU times and memory, and the median of everything else."""
    least = ("cpu_us", "cpu_ms", "_mb", "_kb")
    return {
        name: round(min(values) if name.endswith(least) else statistics.median(values), 2)
        for name, values in figures.items()
    }


# The report

COLUMNS = (
    ("c64_cpu_us", "CPU us/call, 64"),
    ("c1_cpu_us", "CPU us/call, 1"),
    ("c1_p50_us", "p50 us, 1"),
    ("c64_calls_s", "calls/s, 64"),
    ("start_cpu_ms", "start CPU ms"),
    ("start_ms", "start ms"),
    ("idle_mb", "idle MB"),
)


def report(rows: list[Row], bench: Bench) -> None:
    print("| server | mode | " + " | ".join(label for _, label in COLUMNS) + " |")
    print("|---|---|" + "---:|" * len(COLUMNS))
    merged = {name: merge(figures) for name, figures in bench.figures.items()}
    for row in rows:
        taken = merged.get(row.name, {})
        if row.name in bench.failures:
            print(f"| {row.label} | {row.mode} | not measured: {bench.failures[row.name]} |")
            continue
        cells = [f"{taken[name]:,.5g}" if name in taken else "-" for name, _ in COLUMNS]
        print(f"| {row.label} | {row.mode} | {' | '.join(cells)} |")
    for text in compare(bench.figures):
        print(text)


def compare(figures: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """Yield the targets with the figures of this run: CPU by the minima over the rounds."""
    merged = {name: merge(taken) for name, taken in figures.items()}

    def ratio(one: str, other: str, figure: str) -> float | None:
        try:
            return merged[one][figure] / merged[other][figure]
        except KeyError:
            return None

    for label, one, other, figure, goal in (
        ("CPU at 64 / floor", "concertino", "floor", "c64_cpu_us", "<= 2.2, must be <= 2.3"),
        ("CPU at 64 / uvicorn", "concertino", "uvicorn", "c64_cpu_us", "<= 1.0"),
        ("CPU at 64 under uvicorn / uvicorn", "concertino-asgi", "uvicorn", "c64_cpu_us", "<= 2.0"),
        ("CPU at 1 / floor", "concertino", "floor", "c1_cpu_us", "<= 2.5"),
        ("p50 at 1 / floor", "concertino", "floor", "c1_p50_us", "<= 2.0, must be <= 2.2"),
        ("calls/s at 64 / floor", "concertino", "floor", "c64_calls_s", ">= 0.45"),
        ("calls/s at 64 / mcp", "concertino", "mcp", "c64_calls_s", ">= 25, must be >= 15"),
        ("calls/s at 64 / Go SDK", "concertino", "go", "c64_calls_s", ">= 10, must be >= 8"),
        ("calls/s at 64 / rmcp", "concertino", "rmcp", "c64_calls_s", ">= 0.6"),
        (
            "session / modern, CPU at 64",
            "concertino-session",
            "concertino",
            "c64_cpu_us",
            "<= 1.25",
        ),
        ("stream / modern, CPU at 64", "concertino-stream", "concertino", "c64_cpu_us", "<= 1.6"),
    ):
        found = ratio(one, other, figure)
        if found is not None:
            yield f"{label}: {found:.2f} ({goal})"
    if "floor" in merged and "concertino" in merged:
        for figure, unit in (("start_cpu_ms", "ms, goal 30"), ("idle_mb", "MB, goal 6")):
            more = merged["concertino"][figure] - merged["floor"][figure]
            yield f"{figure} over floor: +{more:.1f} {unit}"


def build(rows: list[Row]) -> dict[str, Place]:
    """Build what the rows need. Raises BuildError if there is no C compiler."""
    WORK.joinpath("bin").mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise BuildError("the load client needs a C compiler")
    run([compiler, "-O2", "-o", str(WORK / "bin" / "http_load"), str(PROGRAMS / "load.c")])
    interpreter = describe_interpreter(sys.executable)
    return build_places({row.place for row in rows}, interpreter, print)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    rows = [row for row in ROWS if not options.only or row.name in options.only]
    places = build(rows)
    cores = pick_cores()
    client_core = cores.server if cores.other is None else cores.other
    bench = Bench(
        WORK / "bin" / "http_load", cores.server, client_core, options.seconds, server_environment()
    )

    commands: dict[str, list[str]] = {}
    for row in rows:
        missing = places[row.place].missing
        if missing is not None:
            bench.failures[row.name] = missing
        else:
            words = places[row.place].words
            commands[row.name] = [word.format_map(words) for word in row.command]
    for number in range(options.rounds):
        for row in rows:
            if row.name in bench.failures:
                continue
            print(f"round {number + 1}: {row.name}", file=sys.stderr)
            try:
                bench.measure(row, commands[row.name])
            except (RuntimeError, OSError) as exc:
                bench.failures[row.name] = str(exc)
    report(rows, bench)
    if options.json is not None:
        options.json.write_text(json.dumps(bench.figures, indent=1))


if __name__ == "__main__":
    main()
