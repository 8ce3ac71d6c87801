"""The command line. argparse and our own few lines of ANSI; nothing that the command at hand does not use is imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from concertino.loading import load

__all__ = ["main"]

USAGE = 2
# Each is a module here with DESCRIPTION, add_arguments(parser), and run(given, server) -> exit code; server: what follows `--`.
COMMANDS = {
    "serve": ("serve", "serve a server over stdin and stdout, or at sockets"),
    "check": ("check", "try faults on any stdio server"),
    "tools": ("call", "list the tools of a server"),
    "call": ("call", "call a tool"),
    "resources": ("call", "list the resources of a server, and its templates"),
    "read": ("call", "read a resource"),
    "prompts": ("call", "list the prompts of a server"),
    "prompt": ("call", "show a prompt, filled in"),
    "search": ("search", "look for documents in a folder of Markdown"),
    "lint": ("lint", "look for mistakes in a folder of Markdown"),
    "orchestrate": ("orchestrate", "start the plugins of a plugins.yaml, and be their hub"),
    "bridge": ("bridge", "serve what the plugins of an orchestra offer over stdin and stdout"),
    "plugin": ("plugin", "be a plugin that stores, in files of Markdown or in a database"),
    "certs": ("certs", "make, show and renew the certificates of an orchestra"),
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`concertino ...`. Ends the process: 0 success, 1 failure at start, 2 usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="concertino",
        formatter_class=_Formatter,
        description="MCP (Model Context Protocol) over stdio.",
        epilog="Environment: LOG_LEVEL, CONCERTINO_LOG_FORMAT, CONCERTINO_TRACE, CONCERTINO_ORPHAN, RESOURCES_PATH, PROMPTS_PATH, "
        "CACHE_SIZE, and a CONCERTINO_ variable for each limit (CONCERTINO_MAX_MESSAGE_BYTES, ...).",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show versions of package, Python, protocol and extras",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    wanted = words[0] if words and words[0] in COMMANDS else None
    module = load(f"concertino.cli.{COMMANDS[wanted][0]}") if wanted else None
    for name, (_, text) in COMMANDS.items():
        each = commands.add_parser(name, help=text, formatter_class=_Formatter)
        if module is not None and name == wanted:
            each.description = module.DESCRIPTION
            each.set_defaults(parser=each)
            module.add_arguments(each)
    server: list[str] = []
    if "--" in words:  # argparse would take some of the command's words for options
        place = words.index("--")
        words, server = words[:place], words[place + 1 :]
    given = parser.parse_args(words)
    if given.version:
        from concertino.cli.version import version

        print(version())  # noqa: T201  # the answer to the user, not a log
        sys.exit(0)
    if module is None:
        parser.print_help(sys.stderr)
        sys.exit(USAGE)
    sys.exit(module.run(given, server))


class _Formatter(argparse.HelpFormatter):
    """Of a fixed width: asking the terminal for its own imports shutil and what that needs, 4 ms before a server starts."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)
