"""`concertino reap`: ends servers that still run, although the host that started them has ended.

A host is an MCP application, such as Claude Code.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from concertino.cli import CommandFailure, UsageError
from concertino.cli.approve import confirm
from concertino.cli.ps import format_age, format_memory, terminal_width
from concertino.cli.serving import reject_extra_args
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from concertino.proxy.abandoned_servers import AbandonedServer

DESCRIPTION = (
    "Show the servers of this user that run although the host or the proxy that started them has "
    "ended, ask, and end them with all that they have started. Never ended: services, programs at "
    "a terminal, processes of other users or in other containers. Exit codes: 0 nothing is left; 1 "
    "something still runs, or the answer was no; 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino reap` to its parser."""
    parser.add_argument("pid", metavar="PID", nargs="*", type=int, help="end only these")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--show", action="store_true", help="only show them; exit code 1 if there are any"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per server and line; does not ask"
    )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Show the abandoned servers, end them if the user agrees, and return the exit code.

    A server is abandoned if it still runs although its host or proxy has ended.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 if no abandoned server is left, 1 if some are left. Raises UsageError for wrong
    arguments, and CommandFailure if processes cannot be ended.
    """
    reject_extra_args(args, server)
    from concertino.proxy.abandoned_servers import end_servers, find_abandoned
    from concertino.proxy.host_commands import read_host_commands

    if args.json and not (args.yes or args.show):
        raise UsageError("--json does not ask", "add --show or --yes")
    # To recognize servers: a process is one if a host's configuration has its command.
    commands = read_host_commands(Path.home(), _current_folder(), os.environ)
    servers = _select(find_abandoned(commands), args.pid)
    _show(servers, args.json)
    if not servers:
        return 0
    if args.show:
        return 1
    if not (args.yes or confirm(f"End {_count(servers)}?")):
        return 1
    if not end_servers(servers):
        raise CommandFailure("some processes still run, although they got SIGKILL")
    if not args.json:
        print(f"ended: {_count(servers)}")  # noqa: T201
    return 0


def _current_folder() -> Path:
    """Return the current folder; the home folder if the current one was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path.home()


def _select(servers: list[AbandonedServer], pids: Sequence[int]) -> list[AbandonedServer]:
    """Return the servers with these process ids, or all servers if no ids are given.

    Raises UsageError for the id of a process that is not an abandoned server.
    """
    known = {server.pid: server for server in servers}
    for pid in pids:
        if pid not in known:
            raise UsageError(f"process {pid} is not an abandoned server", "concertino reap --show")
    return [known[pid] for pid in dict.fromkeys(pids)] if pids else servers


def _show(servers: Sequence[AbandonedServer], is_json: bool) -> None:
    if is_json:
        from msgspec.json import encode

        for server in servers:
            print(encode(server).decode())  # noqa: T201
        return
    if not servers:
        print("no server is left behind")  # noqa: T201
    width = terminal_width()
    for server in servers:
        line = f"{server.pid}  {escape_controls(' '.join(server.command))}"
        if len(line) > width:
            line = f"{line[: width - 1]}~"
        print(line)  # noqa: T201
        facts = f"{format_age(server.age_s)}, {format_memory(server.memory_bytes)}"
        # The number of processes includes the server itself.
        if server.processes > 1:
            facts += f", and {server.processes - 1} that it started"
        print(f"    {facts}; {escape_controls(server.reason)}")  # noqa: T201


def _count(servers: Sequence[AbandonedServer]) -> str:
    processes = sum(server.processes for server in servers)
    return "1 process" if processes == 1 else f"{processes} processes"
