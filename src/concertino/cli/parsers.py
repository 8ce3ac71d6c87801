"""Makes the parsers of the command line with argparse.

`concertino connect` starts without this module, because argparse costs some milliseconds.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from concertino.cli import COMMANDS, UsageError
from concertino.loading import load

__all__ = ["add_command", "make_parser", "make_whole_parser", "parse"]

# Commands with subcommands.
NESTED_COMMANDS = frozenset(("hub", "plugin", "cluster", "certs"))


def make_whole_parser() -> argparse.ArgumentParser:
    """Return a parser with the arguments of all commands, for shell completion and documentation.

    This imports the modules of all commands.
    """
    parser, commands = make_parser()
    for command, (_, text) in COMMANDS.items():
        add_command(commands, command, help=text)
    return parser


def make_parser() -> tuple[argparse.ArgumentParser, Any]:
    """Return a parser without commands, and the object with which add_command() adds commands."""
    parser = _Parser(
        prog="concertino",
        formatter_class=_Formatter,
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show the versions of package, Python and protocol, and the installed extras",
    )
    return parser, parser.add_subparsers(dest="command", metavar="COMMAND")


def add_command(commands: Any, name: str, **options: Any) -> tuple[argparse.ArgumentParser, Any]:
    """Add a command with its arguments, and return its parser and its module.

    commands: the second result of make_parser().
    name: the name of the command, a key of COMMANDS.
    options: keyword arguments for argparse's add_parser(), such as help.
    """
    module = load(f"concertino.cli.{COMMANDS[name][0]}")
    parser = commands.add_parser(name, formatter_class=_Formatter, **options)
    parser.description = module.DESCRIPTION
    parser.set_defaults(parser=parser, command=name)
    module.add_arguments(parser)
    return parser, module


def parse(parser: argparse.ArgumentParser, name: str, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command. Options and arguments may come in any order.

    parser: the parser of the command, from add_command().
    name: the name of the command.
    words: the words of the command line after the name, up to `--`.
    Raises UsageError for words that the command does not accept.
    """
    # argparse cannot mix options and arguments freely if a command has subcommands.
    if name in NESTED_COMMANDS:
        args, unknown = parser.parse_known_args(words)
    else:
        args, unknown = parser.parse_known_intermixed_args(words)
    if unknown:
        options: Any = parser._option_string_actions  # pyright: ignore[reportPrivateUsage]
        suggest = load("concertino.cli.suggestions").suggest_for_unknown
        # If there is an unknown option, report only the first one, because the words after it may
        # be its value.
        unknown = [word for word in unknown if word.startswith("-")][:1] or unknown
        text = f"unrecognized arguments: {' '.join(unknown)}"
        raise UsageError(text, suggest(name, list(options), unknown, words))
    return args


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError, and whose help has examples."""

    def format_help(self) -> str:
        """Return the overview of all commands, or the help of one command with its examples."""
        from concertino.cli.help_text import describe_commands, examples

        command = self.prog.removeprefix("concertino").strip()
        if not command:
            return describe_commands()
        return super().format_help() + examples(command)

    def print_help(self, file: Any = None) -> None:
        """Write the help. Raises OSError if that fails, which argparse would ignore."""
        # sys.stdout is None if descriptor 1 is closed.
        with suppress(BrokenPipeError):
            (file or sys.stdout or sys.stderr).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        # argparse's texts contain the names of Python's types.
        message = message.replace("invalid int value: ", "expected a whole number, got ")
        message = re.sub(r"invalid \w+ value: ", "expected a number, got ", message)
        hint = (
            self._make_example(message) or f"`{self.prog} --help` shows all arguments and options"
        )
        raise UsageError(message, hint)

    def _make_example(self, message: str) -> str:
        """Return an example if a value or an argument is missing; "" for any other message.

        message: the error of argparse.
        """
        # The last spelling, as in `argument -o/--output: expected one argument`.
        match = re.fullmatch(r"argument (?:\S+/)?(\S+): expected one argument", message)
        if match:
            option = self._option_string_actions.get(match[1])
            return f"write {match[1]} {_placeholder(option)}" if option else ""
        if message.startswith("the following arguments are required"):
            words = [self.prog]
            for action in self._actions:
                if action.required:
                    words += [*action.option_strings[:1], _placeholder(action)]
            return f"write: {' '.join(words)}"
        return ""


def _placeholder(action: argparse.Action) -> str:
    """Return the placeholder, such as FILE, for an option's value or an argument in a text."""
    # A metavar such as COMMAND says less than the commands.
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


class _Formatter(argparse.HelpFormatter):
    """A help formatter for the width of the terminal, up to 100 columns.

    argparse's own formatter imports shutil to get the width, which delays a server by 4 ms.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_help_width())


@cache
def _help_width() -> int:
    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        columns = 0
    # Some terminals report 0 columns, and in less than 20 a help is not readable. Two columns stay
    # free, as in argparse.
    return min(columns - 2, 100) if columns > 20 else 100
