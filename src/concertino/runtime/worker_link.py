"""The connection of a worker process to its parent process, see cli/workers.py.

The parent passes the file descriptor of the connection in an environment variable. A worker sends
one byte when it has begun to serve. When the connection closes, the parent has ended, and the
worker ends as it does at SIGTERM.
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
    """Tell the parent that this worker serves, and make the worker end when the parent ends.

    Must be called on the event loop. Does nothing in a process that is not a worker.
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
