"""`concertino proxy -- COMMAND...`: stand in front of any server, over stdin and stdout or HTTP.

This module parses the options, and serves a Proxy (proxy/proxy.py) that starts the server or
connects to it, with guards around it if options ask for them.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, get_args

from msgspec.structs import replace

from concertino.backend.interface import Backend
from concertino.cli import CommandFailure, UsageError
from concertino.cli.guards import add_guard_options, make_guard
from concertino.cli.options import (
    add_log_format,
    add_repeatable,
    add_trace,
    add_uvloop,
    read_loop_factory,
)
from concertino.cli.server_options import check_program, parse_seconds, parse_server
from concertino.cli.tools_options import add_tools_options, wrap_backend
from concertino.client.server_parameters import ServerParameters
from concertino.client.targets import Target, is_address
from concertino.errors import ConcertinoError
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.logs.writer import BoundedWriter
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.proxy import HEARTBEAT_S, OPENING_S, SHUTDOWN, Isolation, Proxy
from concertino.runtime.process import Frontend, StdioFrontend
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import bounded_stderr, take_over

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from concertino.proxy.source_files import SourceFiles

DESCRIPTION = (
    "Serve another server, in any language and of any revision, over stdin and stdout to the MCP "
    "client that started this command: restarted when it ends, guarded, and understood by clients "
    "of other revisions. With --http, serve clients that use a URL. Exit codes: 0 after the end of "
    "input, 1 if the server does not start, 2 usage."
)

# The environment variable that sets Limits.opening_s. The option --opening-s overrides it.
OPENING_VARIABLE = "CONCERTINO_OPENING_S"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino proxy` to its parser."""
    parser.usage = (
        "concertino proxy [OPTIONS] -- COMMAND...\n"
        "       concertino proxy [OPTIONS] https://HOST/PATH | unix:PATH | tcp:HOST:PORT"
    )
    parser.add_argument(
        "address", metavar="ADDRESS", nargs="*", help="of a server that runs: a URL, or a socket"
    )
    add_repeatable(
        parser,
        "--http",
        "ADDRESS",
        "serve over HTTP at http://ADDRESS/mcp, and not over stdin and stdout: HOST:PORT of this "
        "machine, :PORT, or unix:PATH; repeatable",
    )
    add_uvloop(parser)
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
        "restart the server when this file, or one in this folder, is saved; repeatable",
    )
    _add_process_options(parser)
    add_log_format(parser)
    add_trace(parser)
    add_tools_options(parser)
    add_guard_options(parser)


