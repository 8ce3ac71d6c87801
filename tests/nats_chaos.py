"""Three NATS servers, a hub and workers that are killed and cut off, round by round, amid calls.

    report = await run_rounds(50, seed=1, seconds=150)
    assert not report.problems

All are real processes on this machine. A round kills a server, the hub or a worker with SIGKILL, or
cuts the hub or a worker off by proxies that drop bytes, while calls and writes are on their way.
The calls go to the hub and straight to the workers. The documents and the stream that are written
have three replicas.

What must hold: no call is run twice, each has one outcome within its time limit, and every write
that was acknowledged is there at the end. Servers are killed, not their machine: power loss is
another matter, since NATS does not wait for the disk.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestra.nats_proxy import CuttableProxy
from orchestra.nats_servers import NatsServerProcess, start_jetstream_cluster

from concertino.errors import ConcertinoError, Disconnected
from concertino.nats.blocking import BlockingNats, Request
from concertino.nats.cluster import NatsCluster
from concertino.nats.servers import NatsOptions, parse_servers
from concertino.orchestra.nats_link import NatsLink
from concertino.orchestra.nats_storage import NatsStorage
from concertino.orchestra.plugin_messages import PluginRequest, ToolRequest
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.storage import UPSERT, StorageError
from concertino.orchestra.structs import encode_struct

__all__ = ["FAULTS", "Report", "run_rounds"]

PLUGIN = "tools.chaos"
FAULTS = ("server", "worker", "hub", "cut worker", "cut hub")
# Each call has this limit; how much later its outcome may be known on a machine that is busy.
LIMIT_S, BUSY_S = 10.0, 10.0
# Longer than a caller needs to notice a lost worker.
CUT_S = 1.3
# How long anything may take to work again, on a machine that is busy.
PATIENCE_S = 90.0
STREAM = "chaos"

WORKER = """
import asyncio, sys
from concertino import Plugin

plugin = Plugin("tools.chaos", version="1.0.0")
record = sys.argv.pop(1)

@plugin.tool
async def work(id: str, seconds: float) -> str:
    "Do some work."
    with open(record, "a") as file:
        file.write(id + "\\n")
    await asyncio.sleep(seconds)
    return id

plugin.run()
"""
HUB_CODE = """
import asyncio, sys
from pathlib import Path
from concertino.orchestra.hub import Hub
from concertino.orchestra.plugins_file import PluginsFile

