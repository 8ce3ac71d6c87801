"""A thousand servers started, used and ended by the client: nothing is left of any.

    python soak/client_cycles.py [--cycles 1000] [--at-once 4]

Each cycle is one of: opened in each era, used, closed; the server killed during a call; the opening
cancelled; a call cancelled; the server killed and started again; a server that ignores the end of
its input; a wrapper (`sh -c`) around it; the client dropped by a loop that ends. Before and after,
a census: processes that carry our mark in their environment, our own descriptors, threads and
memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from concertino import Client, ConcertinoError, Disconnected, ServerParameters
from concertino.client import Restart, Timeouts
from concertino.transports import ShutdownTimeouts

MARK = f"CONCERTINO_SOAK_CLIENT={os.getpid()}"
TOOLBOX = [sys.executable, "-m", "concertino.check.reference_server"]
STUBBORN = (
    "import sys, signal, time; signal.signal(15, signal.SIG_IGN)\nfor line in sys.stdin:"
    " pass\ntime.sleep(600)"
)
QUICK = ShutdownTimeouts(stdin_closed_s=0.1, terminated_s=0.1, killed_s=10)
GROWTH_KIB = 16 * 1024  # of our own memory, from the tenth part of the cycles to their end


def parameters(command: list[str], ladder: ShutdownTimeouts | None = None) -> ServerParameters:
    name, _, value = MARK.partition("=")
    here = os.environ.get("PYTHONPATH")
    env = {name: value} | ({} if here is None else {"PYTHONPATH": here})
    return ServerParameters(
        command[0], command[1:], env=env, ladder=ladder or ShutdownTimeouts(10, 10, 10)
    )


async def lived(era: Literal["auto", "modern", "legacy"], command: list[str]) -> str:
    async with Client(parameters(command), era=era, timeouts=Timeouts(probe_s=30)) as client:
        tools = await client.list_tools()
        await client.ping()
    if not tools:
        return "no tools"
    return "" if client.exit_status == 0 else f"{era}: exit status {client.exit_status}"


async def killed() -> str:
    async with Client(parameters(TOOLBOX)) as client:
        call = asyncio.ensure_future(client.call_tool("sleep", {"seconds": 600}))
        await asyncio.sleep(0)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        try:
            await call
        except Disconnected as ended:
            return (
                ""
                if ended.exit_status == -signal.SIGKILL
                else f"killed: exit status {ended.exit_status}"
            )
        return "a call of a killed server was answered"


async def opening_cancelled() -> str:
    opening = asyncio.ensure_future(Client(parameters(TOOLBOX, QUICK)).open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    return "" if opening.cancelled() else "an opening that was cancelled went on"


async def call_cancelled() -> str:
    async with Client(parameters(TOOLBOX)) as client:
        call = asyncio.ensure_future(client.call_tool("sleep", {"seconds": 600}))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await client.ping()
    return (
        ""
        if client.exit_status == 0
        else f"after a cancelled call: exit status {client.exit_status}"
    )


async def stubborn() -> str:
    client = Client(
        parameters([sys.executable, "-c", STUBBORN], QUICK),
        timeouts=Timeouts(connect_s=0.2, probe_s=0.05),
    )
    try:
        await client.open()
    except ConcertinoError:
        return ""
    return "a server that says nothing was opened"


async def restarted() -> str:
    rules = Restart(first_s=0.01, longest_s=0.05)
    async with Client(parameters(TOOLBOX), restart=rules) as client:
        assert client.pid is not None
        first = client.pid
        os.kill(first, signal.SIGKILL)
        while client.restarts == 0:
            await asyncio.sleep(0.01)
        await client.ping()
        if client.pid == first:
            return "a server that was killed was not started again"
    return "" if client.exit_status == 0 else f"after a restart: exit status {client.exit_status}"


CYCLES: tuple[Callable[[], Coroutine[Any, Any, str]], ...] = (
    lambda: lived("auto", TOOLBOX),
    lambda: lived("legacy", TOOLBOX),
    lambda: lived(
        "modern", ["sh", "-c", f"{sys.executable} -m concertino.check.reference_server; exit $?"]
    ),
    killed,
    opening_cancelled,
    call_cancelled,
    restarted,
    stubborn,
)


def dropped() -> str:
    """The loop ends while the client is open."""

    kept: list[object] = []
    client: list[Client] = []

    async def hold() -> None:
        async with Client(parameters(TOOLBOX)) as held:
            client.append(held)
            opened.set()
            await asyncio.Event().wait()

    async def main() -> None:
        kept.append(asyncio.create_task(hold()))
        await opened.wait()

    opened = asyncio.Event()
    asyncio.run(main())
    return "" if client[0].exit_status is not None else "a client whose loop ended left its server"


def marked() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if (
                    MARK.encode() in (entry / "environ").read_bytes().split(b"\0")
                    and state not in "ZX"
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def children() -> int:
    """Ours, zombies too."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found += (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(
                    os.getpid()
                )
    return found


def census() -> dict[str, object]:
    gc.collect()
    return {
        "marked": marked(),
        "children": children(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def all_of(numbers: range, at_once: int) -> list[str]:
    """The cycles of these numbers, some at a time; what went wrong."""
    wrong: list[str] = []
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            try:
                async with asyncio.timeout(60):
                    why = await CYCLES[number % len(CYCLES)]()
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
            if why:
                wrong.append(f"cycle {number}: {why}")

    await asyncio.gather(*(work() for _ in range(at_once)))
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        wrong.append(f"tasks are left: {others}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=4)
    given = parser.parse_args()
    warm = max(len(CYCLES), given.cycles // 10)
    began = time.monotonic()
    wrong = asyncio.run(all_of(range(warm), given.at_once))  # what is made once is made
    before, memory = census(), resident_kib()
    wrong += asyncio.run(all_of(range(warm, given.cycles), given.at_once))
    wrong += [why for _ in range(max(1, given.cycles // 100)) if (why := dropped())]
    after, grown = census(), resident_kib() - memory
    if grown > GROWTH_KIB:
        wrong.append(f"memory has grown by {grown} KiB")
    for why in wrong[:20]:
        say(f"  {why}")
    say(
        f"{given.cycles} cycles in {time.monotonic() - began:.0f} s, {len(wrong)} wrong; memory"
        f" {grown:+d} KiB"
    )
    say(f"before: {before}\nafter:  {after}")
    for pid in marked():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ok = not wrong and before == after and not after["marked"]
    say("nothing is left" if ok else "SOMETHING IS LEFT OR WRONG")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
