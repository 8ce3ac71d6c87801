"""What a proxy costs: a stdio server directly, behind a relay that only copies bytes, behind our
proxy, and behind FastMCP's.

python bench/proxy.py [--rounds N] [--calls N] [--fastmcp PYTHON] [--json FILE]
python bench/proxy.py --latency [--calls N]

With --latency only the time of single calls is measured, in less than a minute: of the server
directly, of our echo server, and through the proxy. All run at the same time, and take turns every
100 calls. Once the system chooses the cores, and once the client has the first one and all servers
the second.

A last row has our proxy in front of a server that needs 2 s to start, as npx and uvx need when they
install one, and has run before: how soon it opens and lists from the cache. And ten servers of 50
tools each behind `concertino serve mcp.json`: how long their list of 500 tools takes when it has
been asked for before. And how much longer a result of 1 MB, and one of 1,000 short texts, takes
through the proxy, in calls that take turns; beside it, as its floor, the time in which msgspec
decodes and encodes the same bytes.

The server behind all of them is the echo server in C (bench/servers/echo_for_clients.c), which
costs next to nothing. Rounds over all rows, so that a slow minute of the machine falls on all
alike; medians of times, minima of CPU time. CPU is that of the process that the client started,
with all its threads and without its child, from the kernel's scheduler: on a busy machine it says
more than times.
--fastmcp: an interpreter that has the package fastmcp. Needs Linux and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

BENCH = Path(__file__).parent
SOURCE = BENCH.parent / "src"
AT_ONCE = 64
# How many calls a row makes before it is the next one's turn, with --latency.
TURN = 100
MEGABYTE = 1_000_000
RELAY = """
import os, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def copy(source, target):
    while data := os.read(source, 65536):
        os.write(target, data)
    os.close(target)
threading.Thread(target=copy, args=(0, child.stdin.fileno()), daemon=True).start()
copy(child.stdout.fileno(), 1)
"""
FASTMCP = """
import sys
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
transport = StdioTransport(sys.argv[1], sys.argv[2:])
create_proxy(transport).run(show_banner=False)
"""
SLOW = """
import os, sys, time
time.sleep(2)
os.execv(sys.argv[1], sys.argv[1:])
"""
# A server that lists 50 tools, with schemas of an ordinary size.
MANY = """
import json, sys
schema = {"type": "object", "properties": {name: {"type": "string", "description": "A text. " * 5}
          for name in ("path", "pattern", "content")}, "required": ["path"]}
tools = [{"name": f"tool{n}", "description": "Do something useful. " * 5, "inputSchema": schema}
         for n in range(50)]
offer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
         "serverInfo": {"name": "many", "version": "1"}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"initialize": offer, "tools/list": {"tools": tools}}.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
# A server with two tools: `large` returns a text of 1 MB, and `blocks` 1,000 short texts.
LARGE = """
import json, os, sys
offer = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
         "serverInfo": {"name": "large", "version": "1"}}
texts = {"large": ["x" * 1_000_000], "blocks": [f"block {i}" for i in range(1_000)]}
results = {name: json.dumps({"content": [{"type": "text", "text": item} for item in items]})
           for name, items in texts.items()}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        is_call = message["method"] == "tools/call"
        result = results[message["params"]["name"]] if is_call else json.dumps(offer)
        answer = f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{result}}}\\n'.encode()
        while answer:
            answer = answer[os.write(1, answer):]
"""
ECHO = """
from concertino import Server
server = Server("echo")

@server.tool
async def echo(text: str) -> str:
    return text

server.run()
"""


class Process:
    """A server that answers over pipes, spoken to without a client library.

    buffer_bytes: the size of the buffers of both pipes; -1 for Python's default, 8 KiB.
    """

    def __init__(self, command: list[str], buffer_bytes: int = -1) -> None:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        # Compiled modules stay, as they do for users.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            bufsize=buffer_bytes,
        )
        self._last_id = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def frame(self, method: str, params: object) -> bytes:
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def exchange(self, frames: bytes, count: int) -> list[bytes]:
        """Send frames at once and return so many responses; notifications are skipped."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(frames)
        self._process.stdin.flush()
        lines: list[bytes] = []
        while len(lines) < count:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("the server has ended")
            if b'"method":' not in line[:64]:
                lines.append(line)
        return lines

    def open(self) -> None:
        info = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        self.exchange(self.frame("initialize", params), 1)
        self.exchange(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n', 0)

    def call(self, text: str, count: int = 1) -> float:
        """Echo a text so many times at once. Returns the microseconds; checks every response."""
        params = {"name": "echo", "arguments": {"text": text}}
        frames = b"".join(self.frame("tools/call", params) for _ in range(count))
        began = time.perf_counter()
        lines = self.exchange(frames, count)
        took_us = (time.perf_counter() - began) * 1e6
        for line in lines:
            if json.loads(line)["result"]["content"][0]["text"] != text:
                raise AssertionError(f"another answer than was expected: {line[:200]!r}")
        return took_us

    @property
    def cpu_us(self) -> float:
        """CPU time of the process so far, with all its threads and without its children."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1000

    @property
    def rss_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def measure_opening(folder: Path, rounds: int) -> tuple[float, float]:
    """Return how long opening and list take from the start, of a known server that is slow.

    In milliseconds: the median of the time, and the least CPU time.
    """
    slow = [sys.executable, "-c", SLOW, str(folder / "child")]
    command = [sys.executable, "-m", "concertino", "proxy", "--", *slow]
    times: list[float] = []
    cpu: list[float] = []
    # In the first run nothing is known.
    for _ in range(rounds + 1):
        began = time.perf_counter()
        process = Process(command)
        process.open()
        process.exchange(process.frame("tools/list", {}), 1)
        times.append((time.perf_counter() - began) * 1e3)
        cpu.append(process.cpu_us / 1000)
        process.call("hello")
        process.end()
    return statistics.median(times[1:]), min(cpu[1:])


