"""PluginsReload: applies changes of a plugins file while the hub runs.

A hub starts the plugins that its plugins file lists. When the file changes, PluginsReload starts,
replaces and ends the plugins whose entries have changed.

By starting a hub, a user approves the content that the file has at that time. Somebody else could
change the file later to make the hub run another program. So the user must approve a change of a
plugin's program, arguments, variables or configuration with `concertino approve FILE`. Until the
approval, the plugin runs on as before the change.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from msgspec.structs import replace

from concertino.errors import ConcertinoError
from concertino.orchestra.hub import Hub
from concertino.orchestra.plugin_definitions import define_plugin, define_plugins
from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugins_file import PluginsFile, read_plugins
from concertino.proxy.approvals import ApprovalStore, ApprovedFile
from concertino.proxy.definitions import Definition
from concertino.proxy.file_access import check_writers
from concertino.proxy.file_parts import describe_unapproved
from concertino.proxy.file_status import FileStatus, read_file_status
from concertino.transports.listeners import errno_message

__all__ = ["POLL_S", "PluginsReload"]

log = logging.getLogger("concertino.hub")

# The time between two checks of the plugins file and of its approvals, in seconds.
POLL_S = 1.0
# A change is applied when both files were unchanged for this time, in seconds, because an editor
# may write a file in steps.
SETTLE_S = 0.05
# After this many pauses of SETTLE_S, a file that still changes is read anyway.
MAX_SETTLE_STEPS = 20
# The settings in a plugins file, attributes of PluginsFile, that a running hub cannot change.
FIXED = ("listen_addr", "certs_dir", "cluster")


class PluginsReload:
    """Applies the changes of a hub's plugins file while the hub runs.

        reload = PluginsReload(hub, file)
        reload.open()
        ...
        await reload.close()

    Call open() after the hub's launch(), and close() before its stop().

    hub: the hub that runs the plugins of the file.
    file: the content of the file with which the hub was started.
    trust: whether changes are applied without the user's approval.
    store: the user's approvals; None for those in the user's state directory.
    poll_s: the time between two checks of the file for changes, in seconds.
    """

    def __init__(
        self,
        hub: Hub,
        file: PluginsFile,
        *,
        trust: bool = False,
        store: ApprovalStore | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._hub = hub
        self._file = file
        self._path = file.path.absolute()
        self._trust = trust
        self._store = store
        self._poll_s = poll_s
        self._statuses = self._read_statuses()
        # Plugin id -> the definition that was logged last as not approved. A definition has a
        # digest of each part of an entry that needs approval.
        self._logged: dict[str, Definition] = {}
        self._following: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to follow the file."""
        self._following = asyncio.get_running_loop().create_task(
            self._follow(), name="follow a plugins file"
        )

    async def close(self) -> None:
        """Stop following the file. A change that is being applied is cancelled."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    def _read_statuses(self) -> tuple[FileStatus, ...]:
        """Return the status (size, time of change) of the plugins file and of its approvals.

        Leaves out the approvals before their first use.
        """
        paths = [self._path]
        if self._store is not None:
            paths.append(self._store.stored_at(self._path.resolve()))
        return tuple(map(read_file_status, paths))

    async def _follow(self) -> None:
        """Apply changes of the file and of its approvals until cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            statuses = self._read_statuses()
            if statuses == self._statuses:
                continue
            # Wait until the editor has finished.
            for _ in range(MAX_SETTLE_STEPS):
                await asyncio.sleep(SETTLE_S)
                before, statuses = statuses, self._read_statuses()
                if statuses == before:
                    break
            self._statuses = statuses
            await self.reload()

    async def reload(self) -> None:
        """Read the file and apply its changes, except those that are not approved.

        If the file has an error, logs the error and changes nothing.
        """
        try:
            check_writers(self._path, os.stat(self._path))
            file = read_plugins(self._path)
            entries = self._choose_entries(file)
            self._log_fixed(file)
            await self._hub.change_plugins(entries)
        except (ConcertinoError, OSError, ValueError) as exc:
            log.error("%s; the plugins stay as they were", errno_message(exc))
            return
        # Any other exception is a bug in this package. Later changes of the file must still be
        # applied.
        except Exception:
            log.exception("%s: its change has failed", self._path)
            return
        self._file = replace(file, plugins=tuple(entries))
        log.info("%s was reloaded: %d plugins", self._path, len(entries))

    def _log_fixed(self, file: PluginsFile) -> None:
        """Log the settings that have changed and need a restart of the hub, and new warnings.

        file: the new content of the file.
        """
        for name in FIXED:
            if getattr(file, name) != getattr(self._file, name):
                log.warning("%s: %s has changed; restart the hub to apply it", self._path, name)
        for warning in set(file.warnings) - set(self._file.warnings):
            log.warning("%s", warning)

    def _choose_entries(self, file: PluginsFile) -> list[PluginEntry]:
        """Return the entries to run, and set Hub.withheld to the plugins whose change must wait.

        A plugin whose change is not approved keeps its old entry. A new plugin that is not approved
        does not run. Raises UnusableState if the approvals cannot be read.
        """
        if self._trust:
            self._hub.withheld = {}
            return list(file.enabled)
        running = {entry.id: entry for entry in self._file.enabled}
        unapproved = self._find_unapproved(file, running)
        withheld = dict.fromkeys(
            unapproved, f"not approved; to see and approve it: concertino approve {self._path}"
        )
        chosen = {entry.id: entry for entry in file.enabled if entry.id not in unapproved}
        chosen |= {id: running[id] for id in unapproved if id in running}
        _withhold_dependents(chosen, running, withheld)
        self._hub.withheld = withheld
        return [chosen[entry.id] for entry in file.enabled if entry.id in chosen]

    def _find_unapproved(
        self, file: PluginsFile, running: Mapping[str, PluginEntry]
    ) -> Mapping[str, Definition]:
        """Return the definitions that are not approved, by plugin id. Logs each of them once.

        If the user has approved nothing yet, stores the running definitions as approved.
        running: the entries of the running plugins, by id. They count as approved.
        """
        # Open the store at its first use, because a user without a home directory has none.
        store = self._store = self._store or _open_store()
        key, path = store.key(), self._path.resolve()
        definitions = define_plugins(file, key)
        approved = store.read(path)
        running_definitions = {id: define_plugin(entry, key) for id, entry in running.items()}
        unapproved = {
            id: definition
            for id, definition in definitions.items()
            if definition not in (running_definitions.get(id), approved.servers.get(id))
        }
        if unapproved and not approved.servers:
            # `concertino approve` shows the differences from the approved definitions.
            store.approve(path, running_definitions)
            approved = ApprovedFile(str(path), running_definitions)
        self._log_unapproved(unapproved, approved, running)
        self._logged = dict(unapproved)
        # This method may have written the approvals just now, which must not count as a change.
        self._statuses = (self._statuses[0], read_file_status(store.stored_at(path)))
        return unapproved

    def _log_unapproved(
        self,
        unapproved: Mapping[str, Definition],
        approved: ApprovedFile,
        running: Mapping[str, PluginEntry],
    ) -> None:
        """Log what has changed in each definition, unless it was logged before.

        approved: the approved definitions.
        running: the entries of the running plugins, by id.
        """
        for id, definition in unapproved.items():
            if self._logged.get(id) == definition:
                continue
            # Log each line separately, because a log record must be one line.
            for line in describe_unapproved(approved, id, definition):
                log.warning("%s", line)
            outcome = "the plugin runs as before" if id in running else "it is not started"
            log.warning(
                "%s: this is not approved, so %s; to approve it: concertino approve %s",
                id,
                outcome,
                self._path,
            )


