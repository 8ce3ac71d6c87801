"""`concertino bridge`: serves the plugins of a hub over stdin and stdout."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from concertino.cli.guards import add_guard_options, make_guards
from concertino.cli.serving import add_log_format, add_trace, exit_on_signals, reject_extra_args
from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.runtime.process import exit_process
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

__all__ = ["DESCRIPTION", "add_arguments", "run"]

FAILED = 1

DESCRIPTION = (
    "Serve the tools, prompts and storage of a hub over stdin and stdout. If the hub does not run,"
    " wait for it; calls fail until then. Exit codes: 0 the client disconnected, 1 the address or"
    " the certificates cannot be used, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino bridge` to its parser."""
    parser.add_argument(
        "--orchestrator-addr",
        metavar="ADDR",
        default="localhost:50100",
        help="the hub: HOST:PORT for QUIC, or unix:PATH (default localhost:50100)",
    )
    parser.add_argument(
        "--certs-dir", metavar="DIR", help="certificates, for QUIC (default ~/.orchestra/certs)"
    )
    add_log_format(parser)
    add_trace(parser)
    add_guard_options(parser)


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Serve the plugins of the hub, and end the process."""
    exit_usage: Callable[[str], NoReturn] = args.parser.error
    reject_extra_args(args, server)
    try:
        guard = make_guards(args)
    except (ValueError, ConcertinoError) as exc:
        exit_usage(str(exc))

    taken = take_over()
    format = logging_setup.configure(
        format=args.log_format, component="orchestra", writer=taken.writer
    ).format_name
    log = logging_setup.logger("orchestra")
    exit_on_signals(taken.writer)

    def on_connect(address: str) -> None:
        text = f"transport.stdio: connected to orchestrator at {address}"
        # Scripts look for this text as a line of its own, as the original program prints it.
        if format == "line":
            taken.writer.write(f"{text}\n".encode())
        else:
            log.info("%s", text)

    try:
        from concertino.orchestra.bridge import Bridge, prepare_bridge

        bridge = Bridge(
            args.orchestrator_addr,
            prepare_bridge(args.orchestrator_addr, args.certs_dir),
            connected=on_connect,
        )
    except (ConcertinoError, ImportError, ValueError) as exc:
        log.error("Failed to start: %s", exc)
        exit_process(FAILED, taken.writer)
    run_process(
        guard(bridge) if guard else bridge,
        taken=taken,
        log_format=args.log_format,
        trace=args.trace,
    )
