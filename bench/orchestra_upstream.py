"""Bridge, hub and plugin over QUIC, beside upstream's programs in Go, in alternating rounds.

    python bench/orchestra_upstream.py PROGRAMS [--rounds N] [--seconds S]

PROGRAMS is a folder with upstream's `orchestrator` and `transport-stdio`, and with `echo`, a plugin
named `tools.echo` that is built with upstream's SDK: its tool `echo` returns its argument `text`.
The same client of this package calls both chains, over the stdin and stdout of their bridge: one
call after the other, and 64 at a time. Reported for each: p50 in microseconds, calls a second, and
the CPU time of bridge, hub and plugin together for each call in microseconds. Goals, ours /
upstream's: p50 of 1.1 at most, and 1.3 times as many calls a second. Needs the extra [orchestra],
installed or with PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestra_bridge import IN_FLIGHT, PLUGIN, TEXT, at_once

from concertino import Client
from concertino.client.server_parameters import ServerParameters
from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates

OURS = [sys.executable, "-m", "concertino"]
# What each hub writes when it listens, and when its plugin runs. Upstream's listens for TCP too.
LISTENS = re.compile(r"(?:QUIC server listening|\] Listening) on (\S+)")
START_S = 60.0
RUNS = re.compile(r"1 of 1 plugins run|registered and booted")


def environment() -> dict[str, str]:
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


@contextmanager
def hub(programs: Path | None, folder: Path) -> Iterator[tuple[int, str]]:
    """A hub with its plugin: its process id and its address. programs: None for ours."""
    folder.mkdir()
    if not programs:
        create_authority(Certificates(folder / "certs"))
    (folder / "echo.py").write_text(PLUGIN)
    binary = str(programs / "echo") if programs else "./echo.py"
    entry = f"  - id: tools.echo\n    binary: {binary}\n    enabled: true\n"
    if not programs:
        entry += "    socket: false\n"
        entry += "".join(f"    env: {{{key}: {value}}}\n" for key, value in environment().items())
    (folder / "plugins.yaml").write_text(f"certs_dir: {folder / 'certs'}\nplugins:\n{entry}")
    flags = ["--listen-addr", "localhost:0"]
    if programs:
        command = [str(programs / "orchestrator"), "--config", str(folder / "plugins.yaml"), *flags]
    else:
        command = [*OURS, "orchestrate", str(folder / "plugins.yaml"), *flags]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process.pid, wait_until_it_runs(log)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_runs(log: Path) -> str:
    """Return the hub's address."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        text = log.read_text()
        found = LISTENS.search(text)
        if found and RUNS.search(text):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"the hub has not started:\n{log.read_text()}")


def children(pid: int | str) -> list[int]:
    """Return the ids of a process's children. pid: "self" for this process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all its descendants, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu_s, children(pid)))


class Chain:
    """A client, a bridge, a hub and a plugin. name: for the table."""

    def __init__(self, name: str, client: Client, pids: list[int]) -> None:
        self.name = name
        self.client = client
        self.pids = pids
        self.p50_us: list[float] = []
        self.calls_per_s: list[float] = []
        self.cpu_us: list[float] = []

    async def call(self) -> None:
        result = await self.client.call_tool("echo", {"text": TEXT})
        assert not result.is_error

    async def measure(self, seconds: float) -> None:
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            await self.call()
            taken.append(time.perf_counter() - began)
        self.p50_us.append(statistics.median(taken) * 1e6)

        before, count = sum(map(cpu_s, self.pids)), 0

        async def counted() -> None:
            nonlocal count
            await self.call()
            count += 1

        self.calls_per_s.append(await at_once(counted, seconds))
        self.cpu_us.append((sum(map(cpu_s, self.pids)) - before) / count * 1e6)


async def compare(programs: Path, rounds: int, seconds: float) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
        chains: list[Chain] = []
        clients: list[Client] = []
        for name, where in (("ours", None), ("upstream", programs)):
            pid, address = stack.enter_context(hub(where, folder / name))
            command = [str(where / "transport-stdio")] if where else [*OURS, "bridge"]
            flags = ["--orchestrator-addr", address, "--certs-dir", str(folder / name / "certs")]
            client = Client(ServerParameters(command[0], [*command[1:], *flags], env=environment()))
            clients.append(await client.__aenter__())
            # The bridge is the child that is new.
            known = {pid, *(item for chain in chains for item in chain.pids)}
            chains.append(Chain(name, client, [pid, *(set(children("self")) - known)]))
        try:
            for number in range(rounds):
                for chain in chains[:: 1 if number % 2 else -1]:
                    await chain.measure(seconds)
            show(chains)
        finally:
            for client in clients:
                await client.__aexit__(None, None, None)


def show(chains: Sequence[Chain]) -> None:
    print(f"{'':18}{'p50 us':>10}{'calls/s':>10}{'CPU us':>10}   with {IN_FLIGHT} in flight")
    rows = [
        [statistics.median(v) for v in (chain.p50_us, chain.calls_per_s, chain.cpu_us)]
        for chain in chains
    ]
    for chain, row in zip(chains, rows, strict=True):
        print(f"{chain.name:18}" + "".join(f"{value:10,.0f}" for value in row))
    ratios = [ours / theirs for ours, theirs in zip(*rows, strict=True)]
    print(f"{'ours / upstream':18}" + "".join(f"{ratio:10.2f}" for ratio in ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    given = parser.parse_args()
    asyncio.run(compare(given.programs.absolute(), given.rounds, given.seconds))


if __name__ == "__main__":
    main()
