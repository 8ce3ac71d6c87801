"""The connection of a worker process to its parent process, for `concertino serve --workers`.

The parent passes a WorkerPlace in an environment variable. A worker sends one byte on the
connection when it has begun to serve. When the connection closes, the parent has ended, and the
worker ends as it does at SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["WORKER", "WorkerPlace", "follow_parent", "is_worker", "worker_place"]

# The environment variable with the WorkerPlace of a worker.
WORKER = "CONCERTINO_WORKER"


class WorkerPlace(Struct, frozen=True):
    """The number of a worker process, and how the process reaches its parent and the other workers.

    descriptor: the file descriptor of the connection to the parent.
    number: the number of this worker, from 1 on.
    count: the number of workers.
    folder: a private directory for the sockets by which the workers reach each other.
    """

    descriptor: int
    number: int
    count: int
    folder: Path

    def encode(self) -> str:
        """Return this object as a string, for the environment variable of the worker."""
        return f"{self.descriptor}:{self.number}:{self.count}:{self.folder}"


def worker_place() -> WorkerPlace | None:
    """Return which worker this process is; None if it is not a worker.

    Must be called before follow_parent(), which removes the environment variable.
    """
    text = os.environ.get(WORKER)
    if text is None:
        return None
    from pathlib import Path

    descriptor, number, count, folder = text.split(":", 3)
    return WorkerPlace(int(descriptor), int(number), int(count), Path(folder))


def is_worker() -> bool:
    """Return whether this process is one of several workers.

    Must be called before follow_parent(), which removes the environment variable.
    """
    return WORKER in os.environ


def follow_parent() -> None:
    """Report to the parent that this worker serves, and end the worker when the parent has ended.

    Must be called on the event loop. Does nothing in a process that is not a worker.
    """
    place = worker_place()
    if place is None:
        return
    del os.environ[WORKER]
    os.set_inheritable(place.descriptor, False)
    link = socket.socket(fileno=place.descriptor)
    link.setblocking(False)
    loop = asyncio.get_running_loop()

    # The parent sends nothing, so the link is readable only when the parent has ended.
    def on_end() -> None:
        loop.remove_reader(link)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(link, on_end)
    link.send(b"1")
