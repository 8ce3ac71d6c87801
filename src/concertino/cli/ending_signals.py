"""Runs a command that has started servers until it is done, or until a signal ends it.

Without this, SIGTERM and SIGHUP (the terminal was closed) would end the process at once, and leave
the servers behind.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

__all__ = ["run_until_signal"]

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# As shells report a program that a signal has ended.
SIGNAL_BASE = 128


def run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine as asyncio.run() does; SIGTERM and SIGHUP cancel it, as Ctrl-C does.

    Returns its exit code; after a signal, 128 + the number of the signal. A signal that is ignored,
    as SIGHUP is under nohup, stays ignored. Raises what the coroutine raises.
    """
    received: list[int] = []

    async def run() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(work)

        def stop(number: int) -> None:
            # A second signal must not interrupt the end of the servers.
            if not received:
                received.append(number)
                task.cancel()

        for number in ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)
        return await task

    try:
        code = asyncio.run(run())
    except (Exception, asyncio.CancelledError):
        # Output fails, too, when the terminal is gone.
        if not received:
            raise
        code = 0
    return SIGNAL_BASE + received[0] if received else code
