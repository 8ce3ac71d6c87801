"""How long the next call takes after kill -9 of a server that leaves a child behind.

    python bench/restart.py [--runs 15]

The child ignores SIGTERM and holds the server's descriptors open, as a shell with a job does. Time
counts from the kill to the first answer of the restarted server, whose own start is part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import statistics
import sys
import time

from concertino import Client, Disconnected
from concertino.client import Restart

SERVER = """
import os, subprocess
from concertino import Server
server = Server("restarted")
@server.tool(inline=True)
def pid() -> int:
    return os.getpid()
@server.tool(inline=True)
def leave_child() -> int:
    return subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300 & wait"], stdin=0).pid
server.run()
"""
# Without the pause, which is 0.1 s by default.
AT_ONCE = Restart(first_s=0.001)


async def time_restart() -> float:
    """Return the seconds from the kill to the next answer."""
    async with Client([sys.executable, "-c", SERVER], restart=AT_ONCE) as client:
        first = await client.call_tool("pid", into=int)
        await client.call_tool("leave_child", into=int)
        began = time.perf_counter()
        os.kill(first, signal.SIGKILL)
        while True:
            try:
                answered_by = await client.call_tool("pid", into=int)
            except Disconnected:
                # The call was in the pipe when the server ended.
                continue
            if answered_by != first:
                return time.perf_counter() - began


async def main() -> None:
    """Print median and longest time of all runs, and how busy the machine was."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    # Each kill would be reported.
    logging.getLogger("concertino").setLevel(logging.CRITICAL)
    times = sorted([await time_restart() for _ in range(runs)])
    print(
        f"{runs} restarts: median {statistics.median(times):.3f} s, longest {times[-1]:.3f} s; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    asyncio.run(main())
