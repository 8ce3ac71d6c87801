"""Loads the targets of `concertino serve`, or reports why that failed and ends the process."""

from __future__ import annotations

from collections.abc import Sequence

from concertino.cli.folders import LibraryOptions
from concertino.cli.serving import exit_on_signals
from concertino.cli.targets import LoadedTarget, format_location, load_targets
from concertino.errors import TargetError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.runtime.process import exit_process

__all__ = ["FAILED", "USAGE", "load_or_exit"]

FAILED = 1
USAGE = 2


def load_or_exit(
    targets: Sequence[str], options: LibraryOptions, writer: BoundedWriter, *, traceback: bool
) -> LoadedTarget:
    """Return what load_targets() returns. If it raises, log the error and end the process.

    Exit codes: 2 for a target that does not exist, 1 when importing it failed. writer: where log
    lines go. traceback: log the whole traceback.
    """
    log = logging_setup.logger("concertino")
    exit_on_signals(writer)
    try:
        return load_targets(targets, options)
    except TargetError as exc:
        log.error("%s", exc)
        exit_process(USAGE, writer)
    # The code of a target may raise anything, SystemExit included.
    except BaseException as exc:
        # The target may have put secrets into os.environ; they must not be logged.
        refresh()
        log.error(
            "Failed to start server: importing %s: %s",
            " ".join(targets),
            f"{type(exc).__name__}: {exc}{format_location(exc)}",
            exc_info=exc if traceback else None,
        )
        if not traceback:
            log.info("--traceback shows where")
        exit_process(FAILED, writer)
