"""The command line: `concertino COMMAND ...`.

The parsers are argparse's. Only the module of the given command is imported, so that a server does
not wait for the imports of the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from concertino.loading import load

FAILED, USAGE = 1, 2

# Command -> its module and its line in the help. Each module has DESCRIPTION,
# add_arguments(parser), and run(args, server), which ends the process or returns an exit code.
# server: the words after `--`.
COMMANDS = {
    "demo": ("demo", "see a server started, called, broken and restarted"),
    "new": ("new", "write a small project: a server, its tests, its configuration"),
    "serve": ("serve", "serve a server over stdin and stdout, or on sockets"),
    "check": ("check", "run fault tests against any stdio server"),
    "tools": ("call", "list the tools of a server"),
    "call": ("call", "call a tool"),
    "resources": ("call", "list the resources and resource templates of a server"),
    "read": ("call", "read a resource"),
    "prompts": ("call", "list the prompts of a server"),
    "prompt": ("call", "get a prompt, with its arguments filled in"),
    "search": ("search", "search a folder of Markdown documents"),
    "lint": ("lint", "find mistakes in a folder of Markdown documents"),
    "orchestrate": ("orchestrate", "start the plugins of a plugins.yaml and run their hub"),
    "bridge": ("bridge", "serve the plugins of a hub over stdin and stdout"),
    "plugin": ("plugin", "run a storage plugin: Markdown files or a database"),
    "certs": ("certs", "create, show and renew the certificates of a hub"),
}


# Commands that an MCP client starts.
STDIO_COMMANDS = frozenset(("serve", "bridge"))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process.

    arguments: those of the process by default. Exit codes: 0 success, 1 failure, 2 usage; some
    commands have more.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _Parser(
        prog="concertino",
        formatter_class=_Formatter,
        description="Servers and clients for MCP, the Model Context Protocol.",
        epilog="Environment variables: LOG_LEVEL, CONCERTINO_LOG_FORMAT, CONCERTINO_TRACE, "
        "CONCERTINO_ORPHAN, RESOURCES_PATH, PROMPTS_PATH, CACHE_SIZE, and one for each limit, "
        "such as CONCERTINO_MAX_MESSAGE_BYTES.",
    )
    parser.add_argument(
        "--version",
        action="store_true",
        help="show the versions of package, Python and protocol, and the installed extras",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    # The command must come first, so its module is known before anything is parsed.
    name = words[0] if words and words[0] in COMMANDS else None
    module = load(f"concertino.cli.{COMMANDS[name][0]}") if name else None
    for command, (_, text) in COMMANDS.items():
        subparser = commands.add_parser(command, help=text, formatter_class=_Formatter)
        if module is not None and command == name:
            subparser.description = module.DESCRIPTION
            subparser.set_defaults(parser=subparser)
            module.add_arguments(subparser)

    # argparse would take options of the server's command for our own.
    server: list[str] = []
    if "--" in words:
        index = words.index("--")
        words, server = words[:index], words[index + 1 :]

    try:
        args = parser.parse_args(words)
        if args.version:
            from concertino.cli.version import describe_versions

            print(describe_versions())  # noqa: T201
            sys.exit(0)
        if module is None:
            parser.print_help(sys.stderr)
            sys.exit(USAGE)
        sys.exit(module.run(args, server))
    except _InvalidArguments as exc:
        sys.exit(FAILED if name in STDIO_COMMANDS and _tell_client(exc, words) else USAGE)
    except UsageError as exc:
        print(f"concertino {name}: {exc}", file=sys.stderr)  # noqa: T201
        sys.exit(USAGE)


class UsageError(Exception):
    """The command line is not valid. main() prints the text and exits with 2."""


class _InvalidArguments(SystemExit):
    """argparse has refused the command line, and has written why to stderr."""

    def __init__(self, text: str) -> None:
        super().__init__(USAGE)
        self.text = text


def _tell_client(error: _InvalidArguments, words: Sequence[str]) -> bool:
    """Answer the client that started this command. Returns whether there is one."""
    if any(word.startswith(("--unix", "--tcp")) for word in words):
        return False
    return load("concertino.runtime.refusal").refuse_requests(0, 1, error.text)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Write the usage and the message to stderr. Raises _InvalidArguments, a SystemExit."""
        self.print_usage(sys.stderr)
        print(f"{self.prog}: error: {message}", file=sys.stderr)  # noqa: T201
        raise _InvalidArguments(message)


class _Formatter(argparse.HelpFormatter):
    """A help formatter of a fixed width.

    To ask for the terminal's width, argparse imports shutil, which delays a server by 4 ms.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)
