"""What a NATS cluster does for plugins: more workers, long messages, documents.

    python bench/orchestra_nats_cluster.py [--rounds N] [scaling] [large] [storage] [model]

scaling   calls a second of a tool that takes 5 ms of CPU time, by one worker and by two, each
          pinned to a core of its own; for how much of the time the workers had something to do,
          whether they got the core or waited for it, which holds on a busy machine too; and the
          CPU time of a call at the worker, the server and the caller. The latter two need some of
          the two cores as well, so the ratio has a bound, which is printed. The same with nats-py
large     10 MB there and back, beside a bare echo of 8 MB by nats-py, and the p50 of short calls to
          the same worker meanwhile
storage   a write of a document whose version is checked, beside update() of nats-py's KeyValue
model     4 to 64 workers with the measured costs: NATS picks a worker at random, and each worker
          does one call after the other

Everything runs on this machine, in alternating rounds; the table has medians. Needs the extras
`orchestra` and `nats`, and nats-py.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "orchestra"), str(ROOT / "bench")]

from orchestra_nats import BARE, start  # noqa: E402

# As in WORKER.
WORK_S = 0.005
CALLERS = 32
PARTS = ("scaling", "large", "storage", "model")

WORKER = """
import asyncio, os, sys, time
from concertino.nats.cluster import NatsCluster
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.orchestra.nats_listener import NatsListener
from concertino.orchestra.plugin_messages import PluginResponse, ToolResponse

WORK_S = 0.005
if sys.argv[2] != "any":
    os.sched_setaffinity(0, {int(sys.argv[2])})

async def answer(request, peer):
    if request.tool_call.tool_name == "burn":
        end = time.thread_time() + WORK_S
        while time.thread_time() < end:
            pass
    return PluginResponse(tool_call=ToolResponse(success=True, result=request.tool_call.arguments))

async def main():
    cluster = NatsCluster(parse_servers(sys.argv[1]), NatsOptions("ours"))
    await cluster.open()
    await NatsListener(cluster, "ours", answer).wait_accepted()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
# The same tool as a worker of nats-py.
BARE_WORKER = """
import asyncio, os, sys, time
import nats

os.sched_setaffinity(0, {int(sys.argv[2])})

async def main():
    connection = await nats.connect(sys.argv[1])
    async def burn(message):
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        await message.respond(message.data)
    await connection.subscribe("burn", queue="burn", cb=burn)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def times_s(pid: int) -> tuple[float, float]:
    """Return for how long the threads of a process have run, and waited for a core, in seconds."""
    run = wait = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        fields = path.read_text().split()
        run += int(fields[0])
        wait += int(fields[1])
    return run / 1e9, wait / 1e9


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, in seconds."""
    return times_s(pid)[0]


async def open_link(address: str) -> tuple[Any, Callable[[str, bytes], Awaitable[Any]]]:
    """Return the cluster, and a function that calls a tool of the worker."""
    from concertino.nats.cluster import NatsCluster
    from concertino.nats.servers import NatsOptions, parse_servers
    from concertino.orchestra.nats_link import NatsLink
    from concertino.orchestra.plugin_messages import PluginRequest, ToolRequest

    cluster = NatsCluster(parse_servers(address), NatsOptions("orchestrator"))
    await cluster.open()
    link = NatsLink(cluster, "orchestrator", "ours")

    async def call(tool: str, arguments: bytes) -> Any:
        request = PluginRequest(tool_call=ToolRequest(tool_name=tool, arguments=arguments))
        return await link.request(request, 60)

    return cluster, call


@asynccontextmanager
async def calling(call: Callable[[], Awaitable[Any]]) -> AsyncIterator[Callable[[], int]]:
    """Keep CALLERS calls in progress. Yields a function that returns how many have ended."""
    count = 0
    is_over = False

    async def caller() -> None:
        nonlocal count
        while not is_over:
            await call()
            count += 1

    callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    yield lambda: count
    # Outside the time that is measured, because the workers do not end at the same time.
    is_over = True
    await asyncio.gather(*callers)


