"""`concertino bridge`: serve the plugins of a hub to an MCP client, over stdin and stdout.

A hub is a process that starts plugins and forwards requests to them. Hubs and plugins speak the
protocol Orchestra (orchestra/__init__.py), so the log lines of this command contain `orchestra`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from concertino.cli import FAILED
from concertino.cli.guards import add_guard_options, make_guard
from concertino.cli.options import add_log_format, add_trace
from concertino.cli.serving import exit_on_signals, reject_extra_args
from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.runtime.process import StdioFrontend
from concertino.runtime.process import run as run_process
from concertino.runtime.shutdown import exit_process
from concertino.transports.stdio import take_over

DESCRIPTION = (
    "Serve the tools, prompts and storage of a hub over stdin and stdout. While the hub is not "
    "reachable, calls fail, and the bridge keeps trying to connect. Exit codes: 0 after the end "
    "of input, 1 for an unusable address or certificates, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino bridge` to its parser."""
    parser.usage = "concertino bridge [OPTIONS]"
    parser.add_argument(
        "--orchestrator-addr",
        metavar="ADDR",
        default="localhost:50100",
        help="address of the hub: HOST:PORT for QUIC, or unix:PATH (default localhost:50100)",
    )
    parser.add_argument(
        "--certs-dir",
        metavar="DIR",
        help="folder of the certificates for QUIC (default ~/.orchestra/certs)",
    )
    add_log_format(parser)
    add_trace(parser)
    add_guard_options(parser)


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Serve the plugins of a hub over stdin and stdout until the end of input, and end the process.

    A hub is a process that starts plugins and passes calls to them.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 after the end of input, 1 if the address or the certificates cannot be used, 2 for
    wrong arguments.
    """
    reject_usage: Callable[[str], NoReturn] = args.parser.error
    reject_extra_args(args, server)
    try:
        guard = make_guard(args)
    except (ValueError, ConcertinoError) as exc:
        reject_usage(str(exc))

    stdio = take_over()
    frontend = StdioFrontend(stdio)
    format = logging_setup.configure(
        format=args.log_format, component="orchestra", writer=stdio.writer
    ).format_name
    log = logging_setup.logger("orchestra")
    exit_on_signals(stdio.writer)

    def log_connection(address: str) -> None:
        text = f"transport.stdio: connected to orchestrator at {address}"
        # Write the line like Orchestra's Go bridge, without time and level: scripts look for it.
        if format == "line":
            stdio.writer.write(f"{text}\n".encode())
        else:
            log.info("%s", text)

    try:
        from concertino.orchestra.bridge import Bridge, prepare_bridge

        bridge = Bridge(
            args.orchestrator_addr,
            prepare_bridge(args.orchestrator_addr, args.certs_dir),
            connected=log_connection,
        )
    except (ConcertinoError, ImportError, ValueError) as exc:
        log.error("Failed to start: %s", exc)
        frontend.refuse(str(exc))
        exit_process(FAILED, stdio.writer)
    run_process(
        guard(bridge) if guard else bridge,
        frontend,
        log_format=args.log_format,
        trace=args.trace,
    )
