"""The command line `concertino`. A command imports only what it uses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from concertino.loading import load

__all__ = ["main"]

USAGE = 2

# Command -> its module in this package and its line of help. A module has DESCRIPTION,
# add_arguments(parser), and run(args, words), which returns an exit code or ends the process.
# words: the words after `--`.
COMMANDS = {
    "serve": ("serve", "serve a server over stdin and stdout, or on sockets"),
    "check": ("check", "test how a stdio server handles faults"),
    "tools": ("call", "list the tools of a server"),
    "call": ("call", "call a tool"),
    "resources": ("call", "list the resources and resource templates of a server"),
    "read": ("call", "read a resource"),
    "prompts": ("call", "list the prompts of a server"),
    "prompt": ("call", "get a prompt"),
    "search": ("search", "search a folder of Markdown"),
    "lint": ("lint", "find defects in a folder of Markdown"),
    "orchestrate": ("orchestrate", "start the plugins of a plugins.yaml and run their hub"),
    "bridge": ("bridge", "serve the plugins of a hub over stdin and stdout"),
    "plugin": ("plugin", "run a storage plugin: Markdown files or a database"),
    "certs": ("certs", "create, show and renew the certificates of hubs and plugins"),
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `concertino ...` and end the process.

    arguments: words after the program's name; None takes them from sys.argv. Exit codes: 0 success,
    1 failure, 2 usage; a command may have others.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="concertino",
        formatter_class=_Formatter,
        description="MCP (Model Context Protocol) over stdio.",
        epilog="Environment: LOG_LEVEL, CONCERTINO_LOG_FORMAT, CONCERTINO_TRACE, CONCERTINO_ORPHAN,"
        " RESOURCES_PATH, PROMPTS_PATH, CACHE_SIZE, and a CONCERTINO_ variable for each limit"
        " (CONCERTINO_MAX_MESSAGE_BYTES, ...).",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show versions of package, Python, protocol and extras",
    )

    # All commands are listed, but only the given one is imported and gets its arguments.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    wanted = words[0] if words and words[0] in COMMANDS else None
    module = load(f"concertino.cli.{COMMANDS[wanted][0]}") if wanted else None
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=_Formatter)
        if module is not None and name == wanted:
            command.description = module.DESCRIPTION
            command.set_defaults(parser=command)
            module.add_arguments(command)

    # argparse would take some of the words after `--` for options.
    server: list[str] = []
    if "--" in words:
        index = words.index("--")
        words, server = words[:index], words[index + 1 :]

    args = parser.parse_args(words)
    if args.version:
        from concertino.cli.version import version

        print(version())  # noqa: T201
        sys.exit(0)
    if module is None:
        parser.print_help(sys.stderr)
        sys.exit(USAGE)
    sys.exit(module.run(args, server))


class _Formatter(argparse.HelpFormatter):
    """A help formatter of fixed width.

    The default one asks the terminal for its width, for which it imports shutil: 4 ms before a
    server starts.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)