class Scaling:
    """Measures calls a second with one worker and with two.

    code: the program of a worker. call: calls it. server: the process of the NATS server.
    """

    def __init__(
        self, address: str, server: int, code: str, call: Callable[[], Awaitable[Any]]
    ) -> None:
        self.address = address
        self.server = server
        self.code = code
        self.call = call
        self.results: dict[int, list[float]] = {1: [], 2: []}
        self.demands: dict[int, list[float]] = {1: [], 2: []}
        # The CPU time of a call at the workers, the server and the caller.
        self.costs: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}

    async def measure(self, cores: Sequence[int]) -> None:
        """Start a worker on each core, and call them for three seconds."""
        workers = [start(self.code, self.address, str(core)) for core in cores]
        pids = [*(worker.pid for worker in workers), self.server, os.getpid()]
        async with calling(self.call) as count_calls:
            await asyncio.sleep(0.2)
            first, before, begin = count_calls(), list(map(times_s, pids)), time.perf_counter()
            await asyncio.sleep(3.0)
            count, after = count_calls() - first, list(map(times_s, pids))
            took_s = time.perf_counter() - begin
        run, wait = (
            [after[n][kind] - before[n][kind] for n in range(len(pids))] for kind in (0, 1)
        )
        self.results[len(cores)].append(count / took_s)
        self.demands[len(cores)].append((sum(run[:-2]) + sum(wait[:-2])) / took_s)
        self.costs[len(cores)].append((sum(run[:-2]) / count, run[-2] / count, run[-1] / count))
        for worker in workers:
            stop(worker)

    def show(self, name: str) -> None:
        one, two = (statistics.median(self.results[count]) for count in (1, 2))
        pairs = zip(self.results[1], self.results[2], strict=True)
        spread = ", ".join(f"{after / before:.2f}" for before, after in pairs)
        use_of_one, use_of_two = (statistics.median(self.demands[count]) for count in (1, 2))
        print(
            f"{name:8}{one:6.0f}{two:6.0f}{two / one:7.2f}  ({spread})"
            f"{use_of_one:7.2f}{use_of_two:7.2f}{use_of_two / use_of_one:7.2f}"
        )
        alone_s = statistics.median(cost[0] for cost in self.costs[1])
        worker_s, server_s, caller_s = map(statistics.median, zip(*self.costs[2], strict=True))
        # One worker has a core of its own, while the server and the caller use the other one. Two
        # share both cores with them, and one is idle while the random choice leaves it no calls.
        # Each gets half of the calls. So if server and caller use one core only, its worker is the
        # limit of both.
        busy = simulate(2, CALLERS, worker_s, 0.0, 30_000) * worker_s / 2
        rest_s = server_s + caller_s
        even, uneven = (2 * alone_s / (worker_s + n * rest_s) * busy for n in (1, 2))
        costs = ", ".join(
            f"{name} {cost * 1e6:.0f}"
            for name, cost in (("worker", worker_s), ("server", server_s), ("caller", caller_s))
        )
        print(f"{'':8}CPU time of a call in us: {costs}; workers busy {busy:.1%}")
        print(f"{'':8}so at most {even:.2f}, or {uneven:.2f} if server and caller use one core")


async def scaling(address: str, server: int, rounds: int) -> None:
    import nats

    cores = sorted(os.sched_getaffinity(0))[:2]
    cluster, call = await open_link(address)
    bare = await nats.connect(address)
    ours = Scaling(address, server, WORKER, lambda: call("burn", b"x"))
    theirs = Scaling(address, server, BARE_WORKER, lambda: bare.request("burn", b"x", timeout=60))
    for number in range(rounds):
        # One worker on each core in turn, since the cores are not equally busy.
        for chosen in ([cores[number % 2]], cores):
            for kind in (ours, theirs):
                await kind.measure(chosen)
    print("calls/s of a tool of 5 ms with 1 worker, with 2, ratio (of each round);")
    print("cores that the workers could use with 1, with 2, ratio")
    ours.show("ours")
    theirs.show("nats-py")
    await bare.close()
    await cluster.close()


async def large(address: str, rounds: int) -> None:
    import nats

    workers = [start(WORKER, address, "any"), start(BARE, address)]
    cluster, call = await open_link(address)
    bare = await nats.connect(address, pending_size=64 * 2**20)
    ours: list[float] = []
    theirs: list[float] = []
    alone: list[float] = []
    beside: list[float] = []

    async def short(times: list[float], until: Callable[[], bool]) -> None:
        while not until():
            begin = time.perf_counter()
            await call("echo", b"x" * 60)
            times.append(time.perf_counter() - begin)

    message, bare_message = bytes(10_000_000), bytes(8_000_000)
    for _ in range(rounds):
        begin = time.perf_counter()
        await call("echo", message)
        ours.append((time.perf_counter() - begin) / len(message))
        begin = time.perf_counter()
        await bare.request("bare", bare_message, timeout=60)
        theirs.append((time.perf_counter() - begin) / len(bare_message))
        end = time.perf_counter() + 0.5
        await short(alone, lambda end=end: time.perf_counter() > end)
        task = asyncio.create_task(call("echo", message))
        await short(beside, task.done)
        await task
    one, other = statistics.median(ours), statistics.median(theirs)
    print(f"10 MB there and back: {one * 1e10:.0f} ms; 8 MB bare: {other * 8e9:.0f} ms")
    print(f"for each byte, ours / bare: {one / other:.2f}")
    one, other = statistics.median(beside), statistics.median(alone)
    print(f"p50 of short calls: {other * 1e6:.0f} us alone, {one * 1e6:.0f} us beside 10 MB")
    print(f"ratio: {one / other:.2f}")
    await bare.close()
    await cluster.close()
    for worker in workers:
        stop(worker)


