"""`concertino approve FILE`: lets the servers in a file run, after the user has seen them.

A server file, such as mcp.json, names programs to start, and other people may have written it. So
concertino starts a server only after the user has seen its definition here: the command, the
variables and so on. The same holds for changed plugins in a plugins.yaml.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from concertino.cli import USAGE, CommandFailure, UsageError
from concertino.cli.server_files import add_input_option, parse_inputs
from concertino.cli.serving import reject_extra_args
from concertino.cli.terminal_text import escape_lines
from concertino.errors import ConcertinoError

if TYPE_CHECKING:
    from concertino.proxy.approvals import ApprovedFile
    from concertino.proxy.definitions import Definition

DESCRIPTION = (
    "Show what the servers of a file would run that are not approved, ask, and approve them. A "
    "`concertino serve FILE` that runs starts them at once, and so does a hub with a changed "
    "plugins.yaml. Exit codes: 0 approved, or nothing to approve; 1 not approved; 2 usage, or an "
    "unusable file."
)
PLUGIN_FILES = (".yaml", ".yml")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino approve` to its parser."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="mcp.json, .vscode/mcp.json, config.toml, ~/.claude.json, plugins.yaml, ...",
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--show", action="store_true", help="only show it; exit code 1 if there is anything"
    )
    add_input_option(parser)


class _Candidate(Struct, frozen=True):
    """A server or plugin in a file, which the user may approve.

    name: the name of the server, or the id of the plugin.
    definition: the command, variables and so on that the server or plugin would run with. Approval
        counts only for this definition.
    texts: field of the definition -> its whole text, without the fields that may be secret.
    problem: why the definition cannot be read; "" if it can be read.
    """

    name: str
    definition: Definition
    texts: Mapping[str, str]
    problem: str = ""


def run(args: Namespace, server: Sequence[str]) -> int:
    """Show what the servers of a file would run, and approve them if the user agrees.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Returns the exit code: 0 after an approval, or if none was missing; 1 if --show has found
    servers that are not approved. Raises CommandFailure if nothing was approved, and UsageError for
    wrong arguments.
    """
    reject_extra_args(args, server)
    from concertino.proxy.approvals import ApprovalStore

    try:
        inputs = parse_inputs(args.input)
        store = ApprovalStore()
        if args.file.endswith(PLUGIN_FILES):
            path, servers = _read_plugins(args.file, store.key())
        else:
            path, servers = _read_servers(args.file, inputs, store.key())
        approved = store.read(path)
    except ValueError as exc:
        raise UsageError(str(exc)) from None
    except (ConcertinoError, ImportError) as exc:
        raise CommandFailure(str(exc), exit_code=USAGE) from None
    except OSError as exc:
        raise CommandFailure(f"{args.file}: {exc.strerror}", exit_code=USAGE) from None

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
        definitions = {item.name: item.definition for item in servers if not item.problem}
        store.approve(path, definitions, approved)
    except ConcertinoError as exc:
        raise CommandFailure(str(exc)) from None
    _print(f"{args.file}: approved")
    return 0


def _read_servers(
    name: str, inputs: Mapping[str, str], key: bytes
) -> tuple[Path, Sequence[_Candidate]]:
    """Return the path under which approvals are stored, and the servers of a server file.

    name: the path of the server file.
    inputs: the values of the file's `${input:ID}` variables, by id.
    key: the user's key for the digests of secrets in definitions.
    Raises ConcertinoError.
    """
    from concertino.proxy.expansion import Expander
    from concertino.proxy.file_parts import define_servers
    from concertino.proxy.server_file import read_server_file

    file = read_server_file(name)
    servers = define_servers(file, Expander(file, os.environ, inputs), key)
    return file.approval_path, [
        _Candidate(item.entry.name, item.definition, item.texts, item.problem) for item in servers
    ]


def _read_plugins(name: str, key: bytes) -> tuple[Path, Sequence[_Candidate]]:
    """Return the path under which approvals are stored, and the plugins of a plugins file.

    name: the path of the plugins file.
    key: the user's key for the digests of secrets in definitions.
    Raises ConcertinoError.
    """
    from concertino.orchestra.plugin_definitions import define_plugin, visible_plugin_texts
    from concertino.orchestra.plugins_file import read_plugins
    from concertino.proxy.file_access import check_writers

    # Refuse a file that other users can change. read_server_file() does this for server files.
    check_writers(name, os.stat(name))
    file = read_plugins(name)
    return file.path.resolve(), [
        _Candidate(entry.id, define_plugin(entry, key), visible_plugin_texts(entry))
        for entry in file.enabled
    ]


def _describe_pending(servers: Sequence[_Candidate], approved: ApprovedFile) -> list[str]:
    """Return lines for people about everything that is not approved; [] if all is approved."""
    from concertino.proxy.definitions import is_same_definition
    from concertino.proxy.file_parts import describe_unapproved
    from concertino.proxy.pinned_tools import compare_tools

    lines: list[str] = []
    for item in servers:
        name = item.name
        if item.problem:
            lines += [f"{name} (cannot be approved)", f"  {item.problem}"]
            continue
        lines += describe_unapproved(approved, name, item.definition, item.texts)
        pins = approved.pins.get(name)
        if pins is None or pins.seen is None:
            continue
        # The server has listed other tools (`seen`) than those that were approved. Show this only
        # if the rest of the definition is approved.
        if is_same_definition(approved.servers.get(name), item.definition):
            lines += [f"{name} (other tools)", *compare_tools(pins.approved or {}, pins.seen)]
    gone = approved.servers.keys() - {item.name for item in servers}
    lines += [f"{name} (no longer in the file)" for name in sorted(gone)]
    return lines


def confirm(question: str) -> bool:
    """Ask the user a question, and return whether the answer is yes.

    Raises UsageError if stdin is not a terminal.
    """
    # Any: it is None if descriptor 0 is closed.
    stdin: Any = sys.stdin
    if stdin is None or not stdin.isatty():
        raise UsageError("there is no terminal to ask at", "write --yes if you have read it")
    print(f"{question} [y/N] ", end="", flush=True)  # noqa: T201
    return stdin.readline().strip().casefold() in ("y", "yes")


def _print(text: str) -> None:
    print(escape_lines(text))  # noqa: T201
