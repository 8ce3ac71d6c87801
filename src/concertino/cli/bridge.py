"""`concertino bridge`: what the plugins of a hub offer, over stdin and stdout, for an MCP client that started this command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from concertino.cli.guards import add_options as add_guards
from concertino.cli.guards import guard_of
from concertino.cli.serving import add_log_format, add_trace, exit_on_signals, reject_extra_args
from concertino.errors import ConcertinoError
from concertino.logs import handler as logging_setup
from concertino.runtime.process import exit_process
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

__all__ = ["DESCRIPTION", "add_arguments", "run"]

FAILED = 1

DESCRIPTION = (
    "Serve the tools, prompts and storage of a hub over stdin and stdout. A hub that is not there is waited for, and calls fail "
    "until then. 0: the end; 1: an address or certificates that cannot be used; 2: usage."
)


def add_arguments(bridge: ArgumentParser) -> None:
    """Where the hub is, and the rest of what can be said."""
    bridge.add_argument(
        "--orchestrator-addr",
        metavar="ADDR",
        default="localhost:50100",
        help="the hub: HOST:PORT for QUIC, or unix:PATH (default localhost:50100)",
    )
    bridge.add_argument(
        "--certs-dir", metavar="DIR", help="certificates, for QUIC (default ~/.orchestra/certs)"
    )
    add_log_format(bridge)
    add_trace(bridge)
    add_guards(bridge)


def run(given: Namespace, server: Sequence[str]) -> NoReturn:
    """Be the bridge. Ends the process."""
    misused: Callable[[str], NoReturn] = given.parser.error
    reject_extra_args(given, server)
    try:
        guard = guard_of(given)
    except (ValueError, ConcertinoError) as why:
        misused(str(why))
    taken = take_over()
    format = logging_setup.configure(
        format=given.log_format, component="orchestra", writer=taken.writer
    ).format_name
    log = logging_setup.logger("orchestra")
    exit_on_signals(taken.writer)

    def connected(address: str) -> None:
        said = f"transport.stdio: connected to orchestrator at {address}"
        if format == "line":  # a line of its own, as upstream's: scripts look for it
            taken.writer.write(f"{said}\n".encode())
        else:
            log.info("%s", said)

    try:
        from concertino.orchestra.bridge import Bridge, prepare_bridge

        bridge = Bridge(
            given.orchestrator_addr,
            prepare_bridge(given.orchestrator_addr, given.certs_dir),
            connected=connected,
        )
    except (ConcertinoError, ImportError, ValueError) as why:
        log.error("Failed to start: %s", why)
        exit_process(FAILED, taken.writer)
    run_process(
        guard(bridge) if guard else bridge,
        taken=taken,
        log_format=given.log_format,
        trace=given.trace,
    )