def _withhold_dependents(
    chosen: dict[str, PluginEntry],
    running: Mapping[str, PluginEntry],
    withheld: dict[str, str],
) -> None:
    """Withhold the plugins whose entry depends on a plugin that does not run.

    - A plugin keeps its old entry if it runs now and the old entry is not the chosen one.
    - Otherwise it does not run, and the plugins that depend on it are withheld as well.

    chosen: plugin id -> the entry to run. This function changes it.
    running: plugin id -> entry, for the plugins that run now.
    withheld: plugin id -> why its change must wait. This function adds the withheld plugins.
    """
    # Each step changes one entry. The loop ends when no chosen entry has a missing dependency.
    while missing := [
        (entry.id, dependency)
        for entry in chosen.values()
        for dependency in entry.depends_on
        if dependency not in chosen
    ]:
        id, dependency = missing[0]
        withheld[id] = f"it depends on {dependency}, which does not run"
        old = running.get(id)
        if old is None or chosen[id] == old:
            del chosen[id]
        else:
            chosen[id] = old


def _open_store() -> ApprovalStore:
    """Return the user's approvals. Raises ValueError if the user has no home directory."""
    try:
        return ApprovalStore()
    except RuntimeError as exc:
        raise ValueError(f"changes cannot be approved: {exc}") from None
