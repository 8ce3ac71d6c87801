"""`concertino serve TARGET...`: serve Python files, modules or folders of Markdown.

This module parses the options and serves over stdin and stdout. targets.py loads the targets, and
listen.py serves over HTTP and other sockets.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from concertino.backend.interface import Backend
from concertino.cli import UsageError
from concertino.cli.folders import LibraryOptions, folders_from_environment
from concertino.cli.guards import add_guard_options, make_guard
from concertino.cli.http_options import add_http_options, read_http_options
from concertino.cli.options import (
    add_library_options,
    add_log_format,
    add_repeatable,
    add_trace,
    parse_positive,
    read_loop_factory,
)
from concertino.cli.server_files import (
    ServerFileOptions,
    add_server_file_options,
    read_server_file_options,
)
from concertino.cli.serving import ending_with_client, reject_extra_args
from concertino.cli.target_loading import load_or_exit
from concertino.cli.targets import LoadedTarget
from concertino.cli.tools_options import add_tools_options, wrap_backend
from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.runtime.process import StdioFrontend
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

if TYPE_CHECKING:
    from concertino.guards.call_counts import CallCounts

DESCRIPTION = (
    "Serve over stdin and stdout, to the MCP client that started this command. With --http, serve "
    "clients that use a URL; with --unix, --tcp or a socket unit of systemd (LISTEN_FDS), clients "
    "on sockets."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino serve` to its parser."""
    parser.usage = "concertino serve [OPTIONS] [[NAME=]TARGET ...]"
    parser.add_argument(
        "targets",
        metavar="[NAME=]TARGET",
        nargs="*",
        help="file.py, file.py:attribute, package.module:attribute, a folder of Markdown, or a "
        "server file such as mcp.json; several are served as one, with the tools of each under "
        "its name",
    )
    add_log_format(parser)
    add_trace(parser)
    parser.add_argument(
        "--traceback", action="store_true", help="show the whole traceback of a failed import"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="with several targets: serve none if one cannot be imported or started",
    )
    folder = parser.add_argument_group("a folder of Markdown")
    add_library_options(folder)
    folder.add_argument(
        "--name",
        metavar="NAME",
        help="name of the server, for clients and in the log; also for several targets (default: "
        "the scheme, or the names of the targets)",
    )
    # dest is not `version`, which is the flag `concertino --version`.
    folder.add_argument(
        "--version",
        dest="server_version",
        metavar="VERSION",
        help="version of the server; also for several targets (default 0.0.0)",
    )

    add_server_file_options(parser)
    add_http_options(parser)
    sockets = parser.add_argument_group("sockets")
    add_repeatable(
        sockets,
        "--unix",
        "PATH",
        "listen on a Unix socket that only this user may open; repeatable",
    )
    add_repeatable(
        sockets,
        "--tcp",
        "HOST:PORT",
        "listen on a TCP port of this machine, or on a free one for port 0; repeatable",
    )
    sockets.add_argument(
        "--allow-remote",
        action="store_true",
        help="allow addresses that other machines can reach",
    )
    sockets.add_argument(
        "--max-connections",
        metavar="N",
        type=parse_positive,
        help="largest number of clients at a time (default 512)",
    )
    parser.add_argument(
        "--cluster",
        metavar="ADDR",
        help="with a plugins.yaml: a NATS cluster of hubs and plugins, which share their tools: "
        "tls://HOST,HOST,...",
    )
    add_tools_options(parser)
    add_guard_options(parser)


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Serve the targets, and end the process when the client disconnects, or after a signal.

    args: the parsed arguments. `args.targets` are Python files, modules, folders or server files.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 after that, 1 if a target cannot be imported or started, 2 if a
    target does not exist. Raises UsageError for wrong arguments.
    """
    # Raises UsageError with a reference to --help.
    reject_usage: Callable[[str], NoReturn] = args.parser.error
    reject_extra_args(args, server)
    options = LibraryOptions(
        resources=args.resources,
        prompts=args.prompts,
        scheme=args.scheme,
        name=args.name,
        version=args.server_version,
    )
    has_folder = options.names_folder or folders_from_environment().names_folder
    if not args.targets and not has_folder:
        raise UsageError(
            "expected a target, --resources, --prompts, RESOURCES_PATH or PROMPTS_PATH",
            "for example: concertino serve server.py",
        )
    counts = _make_counts() if args.metrics else None
    try:
        guard = make_guard(args, counts)
        file_options = read_server_file_options(args)
    except (ValueError, ConcertinoError) as exc:
        reject_usage(str(exc))

    def wrap(target: LoadedTarget) -> Backend:
        if args.cluster is not None:
            _use_cluster(target.backend, args.cluster)
        return wrap_backend(target.backend, guard, args, target.tools)

    # systemd sets this variable to the id of the process that gets its sockets.
    has_inherited = os.environ.get("LISTEN_PID") == str(os.getpid())
    http, addresses = read_http_options(args, counts)
    if args.unix or args.tcp or args.http or has_inherited:
        from concertino.cli.listen import serve_sockets

        # This ends the process.
        serve_sockets(
            args.targets,
            options,
            file_options,
            unix=[*args.unix, *(name for is_unix, name in addresses if is_unix)],
            tcp=[*args.tcp, *(name for is_unix, name in addresses if not is_unix)],
            http=http,
            workers=args.workers,
            loop_factory=read_loop_factory(args),
            allow_remote=args.allow_remote,
            max_connections=args.max_connections,
            log_format=args.log_format,
            trace=args.trace,
            traceback=args.traceback,
            strict=args.strict,
            wrap=wrap,
        )
    if args.allow_remote or args.max_connections is not None:
        reject_usage(
            "--allow-remote and --max-connections are for sockets: --unix, --tcp, --http, or those "
            "of systemd"
        )
    _serve_stdio(args, options, file_options, wrap)


def _make_counts() -> CallCounts:
    # Imported here, because most servers count no calls.
    from concertino.guards.call_counts import CallCounts

    return CallCounts()


def _use_cluster(backend: Backend, address: str) -> None:
    """Let the hub of a plugins file offer the plugins of a cluster.

    backend: the backend to serve.
    address: the value of --cluster.
    Raises UsageError if the backend is not such a hub, and for a malformed address.
    """
    from concertino.nats.servers import parse_servers
    from concertino.orchestra.embedded_hub import EmbeddedHub

    if not isinstance(backend, EmbeddedHub):
        raise UsageError(
            "--cluster: expected one plugins.yaml as target",
            "for example: concertino serve plugins.yaml --cluster tls://a,b,c",
        )
    try:
        parse_servers(address)
    except ValueError as exc:
        raise UsageError(f"--cluster: {exc}") from None
    backend.cluster = address


def _serve_stdio(
    args: Namespace,
    options: LibraryOptions,
    file_options: ServerFileOptions,
    wrap: Callable[[LoadedTarget], Backend],
) -> NoReturn:
    """Serve the targets over stdin and stdout, and end the process.

    Exit codes: 0 after the end of input or a signal, 1 if a target cannot be imported or started, 2
    if a target does not exist.
    """
    # Do this before the target is imported, so that its prints do not reach the client.
    stdio = take_over()
    logging_setup.configure(format=args.log_format, component="concertino", writer=stdio.writer)
    frontend = StdioFrontend(stdio)
    # systemd has passed sockets, but to another process: usually a shell script that runs this
    # command.
    if "LISTEN_FDS" in os.environ:
        logging_setup.logger("concertino").warning(
            "LISTEN_FDS: its sockets are for process %s, and this is %d; stdin and stdout are "
            "served",
            os.environ.get("LISTEN_PID") or "(none)",
            os.getpid(),
        )
    # Importing the target may take forever. End this process if its client disappears meanwhile.
    with ending_with_client(stdio):
        target = load_or_exit(
            args.targets,
            options,
            file_options,
            frontend,
            traceback=args.traceback,
            strict=args.strict,
        )
    run_process(
        wrap(target),
        frontend,
        limits=target.limits,
        log_format=args.log_format,
        trace=args.trace,
        loop_factory=target.loop_factory,
    )
