"""`concertino serve TARGET...`: find servers in files or modules, and serve them over stdin and stdout."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from concertino import logs
from concertino.cli.targets import Found, find_all, place_of
from concertino.driver.process import leave, run
from concertino.errors import TargetError
from concertino.logs import BoundedWriter
from concertino.redact import refresh
from concertino.transports.stdio import take_over

__all__ = ["found_or_leave", "serve"]

FAILED = 1
USAGE = 2


def serve(targets: Sequence[str], *, log_format: str | None, trace: bool | None, traceback: bool) -> NoReturn:
    """Serve what the targets name over stdin and stdout. Ends the process: 2 when there is no such server, 1 when importing or
    starting one failed.
    """
    taken = take_over()  # before the target is imported: what it prints must not reach the wire
    logs.configure(format=log_format, component="concertino", writer=taken.writer)
    if "LISTEN_FDS" in os.environ:  # else cli/listen.py would serve
        logs.logger("concertino").warning(
            "LISTEN_FDS: its sockets are for process %s, and this is %d; stdin and stdout are served",
            os.environ.get("LISTEN_PID") or "(none)",
            os.getpid(),
        )
    found = found_or_leave(targets, taken.writer, traceback=traceback)
    run(
        found.backend,
        taken=taken,
        limits=found.limits,
        log_format=log_format,
        trace=trace,
        loop_factory=found.loop_factory,
    )


def found_or_leave(targets: Sequence[str], writer: BoundedWriter, *, traceback: bool) -> Found:
    """What find_all() gives; if it raises, say why and end the process. traceback: show it. writer: where log lines go."""
    log = logs.logger("concertino")
    _leave_on_signals(writer)
    try:
        return find_all(targets)
    except TargetError as why:
        log.error("%s", why)
        leave(USAGE, writer)
    except BaseException as why:  # SystemExit too: whatever the target's code raises
        refresh()  # what was imported may have put secrets into os.environ
        shown = f"{type(why).__name__}: {why}{place_of(why)}"
        log.error(
            "Failed to start server: importing %s: %s", " ".join(targets), shown, exc_info=why if traceback else None
        )
        if not traceback:
            log.info("--traceback shows where")
        leave(FAILED, writer)


def _leave_on_signals(writer: BoundedWriter) -> None:
    """SIGTERM and SIGINT end an import in order: nothing was accepted yet, so there is nothing to wait for."""
    process = os.getpid()

    def obey(number: int, frame: object) -> None:
        if os.getpid() != process:  # a forked child: the signal is meant for it alone
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        leave(0, writer)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, obey)
