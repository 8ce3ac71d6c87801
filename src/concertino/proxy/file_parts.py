"""FileParts: makes a Backend for each server of a server file that the user has approved.

A Backend answers the calls of MCP clients. Servers (servers.py) composes these backends, its
*parts*, to one, and asks for them again whenever the file or an approval has changed. A server that
is not approved, or cannot run, gets a backend that refuses all calls and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from concertino.backend.interface import Backend
from concertino.errors import ConcertinoError
from concertino.proxy.approvals import ApprovalStore, ApprovedFile
from concertino.proxy.definitions import (
    Definition,
    compare_definitions,
    define_server,
    is_same_definition,
    visible_texts,
)
from concertino.proxy.env_file import read_env_file
from concertino.proxy.expansion import Expander
from concertino.proxy.file_server import FileServer, WithheldServer
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.pinned_tools import PinnedTools
from concertino.proxy.server_file import ServerEntry, ServerFile
from concertino.proxy.server_launch import expand_entry
from concertino.proxy.server_options import ServerOptions
from concertino.proxy.value_reader import InvalidServerFile

__all__ = ["DefinedServer", "FileParts", "define_servers", "describe_unapproved"]

log = logging.getLogger("concertino.proxy")

# The options that take effect only when the process of a server is started. `inherit` and `auth`,
# too, but they are part of its UnreadLaunch.
PROCESS_OPTIONS = (
    "isolation", "shared", "idle_s", "ping_s", "heartbeat_s", "cache", "lazy", "pin",
)  # fmt: skip


class DefinedServer(Struct, frozen=True):
    """A server of a server file, with the definition that the user must approve.

    entry: the server's entry in the file.
    definition: what decides which program runs, and how; {} if there is a `problem`.
    env_file: the variables in the server's `envFile`.
    texts: member of the definition -> its whole text, for the user who is asked to approve it.
        Members whose texts may be secret are missing.
    problem: the reason why the server has no definition; "" if it has one.
    """

    entry: ServerEntry
    definition: Definition = {}
    env_file: Mapping[str, str] = {}
    texts: Mapping[str, str] = {}
    problem: str = ""


def define_servers(
    file: ServerFile,
    expander: Expander,
    key: bytes,
) -> list[DefinedServer]:
    """Return the enabled servers of a file with the definitions that the user must approve.

    A server whose `envFile` cannot be read is returned with a `problem`.
    expander: replaces the references `${...}` in the path of a server's `envFile`.
    key: the user's secret key for the digests of secrets in definitions.
    """
    servers: list[DefinedServer] = []
    for entry in file.servers:
        if not entry.is_enabled:
            continue
        try:
            variables: dict[str, str] = {}
            if entry.env_file is not None:
                text = expander.expand_text(entry.env_file, f"{entry.name}.envFile")
                variables = read_env_file(file.workspace / Path(text).expanduser())
        except InvalidServerFile as exc:
            servers.append(DefinedServer(entry, problem=str(exc)))
            continue
        definition = define_server(entry, file, variables, key)
        texts = visible_texts(entry, file, variables)
        servers.append(DefinedServer(entry, definition, variables, texts))
    return servers


def describe_unapproved(
    approved: ApprovedFile,
    name: str,
    definition: Definition,
    texts: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the lines that a user should read before approving a server; [] if it is approved.

    approved: the approvals for the server file.
    name: the name of the server.
    definition: the server's present definition, which describes the program that it runs.
    texts: member of the definition -> its whole text; None to use the shortened texts for logs.
    """
    before = approved.servers.get(name)
    if is_same_definition(before, definition):
        return []
    title = f"{name} (new)" if before is None else f"{name} (changed)"
    return [title, *compare_definitions(before, definition, texts)]


