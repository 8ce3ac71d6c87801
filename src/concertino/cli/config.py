"""`concertino config TARGET`: print what MCP clients need in their configuration for a server.

client_configuration.py formats the text for each client. This module turns the target, or the
command after `--`, into a command that works in any folder.
"""

from __future__ import annotations

import os
import re
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from concertino.cli import UsageError
from concertino.cli.client_configuration import CLIENTS, ClientEntry
from concertino.cli.options import add_repeatable
from concertino.cli.target_hints import suggest_target
from concertino.installation import start_command

DESCRIPTION = (
    "Print what MCP clients need in their configuration to start a server: a target of `concertino "
    "serve`, or the command after --. Paths become absolute, since clients start servers in "
    "folders of their own. Nothing is started or changed. Exit codes: 0 success, 2 usage."
)

EXAMPLE = "for example: concertino config server.py"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino config` to its parser."""
    parser.usage = "concertino config [OPTIONS] TARGET | -- COMMAND..."
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="file.py, file.py:attribute, package.module:attribute or a folder",
    )
    parser.add_argument(
        "--client",
        choices=tuple(CLIENTS),
        help="print the text for this client alone, without a heading",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the server in the configuration")
    add_repeatable(parser, "--env", "NAME=VALUE", "environment variable for the server; repeatable")


def run(args: Namespace, server: Sequence[str]) -> int:
    """Print the configuration for each client, or only for the client in --client. Returns 0.

    args: the parsed arguments of the command.
    server: the words after `--`, which start the server; empty if `args.target` names it.
    Raises UsageError if neither `args.target` nor `server` is given or if both are, and for a
    target that does not exist.
    """
    has_target = args.target is not None
    # One of the two is required, and not both.
    if has_target == bool(server):
        raise UsageError("expected a target, or a command after --", EXAMPLE)
    env = _parse_env(args.env)
    if server:
        name, command = _name_of(server), _make_absolute(server)
    else:
        name, words, variables = _resolve_target(args.target)
        # --env may override a variable that the target needs.
        command, env = [*start_command(), "serve", *words], variables | env
    # Some clients refuse names with other characters, or change them.
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", args.name or name).strip("-") or "server"
    entry = ClientEntry(name, command, env)

    if args.client is not None:
        text = CLIENTS[args.client].format(entry)
    else:
        text = "\n\n".join(_format_all(entry))
    print(text)  # noqa: T201
    return 0


def _format_all(entry: ClientEntry) -> list[str]:
    """Return the texts of all clients, each below its heading.

    Equal texts are returned once, below the headings of all their clients.
    """
    headings: dict[str, list[str]] = {}
    for client in CLIENTS.values():
        place = f" ({client.place})" if client.place else ""
        headings.setdefault(client.format(entry), []).append(client.title + place)
    return ["".join(f"# {title}\n" for title in titles) + text for text, titles in headings.items()]


def _parse_env(variables: Sequence[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    for variable in variables:
        name, equals, value = variable.partition("=")
        if not name or not equals:
            raise UsageError(f"--env {variable}: expected NAME=VALUE")
        env[name] = value
    return env


def _resolve_target(target: str) -> tuple[str, list[str], dict[str, str]]:
    """Return how a client can start a target of `concertino serve` in any folder.

    Returns a name for the server, the words after `concertino serve`, and environment variables.
    Raises UsageError for a target that does not exist.
    """
    source, colon, attribute = target.rpartition(":")
    # The name of a file may contain a colon.
    if not colon or os.path.exists(target):
        source, colon, attribute = target, "", ""
    if os.path.exists(source):
        path = os.path.abspath(source)
        name = os.path.splitext(os.path.basename(path))[0]
        return name, [f"{path}{colon}{attribute}"], {}

    # `package.module:attribute` can only be imported from the current folder, so add it to
    # PYTHONPATH.
    is_module = attribute and all(part.isidentifier() for part in source.split("."))
    if not is_module:
        raise UsageError(f"{target}: no such file{suggest_target(target)}")
    package = source.partition(".")[0]
    is_local = os.path.isdir(package) or os.path.isfile(f"{package}.py")
    path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    return source.rpartition(".")[2], [target], {"PYTHONPATH": path} if is_local else {}


def _name_of(command: Sequence[str]) -> str:
    """Return a name for the server of a command: the name of its first file, or of its program."""
    file = next((word for word in command[1:] if os.path.isfile(word)), command[0])
    return os.path.splitext(os.path.basename(file))[0]


def _make_absolute(command: Sequence[str]) -> list[str]:
    """Return a command that works in any folder. Raises UsageError if there is no such program."""
    program, *words = command
    found = shutil.which(program)
    if found is None:
        from concertino.cli.suggestions import suggest_program

        hint = suggest_program(command, os.environ.get("PATH", os.defpath))
        raise UsageError(f"there is no command {program}", hint)
    return [os.path.abspath(found), *(os.path.abspath(w) if _is_path(w) else w for w in words)]


def _is_path(word: str) -> bool:
    """Return whether a word of a command is the path of a file or folder."""
    # A word without a dot or slash, such as `run`, is probably not a path, even if it exists.
    is_like_path = re.search(r"[./]", word) is not None and not word.startswith("-")
    return is_like_path and os.path.exists(word)
