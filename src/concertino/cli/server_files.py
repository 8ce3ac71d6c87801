"""Serves the servers of a file such as mcp.json: `concertino serve mcp.json`, and its options.

A server file is a file in which an MCP host, such as VS Code, lists the servers that it starts.
Other people may have written it, so a server is started only after the user has approved its
command (`concertino approve`, or --trust). Clients see all servers of the file as one server.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from concertino.cli.options import add_repeatable
from concertino.errors import ConcertinoError, TargetError
from concertino.jsonrpc.limits import Limits

if TYPE_CHECKING:
    from concertino.cli.options import Options
    from concertino.proxy.servers import Servers

__all__ = [
    "FILE_SUFFIXES",
    "NO_FILE_OPTIONS",
    "PROJECT_MARK",
    "ServerFileOptions",
    "add_input_option",
    "add_server_file_options",
    "load_servers",
    "opening_limits",
    "parse_inputs",
    "read_server_file_options",
    "refuse_plain_secrets",
]

FILE_SUFFIXES = (".json", ".toml")
# Claude Code's file has servers for each project. `~/.claude.json#PATH` names the project at PATH.
PROJECT_MARK = ".claude.json#"
# The environment variable that sets Limits.opening_s.
OPENING_VARIABLE = "CONCERTINO_OPENING_S"


class ServerFileOptions(Struct, frozen=True):
    """The values of the options for a server file, a list of servers such as mcp.json.

    trust: whether to approve the listed servers as they are now. A server that is not approved is
        not started.
    inputs: the values of the file's `${input:ID}` variables, by id.
    name, version: what clients see as the name and version of the one server that stands for all
        servers of the file; None for the defaults.
    """

    trust: bool = False
    inputs: Mapping[str, str] = {}
    name: str | None = None
    version: str | None = None


NO_FILE_OPTIONS = ServerFileOptions()


def add_server_file_options(parser: ArgumentParser) -> None:
    """Add --trust and --input, as a group."""
    group = parser.add_argument_group(
        "a server file: mcp.json, .vscode/mcp.json, config.toml, ~/.claude.json#PROJECT"
    )
    group.add_argument(
        "--trust",
        action="store_true",
        help="approve the servers of the file as they are now; without it those that are not "
        "approved are shown and not started: see concertino approve. With plugins.yaml: apply its "
        "later changes without approval",
    )
    add_input_option(group)


def add_input_option(options: Options) -> None:
    """Add --input, which sets a `${input:ID}` variable of a server file."""
    add_repeatable(
        options,
        "--input",
        "ID=VALUE",
        "value of ${input:ID}, or secret:NAME, secret:file:PATH, secret:command:WORDS; repeatable",
    )


def read_server_file_options(args: Namespace) -> ServerFileOptions:
    """Return the values of the options. Raises ValueError for a malformed --input."""
    return ServerFileOptions(
        trust=args.trust,
        inputs=parse_inputs(args.input),
        name=args.name,
        version=args.server_version,
    )


def parse_inputs(texts: Sequence[str]) -> dict[str, str]:
    """Return id -> value for the values of --input.

    texts: the values of --input, each in the form ID=VALUE.
    Raises ValueError for a malformed value.
    """
    inputs: dict[str, str] = {}
    for text in texts:
        id, equals, value = text.partition("=")
        if not id or not equals:
            # Do not quote the text, because it may be a secret.
            raise ValueError("--input: expected ID=VALUE")
        inputs[id] = value
    return inputs


def load_servers(path: str, options: ServerFileOptions) -> Servers:
    """Return a backend that has the tools, prompts and resources of all servers of a file.

    path: the path of the server file.
    options: the values of the command line's options for it.
    Raises TargetError if the file cannot be used, or if --input gives a password in plain text.
    """
    from concertino.proxy.manifest_cache import ManifestCache
    from concertino.proxy.server_file import read_server_file
    from concertino.proxy.servers import Servers
    from concertino.types.results import Implementation

    try:
        refuse_plain_secrets(options.inputs, read_server_file(path).inputs)
        return Servers(
            path,
            inputs=options.inputs,
            trust=options.trust,
            cache=ManifestCache(),
            info=Implementation(options.name or "concertino", options.version or "0.0.0"),
        )
    except ConcertinoError as exc:
        raise TargetError(str(exc)) from None


def refuse_plain_secrets(given: Mapping[str, str], declared: Mapping[str, object]) -> None:
    """Raise TargetError if --input gives a password in plain text.

    A password is an input that the server file declares with `password: true`. A value such as
    `secret:NAME`, which says where the password is stored, is accepted.

    given: the values of --input by id.
    declared: the inputs that the server file declares, by id.
    """
    # All users of the machine can see the command line.
    from concertino.proxy.expansion import input_variable
    from concertino.proxy.input_entries import InputEntry
    from concertino.proxy.secret_sources import SECRET

    for id, value in given.items():
        entry = declared.get(id)
        if isinstance(entry, InputEntry) and entry.is_secret and not value.startswith(SECRET):
            raise TargetError(
                f"--input {id}: every user of this machine sees the arguments of programs; write "
                f"--input {id}=secret:NAME, or set {input_variable(id)}"
            )


def opening_limits() -> Limits | None:
    """Return the limits for serving a server file; None if an environment variable is invalid.

    The first requests of clients wait longer than by default (opening_s), because several servers
    must start. CONCERTINO_OPENING_S overrides this. Pass None on to run_process(), which then
    reports the invalid variable.
    """
    from concertino.proxy.servers import OPENING_S

    try:
        limits = Limits.from_environment(os.environ)
    except ValueError:
        return None
    return limits if OPENING_VARIABLE in os.environ else replace(limits, opening_s=OPENING_S)