class FileParts:
    """Holds a Backend for each server of one server file.

    At the start, and when the file or an approval has changed, call update() with the present
    content of the file to get the backends, and then set_options().
    store: the user's approvals.
    environment: the environment variables for `${VAR}`.
    inputs: id of an input -> the value that the user gave.
    cache: stores the features and lists of servers for their next start; None to store none.

    Attributes:
    path: the path under which the approvals are stored. It is the path of the file without symbolic
        links; for a project in Claude Code's file, `#` and the project's directory follow.
    """

    def __init__(
        self,
        store: ApprovalStore,
        environment: Mapping[str, str],
        inputs: Mapping[str, str],
        cache: ManifestCache | None = None,
    ) -> None:
        self.path = Path()
        self._cache = cache
        self._store = store
        self._environment = environment
        self._inputs = inputs
        # Name of a server -> its backend, from the last update().
        self._parts: dict[str, FileServer | WithheldServer] = {}
        # Servers that continue to run, each with the options that set_options() will give it.
        self._new_options: list[tuple[FileServer, ServerOptions]] = []
        # Name of each server that is not approved -> its definition that was logged last. The same
        # definition is not logged again.
        self._unapproved: dict[str, Definition] = {}

    def _define(self, file: ServerFile) -> list[DefinedServer]:
        """Return the servers of a file with their definitions, and set `path`."""
        self.path = file.approval_path
        return define_servers(
            file, Expander(file, self._environment, self._inputs), self._store.key()
        )

    def approve(self, file: ServerFile) -> None:
        """Approve all enabled servers of a file for this user.

        Raises UnusableState if the approvals cannot be read or written.
        """
        servers = self._define(file)
        self._store.approve(
            self.path,
            {server.entry.name: server.definition for server in servers if not server.problem},
        )

    def update(self, file: ServerFile) -> Mapping[str, Backend]:
        """Return a backend for each server in the present content of the file: name -> backend.

        - For an unchanged server, it is the same object as at the last update().
        - A server that is not approved, or cannot run, gets a backend that refuses all calls. But
          a server that runs with an older definition, which was approved, keeps its backend.

        Call set_options() before using the backends. Raises UnusableState if the approvals cannot
        be read.
        """
        servers = self._define(file)
        approved = self._store.read(self.path)
        expander = Expander(file, self._environment, self._inputs)
        self._new_options.clear()
        parts: dict[str, FileServer | WithheldServer] = {}
        for server in servers:
            name = server.entry.name
            parts[name] = self._make_part(server, file, expander, approved)
        self._parts = parts
        return dict(parts)

    async def set_options(self) -> None:
        """Apply changed options to the servers that continue to run after the last update().

        update() cannot do this itself, because it awaits nothing.
        """
        for part, options in self._new_options:
            await part.set_options(options)
        self._new_options.clear()

    def _make_part(
        self,
        server: DefinedServer,
        file: ServerFile,
        expander: Expander,
        approved: ApprovedFile,
    ) -> FileServer | WithheldServer:
        """Return the backend for one server.

        - A server that is not approved, or whose entry has an error: see _handle_unapproved() and
          _withhold().
        - A server that runs and needs no restart: its present backend.
        - Any other server: a new FileServer.
        """
        entry = server.entry
        current = self._parts.get(entry.name)
        if server.problem:
            return self._withhold(entry.name, server.problem)
        if not is_same_definition(approved.servers.get(entry.name), server.definition):
            return self._handle_unapproved(server, approved)
        self._unapproved.pop(entry.name, None)
        try:
            launch = expand_entry(entry, file, expander, server.env_file)
        except ConcertinoError as exc:
            return self._withhold(entry.name, str(exc))
        if isinstance(current, FileServer) and (
            current.launch == launch
            and current.start_timeout_s == entry.start_timeout_s
            and _needs_no_restart(current.options, entry.options)
        ):
            current.set_pins(approved.pins.get(entry.name))
            if current.options != entry.options:
                self._new_options.append((current, entry.options))
            return current
        pin = partial(PinnedTools, store=self._store, path=self.path, name=entry.name)
        return FileServer(
            entry.name,
            launch,
            entry.options,
            start_timeout_s=entry.start_timeout_s,
            pin=pin if entry.options.pin else None,
            cache=self._cache,
        )

    def _handle_unapproved(
        self, server: DefinedServer, approved: ApprovedFile
    ) -> FileServer | WithheldServer:
        """Return the backend of a server whose definition is not approved, and log the definition.

        If the server runs with an older definition, which was approved, it continues to run.
        """
        name = server.entry.name
        command = f"concertino approve {self.path}"
        current = self._parts.get(name)
        if self._unapproved.get(name) != server.definition:
            self._unapproved[name] = server.definition
            # Log each line separately, because a log record must be one line.
            for line in describe_unapproved(approved, name, server.definition):
                log.warning("%s", line)
            if isinstance(current, FileServer):
                log.warning(
                    "%s: this change is not approved, so the server runs as before; to approve "
                    "it: %s",
                    name,
                    command,
                )
        if isinstance(current, FileServer):
            return current
        # The ComposedBackend in Servers logs this reason.
        return self._withhold(name, f"not approved, so not started; to approve it: {command}")

    def unapproved_names(self) -> list[str]:
        """Return the names of the servers that need the user's approval."""
        return [name for name in self._parts if name in self._unapproved]

    def _withhold(self, name: str, reason: str) -> WithheldServer:
        """Return a backend that refuses all calls with a reason.

        If the server has such a backend with the same reason already, returns the same object.
        """
        current = self._parts.get(name)
        if isinstance(current, WithheldServer) and current.reason == reason:
            return current
        return WithheldServer(name, reason)


def _needs_no_restart(before: ServerOptions, now: ServerOptions) -> bool:
    """Return whether the process of a server, started with the options `before`, may run on."""
    return all(getattr(before, name) == getattr(now, name) for name in PROCESS_OPTIONS)
