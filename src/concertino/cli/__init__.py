"""The command line. argparse and our own few lines of ANSI; nothing that the command at hand does not use is imported."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]

USAGE = 2
CALLS = {  # what they can do is said in call.py, which is not read before one of them is wanted
    "tools": "list the tools of a server",
    "call": "call a tool",
    "resources": "list the resources of a server, and its templates",
    "read": "read a resource",
    "prompts": "list the prompts of a server",
    "prompt": "show a prompt, filled in",
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`concertino ...`. Ends the process: 0 success, 1 failure at start, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="concertino",
        formatter_class=_Formatter,
        description="MCP (Model Context Protocol) over stdio.",
        epilog="Environment: LOG_LEVEL, CONCERTINO_LOG_FORMAT, CONCERTINO_TRACE, CONCERTINO_ORPHAN, and a "
        "CONCERTINO_ variable for each limit (CONCERTINO_MAX_MESSAGE_BYTES, ...).",
    )
    parser.add_argument("--version", action="store_true", help="show versions of package, Python, protocol and extras")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a server over stdin and stdout, or at sockets",
        formatter_class=_Formatter,
        description="Serve a server over stdin and stdout, for an MCP client that started this command; or at sockets, "
        "for any number of clients, with --unix, --tcp or a socket unit of systemd (LISTEN_FDS).",
    )
    serve.add_argument(
        "targets",
        metavar="[NAME=]TARGET",
        nargs="+",
        help="file.py, file.py:attribute or package.module:attribute; several are served as one, the tools of each under its name",
    )
    serve.add_argument("--log-format", choices=("line", "json", "trace"), help="how log lines look on stderr")
    serve.add_argument("--trace", action="store_true", default=None, help="show every message on stderr")
    serve.add_argument("--traceback", action="store_true", help="show where an import failed")
    places = serve.add_argument_group("sockets")
    places.add_argument(
        "--unix", metavar="PATH", action="append", default=[], help="listen at a Unix socket, for this user; repeatable"
    )
    places.add_argument(
        "--tcp",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="listen at a TCP port of this machine, 0 for a free one; repeatable",
    )
    places.add_argument(
        "--allow-remote", action="store_true", help="listen at addresses that other machines may reach too"
    )
    places.add_argument("--max-connections", metavar="N", type=_positive, help="clients at once (default 512)")
    check = commands.add_parser(
        "check",
        help="try faults on any stdio server",
        formatter_class=_Formatter,
        usage="concertino check [OPTIONS] -- COMMAND [ARGUMENT...]",
        description="Start an MCP server again and again, do to it what goes wrong in practice, and say what came of it.",
    )
    check.add_argument("--list", action="store_true", help="show the cases, and start nothing")
    check.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="a section, or (part of) a name; may be repeated"
    )
    check.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    check.add_argument("--strict", action="store_true", help="exit with 1 for what differs from our policies, too")
    check.add_argument(
        "--era", choices=("legacy", "modern"), help="how cases speak; else initialize where there is one"
    )
    check.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time")
    check.add_argument("--timeout-s", type=float, default=10.0, metavar="S", help="longest wait for an answer")
    check.add_argument("--start-timeout-s", type=float, default=60.0, metavar="S", help="... for the first one")
    check.add_argument(
        "--message-limit-bytes", type=int, default=10 * 2**20, metavar="N", help="what the server's messages may have"
    )
    check.add_argument("server", nargs="*", metavar="COMMAND", help="how the server is started")
    words = list(sys.argv[1:] if arguments is None else arguments)
    server: list[str] = []
    if words and words[0] in CALLS:
        from concertino.cli.call import add_commands

        add_commands(commands, CALLS, _Formatter)
        if "--" in words:  # argparse would take some of the command's words for options
            place = words.index("--")
            words, server = words[:place], words[place + 1 :]
    else:
        for name, text in CALLS.items():
            commands.add_parser(name, help=text)
    given = parser.parse_args(words)
    if given.command in CALLS:
        from concertino.cli.call import run

        run(given, server)
    if given.version:
        from concertino.cli.version import version

        print(version())  # noqa: T201  # the answer to the user, not a log
        sys.exit(0)
    if given.command == "serve":
        if given.unix or given.tcp or os.environ.get("LISTEN_PID") == str(os.getpid()):
            from concertino.cli.listen import serve_at

            serve_at(
                given.targets,
                unix=given.unix,
                tcp=given.tcp,
                allow_remote=given.allow_remote,
                max_connections=given.max_connections,
                log_format=given.log_format,
                trace=given.trace,
                traceback=given.traceback,
            )
        if given.allow_remote or given.max_connections is not None:
            serve.error("--allow-remote and --max-connections are for sockets: --unix, --tcp, or those of systemd")
        from concertino.cli.serve import serve as serve_target

        serve_target(given.targets, log_format=given.log_format, trace=given.trace, traceback=given.traceback)
    if given.command == "check":
        from concertino.cli.check import check as check_server

        check_server(given, given.server)
    parser.print_help(sys.stderr)
    sys.exit(USAGE)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return number


class _Formatter(argparse.HelpFormatter):
    """Of a fixed width: asking the terminal for its own imports shutil and what that needs, 4 ms before a server starts."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)