async def storage(address: str, rounds: int) -> None:
    import nats

    from concertino.orchestra.nats_storage import NatsStorage

    bare = await nats.connect(address)
    bucket = await bare.jetstream().create_key_value(bucket="bare", history=1)
    documents = NatsStorage(address, "storage.bench")
    content = b"x" * 1000
    version = documents.write("a.md", content, {}, 0)
    revision = await bucket.put("a", content)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        for _ in range(300):
            begin = time.perf_counter()
            version = documents.write("a.md", content, {}, version)
            ours.append(time.perf_counter() - begin)
        for _ in range(300):
            begin = time.perf_counter()
            revision = await bucket.update("a", content, last=revision)
            theirs.append(time.perf_counter() - begin)
    one, other = (statistics.median(times) * 1e6 for times in (ours, theirs))
    print(f"write of a document, version checked: {one:.0f} us; bare update: {other:.0f} us")
    print(f"ratio: {one / other:.2f}")
    documents.close()
    await bare.close()


# The model


def simulate(workers: int, callers: int, service_s: float, hub_s: float, calls: int) -> float:
    """Return the calls a second of so many callers, each of which calls again after a response.

    service_s: how long a worker takes for a call; it does one after the other.
    hub_s: how long the one process takes for a call that sends them all, or the one NATS server,
        whichever takes longer. It also does one after the other.
    """
    chance = random.Random(1)
    free_at = [0.0] * workers
    hub_free_at = 0.0
    # When each caller's response arrives.
    events = [0.0] * callers
    done = 0
    now = 0.0
    while done < calls:
        now = heapq.heappop(events)
        hub_free_at = max(now, hub_free_at) + hub_s
        worker = chance.randrange(workers)
        free_at[worker] = max(hub_free_at, free_at[worker]) + service_s
        heapq.heappush(events, free_at[worker])
        done += 1
    return done / now


async def model(address: str, server_pid: int) -> None:
    """Measure what a call costs the worker, the caller and the server; then compute."""
    worker = start(WORKER, address, "any")
    cluster, call = await open_link(address)
    count = 20_000

    async def caller() -> None:
        for _ in range(count // 64):
            await call("echo", b"x" * 60)

    before = cpu_s(worker.pid), time.process_time(), cpu_s(server_pid)
    await asyncio.gather(*(caller() for _ in range(64)))
    after = cpu_s(worker.pid), time.process_time(), cpu_s(server_pid)
    worker_s, caller_s, server_s = (
        (end - begin) / count for begin, end in zip(before, after, strict=True)
    )
    print(
        f"CPU time of a call: worker {worker_s * 1e6:.1f} us, caller {caller_s * 1e6:.1f} us, "
        f"server {server_s * 1e6:.1f} us"
    )
    await cluster.close()
    stop(worker)
    hub_s = max(caller_s, server_s)
    print(
        f"{'tool':>8} {'workers':>8}" + "".join(f"{n}x in flight".rjust(15) for n in (1, 2, 4, 8))
    )
    for tool_s in (WORK_S, 0.0002):
        service_s = tool_s + worker_s
        for workers in (4, 8, 16, 32, 64):
            cells: Sequence[str] = [
                f"{rate:9.0f} {rate * service_s / workers:4.0%}"
                for factor in (1, 2, 4, 8)
                for rate in [simulate(workers, factor * workers, service_s, hub_s, 30_000)]
            ]
            print(f"{tool_s * 1e3:5.1f} ms {workers:8}" + "".join(cell.rjust(15) for cell in cells))
    print("(calls/s, and the share of what the workers could do)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="all by default")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    from nats_servers import NatsServerProcess

    print("load:", *os.getloadavg())
    with tempfile.TemporaryDirectory() as folder:
        settings = f'max_payload: 64MB\njetstream {{ store_dir: "{folder}/store" }}\n'
        server = NatsServerProcess(Path(folder), settings)
        try:
            for part in args.parts or PARTS:
                if part == "model":
                    asyncio.run(model(server.address, server.pid))
                elif part == "scaling":
                    asyncio.run(scaling(server.address, server.pid, args.rounds))
                else:
                    run = {"large": large, "storage": storage}[part]
                    asyncio.run(run(server.address, args.rounds))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
