"""idleness.py: real processes that work, or wait."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from loops import on_a_loop

from concertino.orchestra.idleness import wait_until_idle

COMPUTING = [sys.executable, "-c", "while True: pass"]
# The child computes, its parent waits for it.
PARENT = [sys.executable, "-c", f"import subprocess; subprocess.run({COMPUTING!r})"]
THREAD = [
    sys.executable,
    "-c",
    "import threading, time\ndef work():\n while True: pass\n"
    "threading.Thread(target=work).start()\ntime.sleep(600)",
]


@contextmanager
def start_command(command: list[str]) -> Iterator[int]:
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@on_a_loop
async def test_a_process_that_sleeps_is_idle() -> None:
    with start_command(["sleep", "600"]) as pid:
        async with asyncio.timeout(10):
            await wait_until_idle(pid, 0.1)


@pytest.mark.parametrize("command", [COMPUTING, PARENT, THREAD], ids=["itself", "child", "thread"])
@on_a_loop
async def test_a_process_that_computes_is_not_even_on_a_loaded_machine(command: list[str]) -> None:
    with start_command(command) as pid:
        # The first look may find the parent before it has a child.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_until_idle(pid, 0.4), 1.0)
        # Stopped, it does nothing any more.
        os.killpg(pid, signal.SIGSTOP)
        async with asyncio.timeout(10):
            await wait_until_idle(pid, 0.1)


@on_a_loop
async def test_a_process_that_wakes_up_for_a_moment_now_and_then_is_idle() -> None:
    # About 2 % of a core, as the process of an MCP server that does not answer.
    code = "import time\nwhile True:\n time.sleep(0.05)\n sum(range(50_000))"
    with start_command([sys.executable, "-c", code]) as pid:
        async with asyncio.timeout(30):
            await wait_until_idle(pid, 1.0)


@on_a_loop
async def test_a_process_that_is_gone_is_idle() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    async with asyncio.timeout(10):
        await wait_until_idle(process.pid, 0.05)
