"""Options and checks shared by the commands that run until a signal or the end of input."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from concertino.logs.writer import BoundedWriter
from concertino.runtime.process import exit_process, handle_signals

__all__ = ["add_log_format", "add_trace", "exit_on_signals", "reject_extra_args"]


def add_log_format(parser: ArgumentParser) -> None:
    """Add --log-format to a parser."""
    parser.add_argument(
        "--log-format", choices=("line", "json", "trace"), help="format of the log lines on stderr"
    )


def add_trace(parser: ArgumentParser) -> None:
    """Add --trace to a parser."""
    # None leaves the decision to CONCERTINO_TRACE.
    parser.add_argument(
        "--trace", action="store_true", default=None, help="show every message on stderr"
    )


def reject_extra_args(args: Namespace, server: Sequence[str]) -> None:
    """End the process with a usage error if there are words after `--`.

    Other commands take the command line of a server there.
    """
    if server:
        args.parser.error(f"this command takes no words after --, got {server[0]!r}")


def exit_on_signals(writer: BoundedWriter) -> None:
    """Let SIGTERM and SIGINT end the process with exit code 0 while it is still starting.

    No request has been accepted yet, so there is nothing to wait for.
    """
    handle_signals(lambda number: exit_process(0, writer))
