"""What the commands that serve have in common: options for the log, nothing behind `--`, and signals before they serve."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from concertino.logs.writer import BoundedWriter
from concertino.runtime.process import exit_process, handle_signals

__all__ = ["add_log_format", "add_trace", "exit_on_signals", "reject_extra_args"]


def add_log_format(command: ArgumentParser) -> None:
    """How log lines look."""
    command.add_argument(
        "--log-format", choices=("line", "json", "trace"), help="how log lines look on stderr"
    )


def add_trace(command: ArgumentParser) -> None:
    """Whether messages are shown."""
    command.add_argument(
        "--trace", action="store_true", default=None, help="show every message on stderr"
    )


def reject_extra_args(given: Namespace, words: Sequence[str]) -> None:
    """End with the usage if something is behind `--`, where other commands have a server."""
    if words:
        given.parser.error(f"expected no -- and words behind it, got {words[0]!r}")


def exit_on_signals(writer: BoundedWriter) -> None:
    """SIGTERM and SIGINT end what is still being imported in order: nothing was accepted yet, so there is nothing to wait for."""
    handle_signals(lambda number: exit_process(0, writer))
