"""`concertino serve TARGET...`: find servers in files or modules, and serve them over stdin and stdout."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from concertino.cli.folders import Folders, add_options, folders_of
from concertino.cli.guards import Guard, guard_of
from concertino.cli.guards import add_options as add_guards
from concertino.cli.serving import add_log_format, add_trace, exit_on_signals, reject_extra_args
from concertino.cli.targets import FoundBackend, find_all, location_of
from concertino.errors import ConcertinoError, TargetError
from concertino.logs import handler as logging_setup
from concertino.logs.redact import refresh
from concertino.logs.writer import BoundedWriter
from concertino.runtime.process import exit_process
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

__all__ = ["DESCRIPTION", "add_arguments", "load_or_exit", "run"]

FAILED = 1
USAGE = 2


DESCRIPTION = (
    "Serve a server over stdin and stdout, for an MCP client that started this command; or at sockets, "
    "for any number of clients, with --unix, --tcp or a socket unit of systemd (LISTEN_FDS)."
)


def add_arguments(serve: ArgumentParser) -> None:
    """What can be said of serving."""
    serve.add_argument(
        "targets",
        metavar="[NAME=]TARGET",
        nargs="*",
        help="file.py, file.py:attribute, package.module:attribute, or a folder of Markdown; several are served as one, the tools "
        "of each under its name",
    )
    add_log_format(serve)
    add_trace(serve)
    serve.add_argument("--traceback", action="store_true", help="show where an import failed")
    folders = serve.add_argument_group("a folder of Markdown")
    add_options(folders)
    places = serve.add_argument_group("sockets")
    places.add_argument(
        "--unix",
        metavar="PATH",
        action="append",
        default=[],
        help="listen at a Unix socket, for this user; repeatable",
    )
    places.add_argument(
        "--tcp",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="listen at a TCP port of this machine, 0 for a free one; repeatable",
    )
    places.add_argument(
        "--allow-remote",
        action="store_true",
        help="listen at addresses that other machines may reach too",
    )
    places.add_argument(
        "--max-connections", metavar="N", type=_positive, help="clients at once (default 512)"
    )
    add_guards(serve)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def run(given: Namespace, server: Sequence[str]) -> NoReturn:
    """Serve what was asked for. Ends the process."""
    misused: Callable[[str], NoReturn] = given.parser.error
    reject_extra_args(given, server)
    folders = Folders(given.resources, given.prompts, given.scheme)
    if not given.targets and not folders and not folders_of(os.environ):
        misused("expected a target, --resources, --prompts, RESOURCES_PATH or PROMPTS_PATH")
    try:
        guard = guard_of(given)
    except (ValueError, ConcertinoError) as why:
        misused(str(why))
    if given.unix or given.tcp or os.environ.get("LISTEN_PID") == str(os.getpid()):
        from concertino.cli.listen import serve_at

        serve_at(
            given.targets,
            folders,
            unix=given.unix,
            tcp=given.tcp,
            allow_remote=given.allow_remote,
            max_connections=given.max_connections,
            log_format=given.log_format,
            trace=given.trace,
            traceback=given.traceback,
            guard=guard,
        )
    if given.allow_remote or given.max_connections is not None:
        misused(
            "--allow-remote and --max-connections are for sockets: --unix, --tcp, or those of systemd"
        )
    _over_stdio(
        given.targets,
        folders,
        log_format=given.log_format,
        trace=given.trace,
        traceback=given.traceback,
        guard=guard,
    )


def _over_stdio(
    targets: Sequence[str],
    folders: Folders,
    *,
    log_format: str | None,
    trace: bool | None,
    traceback: bool,
    guard: Guard | None = None,
) -> NoReturn:
    """Serve what the targets name over stdin and stdout. Ends the process: 2 when there is no such server, 1 when importing or
    starting one failed. guard: is put around it.
    """
    taken = take_over()  # before the target is imported: what it prints must not reach the wire
    logging_setup.configure(format=log_format, component="concertino", writer=taken.writer)
    if "LISTEN_FDS" in os.environ:  # else cli/listen.py would serve
        logging_setup.logger("concertino").warning(
            "LISTEN_FDS: its sockets are for process %s, and this is %d; stdin and stdout are served",
            os.environ.get("LISTEN_PID") or "(none)",
            os.getpid(),
        )
    found = load_or_exit(targets, folders, taken.writer, traceback=traceback)
    run_process(
        guard(found.backend) if guard else found.backend,
        taken=taken,
        limits=found.limits,
        log_format=log_format,
        trace=trace,
        loop_factory=found.loop_factory,
    )


def load_or_exit(
    targets: Sequence[str], folders: Folders, writer: BoundedWriter, *, traceback: bool
) -> FoundBackend:
    """What find_all() gives; if it raises, say why and end the process. traceback: show it. writer: where log lines go."""
    log = logging_setup.logger("concertino")
    exit_on_signals(writer)
    try:
        return find_all(targets, folders)
    except TargetError as why:
        log.error("%s", why)
        exit_process(USAGE, writer)
    except BaseException as why:  # SystemExit too: whatever the target's code raises
        refresh()  # what was imported may have put secrets into os.environ
        shown = f"{type(why).__name__}: {why}{location_of(why)}"
        log.error(
            "Failed to start server: importing %s: %s",
            " ".join(targets),
            shown,
            exc_info=why if traceback else None,
        )
        if not traceback:
            log.info("--traceback shows where")
        exit_process(FAILED, writer)
