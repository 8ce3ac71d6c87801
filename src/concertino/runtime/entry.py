"""run(backend): serves a backend over this process's stdin and stdout.

While the command line imports a target, run() only records its arguments. So a file serves the same
backend whether it is started by `python file.py` or by `concertino serve file.py`.
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
    """The arguments of a call of run() that was made while a target was imported."""

    backend: Backend
    limits: Limits | None
    loop_factory: LoopFactory | None


# A list while the command line imports a target: run() then adds its calls here.
marked: list[RunCall] | None = None


def run(
    backend: Backend, *, limits: Limits | None = None, loop_factory: LoopFactory | None = None
) -> None:
    """Serve a backend over stdin and stdout until the client is gone, then end the process.

    Nothing after this call runs, unless `concertino serve` imports the file: then this call only
    records its arguments and returns. For other connections, or several, use `serve` or `Host`.
    backend: a Server, a guard around one, or what compose() returned.
    limits: by default those that CONCERTINO_... variables set; see Limits.
    loop_factory: for example uvloop.new_event_loop.
    Raises TypeError for an object that is not a Backend.
    """
    if (got := describe_non_backend(backend)) is not None:
        raise TypeError(f"run: expected a Server or another Backend, got {got}")
    if marked is not None:
        marked.append(RunCall(backend, limits, loop_factory))
        return

    # By name, since the process module imports this one.
    load("concertino.runtime.process").run(backend, limits=limits, loop_factory=loop_factory)
