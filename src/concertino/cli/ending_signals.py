"""run_until_signal(): runs a command that starts servers, and ends the servers after a signal.

By default SIGTERM and SIGHUP, which a closed terminal sends, end a process at once. The servers
that the command has started would go on running.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

__all__ = ["run_until_signal"]

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# The exit code after a signal is this plus the number of the signal, as in shells.
SIGNAL_BASE = 128


def run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine like asyncio.run(), but SIGTERM and SIGHUP cancel it, as Ctrl-C does.

    A signal that the process ignores, such as SIGHUP under nohup, stays ignored.

    work: a coroutine that returns an exit code.
    Returns the exit code of the coroutine. After SIGTERM or SIGHUP, returns 128 + the number of the
    signal, whatever the coroutine returns or raises. Otherwise raises the coroutine's exceptions.
    """
    received: list[int] = []

    async def run() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(work)

        def stop(number: int) -> None:
            # Ignore further signals, which must not interrupt the end of the servers.
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
        # Ignore errors after a signal: output fails when the terminal is gone.
        if not received:
            raise
        code = 0
    if not received:
        return code
    _discard_unwritable_output()
    return SIGNAL_BASE + received[0]


def _discard_unwritable_output() -> None:
    """Redirect stdout and stderr to /dev/null if the terminal that they wrote to is gone."""
    # Otherwise Python would write the buffered output again at its end, and end with exit code 120.
    # Any: a stream is None if its descriptor is closed.
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in filter(None, streams):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
