"""plugin_replacement.py: how many replaced processes of a plugin may finish their calls."""

from __future__ import annotations

import asyncio
import logging

from loops import on_a_loop

from concertino.orchestra.plugin_replacement import MAX_OLD, PluginReplacement


class Run:
    """A process with calls that do not end."""

    pid = None

    def __init__(self) -> None:
        self.is_draining = False
        self.is_closed = False

    async def drain(self, timeout_s: float) -> None:
        self.is_draining = True
        await asyncio.Event().wait()

    async def shut_down(self) -> None:
        raise AssertionError("the calls have not ended")

    async def close(self, reason: str) -> None:
        self.is_closed = True


@on_a_loop
async def test_the_oldest_process_ends_only_when_there_are_too_many() -> None:
    replacement = PluginReplacement(logging.getLogger("test"))
    runs = [Run() for _ in range(MAX_OLD + 2)]
    closed: list[list[int]] = []
    for run in runs:
        replacement.retire(run)  # type: ignore[arg-type]
        while not run.is_draining:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        closed.append([number for number, run in enumerate(runs) if run.is_closed])
    assert closed == [[]] * MAX_OLD + [[0], [0, 1]]
    await replacement.close()
    assert all(run.is_closed for run in runs)