def _add_process_options(parser: ArgumentParser) -> None:
    """Add the options for the server's process. They have the same names as in a server file."""
    group = parser.add_argument_group("the server's process")
    group.add_argument(
        "--isolation",
        choices=get_args(Isolation),
        default="auto",
        help="which clients share a process: all, all of one user, or none (default auto)",
    )
    for name, default, effect in (
        ("idle", None, "end the process after so long without a call (default never)"),
        (
            "ping",
            None,
            "ping this often, and restart a server that is silent for as long (default never)",
        ),
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
        help="wait for the server before any answer, instead of answering first requests and lists "
        "from the cache, and store nothing in the cache",
    )
    group.add_argument(
        "--lazy",
        action="store_true",
        help="start the server with the first call that needs it, if it has run before",
    )


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Run the proxy until the client disconnects, or over HTTP until a signal. Ends the process.

    args: the parsed arguments.
    server: the words after `--`, which start the server; empty if `args.address` names a server
        that runs.
    Exit codes: 0 after the client or the signal, 1 if the server does not start. Raises UsageError
    and CommandFailure if the proxy cannot start.
    """
    reject_usage: Callable[[str], NoReturn] = args.parser.error
    if args.uvloop and not args.http:
        raise UsageError("--uvloop is for --http")
    loop_factory = read_loop_factory(args)
    target = _parse_target(args, server)
    files = _find_watched_files(args, target)
    try:
        guard = make_guard(args)
        limits = Limits.from_environment(os.environ)
        # The option counts first, then the environment variable, then the proxy's own default.
        opening_s = args.opening_s
        if opening_s is None:
            opening_s = limits.opening_s if OPENING_VARIABLE in os.environ else OPENING_S
        # The Host (runtime/host.py), which serves the proxy, has a limit of its own for the first
        # request. A guard around the proxy may hide the proxy's limit from the Host, so set both.
        limits = replace(limits, opening_s=opening_s)
    except (ValueError, ConcertinoError) as exc:
        reject_usage(str(exc))

    frontend: Frontend
    if args.http:
        writer = bounded_stderr()
        frontend = _listen(args.http, writer)
    else:
        stdio = take_over()
        writer, frontend = stdio.writer, StdioFrontend(stdio)
    logging_setup.configure(format=args.log_format, component="concertino", writer=writer)
    proxy = Proxy(
        target,
        name=args.name,
        era=args.era,
        limits=limits,
        isolation=args.isolation,
        idle_s=args.idle_s,
        ping_s=args.ping_s,
        heartbeat_s=args.heartbeat_s,
        opening_s=opening_s,
        # A file that changes makes what is cached wrong.
        cache=ManifestCache() if args.cache and files is None else None,
        lazy=args.lazy,
    )
    backend: Backend = proxy
    if files is not None:
        from concertino.proxy.reloading import ReloadingProxy

        backend = ReloadingProxy(proxy, files)
    run_process(
        wrap_backend(backend, guard, args),
        frontend,
        limits=limits,
        log_format=args.log_format,
        trace=args.trace,
        loop_factory=loop_factory,
    )


def _parse_target(args: Namespace, server: Sequence[str]) -> Target:
    """Return what the proxy connects to. Raises UsageError, CommandFailure."""
    if server and args.address:
        raise UsageError("expected a command after --, or an address, and not both")
    server = server or _read_address(args)
    if not server:
        raise UsageError(
            "expected a command after --", "for example: concertino proxy -- python server.py"
        )
    target = parse_server(args, server)
    if isinstance(target, ServerParameters):
        check_program(args, server)
        target = replace(target, ladder=SHUTDOWN)
    return target


def _find_watched_files(args: Namespace, target: Target) -> SourceFiles | None:
    """Return the files of --watch; None without this option. Raises UsageError."""
    if not args.watch:
        return None
    if not isinstance(target, ServerParameters):
        raise UsageError("--watch is for a server that is started")
    from concertino.cli.watched_files import find_watched

    return find_watched([], args.watch)


def _read_address(args: Namespace) -> list[str]:
    """Return `args.address`, which is a list with an address, or [].

    Raises UsageError for words that are not an address.
    """
    words: list[str] = args.address
    if not words or (len(words) == 1 and is_address(words[0])):
        return words
    from concertino.cli.suggestions import suggest_for_unknown

    text = f"unrecognized arguments: {' '.join(words)}"
    raise UsageError(text, suggest_for_unknown("proxy", [], words, words))


def _listen(addresses: Sequence[str], writer: BoundedWriter) -> Frontend:
    """Listen for clients that speak HTTP. Raises UsageError, CommandFailure."""
    from concertino.transports.listeners import (
        Listener,
        errno_message,
        listen_tcp,
        listen_unix,
        split_address,
    )

    try:
        from concertino.http.frontend import HttpFrontend, split_http_address
        from concertino.http.server import HttpOptions
    except ImportError as exc:
        raise UsageError(str(exc)) from None

    listeners: list[Listener] = []
    try:
        for address in addresses:
            # A port without a host means this machine.
            text = f"127.0.0.1{address}" if address.startswith(":") else address
            is_unix, name = split_http_address(text)
            listeners.append(listen_unix(name) if is_unix else listen_tcp(*split_address(name)))
            if is_unix:
                # Delete the file of the socket when the process ends.
                atexit.register(listeners[-1].remove)
    except ValueError as exc:
        raise UsageError(f"--http: {exc}") from None
    except OSError as exc:
        raise CommandFailure(f"--http: {errno_message(exc)}") from None
    return HttpFrontend(listeners, writer, HttpOptions())
