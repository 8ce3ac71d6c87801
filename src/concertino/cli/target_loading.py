"""Loads the targets of `concertino serve`, or reports why that failed and ends the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from concertino.cli.folders import LibraryOptions, MissingFolders
from concertino.cli.serving import exit_on_signals
from concertino.cli.targets import LoadedTarget, load_targets
from concertino.errors import TargetError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.runtime.process import Frontend
from concertino.runtime.shutdown import exit_process

FAILED = 1
USAGE = 2


def load_or_exit(
    targets: Sequence[str],
    options: LibraryOptions,
    frontend: Frontend,
    *,
    traceback: bool,
    strict: bool,
) -> LoadedTarget:
    """Return what load_targets() returns. If it raises, report the error and end the process.

    The error is logged, and is the answer to the client's first request. Exit codes: 2 for a target
    that does not exist, 1 when importing it failed, a library has no folder, or a client was told.
    frontend: where clients come from. traceback: log the whole traceback. strict: see
    load_targets().
    """
    log = logging_setup.logger("concertino")
    exit_on_signals(frontend.writer)
    try:
        return load_targets(targets, options, strict=strict, traceback=traceback)
    except MissingFolders as exc:
        log.error("Failed to start server: %s", exc)
        frontend.refuse(str(exc))
        exit_process(FAILED, frontend.writer)
    except TargetError as exc:
        log.error("%s", exc)
        exit_process(FAILED if frontend.refuse(exc) else USAGE, frontend.writer)
    # The code of a target may raise anything, SystemExit included.
    except BaseException as exc:
        from concertino.backend.start_failure import describe_raised

        # The target may have put secrets into os.environ; they must not be logged.
        refresh()
        # A SyntaxError shows its line without a traceback.
        exc_info: Any = exc if traceback else None
        if isinstance(exc, SyntaxError):
            exc_info = type(exc), exc, exc.__traceback__ if traceback else None
        log.error(
            "Failed to start server: importing %s: %s",
            " ".join(targets),
            describe_raised(exc),
            exc_info=exc_info,
        )
        if exc_info is None:
            log.info("--traceback shows where")
        frontend.refuse(exc)
        exit_process(FAILED, frontend.writer)
