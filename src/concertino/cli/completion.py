"""`concertino completion bash|zsh|fish`: print a script that completes our commands in a shell.

The script is generated from the parsers of argparse, so it knows every command, option and choice.
The package shtab is not used: users would have to install an extra for this one command, and shtab
cannot complete the words after `--`, which are the command of a server (decision 0019).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from concertino.cli.serving import reject_extra_args

DESCRIPTION = (
    "Print a script that completes commands, options, choices and files when you press Tab."
)
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `concertino completion` to its parser."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")


def run(args: argparse.Namespace, server: Sequence[str]) -> int:
    """Print the script with which a shell completes command lines. Returns the exit code 0.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    """
    reject_extra_args(args, server)
    from concertino.cli.command_words import find_commands
    from concertino.cli.completion_scripts import SCRIPTS

    sys.stdout.write(SCRIPTS[args.shell](find_commands()))
    return 0
