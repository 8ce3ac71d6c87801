"""run(backend): serves a backend over this process's stdin and stdout.

While the command line imports a target, run() only records its arguments. So a file serves the same
backend whether it is started by `python file.py` or by `concertino serve file.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType, TracebackType

from msgspec import Struct

from concertino.backend.interface import Backend, describe_non_backend
from concertino.jsonrpc.limits import Limits
from concertino.loading import load

__all__ = ["LoopFactory", "RunCall", "run", "run_calls"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class RunCall(Struct, frozen=True):
    """The arguments of a call of run() that was made while a target was imported."""

    backend: Backend
    limits: Limits | None
    loop_factory: LoopFactory | None


# A list while the command line imports a target: run() then adds its calls to it.
run_calls: ContextVar[list[RunCall] | None] = ContextVar("run_calls", default=None)


def run(
    backend: Backend, *, limits: Limits | None = None, loop_factory: LoopFactory | None = None
) -> None:
    """Serve a backend over stdin and stdout until the client is gone, then end the process.

    Nothing after this call runs, unless `concertino serve` imports the file: then this call only
    records its arguments and returns. For other connections, or several, use `serve` or `Host`.
    backend: a Server, a guard around one, or what compose() returned.
    limits: by default those that CONCERTINO_... variables set; see Limits.
    loop_factory: for example uvloop.new_event_loop.
    Raises TypeError for an object that is not a Backend, and RuntimeError while a module is being
    imported that calls this at its top level: its importer would never go on.
    """
    if (got := describe_non_backend(backend)) is not None:
        raise TypeError(f"run: expected a Server or another Backend, got {got}")
    if (calls := run_calls.get()) is not None:
        calls.append(RunCall(backend, limits, loop_factory))
        return

    if (problem := _describe_import()) is not None:
        raise RuntimeError(problem)

    # By name, since the process module imports this one.
    load("concertino.runtime.process").run(backend, limits=limits, loop_factory=loop_factory)


def _describe_import() -> str | None:
    """Say which file calls run() while another one imports it; None if that is not so."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_globals.get("__name__", "").startswith("concertino."):
        frame = frame.f_back
    caller = frame

    # A module that is not the main program is executed, and the import system executes it.
    while frame is not None and not (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__"
    ):
        frame = frame.f_back
    importer = frame and frame.f_back
    if caller is None or importer is None or not _is_import_system(importer):
        return None
    while importer is not None and _is_import_system(importer):
        importer = importer.f_back

    other = "another module" if importer is None else _file_name(importer)
    return (
        f"{_file_name(caller)}:{caller.f_lineno}: server.run() called while {other} imports it; "
        "put it under `if __name__ == '__main__':`"
    )


def _file_name(frame: FrameType) -> str:
    return frame.f_code.co_filename.rpartition("/")[2]


def _is_import_system(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _extend_excepthook() -> None:
    """Let an exception that ends a script reach the script's client, too.

    stderr gets the traceback without the frames of this package.
    """
    write_exception = sys.excepthook

    def report(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        kind, exc, trace = load("concertino.backend.user_errors").exc_info_for_users(exc)
        # Python writes the traceback that the exception holds.
        write_exception(kind, exc.with_traceback(trace), trace)
        if isinstance(exc, Exception):
            load("concertino.runtime.refusal").refuse_script_client(exc)

    sys.excepthook = report


# A script that imports this module is about to make a server. Without this, its client would see no
# more than a closed connection when an exception ends it; stderr gets the exception as before.
_extend_excepthook()
