"""A call of a plugin over NATS, beside a bare request of the same bytes by nats-py.

    python bench/orchestra_nats.py [--rounds N]

Starts a NATS server on loopback, and in processes of their own a worker of ours and a bare nats-py
worker that echoes. Both are called with the same bytes, one call at a time and 64 at a time, in
alternating rounds. Prints medians over the rounds, with the caller's processor time for each call.
Needs the extras `orchestra` and `nats`, and nats-py.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "orchestra")]

ALONE, TOGETHER, EACH = 2_000, 64, 200
LARGE = 10_000_000

OURS = """
import asyncio, sys
from concertino.nats.cluster import NatsCluster
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.plugin_messages import PluginResponse, ToolResponse

async def answer(request, peer):
    result = request.tool_call.arguments
    return PluginResponse(tool_call=ToolResponse(success=True, result=result))

async def main():
    cluster = NatsCluster(parse_servers(sys.argv[1]), NatsOptions("ours"))
    await cluster.open()
    await NatsListener(cluster, "ours", answer).wait_accepted()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
BARE = """
import asyncio, sys
import nats

async def main():
    connection = await nats.connect(sys.argv[1])
    async def echo(message):
        await message.respond(message.data)
    await connection.subscribe("bare", queue="bare", cb=echo)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a worker, and wait until it is ready. It ends with this process at the latest."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    atexit.register(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


async def measure(call: Callable[[], Awaitable[Any]]) -> dict[str, float]:
    """Return the median of single calls, and calls a second and CPU time with 64 at a time."""
    times: list[float] = []
    for _ in range(ALONE):
        begin = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begin)

    async def several() -> None:
        for _ in range(EACH):
            await call()

    begin, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(several() for _ in range(TOGETHER)))
    count = TOGETHER * EACH
    return {
        "p50 us": statistics.median(times) * 1e6,
        "calls/s at 64": count / (time.perf_counter() - begin),
        "caller's CPU us at 64": (time.process_time() - cpu) / count * 1e6,
    }


async def compare(address: str, rounds: int) -> None:
    """Measure both in alternating rounds, and print the table."""
    import nats

    from concertino.nats.cluster import NatsCluster
    from concertino.nats.servers import NatsOptions, parse_servers
    from concertino.orchestra.nats_link import NatsLink
    from concertino.orchestra.plugin_messages import PluginRequest, ToolRequest

    cluster = NatsCluster(parse_servers(address), NatsOptions("orchestrator"))
    await cluster.open()
    link = NatsLink(cluster, "orchestrator", "ours")
    bare = await nats.connect(address)
    # The same bytes, but for the id.
    request = PluginRequest(tool_call=ToolRequest(tool_name="echo", arguments=b"x" * 60))
    payload = request.SerializeToString() + b"x" * 38

    results: dict[str, list[dict[str, float]]] = {"ours": [], "nats-py": []}
    for _ in range(rounds):
        results["ours"].append(await measure(lambda: link.request(request, 30)))
        results["nats-py"].append(await measure(lambda: bare.request("bare", payload, timeout=30)))

    large = PluginRequest(tool_call=ToolRequest(tool_name="echo", arguments=bytes(LARGE)))
    begin = time.perf_counter()
    await link.request(large, 60)
    large_s = time.perf_counter() - begin

    print(f"{'':24}{'ours':>12}{'nats-py':>12}{'ratio':>8}")
    for name in results["ours"][0]:
        ours, theirs = (
            statistics.median(row[name] for row in results[who]) for who in ("ours", "nats-py")
        )
        print(f"{name:24}{ours:12.1f}{theirs:12.1f}{ours / theirs:8.2f}")
    print(f"{LARGE:,} bytes there and back: {large_s * 1e3:.0f} ms")
    await link.close()
    await cluster.close()
    await bare.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    from nats_servers import NatsServerProcess

    with tempfile.TemporaryDirectory() as folder:
        server = NatsServerProcess(Path(folder))
        workers: list[subprocess.Popen[bytes]] = []
        try:
            workers += [start(code, server.address) for code in (OURS, BARE)]
            asyncio.run(compare(server.address, args.rounds))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
            server.stop()


if __name__ == "__main__":
    main()
