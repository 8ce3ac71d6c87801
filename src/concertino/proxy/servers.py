"""Servers: the servers in a server file as one Backend, which follows changes of the file.

A server file is a file in which an MCP host lists its servers, such as mcp.json. Each server is a
part of a composition: a Backend that has the tools, prompts and resources of all its parts.
Only servers that the user has approved are started. A server that fails, hangs or waits for
approval does not delay the others; calls of its tools are answered with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from msgspec.structs import replace

from concertino.backend.interface import Notifier, ServerFeatures
from concertino.backend.wrappers import BackendWrapper
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import BoundedNames
from concertino.composition.rules import CompositionRules
from concertino.library.watcher import Watcher
from concertino.proxy.approvals import ApprovalStore
from concertino.proxy.file_parts import FileParts
from concertino.proxy.file_status import FileStatus, read_file_status
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.server_file import ServerFile, read_server_file
from concertino.proxy.server_status import (
    ServerStatus,
    add_source,
    describe_error,
    remove_source,
)
from concertino.proxy.state_files import UnusableState
from concertino.proxy.value_reader import InvalidServerFile
from concertino.types.results import Implementation

__all__ = ["OPENING_S", "Servers"]

log = logging.getLogger("concertino.proxy")

# How long clients wait for slow servers, in seconds: for their start, and for their lists.
START_S = 3.0
# How long the runtime should hold back a client's first request while this backend starts, in
# seconds: longer than START_S, so that the composition has started before the request is answered.
OPENING_S = START_S + 0.5
# How the servers are composed to one Backend. Servers may be missing, and a slow server does not
# delay other servers. A server that cannot start is tried again after each of the pauses in
# retries_s.
RULES = CompositionRules(
    start_s=START_S,
    lists_s=START_S,
    may_be_empty=True,
    list_limit_s=START_S,
    maps_uris=True,
    retries_s=(1.0, 2.0, 5.0, 15.0, 60.0),
)


class Servers(BackendWrapper):
    """A Backend with all servers in a file: mcp.json, .vscode/mcp.json, config.toml, ...

        run(Servers("mcp.json"))

    The tool `add` of the server `calc` gets the name `calc_add`, and prompts are named in the same
    way. Changes of the file are applied at once:

    - New servers are started, removed ones are ended, and unchanged ones continue to run.
    - Changed options are applied without a restart, as far as that is possible.
    - If the command, the variables or another part of a server's definition has changed, the old
      process continues to run until the user approves the new definition with
      `concertino approve FILE`.

    path: the server file, as for read_server_file().
    inputs: id of an input -> the value for `${input:ID}`; None if the user has given none.
    trust: whether to approve all servers that are in the file when this object is created.
    environment: the environment variables for `${VAR}`; None for those of this process.
    info: the name and version that clients see; None for `concertino` with the version 0.0.0.
    store: the user's approvals; None for those in the user's state directory.
    cache: stores the features and lists of servers for their next start; None to store none.

    Attributes:
    tools: the file's options for a search for tools. `concertino serve` wraps this backend in a
        ToolSearch if they ask for one; run(Servers(...)) ignores them.

    Raises InvalidServerFile, and UnusableState if approvals cannot be read or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        inputs: Mapping[str, str] | None = None,
        trust: bool = False,
        environment: Mapping[str, str] | None = None,
        info: Implementation | None = None,
        store: ApprovalStore | None = None,
        cache: ManifestCache | None = None,
    ) -> None:
        self._target = path
        self._store = store or ApprovalStore()
        file = read_server_file(path)
        self._path = file.path
        self._warnings: frozenset[str] = frozenset()
        self._file_parts = FileParts(
            self._store, os.environ if environment is None else environment, inputs or {}, cache
        )
        if trust:
            self._file_parts.approve(file)
        # Read this option only once, and not when the file changes, because many hosts request the
        # list of tools only once.
        self.tools = file.tools
        self._log_warnings(file)
        parts = self._file_parts.update(file)
        self._composed = ComposedBackend(
            info or Implementation("concertino", "0.0.0"), parts, BoundedNames(parts), RULES
        )
        super().__init__(self._composed)
        self._file_statuses = self._read_file_statuses()
        # Watches the directories of the file and of the approvals.
        self._watcher: Watcher | None = None
        # Set by the watcher after a change of any file in these directories.
        self._has_changed = asyncio.Event()
        # The task that applies changes.
        self._following: asyncio.Task[None] | None = None

    def _log_warnings(self, file: ServerFile) -> None:
        """Log the warnings about the file, except those that its previous content also caused."""
        # Claude Code writes its file again with every message of its user, so the same warnings
        # would be repeated all the time.
        for warning in file.warnings:
            if warning not in self._warnings:
                log.warning("%s", warning)
        self._warnings = frozenset(file.warnings)

    # Backend

    async def start(self, outlet: Notifier) -> None:
        """Start the servers, and begin to watch the file and the user's approvals.

        Waits at most three seconds for the start of slow servers, which are added when they have
        started. Raises nothing if servers fail.
        """
        loop = asyncio.get_running_loop()
        add_source(self._server_statuses)
        folders = {self._path.parent, self._path.resolve().parent, self._store.folder}
        try:
            self._store.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            log.warning("%s: %s", self._store.folder, exc.strerror)

        def report(paths: list[str] | None) -> None:
            # The watcher also reports other files, and may call this after the loop has ended.
            try:
                loop.call_soon_threadsafe(self._has_changed.set)
            except RuntimeError:
                pass

        self._watcher = Watcher(sorted(map(str, folders)), report, log, is_recursive=False)
        self._following = loop.create_task(self._follow(), name="follow a server file")
        await self._composed.start(outlet)

    async def close(self) -> None:
        """End all servers, and stop watching the file."""
        remove_source(self._server_statuses)
        if self._watcher is not None:
            self._watcher.close()
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
        await self._composed.close()

    def features(self) -> ServerFeatures:
        """Return the features that clients see. The instructions say which servers are missing.

        All features are declared, even if no server that runs has them: most clients look at the
        features only once, and a server may start later.
        """
        features = self._composed.features()
        missing = "\n".join(self._composed.failures.values())
        # The missing servers come first, because hosts cut long instructions at the end.
        instructions = "\n\n".join(filter(None, (missing, features.instructions)))
        return replace(
            features,
            instructions=instructions or None,
            tools=True,
            prompts=True,
            resources=True,
            completions=True,
            logging=True,
            subscriptions=True,
        )

    def _server_statuses(self) -> list[ServerStatus]:
        """Return the states of servers that do not run. The others report their own state."""
        waiting = {
            name: ServerStatus(
                name,
                "waits for approval",
                last_error=f"to see and approve it: concertino approve {self._file_parts.path}",
            )
            for name in self._file_parts.unapproved_names()
        }
        failed = [
            ServerStatus(name, "failed", last_error=describe_error(text))
            for name, text in self._composed.failures.items()
            if name not in waiting
        ]
        return [*waiting.values(), *failed]

    # The file

    def _read_file_statuses(self) -> tuple[FileStatus, ...]:
        """Return the status of the server file and of the file with its approvals."""
        return tuple(
            read_file_status(path)
            for path in (self._path, self._store.stored_at(self._file_parts.path))
        )

    async def _follow(self) -> None:
        """Apply changes of the file and of its approvals until cancelled."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            statuses = self._read_file_statuses()
            if statuses != self._file_statuses:
                self._file_statuses = statuses
                try:
                    await self.reload()
                except Exception:
                    log.exception("%s: a change could not be applied", self._path)

    async def reload(self) -> None:
        """Apply the present content of the file. If it has an error, log it and change nothing."""
        try:
            file = read_server_file(self._target)
            self._log_warnings(file)
            parts = self._file_parts.update(file)
        except (InvalidServerFile, UnusableState) as exc:
            log.error("%s; nothing is changed", exc)
            return
        await self._file_parts.set_options()
        await self._composed.change_parts(parts)
