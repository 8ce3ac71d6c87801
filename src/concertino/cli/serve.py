"""`concertino serve TARGET...`: finds servers in files, modules or folders, and serves them."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from concertino.cli.folders import Folders, add_options, folders_of
from concertino.cli.guards import WrapBackend, add_guard_options, make_guards
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
    "Serve a server over stdin and stdout, for the MCP client that started this command; or on"
    " sockets, for any number of clients, with --unix, --tcp or a socket unit of systemd"
    " (LISTEN_FDS)."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino serve` to its parser."""
    parser.add_argument(
        "targets",
        metavar="[NAME=]TARGET",
        nargs="*",
        help="file.py, file.py:attribute, package.module:attribute, or a folder of Markdown;"
        " several are served as one server, with the tools of each under its name",
    )
    add_log_format(parser)
    add_trace(parser)
    parser.add_argument(
        "--traceback", action="store_true", help="show the traceback of a failed import"
    )
    add_options(parser.add_argument_group("a folder of Markdown"))

    sockets = parser.add_argument_group("sockets")
    sockets.add_argument(
        "--unix",
        metavar="PATH",
        action="append",
        default=[],
        help="listen on a Unix socket, for this user only; repeatable",
    )
    sockets.add_argument(
        "--tcp",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="listen on a TCP port of this machine, 0 for a free one; repeatable",
    )
    sockets.add_argument(
        "--allow-remote",
        action="store_true",
        help="also listen on addresses that other machines can reach",
    )
    sockets.add_argument(
        "--max-connections",
        metavar="N",
        type=_positive,
        help="most clients at a time (default 512)",
    )
    add_guard_options(parser)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Serve the targets, and end the process."""
    exit_usage: Callable[[str], NoReturn] = args.parser.error
    reject_extra_args(args, server)
    folders = Folders(args.resources, args.prompts, args.scheme)
    if not args.targets and not folders and not folders_of(os.environ):
        exit_usage("expected a target, --resources, --prompts, RESOURCES_PATH or PROMPTS_PATH")
    try:
        guard = make_guards(args)
    except (ValueError, ConcertinoError) as exc:
        exit_usage(str(exc))

    # LISTEN_PID is set by systemd for the process that it passes sockets to.
    if args.unix or args.tcp or os.environ.get("LISTEN_PID") == str(os.getpid()):
        from concertino.cli.listen import serve_on_sockets

        serve_on_sockets(
            args.targets,
            folders,
            unix=args.unix,
            tcp=args.tcp,
            allow_remote=args.allow_remote,
            max_connections=args.max_connections,
            log_format=args.log_format,
            trace=args.trace,
            traceback=args.traceback,
            guard=guard,
        )
    if args.allow_remote or args.max_connections is not None:
        exit_usage(
            "--allow-remote and --max-connections are for sockets: --unix, --tcp,"
            " or those of systemd"
        )
    _serve_stdio(
        args.targets,
        folders,
        log_format=args.log_format,
        trace=args.trace,
        traceback=args.traceback,
        guard=guard,
    )


def _serve_stdio(
    targets: Sequence[str],
    folders: Folders,
    *,
    log_format: str | None,
    trace: bool | None,
    traceback: bool,
    guard: WrapBackend | None = None,
) -> NoReturn:
    """Serve the targets over stdin and stdout, and end the process.

    guard: wraps the backend. Exit codes: 2 if there is no such server, 1 if importing or starting
    one failed.
    """
    # Take stdout over before the target is imported: what that prints must not reach the client.
    taken = take_over()
    logging_setup.configure(format=log_format, component="concertino", writer=taken.writer)

    # For this process, they would have been served in run().
    if "LISTEN_FDS" in os.environ:
        logging_setup.logger("concertino").warning(
            "LISTEN_FDS: its sockets are for process %s, and this is %d; stdin and stdout are"
            " served",
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
    """Return the result of find_all(); if it raises, log the reason and end the process.

    writer: of the log, flushed at the end. traceback: log the traceback too. Exit codes: 2 if there
    is no such server, 1 if importing it failed.
    """
    log = logging_setup.logger("concertino")
    exit_on_signals(writer)
    try:
        return find_all(targets, folders)
    except TargetError as exc:
        log.error("%s", exc)
        exit_process(USAGE, writer)
    # The target's code may raise anything, SystemExit too.
    except BaseException as exc:
        # The imported code may have put secrets into os.environ, and into its exception.
        refresh()
        log.error(
            "Failed to start server: importing %s: %s",
            " ".join(targets),
            f"{type(exc).__name__}: {exc}{location_of(exc)}",
            exc_info=exc if traceback else None,
        )
        if not traceback:
            log.info("--traceback shows where")
        exit_process(FAILED, writer)
