"""Functions for the commands that serve until a signal or the end of input."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from concertino.logs.writer import BoundedWriter
from concertino.runtime.shutdown import exit_process, handle_signals


def reject_extra_args(args: Namespace, server: Sequence[str]) -> None:
    """End the process with a usage error if there are words after `--`.

    For commands that do not use a server, and so take no command of one.
    """
    if server:
        args.parser.error(f"this command takes no words after --, got {server[0]!r}")


def exit_on_signals(writer: BoundedWriter) -> None:
    """Let SIGTERM and SIGINT end the process with exit code 0 while it is still starting.

    No request has been accepted yet, so there is nothing to wait for.
    """
    handle_signals(lambda number: exit_process(0, writer))
