"""The options of the commands that use a server, such as `call` and `shell`.

The options say which server to start or connect to, how long to wait, and what to show.
client_options() turns them into the arguments of a Client.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from concertino.cli import CommandFailure, UsageError
from concertino.cli.options import add_repeatable
from concertino.client.client import Timeouts
from concertino.client.server_parameters import ServerParameters
from concertino.client.targets import Target, is_address, parse_target
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from concertino.cli.status_line import StatusLine

__all__ = [
    "TARGETS",
    "add_server_options",
    "check_program",
    "client_options",
    "is_missing",
    "parse_seconds",
    "parse_server",
    "require_http",
    "search_path",
]

# With this environment variable, a server in Python can say where it hangs (hanging_start.py):
# Python then writes the stacks of its threads on SIGABRT.
FAULTHANDLER = "PYTHONFAULTHANDLER"
# Each progress notification extends the time limit of a call, up to this total or --timeout-s.
TOTAL_S = 600.0
# The server, as a usage shows it.
TARGETS = "-- COMMAND... | URL | unix:PATH | tcp:HOST:PORT"


def add_server_options(parser: ArgumentParser) -> None:
    """Add the options for the server, the time limits and the output to a command's parser."""
    parser.add_argument(
        "--era",
        choices=("auto", "modern", "legacy"),
        default="auto",
        help="how to open the session: legacy with a handshake, modern without (default auto)",
    )
    parser.add_argument(
        "--timeout-s",
        type=parse_seconds,
        default=60.0,
        metavar="S",
        help="longest wait for a response (default 60)",
    )
    parser.add_argument(
        "--connect-timeout-s",
        type=parse_seconds,
        default=60.0,
        metavar="S",
        help="longest wait until the session is open (default 60)",
    )
    add_repeatable(parser, "--env", "NAME=VALUE", "environment variable for the server; repeatable")
    parser.add_argument("--cwd", metavar="DIR", help="folder in which the server is started")
    parser.add_argument(
        "-v", "--stderr", action="store_true", help="show what the server writes to stderr"
    )
    parser.add_argument("--trace", action="store_true", help="show every message on stderr")


def client_options(args: Namespace, status: StatusLine) -> dict[str, Any]:
    """Return the keyword arguments of Client that follow from the command line.

    They are `era`, `timeouts`, `stderr` and `trace`.

    args: the parsed arguments.
    status: the line at the bottom of the terminal. The stderr of the server and the messages that
        --trace shows are printed above it.
    """

    def print_line(line: str) -> None:
        status.print_above(escape_controls(line))

    def print_message(direction: str, text: str) -> None:
        print_line(f"{direction} {text}")

    return {
        "era": args.era,
        "timeouts": Timeouts(
            connect_s=args.connect_timeout_s,
            request_s=args.timeout_s,
            total_s=max(TOTAL_S, args.timeout_s),
        ),
        "stderr": print_line if args.stderr else None,
        "trace": print_message if args.trace else None,
    }


def search_path(args: Namespace) -> str:
    """Return the PATH in which the server's program is searched.

    This is the last PATH in --env, or that of this process.
    """
    for variable in reversed(args.env):
        name, _, value = variable.partition("=")
        if name == "PATH":
            return value
    return os.environ.get("PATH", os.defpath)


def parse_server(args: Namespace, server: Sequence[str]) -> Target:
    """Return the target for a Client: the server to start, or the address to connect to.

    A server that is started gets PYTHONFAULTHANDLER=1, unless this process has the variable: see
    hanging_start.py.

    args: the parsed arguments, which have the options of add_server_options().
    server: the words after `--`: a command with its arguments, or one address.
    Raises UsageError if there are no words, or if the words or the options are wrong.
    """
    if not server:
        from concertino.cli.suggestions import suggest_separator

        given = [args.name] if "name" in args and args.name else []
        given += args.arguments if "arguments" in args else []
        raise UsageError("expected a command after --", suggest_separator(args.command, given))
    env = {} if FAULTHANDLER in os.environ else {FAULTHANDLER: "1"}
    for variable in args.env:
        name, equals, value = variable.partition("=")
        if not name or not equals:
            raise UsageError(f"--env {variable}: expected NAME=VALUE")
        env[name] = value

    if len(server) == 1 and is_address(server[0]):
        if args.env or args.cwd:
            raise UsageError("--env and --cwd are for servers that are started")
        # Only to check the address. The Client parses it again.
        try:
            parse_target(server[0])
        except ValueError as exc:
            raise UsageError(str(exc)) from None
        if not server[0].startswith(("unix:", "tcp:")):
            require_http()
        return server[0]
    if len(server) == 1:
        from concertino.cli.suggestions import suggest_file

        if hint := suggest_file(server[0]):
            raise UsageError(f"{server[0]} alone is no server: it reads a program from stdin", hint)
    # Pass on all variables of the shell, for example for proxies and certificates.
    return ServerParameters(server[0], server[1:], env=env, cwd=args.cwd, inherit=tuple(os.environ))


def is_missing(program: str, path: str) -> bool:
    """Return whether a program is not found in the folders of a PATH.

    program: the first word of a command. For a path, such as ./server, returns False.
    path: the folders, separated as in PATH.
    """
    if os.sep in program:
        return False
    # Do not use shutil, whose import takes 4 ms: a proxy calls this before it starts its server.
    files = [os.path.join(folder, program) for folder in path.split(os.pathsep)]
    return not any(os.path.isfile(file) and os.access(file, os.X_OK) for file in files)


def check_program(args: Namespace, server: Sequence[str]) -> None:
    """Raise CommandFailure if the server's program is not in PATH, or is not executable.

    If an MCP client has started this command, the client gets the failure, too. If the program is a
    path and no such file exists, nothing is raised: the start of the server will fail.

    args: the parsed arguments, whose --env and --cwd say where the program is searched.
    server: the words after `--`, a command with its arguments.
    """
    program, path = server[0], search_path(args)
    place = os.path.join(args.cwd or "", program)
    if is_missing(program, path):
        text = f"there is no command {program}"
    elif os.sep in program and os.path.isfile(place) and not os.access(place, os.X_OK):
        text = f"{program}: not executable"
    else:
        return
    from concertino.cli.suggestions import suggest_program

    raise CommandFailure(text, suggest_program(server, path), is_for_client=True)


def require_http() -> None:
    """Raise UsageError if the extra that HTTP needs is not installed."""
    from importlib.util import find_spec

    from concertino.installation import missing_extra

    if find_spec("httptools") is None:
        raise UsageError(missing_extra("HTTP", "http"))


def parse_seconds(text: str) -> float:
    """Return a text as a positive number of seconds, for the `type` of an option.

    Raises ArgumentTypeError for any other text, which argparse reports to the user.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # Written so that NaN is refused too.
    if not seconds > 0:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return seconds