async def main():
    hub = Hub(PluginsFile(Path("plugins.yaml")), is_private=True, cluster=sys.argv[1])
    await hub.start()
    print("READY", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass
class Report:
    """What has happened. problems: what should not have happened."""

    rounds: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    slowest_s: float = 0.0
    writes: int = 0
    problems: list[str] = field(default_factory=list[str])


class _Process:
    """A process that can be killed and started again."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *self._arguments, stderr=asyncio.subprocess.PIPE
        )
        assert self._process.stderr is not None
        lines: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while b"READY" not in (line := await self._process.stderr.readline()):
                lines.append(line)
                assert line, b"".join(lines).decode()
        # Nothing may wait for this process to be read.
        self._reader = asyncio.ensure_future(self._process.stderr.read())

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            await self._reader


class _Chaos:
    """One run; see the top of this file."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.report = Report()
        self.choice = random.Random(seed)
        self.folder = folder
        self.servers: list[NatsServerProcess] = []
        self.record = folder / "calls"
        self.record.touch()
        self.proxies: dict[str, list[CuttableProxy]] = {}
        self.processes: dict[str, _Process] = {}
        self.stored: dict[str, bytes] = {}
        self.unsure: dict[str, set[bytes]] = {}
        self.published: dict[int, bytes] = {}
        self.succeeded: set[str] = set()

    # Start and end

    def start_servers(self) -> None:
        settings = 'ping_interval: "2s"\nping_max: 2\n'
        self.servers = start_jetstream_cluster(self.folder, settings)
        self.address = ",".join(server.address for server in self.servers)
        self.nats = BlockingNats(parse_servers(self.address), NatsOptions(PLUGIN), 1.0)
        self.storage = _retry(lambda: NatsStorage(self.address, "storage.chaos", replicas=3))
        _retry(self._create_stream)

    def _create_stream(self) -> None:
        settings = {"name": STREAM, "subjects": [STREAM], "num_replicas": 3, "storage": "file"}
        request = Request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(settings).encode())
        answer = json.loads(self.nats.request_all([request], 5.0)[0].payload)
        if "error" in answer:
            raise Disconnected(str(answer))

    async def start(self) -> None:
        await asyncio.to_thread(self.start_servers)
        for name in ("worker", "hub"):
            self.proxies[name] = [CuttableProxy(server.port) for server in self.servers]
            for proxy in self.proxies[name]:
                await proxy.open()
        through = {
            name: ",".join(f"nats://127.0.0.1:{proxy.port}" for proxy in proxies)
            for name, proxies in self.proxies.items()
        }
        record = str(self.record)
        self.processes = {
            # Only the first one can be cut off.
            "worker": _Process(["-c", WORKER, record, "--cluster", through["worker"]]),
            "worker 2": _Process(["-c", WORKER, record, "--cluster", self.address]),
            "hub": _Process(["-c", HUB_CODE, through["hub"]]),
        }
        await asyncio.gather(*(process.start() for process in self.processes.values()))
        self.cluster = NatsCluster(parse_servers(self.address), NatsOptions("tools.caller"))
        await self.cluster.open(PATIENCE_S)
        self.links = {
            "workers": NatsLink(self.cluster, "tools.caller", PLUGIN),
            "hub": NatsLink(self.cluster, "tools.caller", HUB),
        }

    async def close(self) -> None:
        for process in self.processes.values():
            await process.kill()
        if hasattr(self, "links"):
            for link in self.links.values():
                await link.close()
            await self.cluster.close()
        for proxies in self.proxies.values():
            for proxy in proxies:
                await proxy.close()
        if hasattr(self, "storage"):
            self.storage.close()
            self.nats.close()
        for server in self.servers:
            server.stop()

    # Calls and writes

    async def call(self, to: str, id: str, seconds: float) -> None:
        """Make a call, and note its outcome."""
        arguments = encode_struct({"id": id, "seconds": seconds})
        call = ToolRequest(tool_name="work", arguments=arguments)
        begin = time.monotonic()
        try:
            response = await self.links[to].request(PluginRequest(tool_call=call), LIMIT_S)
            code = response.tool_call.error_code
            kind = code or "ok"
            if not code:
                self.succeeded.add(id)
        except ConcertinoError as exc:
            kind = type(exc).__name__
        took_s = time.monotonic() - begin
        self.report.outcomes[kind] += 1
        self.report.slowest_s = max(self.report.slowest_s, took_s)
        if took_s > LIMIT_S + BUSY_S:
            self.report.problems.append(f"call {id} took {took_s:.1f} s: {kind}")

    def write(self, round: int) -> None:
        """Write documents and messages of the stream. A write that fails may have happened."""
        for number in range(3):
            path, content = f"d{self.choice.randrange(6)}.md", b"%d.%d" % (round, number)
            try:
                self.storage.write(path, content, {}, UPSERT)
            except StorageError:
                self.unsure.setdefault(path, set()).add(content)
            else:
                self.stored[path] = content
                self.unsure.pop(path, None)
                self.report.writes += 1
            try:
                [message] = self.nats.request_all([Request(STREAM, content)], 2.0)
                sequence = json.loads(message.payload or b"{}").get("seq")
            except Disconnected:
                continue
            if sequence:
                self.published[sequence] = content
                self.report.writes += 1

    async def round(self, number: int, fault: str) -> None:
        self.report.rounds[fault] += 1
        writing = asyncio.create_task(asyncio.to_thread(self.write, number))
        calls: list[asyncio.Task[None]] = []
        for n in range(16):
            to = "hub" if n % 4 == 0 else "workers"
            seconds = self.choice.choice((0.0, 0.0, 0.05, 0.4))
            calls.append(asyncio.create_task(self.call(to, f"{number}.{n}", seconds)))
            # That calls are at different stages.
            await asyncio.sleep(0.02 * self.choice.random())
            if n == 8:
                begin = asyncio.create_task(self.cause(fault))
        await asyncio.gather(*calls, writing, begin)

    async def cause(self, fault: str) -> None:
        """Kill something, and start it again; or cut it off for a while."""
        if fault == "server":
            server = self.choice.choice(self.servers)
            server.stop()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(server.start)
        elif fault.startswith("cut"):
            proxies = self.proxies[fault.removeprefix("cut ")]
            for proxy in proxies:
                proxy.cut()
            await asyncio.sleep(CUT_S)
            for proxy in proxies:
                proxy.heal()
        else:
            names = [name for name in self.processes if name.startswith(fault)]
            process = self.processes[self.choice.choice(names)]
            await process.kill()
            await process.start()

    # The end

    async def check(self) -> None:
        """Check that everything works again, and what is there."""
        async with asyncio.timeout(PATIENCE_S):
            for to in self.links:
                number = 0
                while f"end {to} {number}" not in self.succeeded:
                    number += 1
                    await self.call(to, f"end {to} {number}", 0.0)
                    await asyncio.sleep(0.05)
        runs = Counter(self.record.read_text().split("\n")[:-1])
        problems = self.report.problems
        problems += [f"call {id} was run {n} times" for id, n in runs.items() if n > 1]
        problems += [f"call {id} has a result, but was not run" for id in self.succeeded - {*runs}]
        await asyncio.to_thread(self._check_writes)

    def _check_writes(self) -> None:
        for path, content in self.stored.items():
            found = _retry(lambda path=path: self.storage.read(path)).content
            if found not in {content, *self.unsure.get(path, ())}:
                self.report.problems.append(f"{path} has {found!r} instead of {content!r}")
        for sequence, content in self.published.items():
            found = _retry(lambda sequence=sequence: self._read_stream(sequence))
            if found != content:
                self.report.problems.append(f"message {sequence} is {found!r}, not {content!r}")

    def _read_stream(self, sequence: int) -> bytes | None:
        from base64 import b64decode

        request = Request(f"$JS.API.STREAM.MSG.GET.{STREAM}", b'{"seq":%d}' % sequence)
        [message] = self.nats.request_all([request], 2.0)
        answer = json.loads(message.payload or b"{}")
        if "message" in answer:
            return b64decode(answer["message"].get("data", ""))
        if answer.get("error", {}).get("err_code") == 10037:
            return None
        raise Disconnected(str(answer))


def _retry(action):
    """Try until it works: the cluster needs a moment until it has a leader."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return action()
        except (StorageError, Disconnected) as exc:
            is_temporary = getattr(exc, "code", "storage_error") == "storage_error"
            if not is_temporary or time.monotonic() > until:
                raise
            time.sleep(0.05)


async def run_rounds(count: int, seed: int, seconds: float) -> Report:
    """Run so many rounds, or fewer if they take longer than so many seconds."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="nats", ignore_cleanup_errors=True) as folder:
        chaos = _Chaos(Path(folder), seed)
        try:
            await chaos.start()
            for number in range(count):
                # Each kind once before any is repeated.
                if number % len(FAULTS) == 0:
                    order = chaos.choice.sample(FAULTS, len(FAULTS))
                await chaos.round(number, order[number % len(FAULTS)])
                if time.monotonic() > until:
                    break
            await chaos.check()
        finally:
            await chaos.close()
    return chaos.report
