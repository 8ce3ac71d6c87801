"""`concertino proxy -- COMMAND...`: stand in front of any server, over stdin and stdout."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, get_args

from msgspec.structs import replace

from concertino.backend.interface import Backend
from concertino.cli import UsageError
from concertino.cli.guards import add_guard_options, make_guard
from concertino.cli.options import add_log_format, add_repeatable, add_trace
from concertino.cli.server_options import parse_seconds, parse_server
from concertino.cli.tools_options import add_tools_options, wrap_backend
from concertino.client.targets import ServerParameters
from concertino.errors import ConcertinoError
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.proxy import HEARTBEAT_S, OPENING_S, SHUTDOWN, Isolation, Proxy
from concertino.runtime.process import StdioFrontend
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

if TYPE_CHECKING:
    from concertino.proxy.source_files import SourceFiles

DESCRIPTION = (
    "Serve another server, in any language and of any revision, over stdin and stdout to the MCP "
    "client that started this command: restarted when it ends, guarded, and understood by clients "
    "of other revisions. Exit codes: 0 after the end of input, 1 if the server does not start, 2 "
    "usage."
)

OPENING_VARIABLE = "CONCERTINO_OPENING_S"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino proxy` to its parser."""
    parser.usage = "concertino proxy [options] -- COMMAND... | unix:PATH | tcp:HOST:PORT"
    parser.add_argument("--name", metavar="NAME", help="name of the server in the log")
    parser.add_argument(
        "--era",
        choices=("auto", "modern", "legacy"),
        default="auto",
        help="how to open the server's session: legacy with a handshake, modern without (default "
        "auto)",
    )
    add_repeatable(parser, "--env", "NAME=VALUE", "environment variable for the server; repeatable")
    parser.add_argument("--cwd", metavar="DIR", help="folder in which the server is started")
    add_repeatable(
        parser,
        "--watch",
        "PATH",
        "start the server anew when this file, or one in this folder, was saved; repeatable",
    )
    _add_process_options(parser)
    add_log_format(parser)
    add_trace(parser)
    add_tools_options(parser)
    add_guard_options(parser)


def _add_process_options(parser: ArgumentParser) -> None:
    """Add the options for the server's process. Their names are those in a file of servers."""
    group = parser.add_argument_group("the server's process")
    group.add_argument(
        "--isolation",
        choices=get_args(Isolation),
        default="auto",
        help="which clients share one: all, those of one user, or none (default auto)",
    )
    for name, default, effect in (
        ("idle", None, "end the process after so long without a call (default never)"),
        ("heartbeat", HEARTBEAT_S, "report progress when the server is silent for so long"),
        ("opening", None, "how long the first request waits for the start (default 10)"),
    ):
        group.add_argument(
            f"--{name}-s", metavar="SECONDS", type=parse_seconds, default=default, help=effect
        )
    group.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="answer first requests and lists not before the server has started, and keep nothing",
    )
    group.add_argument(
        "--lazy",
        action="store_true",
        help="start the server with the first call that needs it, if it has run before",
    )


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Run the proxy and end the process."""
    reject_usage: Callable[[str], NoReturn] = args.parser.error
    if not server:
        raise UsageError(
            "expected a command behind --", "for example: concertino proxy -- python server.py"
        )
    target = parse_server(args, server)
    if isinstance(target, ServerParameters):
        target = replace(target, ladder=SHUTDOWN)
    files: SourceFiles | None = None
    if args.watch:
        if not isinstance(target, ServerParameters):
            raise UsageError("--watch is for a server that is started")
        from concertino.cli.watched_files import find_watched

        files = find_watched([], args.watch)
    try:
        guard = make_guard(args)
        limits = Limits.from_environment(os.environ)
    except (ValueError, ConcertinoError) as exc:
        reject_usage(str(exc))
    opening_s = args.opening_s
    if opening_s is None:
        opening_s = limits.opening_s if OPENING_VARIABLE in os.environ else OPENING_S
    # Through guards that do not know of it, the same time counts.
    limits = replace(limits, opening_s=opening_s)

    stdio = take_over()
    logging_setup.configure(format=args.log_format, component="concertino", writer=stdio.writer)
    proxy = Proxy(
        target,
        name=args.name,
        era=args.era,
        limits=limits,
        isolation=args.isolation,
        idle_s=args.idle_s,
        heartbeat_s=args.heartbeat_s,
        opening_s=opening_s,
        cache=ManifestCache() if args.cache and files is None else None,
        lazy=args.lazy,
    )
    backend: Backend = proxy
    if files is not None:
        from concertino.proxy.reloading import ReloadingProxy

        backend = ReloadingProxy(proxy, files)
    run_process(
        wrap_backend(backend, guard, args),
        StdioFrontend(stdio),
        limits=limits,
        log_format=args.log_format,
        trace=args.trace,
    )
