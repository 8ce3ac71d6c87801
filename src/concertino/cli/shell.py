"""`concertino shell [-- COMMAND...]`: an interactive session with a server.

This module parses the options and opens the input. shell_session.py runs the typed commands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import cast

from concertino.cli import INTERRUPTED, UsageError
from concertino.cli.ending_signals import run_until_signal
from concertino.cli.server_options import TARGETS, add_server_options, parse_server
from concertino.cli.shell_input import LineInput, StreamInput
from concertino.cli.shell_session import Shell
from concertino.cli.status_line import StatusLine

DESCRIPTION = (
    "Type commands for a server: list, call, read, subscribe. On a terminal, Tab completes names "
    "and arguments, and the history is kept; otherwise each line of stdin is a command."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `concertino shell` to its parser."""
    parser.usage = f"concertino shell [OPTIONS]\n{' ' * 18}[{TARGETS}]"
    parser.epilog = (
        "Exit codes: 0 success, 2 usage, 130 Ctrl-C; if stdin is not a terminal, the code of the "
        "first command that failed."
    )
    parser.add_argument("--json", action="store_true", help="print results as lines of JSON")
    add_server_options(parser)


def run(args: argparse.Namespace, server: Sequence[str]) -> int:
    """Read and run commands until the end of input, and return the exit code.

    args: the parsed arguments.
    server: the words after `--`, which name the first server; empty to start without a server.
    Exit codes: 130 after Ctrl-C, 128 + n after SIGTERM or SIGHUP, whose number is n. If stdin is
    not a terminal and a command has failed, that of the first such command. Otherwise 0.
    Raises CommandFailure if the session cannot begin.
    """
    if server:
        # Raise errors before the session begins.
        parse_server(args, server)
    elif args.cwd or args.env:
        raise UsageError("--env and --cwd are for a server: write its command after --")
    # The encoding of stdout may lack some characters.
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    source: LineInput
    if is_terminal:
        from concertino.cli.shell_terminal import TerminalInput

        source = TerminalInput()
    else:
        source = StreamInput()
    status = StatusLine(is_terminal and sys.stderr.isatty())
    shell = Shell(args, source, status)
    try:
        return run_until_signal(shell.run(server))
    except KeyboardInterrupt:
        return INTERRUPTED
