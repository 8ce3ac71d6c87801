"""The connection of a worker to the process that has started it, see cli/workers.py.

The number of its descriptor is in an environment variable. A worker sends one byte when it serves.
When the other end is closed, the parent has gone, and the worker ends as it does at SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket

__all__ = ["WORKER", "follow_parent", "is_worker"]

WORKER = "CONCERTINO_WORKER"


def is_worker() -> bool:
    """Return whether this process is one of several workers."""
    return WORKER in os.environ


def follow_parent() -> None:
    """Tell the parent that this worker serves, and end with the parent. Call it on the loop.

    Does nothing in a process that is no worker.
    """
    descriptor = os.environ.pop(WORKER, None)
    if descriptor is None:
        return
    os.set_inheritable(int(descriptor), False)
    link = socket.socket(fileno=int(descriptor))
    link.setblocking(False)
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(link)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(link, on_end)
    link.send(b"1")
