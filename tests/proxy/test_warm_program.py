"""proxy/warm_program.py: processes that are started before they are needed."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from loops import on_a_loop

from concertino.client.targets import OpenTarget
from concertino.jsonrpc.limits import Limits
from concertino.proxy import warm_program
from concertino.proxy.warm_program import WarmProgram
from concertino.transports.process import ShutdownTimeouts

# Ends at the end of its input.
COMMAND = (sys.executable, "-S", "-c", "import sys; sys.stdin.read()")


async def waiting_pids(program: WarmProgram, count: int) -> list[int]:
    """Return the ids of the processes that wait, as soon as there are so many."""
    while len(program._waiting) < count:
        await asyncio.sleep(0.001)
    return [child.pid for child, _ in program._waiting]


async def open_pid(program: WarmProgram, opened: list[OpenTarget]) -> int:
    """Open the program, and return the id of its process."""
    opened.append(await program.open(Limits(), None))
    pid = opened[-1].connection.facts["pid"]
    assert isinstance(pid, int)
    return pid


@on_a_loop
async def test_a_file_that_is_saved_twice_at_once_is_loaded_by_processes_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_program, "NEXT_AFTER_S", 0.001)
    program = WarmProgram("server", COMMAND, dict(os.environ), ShutdownTimeouts())
    opened: list[OpenTarget] = []
    first = await open_pid(program, opened)
    pids = await waiting_pids(program, 2)
    assert first not in pids
    # No third process is started.
    program._prepare()
    assert await waiting_pids(program, 2) == pids

    # A save, and another one before a further process could start.
    monkeypatch.setattr(warm_program, "NEXT_AFTER_S", 60)
    assert [await open_pid(program, opened) for _ in range(2)] == pids
    third = await open_pid(program, opened)
    assert third not in [first, *pids]

    await program.close()
    for target in opened:
        await target.connection.close(5)


@on_a_loop
async def test_a_process_that_has_ended_while_it_waited_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_program, "NEXT_AFTER_S", 0.001)
    program = WarmProgram("server", COMMAND, dict(os.environ), ShutdownTimeouts())
    opened: list[OpenTarget] = []
    await open_pid(program, opened)
    pids = await waiting_pids(program, 2)
    monkeypatch.setattr(warm_program, "NEXT_AFTER_S", 60)
    os.kill(pids[0], 9)
    os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    assert await open_pid(program, opened) == pids[1]
    await program.close()
    for target in opened:
        await target.connection.close(5)
