"""run(backend): a backend over this process's stdin and stdout; or, while the command line imports a target, the mark on it.

So that a file serves the same thing whether it is started by `python file.py` or by `concertino serve file.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from concertino.backend.interface import Backend, describe_non_backend
from concertino.jsonrpc.limits import Limits
from concertino.loading import load

__all__ = ["LoopFactory", "RunCall", "marked", "run"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class RunCall(Struct, frozen=True):
    """A call of run() while a target is imported, with what it was given."""

    backend: Backend
    limits: Limits | None
    loop_factory: LoopFactory | None


marked: list[RunCall] | None = None  # set while the command line imports a target


def run(
    backend: Backend, *, limits: Limits | None = None, loop_factory: LoopFactory | None = None
) -> None:
    """Serve a backend over stdin and stdout until the client is gone; then the process ends, so nothing after this line runs.

    backend: a Server, a guard around one, what compose() gave. limits: see Limits; those set by CONCERTINO_... variables otherwise.
    loop_factory: e.g. uvloop.new_event_loop. To serve another connection, or several, use `serve` or `Host`. While
    `concertino serve` imports a file, this only marks the backend, and what it was given, and returns. Raises TypeError for what is
    no backend.
    """
    if (got := describe_non_backend(backend)) is not None:
        raise TypeError(f"run: expected a Server or another Backend, got {got}")
    if marked is not None:
        marked.append(RunCall(backend, limits, loop_factory))
        return
    load("concertino.runtime.process").run(backend, limits=limits, loop_factory=loop_factory)
