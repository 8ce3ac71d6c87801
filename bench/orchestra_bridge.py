"""Bridge, hub and plugin: a tool call from one end to the other, each a process of its own.

    python bench/orchestra_bridge.py                     over Unix sockets and over QUIC
    python bench/orchestra_bridge.py --transport quic --seconds 5
    python bench/orchestra_bridge.py --pinned            all processes on one core

The hub is `concertino orchestrate` with one plugin that hands a 100-byte text back. Reported in
microseconds, calls one after the
other: `link`, a request from this process to the hub, which passes it to the plugin and back (two
hops); `bridge`, the same as a tools/call answered by a Bridge in this process, with the translation
of both messages; `stdio`, the whole way, this process a client of `concertino bridge`. For each
p50, p99 and the slowest. `chunk` is the whole way, too, until the first chunk of a stream has
arrived as progress. The tool of the stream continues only then, so that the rest of the stream
takes no processor time from its first chunk. `stdio` and `chunk` are measured in turns of 50, and
the last number is chunk / stdio, the median of all turns. Then calls a second with 64 in flight
over `bridge`. Goals, for bridge-hub-plugin, which is `bridge`: p50 of 160 us over sockets and 1.6
ms over QUIC; for the first chunk 1.5 times a call. Needs the extra [orchestra], installed or with
PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from msgspec import Raw

from concertino import Client
from concertino.backend.interface import Call
from concertino.client.server_parameters import ServerParameters
from concertino.orchestra.authority import create_authority
from concertino.orchestra.bridge import Bridge, prepare_bridge
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.plugin_pb2 import PluginRequest, ToolRequest
from concertino.orchestra.structs import encode_struct

PLUGIN = """
import asyncio
from concertino import Plugin
plugin = Plugin("tools.echo")
has_arrived = asyncio.Event()
@plugin.tool
async def echo(text: str) -> str:
    return text
@plugin.tool
async def stream(text: str):
    yield text
    await has_arrived.wait()
    has_arrived.clear()
    yield text
@plugin.tool
async def continue_stream() -> None:
    has_arrived.set()
plugin.run()
"""
IN_FLIGHT = 64
TEXT = "x" * 100
# How many calls, and then streams, take turns.
TURN = 50


class Notifier:
    def report_change(self, what: object) -> None:
        pass

    def report_update(self, uri: str) -> None:
        pass


async def sequential(call: Callable[[], Awaitable[Any]], seconds: float) -> str:
    taken: list[float] = []
    for limit, kept in ((0.3, False), (seconds, True)):
        end = time.perf_counter() + limit
        while (began := time.perf_counter()) < end:
            await call()
            if kept:
                taken.append((time.perf_counter() - began) * 1e6)
    return summary(taken)


def summary(taken: list[float]) -> str:
    """Return p50, p99 and the slowest."""
    taken.sort()
    return f"{taken[len(taken) // 2]:8.0f} {taken[len(taken) * 99 // 100]:8.0f} {taken[-1]:10.0f}"


async def calls_and_first_chunks(client: Client, seconds: float) -> tuple[str, str]:
    """Measure calls and, in turns with them, how long first chunks take to arrive as progress.

    Returns the summaries of both.
    """
    # Of each turn: the times of its calls, and of its chunks.
    turns: list[tuple[list[float], list[float]]] = []
    end = time.perf_counter() + seconds
    while not turns or time.perf_counter() < end:
        calls: list[float] = []
        chunks: list[float] = []
        for _ in range(TURN):
            began = time.perf_counter()
            assert not (await client.call_tool("echo", {"text": TEXT})).is_error
            calls.append((time.perf_counter() - began) * 1e6)
        for _ in range(TURN):
            chunks.append(await first_chunk(client))
        turns.append((calls, chunks))
    turns = turns[len(turns) // 10 :]
    ratio = median(median(chunks) / median(calls) for calls, chunks in turns)
    all_calls, all_chunks = (list(chain.from_iterable(times)) for times in zip(*turns, strict=True))
    return summary(all_calls), f"{summary(all_chunks)} {ratio:9.2f}"


async def first_chunk(client: Client) -> float:
    """Return after how many microseconds the first chunk of a stream arrives as progress."""
    arrived: list[float] = []
    continuing: list[asyncio.Task[Any]] = []

    def on_progress(*_: object) -> None:
        arrived.append(time.perf_counter())
        if not continuing:
            continuing.append(asyncio.create_task(client.call_tool("continue_stream", {})))

    began = time.perf_counter()
    await client.call_tool("stream", {"text": TEXT}, progress=on_progress)
    await continuing[0]
    return (arrived[0] - began) * 1e6


async def at_once(call: Callable[[], Awaitable[Any]], seconds: float) -> float:
    """Calls a second with 64 in flight."""
    count = 0
    end = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await call()
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - began)


def start_hub(folder: Path, transport: str) -> tuple[subprocess.Popen[str], str]:
    """A hub with its plugin, and the hub's address."""
    (folder / "echo.py").write_text(PLUGIN)
    socket = "true" if transport == "unix" else "false"
    entry = f"  - id: tools.echo\n    binary: ./echo.py\n    enabled: true\n    socket: {socket}\n"
    if "PYTHONPATH" in os.environ:  # plugins get no more of the environment than is named
        entry += f"    env: {{PYTHONPATH: {os.environ['PYTHONPATH']}}}\n"
    (folder / "plugins.yaml").write_text(f"certs_dir: {folder / 'certs'}\nplugins:\n{entry}")
    address = f"unix:{folder}/hub-{transport}" if transport == "unix" else "localhost:0"
    command = [
        sys.executable,
        "-m",
        "concertino",
        "orchestrate",
        str(folder / "plugins.yaml"),
        "--listen-addr",
        address,
    ]
    hub = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert hub.stderr is not None
    for line in hub.stderr:
        if "Listening on" in line:
            return hub, line.split()[-1]
    raise RuntimeError("the hub has not started")


