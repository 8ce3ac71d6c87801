"""`concertino tools|call|resources|read|prompts|prompt ... -- COMMAND...`: use a server.

Each of these commands starts the server or connects to it, sends one request, and prints the
result. server_session.py sends requests and prints results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn, cast

from concertino.cli import INTERRUPTED, UsageError, discard_stdout
from concertino.cli.call_arguments import example_command, parse_arguments
from concertino.cli.call_failures import (
    FAILED,
    describe_traceback,
    explain_failure,
)
from concertino.cli.ending_signals import run_until_signal
from concertino.cli.login import offer_login
from concertino.cli.server_options import (
    TARGETS,
    add_server_options,
    client_options,
    parse_server,
    search_path,
)
from concertino.cli.server_session import ServerCommand, ServerSession
from concertino.cli.status_line import StatusLine
from concertino.client.client import Client
from concertino.errors import ConcertinoError, RpcError

# Command -> its arguments, as the usage shows them. Other commands have none.
USAGES = {"call": " NAME [ARGUMENT...]", "read": " URI", "prompt": " NAME [ARGUMENT...]"}

DESCRIPTION = "The server is started, or connected to, for this one command."
# Command -> its description.
DESCRIPTIONS = {
    "tools": "List the tools of a server, with their arguments.",
    "call": "Call a tool of a server, and print its result.",
    "resources": "List the resources and resource templates of a server.",
    "read": "Read a resource of a server.",
    "prompts": "List the prompts of a server, with their arguments.",
    "prompt": "Get a prompt of a server, with its arguments filled in.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of the commands that use a server, such as `call`, to its parser."""
    command = parser.prog.rpartition(" ")[2]
    parser.description = f"{DESCRIPTIONS[command]} {DESCRIPTION}"
    # Continue the usage below the first line, so that it fits 80 columns.
    parser.usage = f"concertino {command} [OPTIONS]{USAGES.get(command, '')}\n{' ' * 18}{TARGETS}"
    parser.epilog = (
        "Exit codes: 0 success, 1 the server refused the request or the tool failed, 2 usage, "
        "3 the server could not be reached or ended, 4 no response in time, 5 the server broke "
        "the protocol, 130 Ctrl-C, 129 and 143 SIGHUP and SIGTERM."
    )
    if command in ("call", "prompt"):
        kind = "tool" if command == "call" else "prompt"
        parser.add_argument("name", nargs="?", metavar="NAME", help=f"name of the {kind}")
        parser.add_argument(
            "arguments",
            nargs="*",
            default=[],
            metavar="ARGUMENT",
            help="KEY=VALUE, where VALUE is what the argument's type says: a text, a number, ...; "
            "KEY:=JSON, KEY=@FILE or KEY:=@FILE; or all arguments as one JSON object: '{...}', "
            "@FILE, or - for stdin",
        )
    elif command == "read":
        parser.add_argument("name", nargs="?", metavar="URI", help="URI of the resource")

    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one line of JSON, and a failure on stderr as another",
    )
    add_server_options(parser)


def run(args: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run one of the commands that use a server, such as `call`, and end the process.

    args: the parsed arguments of the command.
    server: the words after `--`, which are the command or the address of a server; empty if there
        are none.
    Exit codes: 0 success, 1 if the tool has failed or the reader of stdout has gone, 130 after
    Ctrl-C, 128 + n after signal n. For every other failure raises CommandFailure, with an exit code
    that the help of the command lists.
    """
    # The encoding of stdout may lack some characters.
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    status = StatusLine(sys.stderr.isatty() and not args.json)
    session = _make_session(args, server, status)
    try:
        _check_name(args, server)
        words = args.arguments if "arguments" in args else ()
        name = args.name if "name" in args else ""
        command = ServerCommand(args.command, name, words, parse_arguments(words))
        try:
            code = run_until_signal(_run_once(session, command))
        except RpcError as exc:
            # If the server refuses a client without a token, log in and try once more. With --json,
            # a program runs the command, so nobody is there to log in.
            if session.is_open or args.json:
                raise
            if not offer_login(exc, server[0]):
                raise
            session = _make_session(args, server, status)
            code = run_until_signal(_run_once(session, command))
        # Read the log only now: the server has ended, and has written all of it.
        session.print_new_notes()
        # A traceback may say why the tool has failed. --stderr has shown it already.
        log = session.client.stderr_tail if code == FAILED and not args.stderr else ""
        if note := describe_traceback(log):
            session.print_note(note)
        sys.stdout.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        if args.json:
            raise
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone, as with `| head`.
        discard_stdout()
        sys.exit(FAILED)
    except ConcertinoError as exc:
        raise explain_failure(
            exc, server, search_path(args), args.connect_timeout_s, is_open=session.is_open
        ) from exc


def _make_session(
    args: argparse.Namespace, server: Sequence[str], status: StatusLine
) -> ServerSession:
    return ServerSession(
        Client(parse_server(args, server), **client_options(args, status)),
        server,
        status,
        f"concertino {args.command}: ",
        as_json=args.json,
        shows_log=args.stderr,
    )


async def _run_once(session: ServerSession, command: ServerCommand) -> int:
    """Open a session, run one command in it, and return the exit code."""
    try:
        await session.open()
        return await session.run(command)
    finally:
        await session.close()


def _check_name(args: argparse.Namespace, server: Sequence[str]) -> None:
    """Raise UsageError if a command that needs a name or a URI got none."""
    expected = {
        "call": ("the name of a tool", "tools"),
        "prompt": ("the name of a prompt", "prompts"),
        "read": ("the URI of a resource", "resources"),
    }
    if args.command in expected and not args.name:
        noun, listing = expected[args.command]
        hint = f"`{example_command(listing, server)}` lists what there is"
        raise UsageError(f"expected {noun}", hint)
