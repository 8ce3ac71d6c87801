"""`concertino approve FILE`: let the servers of a file run as they are now."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from concertino.cli import USAGE, CommandFailure, UsageError
from concertino.cli.server_files import add_input_option, parse_inputs
from concertino.cli.serving import reject_extra_args
from concertino.cli.terminal_text import escape_lines
from concertino.errors import ConcertinoError

if TYPE_CHECKING:
    from concertino.proxy.approvals import ApprovedFile
    from concertino.proxy.file_parts import DefinedServer

DESCRIPTION = (
    "Show what the servers of a file would run, as far as that is not approved, ask, and approve "
    "it. `concertino serve FILE` starts approved servers only, and those that run take the "
    "approval over at once. Exit codes: 0 approved, or nothing to approve; 1 not approved; 2 "
    "usage, or an unusable file."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino approve` to its parser."""
    parser.add_argument(
        "file", metavar="FILE", help="mcp.json, .vscode/mcp.json, config.toml, ~/.claude.json, ..."
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--show", action="store_true", help="only show it; exit code 1 if there is anything"
    )
    add_input_option(parser)


def run(args: Namespace, server: Sequence[str]) -> int:
    """Approve the servers of a file and return the exit code."""
    reject_extra_args(args, server)
    from concertino.proxy.approvals import ApprovalStore
    from concertino.proxy.expansion import Expander
    from concertino.proxy.file_parts import define_servers
    from concertino.proxy.server_file import read_server_file

    try:
        inputs = parse_inputs(args.input)
        store = ApprovalStore()
        file = read_server_file(args.file)
        path = file.target
        servers = define_servers(file, Expander(file, os.environ, inputs), store.key())
        approved = store.read(path)
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    except ConcertinoError as exc:
        raise CommandFailure(str(exc), exit_code=USAGE) from None

    lines = _describe_pending(servers, approved)
    if not lines:
        _print(f"{args.file}: everything is approved")
        return 0
    _print("\n".join(lines))
    if args.show:
        return 1
    if not (args.yes or confirm(f"Let these run when {args.file} is served?")):
        raise CommandFailure("nothing is approved")
    try:
        store.approve(
            path, {item.entry.name: item.definition for item in servers if not item.problem}
        )
    except ConcertinoError as exc:
        raise CommandFailure(str(exc)) from None
    _print(f"{args.file}: approved")
    return 0


def _describe_pending(servers: Sequence[DefinedServer], approved: ApprovedFile) -> list[str]:
    """Return lines for people that say what is not approved; empty if everything is approved."""
    from concertino.proxy.file_parts import describe_unapproved
    from concertino.proxy.pinned_tools import compare_tools

    lines: list[str] = []
    for item in servers:
        name = item.entry.name
        if item.problem:
            lines += [f"{name} (cannot be approved)", f"  {item.problem}"]
            continue
        lines += describe_unapproved(approved, item)
        pins = approved.pins.get(name)
        if (
            pins is not None
            and pins.seen is not None
            and approved.servers.get(name) == item.definition
        ):
            lines += [f"{name} (other tools)", *compare_tools(pins.approved or {}, pins.seen)]
    gone = approved.servers.keys() - {item.entry.name for item in servers}
    lines += [f"{name} (no longer in the file)" for name in sorted(gone)]
    return lines


def confirm(question: str) -> bool:
    """Return whether the user says yes. Raises UsageError without a terminal."""
    # Any: it is None if descriptor 0 is closed.
    stdin: Any = sys.stdin
    if stdin is None or not stdin.isatty():
        raise UsageError("there is no terminal to ask at", "write --yes if you have read it")
    print(f"{question} [y/N] ", end="", flush=True)  # noqa: T201
    return stdin.readline().strip().casefold() in ("y", "yes")


def _print(text: str) -> None:
    print(escape_lines(text))  # noqa: T201
