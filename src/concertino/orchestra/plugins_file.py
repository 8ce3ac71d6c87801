"""read_plugins(): reads a plugins file, which says what plugins a hub starts and where it listens.

    listen_addr: localhost:50100
    plugins:
      - id: tools.greeter
        binary: ./greeter.py
        enabled: true
        socket: true

The Go implementation reads the same format, without the keys that this package adds, such as
`socket`. The Go implementation ignores unknown keys and invalid values. In this package they are
errors, which name the file, the line and the key. The key `tcp_addr` configures a listener without
encryption in the Go implementation. This package has no such listener, and ignores the key with a
warning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from concertino.installation import missing_extra
from concertino.nats.servers import parse_servers
from concertino.orchestra.plugin_entries import HUB, read_entry
from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.yaml_values import InvalidPluginsFile, YamlValue
from concertino.user_files import read_regular_file
from concertino.yaml_core import DisallowedYaml, InvalidYaml, import_parser, read_node

__all__ = ["HUB", "LISTEN", "InvalidPluginsFile", "PluginsFile", "read_plugins"]

# The hub's default address, as in the Go implementation.
LISTEN = "localhost:50100"
# The largest plugins file, in bytes.
MAX_BYTES = 2**20
# How many plugins a file may have.
MAX_PLUGINS = 1000
# The limit for the depth of lists and mappings; the format has 5 levels.
MAX_DEPTH = 32
# The keys that a file may have.
MEMBERS = ("listen_addr", "tcp_addr", "certs_dir", "cluster", "plugins")


class PluginsFile(Struct, frozen=True):
    """The content of a plugins file.

    path: the path of the file.
    listen_addr: the address at which bridges and other programs reach the hub; None if the file
        does not set it.
    certs_dir: the directory of certificates; None if the file does not set it.
    plugins: every entry, in the order of the file.
    warnings: messages to log, about keys that are ignored.
    cluster: the address of a NATS cluster that the hub joins; None if the file does not set it.
    """

    path: Path
    listen_addr: str | None = None
    certs_dir: str | None = None
    plugins: tuple[PluginEntry, ...] = ()
    warnings: tuple[str, ...] = ()
    cluster: str | None = None

    @property
    def enabled(self) -> tuple[PluginEntry, ...]:
        """The entries of the plugins that the hub starts."""
        return tuple(entry for entry in self.plugins if entry.enabled)

    def log_notes(self, log: logging.Logger) -> None:
        """Log the warnings, and the ids of the plugins that are not `enabled`."""
        for warning in self.warnings:
            log.warning("%s", warning)
        for entry in self.plugins:
            if not entry.enabled:
                log.info("%s is not started: enabled is not true", entry.id)


def read_plugins(path: str | os.PathLike[str]) -> PluginsFile:
    """Read and check a plugins file, and return its content.

    Raises InvalidPluginsFile if the file cannot be read or is not valid, and ImportError if the
    extra `orchestra` is not installed.
    """
    try:
        import_parser()
    except ImportError:
        raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

    file_path = Path(path)
    try:
        data = read_regular_file(path, MAX_BYTES)
    except OSError as exc:
        raise InvalidPluginsFile(f"{path}: {exc.strerror}") from None

    try:
        node = read_node(data, max_depth=MAX_DEPTH, aliases=True)
    except InvalidYaml as exc:
        location = str(path) if exc.line is None else f"{path}:{exc.line}"
        # The text of a DisallowedYaml is a predicate, such as "is nested too deeply".
        problem = f"it {exc}" if isinstance(exc, DisallowedYaml) else exc
        raise InvalidPluginsFile(f"{location}: expected YAML: {problem}") from None
    if node is None:
        raise InvalidPluginsFile(f"{path}: expected a mapping with 'plugins', got nothing")
    return _read_file(YamlValue(node, "", file_path))


def _read_file(value: YamlValue) -> PluginsFile:
    """Return the content of a file. value: its root."""
    members = value.members(MEMBERS)
    warnings: list[str] = []
    if "tcp_addr" in members:
        line = members.by_name["tcp_addr"].line
        warnings.append(
            f"{value.file}:{line}: tcp_addr is ignored: "
            "plugins and bridges use QUIC with certificates, or a Unix socket"
        )

    plugins = members.require("plugins", "a list")
    items = plugins.items()
    if len(items) > MAX_PLUGINS:
        raise plugins.error(f"expected at most {MAX_PLUGINS}, got {len(items)}")
    certs_dir = members.read("certs_dir", YamlValue.path)
    entries = tuple(read_entry(item, certs_dir) for item in items)
    _check_ids(value.file, entries)
    _check_dependencies(value.file, entries)
    return PluginsFile(
        path=value.file,
        listen_addr=members.read("listen_addr", YamlValue.address),
        certs_dir=certs_dir,
        plugins=entries,
        warnings=tuple(warnings),
        cluster=members.read("cluster", _read_cluster),
    )


def _read_cluster(value: YamlValue) -> str:
    """Return the address of a NATS cluster."""
    address = value.text()
    try:
        parse_servers(address)
    except ValueError as exc:
        raise value.error(str(exc)) from None
    return address


def _error(path: Path, entry: PluginEntry, problem: str) -> InvalidPluginsFile:
    """Return the error for an entry. path: the path of the file."""
    return InvalidPluginsFile(f"{path}:{entry.line}: {problem}")


def _check_ids(path: Path, entries: Sequence[PluginEntry]) -> None:
    """Check that no two entries have the same id."""
    lines: dict[str, int] = {}
    for entry in entries:
        if entry.id in lines:
            raise _error(
                path,
                entry,
                f"plugins: expected different ids, got {entry.id!r} again; "
                f"it is in line {lines[entry.id]} already",
            )
        lines[entry.id] = entry.line


def _check_dependencies(path: Path, entries: Sequence[PluginEntry]) -> None:
    """Check that the dependencies of enabled plugins are enabled plugins, without cycles."""
    by_id = {entry.id: entry for entry in entries}
    enabled = [entry for entry in entries if entry.enabled]
    for entry in enabled:
        for id in entry.depends_on:
            if id not in by_id:
                expected = "the id of a plugin of this file"
            elif not by_id[id].enabled:
                expected = "a plugin with enabled: true"
            else:
                continue
            raise _error(path, entry, f"{entry.id}.depends_on: expected {expected}, got {id!r}")

    acyclic: set[str] = set()
    for entry in enabled:
        if cycle := _find_cycle(entry.id, by_id, acyclic):
            problem = f"depends_on: expected no circle, got {' -> '.join(cycle)}"
            raise _error(path, entry, problem)


def _find_cycle(start: str, by_id: Mapping[str, PluginEntry], acyclic: set[str]) -> list[str]:
    """Return a cycle of dependencies that can be reached from a plugin; empty if there is none.

    acyclic: ids of plugins that are known to reach no cycle. The search adds ids to it.
    """
    # A depth-first search. `path` leads from the start to the current plugin. For each plugin on
    # the path, `unvisited` has the dependencies of this plugin that remain to be visited.
    path: list[str] = [start]
    unvisited = [list(by_id[start].depends_on)]
    while unvisited:
        if not unvisited[-1]:
            unvisited.pop()
            acyclic.add(path.pop())
            continue
        id = unvisited[-1].pop()
        if id in path:
            return [*path[path.index(id) :], id]
        if id not in acyclic:
            path.append(id)
            unvisited.append(list(by_id[id].depends_on))
    return []
