"""`concertino plugin markdown|sqlite`: the storage plugins, as programs that a hub starts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from concertino import __version__
from concertino.cli.serving import reject_extra_args
from concertino.orchestra.flags import add_flags

if TYPE_CHECKING:
    from concertino.orchestra.storage import Storage

__all__ = ["DESCRIPTION", "add_arguments", "run"]

FAILED = 1

DESCRIPTION = (
    "Storage for the plugins and clients of a hub, which starts this command: `binary: concertino` and "
    "`args: [plugin, markdown, --workspace=DIR]` in plugins.yaml. 0: the end; 1: it could not start, or was refused; 2: usage."
)


def add_arguments(plugin: ArgumentParser) -> None:
    """The stores that there are."""
    formatter = plugin.formatter_class
    kinds = plugin.add_subparsers(dest="kind", metavar="KIND", required=True)
    markdown = kinds.add_parser(
        "markdown", help="storage.markdown: files, for people too", formatter_class=formatter
    )
    markdown.add_argument(
        "--workspace",
        metavar="DIR",
        default=".",
        help="the files are in its folder .projects (default: this folder)",
    )
    sqlite = kinds.add_parser(
        "sqlite", help="storage.sqlite: one database file", formatter_class=formatter
    )
    sqlite.add_argument(
        "--file",
        metavar="FILE",
        default="orchestra.db",
        help="the database, made if there is none (default orchestra.db)",
    )
    for each in (markdown, sqlite):
        add_flags(each)


def run(given: Namespace, server: Sequence[str]) -> NoReturn:
    """Be the plugin. Ends the process."""
    reject_extra_args(given, server)
    try:
        from concertino.errors import ConcertinoError
        from concertino.orchestra.plugin import Plugin
        from concertino.orchestra.plugin_main import run_plugin
    except ImportError as why:
        _leave(given, why)
    plugin = Plugin(
        f"storage.{given.kind}",
        version=__version__,
        description=f"Storage of the type {given.kind}.",
    )
    try:
        storage: Any = None if given.manifest else _opened(given)  # nobody calls that of a manifest
    except (ConcertinoError, ImportError) as why:
        _leave(given, why)
    plugin.add_storage(storage, given.kind)

    @plugin.lifespan
    def living() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]  # the decorator keeps it
        yield
        storage.close()  # not in on_shutdown: calls may still be under way there

    run_plugin(plugin, given)


def _opened(given: Namespace) -> Storage:
    """Raises StorageError."""
    if given.kind == "sqlite":
        from concertino.orchestra.sqlite import SqliteStorage

        return SqliteStorage(given.file)
    from concertino.orchestra.markdown import MarkdownStorage

    return MarkdownStorage(given.workspace)


def _leave(given: Namespace, why: Exception) -> NoReturn:
    sys.stderr.write(f"concertino plugin {given.kind}: {why}\n")
    sys.exit(FAILED)
