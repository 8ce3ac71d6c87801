"""load_or_exit(): loads the targets of `concertino serve`, or reports the error and exits.

Loading a target imports the user's code, which may raise anything. An MCP client that waits for the
server gets the error as the response to its first request, so that its user sees the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from concertino.cli import FAILED, USAGE
from concertino.cli.folders import LibraryOptions, MissingFolders
from concertino.cli.server_files import ServerFileOptions
from concertino.cli.serving import exit_on_signals
from concertino.cli.targets import LoadedTarget, load_targets
from concertino.errors import TargetError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.runtime.process import Frontend
from concertino.runtime.shutdown import exit_process
from concertino.runtime.spare_descriptor import keep_spare_descriptor


def load_or_exit(
    targets: Sequence[str],
    options: LibraryOptions,
    file_options: ServerFileOptions,
    frontend: Frontend,
    *,
    traceback: bool,
    strict: bool,
) -> LoadedTarget:
    """Load the targets of `concertino serve`. If that fails, log the failure and end the process.

    A client that waits for the server gets the failure as the response to its first request.

    targets: the files, modules, folders or server files to serve; several are served as one.
    options: the options for a folder of Markdown.
    file_options: the options for server files such as mcp.json.
    frontend: the Frontend through which clients are connected.
    traceback: whether to log the whole traceback.
    strict: whether to load all targets now and exit if one fails. If it is False, several targets
        are loaded in threads when serving begins, and failures are logged.
    Exit codes: 2 if a target does not exist and no client has got the failure; otherwise 1.
    """
    log = logging_setup.logger("concertino")
    exit_on_signals(frontend.writer)
    # So that errors can be reported even if the target uses up all descriptors.
    keep_spare_descriptor()
    try:
        return load_targets(targets, options, file_options, strict=strict, traceback=traceback)
    except MissingFolders as exc:
        # The command line is valid, so the exit code is not that of a usage error.
        log.error("Failed to start server: %s", exc)
        frontend.refuse(str(exc))
        exit_process(FAILED, frontend.writer)
    except TargetError as exc:
        log.error("%s", exc)
        exit_process(FAILED if frontend.refuse(exc) else USAGE, frontend.writer)
    except BaseException as exc:
        # The code of a target may raise any exception, even SystemExit.
        from concertino.backend.start_failure import describe_raised

        # The target may have put secrets into os.environ. Redact them in the log.
        refresh()
        exc_info: Any = exc if traceback else None
        # A SyntaxError shows its line even without a traceback.
        if isinstance(exc, SyntaxError) and not traceback:
            exc_info = (type(exc), exc, None)
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
