"""Shared parts of the commands that serve: log options, arguments, and signals during startup."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from concertino.logs.writer import BoundedWriter
from concertino.runtime.process import exit_process, handle_signals

__all__ = ["add_log_format", "add_trace", "exit_on_signals", "reject_extra_args"]


def add_log_format(parser: ArgumentParser) -> None:
    """Add the option --log-format."""
    parser.add_argument(
        "--log-format", choices=("line", "json", "trace"), help="format of log lines on stderr"
    )


def add_trace(parser: ArgumentParser) -> None:
    """Add the option --trace."""
    parser.add_argument(
        "--trace", action="store_true", default=None, help="show every message on stderr"
    )


def reject_extra_args(args: Namespace, words: Sequence[str]) -> None:
    """Exit with a usage error if there are words after `--`, where other commands have a server."""
    if words:
        args.parser.error(f"expected no -- and words behind it, got {words[0]!r}")


def exit_on_signals(writer: BoundedWriter) -> None:
    """Make SIGTERM and SIGINT end the process at once while it is still importing.

    No client was accepted yet, so there is nothing to wait for. writer: is flushed before.
    """
    handle_signals(lambda number: exit_process(0, writer))
