"""What the warning about blocked event loops costs a call, in microseconds of CPU time.

    python bench/loop_watcher.py [--calls 100000]

The cost has three parts: a call checks whether the watching thread sleeps; the thread works every
50 ms while calls run, and wakes for the first call after a pause; and as often the loop runs a
callback. The first part is timed in a loop. The others are added up in a server process, by the
clock of the thread and around each callback. Goal: at most 0.1 us a call of a busy server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import timeit
from typing import Any

SERVER = """
import threading, time
from concertino import Server
from concertino.runtime import loop_watcher

class MeasuredWatcher(loop_watcher.LoopWatcher):
    loop_s = 0.0

    def _run(self):
        MeasuredWatcher.clock = time.pthread_getcpuclockid(threading.get_ident())
        super()._run()

    def _on_loop(self, callback_ran):
        began = time.thread_time()
        super()._on_loop(callback_ran)
        MeasuredWatcher.loop_s += time.thread_time() - began

    def wake(self):
        began = time.thread_time()
        super().wake()
        MeasuredWatcher.loop_s += time.thread_time() - began

loop_watcher.LoopWatcher = MeasuredWatcher
server = Server("watched")

@server.tool
async def echo(text: str) -> str:
    return text

@server.tool
async def times() -> list[float]:
    clock = getattr(MeasuredWatcher, "clock", None)
    thread_s = 0.0 if clock is None else time.clock_gettime(clock)
    return [MeasuredWatcher.loop_s + thread_s, time.process_time()]

server.run()
"""
# How a call finds out whether the thread sleeps.
CHECK = "if watch.is_asleep and method not in UNWATCHED_METHODS: pass"
SETUP = """
from concertino.runtime.call_runner import UNWATCHED_METHODS
from concertino.runtime.tasks import LoopWatch
watch, method = LoopWatch(), "tools/call"
"""
# Calls at a time, and the pause after them in seconds.
KINDS = {"64 at a time": (64, 0.0), "one by one": (1, 0.0), "one in 0.2 s": (1, 0.2)}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


class Connection:
    """A client of the server that writes many requests at once and only counts the responses."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.ask("initialize", INITIALIZE)

    def ask(self, method: str, params: dict[str, Any], count: int = 1) -> bytes:
        """Send a request `count` times, and return the last response."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        lines = [json.dumps({**message, "id": number}).encode() + b"\n" for number in range(count)]
        self._process.stdin.write(b"".join(lines))
        self._process.stdin.flush()
        return [self._process.stdout.readline() for _ in range(count)][-1]

    def times(self) -> tuple[float, float]:
        """Return the CPU seconds of the watcher, and of the whole process."""
        answer = json.loads(self.ask("tools/call", {"name": "times", "arguments": {}}))
        watcher_s, process_s = answer["result"]["structuredContent"]["result"]
        return watcher_s, process_s

    def measure(self, at_once: int, pause_s: float, calls: int) -> tuple[float, float]:
        """Return the microseconds that a call costs the watcher, and the whole process."""
        before = self.times()
        for _ in range(0, calls, at_once):
            self.ask("tools/call", {"name": "echo", "arguments": {"text": "x" * 100}}, at_once)
            if pause_s:
                time.sleep(pause_s)
        watcher_us, process_us = (
            (after_s - before_s) / calls * 1e6
            for before_s, after_s in zip(before, self.times(), strict=True)
        )
        return watcher_us, process_us


def main() -> None:
    """Print the cost of the check, and that of the whole watcher for each kind of calls."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    calls = parser.parse_args().calls
    number = 1_000_000
    whole_s = min(timeit.repeat(CHECK, SETUP, number=number, timer=time.process_time))
    empty_s = min(timeit.repeat("pass", SETUP, number=number, timer=time.process_time))
    check_us = (whole_s - empty_s) / number * 1e6
    print(f"the check: {check_us:.3f} us")
    connection = Connection()
    for name, (at_once, pause_s) in KINDS.items():
        count = 50 if pause_s else calls
        watcher_us, process_us = connection.measure(at_once, pause_s, count)
        print(f"{name}: {check_us + watcher_us:.3f} us of {process_us:.1f} us a call")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