@contextmanager
def started(command: list[str], buffer_bytes: int = -1) -> Iterator[Process]:
    process = Process(command, buffer_bytes)
    try:
        process.open()
        yield process
    finally:
        process.end()


def measure_list(folder: Path, calls: int) -> float:
    """Return how long the list of ten servers' 500 tools takes, in ms: the median of so many."""
    program = folder / "many.py"
    program.write_text(MANY)
    entry = {"command": sys.executable, "args": [str(program)]}
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {f"s{number}": entry for number in range(10)}}))
    file.chmod(0o600)
    command = [sys.executable, "-m", "concertino", "serve", str(file), "--trust", "--tools", "all"]
    with started(command) as process:
        while True:
            [line] = process.exchange(process.frame("tools/list", {}), 1)
            if len(json.loads(line)["result"]["tools"]) == 500:
                break
            time.sleep(0.1)
        times: list[float] = []
        for _ in range(calls):
            frame = process.frame("tools/list", {})
            began = time.perf_counter()
            process.exchange(frame, 1)
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def measure_large_result(folder: Path, calls: int, tool: str) -> tuple[float, float, float]:
    """Return what a large result costs, in ms of one call.

    tool: "large" for a text of 1 MB, "blocks" for 1,000 short texts.
    These are the time that the proxy adds, by the medians; the CPU time of the proxy; and the time
    of one decoding and encoding with msgspec. The three take turns every ten calls.
    """
    program = folder / "large.py"
    program.write_text(LARGE)
    server = [sys.executable, str(program)]
    proxy = [sys.executable, "-m", "concertino", "proxy", "--", *server]
    times: dict[str, list[float]] = {"directly": [], "proxy": [], "msgspec": []}
    # The client reads a long line at once, if it is there.
    size = 2 * MEGABYTE
    with started(server, size) as directly, started(proxy, size) as proxied:
        cpu_before = 0.0
        for turn in range(calls // 10 + 2):
            if turn == 2:
                # The first two turns warm up.
                cpu_before = proxied.cpu_us
                times = {name: [] for name in times}
            for name, process in (("directly", directly), ("proxy", proxied)):
                for _ in range(10):
                    frame = process.frame("tools/call", {"name": tool, "arguments": {}})
                    began = time.perf_counter()
                    [line] = process.exchange(frame, 1)
                    times[name].append((time.perf_counter() - began) * 1e3)
                    assert len(line) > (MEGABYTE if tool == "large" else 30_000)
            for _ in range(10):
                began = time.perf_counter()
                msgspec.json.encode(msgspec.json.decode(line))
                times["msgspec"].append((time.perf_counter() - began) * 1e3)
        cpu_ms = (proxied.cpu_us - cpu_before) / 1e3 / len(times["proxy"])
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return medians["proxy"] - medians["directly"], cpu_ms, medians["msgspec"]


def measure(command: list[str], calls: int) -> dict[str, float]:
    """Start a row once, and take all its figures."""
    with started(command) as process:
        process.call("hello")
        figures = {"cold_cpu_ms": process.cpu_us / 1000}
        for _ in range(200):
            process.call("hello")
        before = process.cpu_us
        times = [process.call("hello") for _ in range(calls)]
        figures["p50_us"] = statistics.median(times)
        figures["cpu_us"] = (process.cpu_us - before) / calls
        figures["rss_mb"] = process.rss_mb

        before = process.cpu_us
        batches = max(1, calls // AT_ONCE)
        began = time.perf_counter()
        for _ in range(batches):
            process.call("hello", AT_ONCE)
        figures["calls_s"] = batches * AT_ONCE / (time.perf_counter() - began)
        figures["cpu_us_64"] = (process.cpu_us - before) / (batches * AT_ONCE)

        before = process.cpu_us
        text = "x" * MEGABYTE
        for _ in range(10):
            process.call(text)
        figures["cpu_us_1mb"] = (process.cpu_us - before) / 10
    return figures


def pin(cores: set[int] | None) -> None:
    """Run this process, and those that it starts, on these cores; None for all."""
    os.sched_setaffinity(0, cores or range(os.cpu_count() or 1))


def print_latency(commands: dict[str, list[str]], calls: int) -> None:
    """Print the p50 of single calls, of rows that take turns, and their ratios to the first row."""
    names = ("C server", "our echo server", "concertino proxy")
    for title, client, servers in (
        ("cores chosen by the system", None, None),
        ("client on core 0, servers on core 1", {0}, {1}),
    ):
        if client and (os.cpu_count() or 1) < 2:
            continue
        pin(servers)
        with ExitStack() as stack:
            processes = {name: stack.enter_context(started(commands[name])) for name in names}
            pin(client)
            times: dict[str, list[float]] = {name: [] for name in names}
            for number in range(calls // TURN + 2):
                for name, process in processes.items():
                    turn = [process.call("hello") for _ in range(TURN)]
                    # The first two turns warm up.
                    times[name] += turn if number > 1 else []
        pin(None)
        print(title)
        direct = statistics.median(times["C server"])
        for name, taken in times.items():
            p50 = statistics.median(taken)
            best = min(
                statistics.median(taken[at : at + TURN]) for at in range(0, len(taken), TURN)
            )
            print(
                f"  {name}: p50 {p50:.1f} us, best turn {best:.1f} us; "
                f"{p50 / direct:.2f} times direct, {p50 - direct:+.1f} us"
            )
    print(f"load: {os.getloadavg()[0]:.1f}")


def rows(folder: Path, fastmcp: str | None) -> dict[str, list[str]]:
    """Return the rows: name -> command."""
    child = str(folder / "child")
    compiler = shutil.which("cc") or "cc"
    source = str(BENCH / "servers" / "echo_for_clients.c")
    subprocess.run([compiler, "-O2", "-o", child, source], check=True)
    for name, text in (("relay.py", RELAY), ("fast.py", FASTMCP), ("echo.py", ECHO)):
        (folder / name).write_text(text)
    python = sys.executable
    commands = {
        "C server": [child],
        "our echo server": [python, str(folder / "echo.py")],
        "relay in Python": [python, str(folder / "relay.py"), child],
        "concertino proxy": [python, "-m", "concertino", "proxy", "--", child],
    }
    if fastmcp is not None:
        commands["FastMCP create_proxy"] = [fastmcp, str(folder / "fast.py"), child]
    return commands


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3200, help="of each kind in a round")
    parser.add_argument("--fastmcp", metavar="PYTHON", help="an interpreter with fastmcp")
    parser.add_argument("--latency", action="store_true", help="only the time of single calls")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()

    taken: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        # What the proxy keeps of these servers is of no use to anybody.
        os.environ["XDG_CACHE_HOME"] = folder
        commands = rows(Path(folder), options.fastmcp)
        if options.latency:
            print_latency(commands, options.calls)
            return 0
        for _ in range(options.rounds):
            for name, command in commands.items():
                # A row that takes a hundred times as long gets a tenth of the calls.
                calls = options.calls // 10 if "FastMCP" in name else options.calls
                taken.setdefault(name, []).append(measure(command, calls))
        opening_ms, opening_cpu_ms = measure_opening(Path(folder), options.rounds)
        list_ms = measure_list(Path(folder), options.calls // 10)
        large = measure_large_result(Path(folder), options.calls // 8, "large")
        blocks = measure_large_result(Path(folder), options.calls // 2, "blocks")
    results = {name: summary(rounds) for name, rounds in taken.items()}

    columns = list(next(iter(results.values())))
    print(f"| row | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name, figures in results.items():
        print(f"| {name} | {' | '.join(f'{figures[column]:.1f}' for column in columns)} |")
    direct, ours = results["C server"], results["concertino proxy"]
    echo = results["our echo server"]
    print(f"p50, proxy / direct: {ours['p50_us'] / direct['p50_us']:.2f}")
    print(f"CPU at 64, proxy / our echo server: {ours['cpu_us_64'] / echo['cpu_us_64']:.2f}")
    print(f"calls/s at 64, proxy / our echo server: {ours['calls_s'] / echo['calls_s']:.2f}")
    print(f"opening and list from the cache: {opening_ms:.0f} ms, CPU {opening_cpu_ms:.0f} ms")
    print(f"list of 500 tools of ten servers, asked for before: {list_ms:.2f} ms")
    for name, (added_ms, cpu_ms, floor_ms) in (("1 MB", large), ("1,000 blocks", blocks)):
        print(
            f"result of {name}: +{added_ms:.3f} ms, CPU {cpu_ms:.3f} ms; msgspec's decoding and "
            f"encoding: {floor_ms:.3f} ms"
        )
    if (fast := results.get("FastMCP create_proxy")) is not None:
        print(
            f"proxy / FastMCP: calls/s at 64 {ours['calls_s'] / fast['calls_s']:.0f}, "
            f"memory {ours['rss_mb'] / fast['rss_mb']:.2f}, "
            f"CPU to the first answer {ours['cold_cpu_ms'] / fast['cold_cpu_ms']:.2f}"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median of the times of all rounds, and the least CPU time."""
    return {
        name: (min if "cpu" in name else statistics.median)(figures[name] for figures in rounds)
        for name in rounds[0]
    }


if __name__ == "__main__":
    sys.exit(main())
