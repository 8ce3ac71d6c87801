"""`concertino proxy -- COMMAND...`: stand in front of any server, over stdin and stdout."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from msgspec.structs import replace

from concertino.cli import UsageError
from concertino.cli.guards import add_guard_options, make_guard
from concertino.cli.options import add_log_format, add_repeatable, add_trace
from concertino.cli.server_options import parse_server
from concertino.cli.tools_options import add_tools_options, wrap_backend
from concertino.client.targets import ServerParameters
from concertino.errors import ConcertinoError
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.proxy.proxy import SHUTDOWN, Proxy
from concertino.runtime.process import StdioFrontend
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

DESCRIPTION = (
    "Serve another server, in any language and of any revision, over stdin and stdout to the MCP "
    "client that started this command: restarted when it ends, guarded, and understood by clients "
    "of other revisions. Exit codes: 0 after the end of input, 1 if the server does not start, 2 "
    "usage."
)

# How long a client's first request waits for the server: what it offers is not known before.
OPENING_S = 10.0
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
    add_log_format(parser)
    add_trace(parser)
    add_tools_options(parser)
    add_guard_options(parser)


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
    try:
        guard = make_guard(args)
        limits = Limits.from_environment(os.environ)
    except (ValueError, ConcertinoError) as exc:
        reject_usage(str(exc))
    if OPENING_VARIABLE not in os.environ:
        limits = replace(limits, opening_s=OPENING_S)

    stdio = take_over()
    logging_setup.configure(format=args.log_format, component="concertino", writer=stdio.writer)
    proxy = Proxy(target, name=args.name, era=args.era, limits=limits)
    run_process(
        wrap_backend(proxy, guard, args),
        StdioFrontend(stdio),
        limits=limits,
        log_format=args.log_format,
        trace=args.trace,
    )
