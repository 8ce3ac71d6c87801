"""`concertino plugin KIND`: run a plugin of this package. A hub starts this command.

A plugin is a program with tools, prompts or storage; a hub (`concertino orchestrate`) passes
requests to it.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from concertino import __version__
from concertino.cli import FAILED
from concertino.cli.plugin_packages import (
    PACKAGE_COMMANDS,
    add_package_commands,
    run_package_command,
)
from concertino.cli.serving import reject_extra_args
from concertino.orchestra.flags import add_flags

if TYPE_CHECKING:
    from concertino.orchestra.storage import Storage

# Kind of AI provider -> its help; see orchestra/ai_provider.py.
PROVIDERS = {
    "openai": "an AI provider: models of OpenAI, with the key in OPENAI_API_KEY",
    "gemini": "an AI provider: models of Gemini, with the key in GEMINI_API_KEY",
    "local": "an AI provider: models of a server on this machine with OpenAI's interface",
}

DESCRIPTION = (
    "Run a plugin of this package, such as a storage, in a hub. The hub starts this command: "
    "`binary: concertino` and `args: [plugin, markdown, --workspace=DIR]` in plugins.yaml. Or "
    "install, list and remove packages of plugins, which an entry names with `package: ID`. "
    "Exit codes: 0 after a shutdown, 1 when it could not start or was refused, 2 usage."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the kinds of plugins, and the subcommands for packages, to the command's parser."""
    formatter = parser.formatter_class
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    markdown = kinds.add_parser(
        "markdown",
        help="storage.markdown: files that people can edit, too",
        formatter_class=formatter,
    )
    markdown.add_argument(
        "--workspace",
        metavar="DIR",
        default=".",
        help="folder whose subfolder .projects holds the files (default: the current folder)",
    )
    sqlite = kinds.add_parser(
        "sqlite", help="storage.sqlite: one database file", formatter_class=formatter
    )
    sqlite.add_argument(
        "--file",
        metavar="FILE",
        default="orchestra.db",
        help="database file, created if it does not exist (default orchestra.db)",
    )
    nats = kinds.add_parser(
        "nats",
        help="storage.nats: a bucket of a NATS cluster, for plugins on several machines",
        formatter_class=formatter,
    )
    nats.add_argument(
        "--replicas",
        metavar="N",
        choices=("1", "3", "5"),
        default="1",
        help="on how many servers each document is stored: 1, 3 or 5 (default 1)",
    )
    mcp = kinds.add_parser(
        "mcp",
        help="an MCP server, for an entry with `protocol: mcp`: the hub sends the server",
        formatter_class=formatter,
    )
    mcp.add_argument("--id", metavar="ID", required=True, help="the id of the plugin")
    providers = [
        kinds.add_parser(name, help=help, formatter_class=formatter)
        for name, help in PROVIDERS.items()
    ]
    for provider in providers:
        provider.add_argument(
            "--id", metavar="ID", help="the id of the plugin (default ai.openai, ai.gemini, ...)"
        )
    for kind in (markdown, sqlite, nats, mcp, *providers):
        add_flags(kind)
    add_package_commands(kinds, formatter)


def run(args: Namespace, server: Sequence[str]) -> int:
    """Run a plugin and end the process, or run a subcommand for packages and return its exit code.

    args: the parsed arguments. `args.kind` is the kind of plugin, or the subcommand.
    server: the words after `--`. This command accepts none.
    Exit codes of a plugin: 0 after its hub has ended it, 1 if it cannot start. Raises
    CommandFailure if a subcommand for packages fails.
    """
    reject_extra_args(args, server)
    return run_package_command(args) if args.kind in PACKAGE_COMMANDS else _run_plugin(args)


def _run_plugin(args: Namespace) -> NoReturn:
    """Run the plugin of the kind in `args` until its hub ends it, and end the process."""
    try:
        from concertino.errors import ConcertinoError
        from concertino.orchestra.plugin import Plugin
        from concertino.orchestra.plugin_main import run_plugin

        if args.kind == "mcp":
            from concertino.orchestra.mcp_plugin import McpPlugin
            from concertino.runtime.entry import begin_program

            begin_program()
            # run_plugin() ends the process, here and below.
            run_plugin(McpPlugin(args.id), args)
        if args.kind in PROVIDERS:
            from concertino.orchestra.ai_provider import make_provider

            run_plugin(make_provider(args.kind, args.id or f"ai.{args.kind}"), args)
    except ImportError as exc:
        _exit_failure(args, exc)

    plugin = Plugin(
        f"storage.{args.kind}",
        version=__version__,
        description=f"Storage of the type {args.kind}.",
    )
    try:
        # --manifest only describes the plugin, so do not create any file.
        storage: Any = None if args.manifest else _open_storage(args)
    except (ConcertinoError, ImportError, OSError, ValueError) as exc:
        _exit_failure(args, exc)
    plugin.add_storage(storage, args.kind)

    # A lifespan and not on_shutdown, whose functions may run while calls are in progress. With
    # --manifest, where `storage` is None, it does not begin.
    @plugin.lifespan
    def close_storage() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
        yield
        storage.close()

    run_plugin(plugin, args)


def _open_storage(args: Namespace) -> Storage:
    """Return the requested storage. Raises ConcertinoError, OSError and ValueError."""
    from concertino.orchestra.storage import StorageError

    if args.kind == "sqlite":
        from concertino.orchestra.sqlite import SqliteStorage

        return SqliteStorage(args.file)
    if args.kind == "nats":
        from concertino.orchestra.certificates import Certificates, default_folder
        from concertino.orchestra.nats_storage import NatsStorage

        if not args.cluster:
            raise StorageError("storage_error", "--cluster: expected the address of the cluster")
        certificates = Certificates(args.certs_dir or default_folder())
        return NatsStorage(args.cluster, "storage.nats", certificates, replicas=int(args.replicas))
    from concertino.orchestra.markdown import MarkdownStorage

    return MarkdownStorage(args.workspace)


def _exit_failure(args: Namespace, exc: Exception) -> NoReturn:
    sys.stderr.write(f"concertino plugin {args.kind}: {exc}\n")
    sys.exit(FAILED)
