"""The commands and options of the command line, read from the parsers of argparse.

completion_scripts.py makes shell completion from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from concertino.cli.parsers import make_whole_parser

__all__ = ["CommandWords", "OptionWords", "Values", "find_commands"]

# The metavars of options and arguments whose value is a folder, a file, or a documentation page.
FOLDERS = frozenset(("DIR",))
FILES = frozenset(("FILE", "PATH", "plugins.yaml", "TARGET", "[NAME=]TARGET"))
TOPICS = "TOPIC"


class Values(Struct, frozen=True):
    """The values of an option or argument that a shell can suggest.

    choices: all possible values; empty if they are not known.
    is_file, is_folder: whether the value is the path of a file, or of a folder.
    """

    choices: tuple[str, ...] = ()
    is_file: bool = False
    is_folder: bool = False


class OptionWords(Struct, frozen=True):
    """An option of a command.

    names: the spellings of the option, such as ("-y", "--yes").
    help: a one-line description.
    values: the values to suggest; None for an option without a value.
    is_repeatable: whether the option may be given several times.
    """

    names: tuple[str, ...]
    help: str
    values: Values | None
    is_repeatable: bool = False


class CommandWords(Struct, frozen=True):
    """A command, with its subcommands, options and arguments.

    words: the command, such as ("certs", "issue"); () for `concertino` itself.
    options: the options of the command, in the order of its help.
    commands: subcommand -> a one-line description.
    arguments: the values to suggest for each argument, in order.
    has_rest: whether the last argument may be repeated.
    """

    words: tuple[str, ...]
    options: tuple[OptionWords, ...]
    commands: dict[str, str]
    arguments: tuple[Values, ...]
    has_rest: bool

    @property
    def path(self) -> str:
        """Return the words with spaces between them."""
        return " ".join(self.words)


def find_commands() -> list[CommandWords]:
    """Return `concertino` itself and all its commands. A command comes before its subcommands."""
    return list(_walk(make_whole_parser(), ()))


# Any: argparse has no public API for the contents of a parser.
def _walk(parser: Any, words: tuple[str, ...]) -> Iterator[CommandWords]:
    """Yield the command of a parser, and then its subcommands.

    words: the words of the command; () for `concertino` itself.
    """
    options: list[OptionWords] = []
    arguments: list[Values] = []
    commands: dict[str, str] = {}
    subparsers: list[tuple[str, Any]] = []
    has_rest = False
    action: Any
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            commands = {choice.dest: choice.help for choice in action._choices_actions}
            subparsers = list(action.choices.items())
        elif action.option_strings:
            values = None if action.nargs == 0 else _read_values(action)
            # A repeatable option has an empty list as its default, as in add_repeatable().
            is_repeatable = action.default == []
            names = tuple(action.option_strings)
            options.append(
                OptionWords(
                    names=names,
                    help=_shorten_help(action.help),
                    values=values,
                    is_repeatable=is_repeatable,
                )
            )
        else:
            arguments.append(_read_values(action))
            has_rest = has_rest or action.nargs in ("*", "+")
    yield CommandWords(
        words=words,
        options=tuple(options),
        commands=commands,
        arguments=tuple(arguments),
        has_rest=has_rest,
    )
    for name, subparser in subparsers:
        yield from _walk(subparser, (*words, name))


def _read_values(action: Any) -> Values:
    name: str = action.metavar or ""
    if name == TOPICS:
        from concertino.cli.docs import find_pages

        return Values(tuple(find_pages()))
    return Values(tuple(action.choices or ()), name in FILES, name in FOLDERS)


def _shorten_help(help: str) -> str:
    """Return the first sentence or clause of a help text."""
    return help.partition("; ")[0].partition(" (default")[0].replace("%%", "%")