async def measure(transport: str, seconds: float, folder: Path) -> None:
    hub, address = start_hub(folder, transport)
    try:
        bridge = Bridge(address, prepare_bridge(address, folder / "certs"))
        await bridge.start(Notifier())
        request = PluginRequest(
            tool_call=ToolRequest(tool_name="echo", arguments=encode_struct({"text": TEXT}))
        )
        call = Call(
            "tools/call",
            {"name": Raw(b'"echo"'), "arguments": Raw(b'{"text":"%s"}' % TEXT.encode())},
        )
        # All that a bridge asks of it.
        context: Any = SimpleNamespace(caller=SimpleNamespace(wants_progress=False))

        async def over_link() -> None:
            assert (await bridge._ask_over_link(request, 10)).tool_call.success

        async def over_bridge() -> None:
            result: Any = await bridge.handle(call, context)
            assert result.content[0].text == TEXT

        print(f"{transport:5} link    {await sequential(over_link, seconds)}")
        print(
            f"{transport:5} bridge  {await sequential(over_bridge, seconds)}"
            f" {await at_once(over_bridge, seconds):9,.0f}"
        )
        await bridge.close()
        command = [
            "-m",
            "concertino",
            "bridge",
            "--orchestrator-addr",
            address,
            "--certs-dir",
            str(folder / "certs"),
        ]
        environment = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        async with Client(ServerParameters(sys.executable, command, env=environment)) as client:
            calls, chunks = await calls_and_first_chunks(client, 2 * seconds)
            print(f"{transport:5} stdio   {calls}")
            print(f"{transport:5} chunk   {chunks}")
    finally:
        hub.send_signal(signal.SIGTERM)
        hub.wait()
        assert hub.stderr is not None
        hub.stderr.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transport", choices=("unix", "quic"), action="append")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of each measurement (default 2)"
    )
    parser.add_argument("--pinned", action="store_true", help="all processes on one core")
    given = parser.parse_args()
    if given.pinned:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="bench") as name:
        folder = Path(name)
        create_authority(Certificates(folder / "certs"))
        print("      way       p50 us   p99 us slowest us   calls/s")
        for transport in given.transport or ("unix", "quic"):
            asyncio.run(measure(transport, given.seconds, folder))


if __name__ == "__main__":
    main()
