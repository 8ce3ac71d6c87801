"""What gateways cost: stdio servers over HTTP, HTTP servers over stdio; ours and others.

python bench/http_gateways.py [--rounds N] [--seconds S] [--calls N] [--only serve|connect]

serve: a stdio server that is reached over HTTP. The server is the echo server in C, which costs
next to nothing. It is behind `concertino proxy --http`, supergateway and mcp-proxy, and all get the
load of http_server.py: sessions of 2025-11-25, on one and on 64 connections, and ours calls of
2026-07-28, too, which it translates for the server. For comparison, our own echo server over HTTP,
without a gateway.

connect: an HTTP server that is reached over stdio. The server is our echo server over HTTP. It is
behind `concertino proxy URL`, mcp-remote and mcp-proxy, which all run at the same time, and take
turns of a few calls. For comparison, a client that writes the bytes of the request to a socket.

Rows take turns, so that a slow minute of the machine falls on all alike. Medians of times, minima
of CPU time, which is that of the gateway and its children (connect: of the gateway alone). The load
of the machine is printed with the figures. Needs Linux and a C compiler; what cannot be installed
is left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Protocol

from http_server import ID, OURS, Bench, Row, build, make_request, merge, running
from measure import pick_cores
from proxy import Process
from workshop import BENCH, WORK, Place, run, server_environment

CHILD = str(WORK / "bin" / "echo_for_clients")
AT_ONCE = 64
# How many single calls a row of `connect` makes before it is the next one's turn.
TURN = 50
MODULES = "{servers}/node_modules"
SUPERGATEWAY = ("{node}", f"{MODULES}/supergateway/dist/index.js", "--stdio", CHILD)
HTTP_OPTIONS = ("--outputTransport", "streamableHttp", "--port", "PORT", "--logLevel", "none")
SERVE = (
    Row("direct", "our echo server over HTTP, no gateway", "concertino", OURS, "session"),
    Row(
        "concertino",
        "**concertino proxy --http**",
        "concertino",
        ("{python}", "-m", "concertino", "proxy", "--http", "127.0.0.1:PORT", "--", CHILD),
        "session",
    ),
    Row(
        "concertino-modern",
        "**concertino proxy --http**, 2026-07-28",
        "concertino",
        ("{python}", "-m", "concertino", "proxy", "--http", "127.0.0.1:PORT", "--", CHILD),
        "modern",
    ),
    Row(
        "supergateway",
        "supergateway, stateful",
        "node",
        (*SUPERGATEWAY, *HTTP_OPTIONS, "--stateful"),
        "session",
    ),
    Row(
        "mcp-proxy",
        "mcp-proxy",
        "mcp_proxy",
        ("{python}", "-m", "mcp_proxy", "--port", "PORT", CHILD),
        "session",
        path="/mcp/",
    ),
)
# Row of `connect` -> the place that it needs, and its command.
CONNECT: dict[str, tuple[str, tuple[str, ...]]] = {
    "**concertino proxy URL**": ("concertino", ("{python}", "-m", "concertino", "proxy", "URL")),
    "mcp-remote": (
        "node",
        ("{node}", f"{MODULES}/mcp-remote/dist/proxy.js", "URL", "--transport", "http-only"),
    ),
    "mcp-proxy": (
        "mcp_proxy",
        ("{python}", "-m", "mcp_proxy", "--transport", "streamablehttp", "URL"),
    ),
}
DIRECT = "a socket, no gateway"


class Caller(Protocol):
    """What is measured in `connect`: something that calls the tool."""

    def call(self, text: str, count: int = 1, /) -> float:
        """Call the tool so many times at once. Returns the microseconds."""
        ...


class SocketCaller:
    """Writes the request of one call to a socket, again and again. It opens no session again."""

    def __init__(self, port: int) -> None:
        self._request = make_request(SERVE[0], port).replace(ID.encode(), b"1" * len(ID))
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, text: str, count: int = 1, /) -> float:
        began = time.perf_counter()
        for _ in range(count):
            self._socket.sendall(self._request)
            # The response is short, and our server sends it with one write.
            if not self._socket.recv(65536).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("the server has refused a call")
        return (time.perf_counter() - began) * 1e6


def measure_connect(
    places: dict[str, Place], bench: Bench, calls: int
) -> dict[str, dict[str, float]]:
    """Return the figures of HTTP servers over stdio: row -> name -> value."""
    server = [word.format_map(places["concertino"].words) for word in OURS]
    with ExitStack() as stack:
        upstream = stack.enter_context(running(server, bench.environment, bench.server_core))
        callers: dict[str, Caller] = {DIRECT: SocketCaller(upstream.port)}
        for label, (place, command) in CONNECT.items():
            if (missing := places[place].missing) is not None:
                print(f"{label}: not measured: {missing}")
                continue
            url = f"http://127.0.0.1:{upstream.port}/mcp"
            words = [word.replace("URL", url) for word in command]
            process = Process([word.format_map(places[place].words) for word in words])
            stack.callback(process.end)
            process.open()
            callers[label] = process

        turns: dict[str, list[float]] = {label: [] for label in callers}
        cpu: dict[str, list[float]] = {label: [] for label in callers}
        at_once: dict[str, list[float]] = {label: [] for label in callers}
        at_once_cpu: dict[str, list[float]] = {label: [] for label in callers}
        for number in range(calls // TURN + 2):
            for label, caller in callers.items():
                with counted(caller, TURN, cpu[label]):
                    turns[label].append(
                        statistics.median(caller.call("hello") for _ in range(TURN))
                    )
                with counted(caller, AT_ONCE, at_once_cpu[label]):
                    at_once[label].append(AT_ONCE / caller.call("hello", AT_ONCE) * 1e6)
                if number < 2:
                    # The first two turns warm up.
                    for values in (turns, cpu, at_once, at_once_cpu):
                        values[label].clear()
        figures: dict[str, dict[str, float]] = {}
        for label, caller in callers.items():
            figures[label] = {"p50_us": statistics.median(turns[label])}
            if isinstance(caller, Process):
                figures[label] |= {
                    "cpu_us": min(cpu[label]),
                    "calls_s_64": statistics.median(at_once[label]),
                    "cpu_us_64": min(at_once_cpu[label]),
                    "rss_mb": caller.rss_mb,
                }
    return figures


@contextmanager
def counted(caller: Caller, calls: int, found: list[float]) -> Iterator[None]:
    """Append the CPU time of the gateway for each call within the block, in microseconds."""
    before = caller.cpu_us if isinstance(caller, Process) else 0.0
    yield
    after = caller.cpu_us if isinstance(caller, Process) else 0.0
    found.append((after - before) / calls)


def measure_serve(places: dict[str, Place], bench: Bench, rounds: int) -> None:
    """Take the figures of stdio servers over HTTP."""
    for row in SERVE:
        if (missing := places[row.place].missing) is not None:
            bench.failures[row.name] = missing
    for number in range(rounds):
        for row in SERVE:
            if row.name in bench.failures:
                continue
            print(f"round {number + 1}: {row.name}", file=sys.stderr)
            try:
                words = places[row.place].words
                bench.measure(row, [word.format_map(words) for word in row.command])
            except (RuntimeError, OSError) as exc:
                bench.failures[row.name] = str(exc)


def print_serve(bench: Bench) -> None:
    names = ("c1_p50_us", "c1_cpu_us", "c64_calls_s", "c64_cpu_us", "start_ms", "after_mb")
    print("| stdio server over HTTP | p50 us, 1 | CPU us, 1 | calls/s, 64 | CPU us, 64 |", end="")
    print(f" start ms | MB |\n|---|{'---:|' * len(names)}")
    merged = {name: merge(taken) for name, taken in bench.figures.items()}
    for row in SERVE:
        if row.name in bench.failures:
            print(f"| {row.label} | not measured: {bench.failures[row.name]} |")
        else:
            print(f"| {row.label} | {' | '.join(f'{merged[row.name][n]:,.4g}' for n in names)} |")

    def compare(label: str, figure: str, one: str, other: str, goal: str) -> None:
        if one in merged and other in merged and not {one, other} & set(bench.failures):
            print(f"{label}: {merged[one][figure] / merged[other][figure]:.2f} ({goal})")

    compare("p50 at 1 / our own HTTP echo", "c1_p50_us", "concertino", "direct", "must be <= 1.5")
    compare(
        "calls/s at 64 / supergateway",
        "c64_calls_s",
        "concertino",
        "supergateway",
        ">= 20, must be >= 10",
    )
    compare(
        "calls/s at 64 / mcp-proxy",
        "c64_calls_s",
        "concertino",
        "mcp-proxy",
        ">= 25",
    )


def print_connect(figures: dict[str, dict[str, float]]) -> None:
    names = ("p50_us", "cpu_us", "calls_s_64", "cpu_us_64", "rss_mb")
    print("| HTTP server over stdio | p50 us, 1 | CPU us, 1 | calls/s, 64 | CPU us, 64 | MB |")
    print(f"|---|{'---:|' * len(names)}")
    for label, row in figures.items():
        cells = (f"{row[name]:,.4g}" if name in row else "-" for name in names)
        print(f"| {label} | {' | '.join(cells)} |")
    ours = figures["**concertino proxy URL**"]["p50_us"]
    for label, goal in ((DIRECT, "reported"), ("mcp-remote", "must be <= 0.15")):
        if label in figures:
            print(f"p50 at 1 / {label}: {ours / figures[label]['p50_us']:.2f} ({goal})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--calls", type=int, default=1000, help="single calls of `connect`")
    parser.add_argument("--only", choices=("serve", "connect"))
    options = parser.parse_args()

    needed = [replace(SERVE[0], place=place) for place in ("concertino", "node", "mcp_proxy")]
    places = build(needed)
    compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
    run([compiler, "-O2", "-o", CHILD, str(BENCH / "servers" / "echo_for_clients.c")])
    cores = pick_cores()
    client_core = cores.server if cores.other is None else cores.other
    load = WORK / "bin" / "http_load"
    bench = Bench(load, cores.server, client_core, options.seconds, server_environment())
    if options.only != "connect":
        measure_serve(places, bench, options.rounds)
        print_serve(bench)
    if options.only != "serve":
        print_connect(measure_connect(places, bench, options.calls))
    print(f"load: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
