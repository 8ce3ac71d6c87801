"""read_plugins(): reads plugins.yaml, which says what plugins a hub starts and where it listens.

    listen_addr: localhost:50100
    plugins:
      - id: tools.greeter
        binary: ./greeter.py
        enabled: true
        socket: true

The Go implementation reads the same format, without the members that this package adds, such as
`socket`. Unknown members and invalid values are errors here, which name file, line and member; the
Go implementation ignores them. In the Go implementation, `tcp_addr` configures a listener without
encryption. This package has no such listener, and ignores the member with a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from concertino.errors import ConcertinoError
from concertino.installation import missing_extra
from concertino.nats.servers import parse_servers
from concertino.orchestra.mcp_entry import (
    FILE,
    MCP_MEMBERS,
    OPTIONS,
    SERVER,
    bridge_command,
    change_certs_dir,
    read_mcp_entry,
)
from concertino.orchestra.package_entry import PackageProgram, find_program
from concertino.orchestra.storage import RESOURCES
from concertino.orchestra.watched_paths import WatchedPaths, find_server_files, watch_programs
from concertino.proxy.value_reader import InvalidServerFile
from concertino.transports.listeners import split_address
from concertino.yaml_core import InvalidYaml, YamlLimit, YamlNode, import_parser, is_null, read_node

__all__ = ["HUB", "LISTEN", "InvalidPluginsFile", "PluginEntry", "PluginsFile", "read_plugins"]

# The hub's default address, as in the Go implementation.
LISTEN = "localhost:50100"
# The largest plugins file, in bytes.
MAX_BYTES = 2**20
MAX_PLUGINS = 1000
# The limit for the depth of lists and mappings; the format has 5 levels.
MAX_DEPTH = 32
# The name of a hub's certificate; see certificates.py for the other names.
HUB = "orchestrator"
# Like the Go implementation, accept the words of YAML 1.1 where a boolean is expected.
_BOOLS = {
    **dict.fromkeys(("true", "yes", "on", "y"), True),
    **dict.fromkeys(("false", "no", "off", "n"), False),
}

# The members of every plugin's entry, and the members that only plugins of the plugin protocol
# have.
MEMBERS = (
    "id",
    "args",
    "env",
    "enabled",
    "provides_ai",
    "depends_on",
    "protocol",
    "watch",
    "offer",
)
OWN_MEMBERS = ("binary", "config", "provides_storage", "socket")
PACKAGE_MEMBERS = ("package", "digest")
# The member that names another hub, and all members that an entry with it may have.
OTHER_HUB = "hub"
OTHER_HUB_MEMBERS = (
    "id",
    OTHER_HUB,
    "env",
    "enabled",
    "provides_ai",
    "depends_on",
    "offer",
    OPTIONS,
)
MCP = "mcp"
PROTOCOLS = ("orchestra", MCP)
MCP_ARGS = ("plugin", "mcp")

T = TypeVar("T")


class InvalidPluginsFile(ConcertinoError):
    """A plugins file that cannot be used.

    The text names file, line and member, what was expected, and what is there.
    """


class PluginEntry(Struct, frozen=True):
    """The entry of one plugin in a plugins file.

    binary: an absolute path, or a name to look up in PATH.
    env: variables in addition to the few that every plugin inherits. None means that the hub's
        environment has the value.
    config: the configuration that the hub sends to the plugin at boot.
    provides_storage: the storage types that the plugin provides.
    provides_ai: the names of the AI providers to which the plugin gives access.
    depends_on: ids of plugins to start before this one.
    socket: whether the plugin uses a Unix socket instead of QUIC.
    line: the line of the entry in the file.
    watch: the files whose changes restart the plugin; None to watch none.
    offer: whether a hub in a cluster offers the plugin to the other hubs.
    is_bridge: whether the plugin is a bridge to another hub (`hub`). Then it is an MCP server, too.
    """

    id: str
    binary: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = {}
    config: Mapping[str, str] = {}
    enabled: bool = False
    provides_storage: tuple[str, ...] = ()
    provides_ai: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    socket: bool = False
    line: int = 0
    watch: WatchedPaths | None = None
    offer: bool = True
    is_bridge: bool = False

    @property
    def is_mcp(self) -> bool:
        """Whether the plugin is an MCP server (`protocol: mcp`).

        `config` then contains the server, and the other fields say how to start `concertino plugin
        mcp`.
        """
        return self.args[:2] == MCP_ARGS and SERVER in self.config

    def with_certs_dir(self, certs_dir: str | None) -> PluginEntry:
        """Return the entry for a hub with another folder of certificates; None changes nothing."""
        if certs_dir is None or not self.is_bridge:
            return self
        server = change_certs_dir(self.config[SERVER], certs_dir)
        return replace(self, config={**self.config, SERVER: server})


class PluginsFile(Struct, frozen=True):
    """The content of a plugins file.

    listen_addr, certs_dir, cluster: None if the file does not set them.
    plugins: every entry, in the order of the file.
    warnings: messages to log.
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


def read_plugins(path: str | os.PathLike[str]) -> PluginsFile:
    """Read and check a plugins file.

    Raises InvalidPluginsFile, and ImportError when the extra `orchestra` is not installed.
    """
    try:
        import_parser()
    except ImportError:
        raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

    file_path = Path(path)
    try:
        with file_path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise InvalidPluginsFile(f"{path}: {exc.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InvalidPluginsFile(f"{path}: expected at most {MAX_BYTES} bytes")

    try:
        node = read_node(data, max_depth=MAX_DEPTH, aliases=True)
    except InvalidYaml as exc:
        location = str(path) if exc.line is None else f"{path}:{exc.line}"
        problem = f"it {exc}" if isinstance(exc, YamlLimit) else exc
        raise InvalidPluginsFile(f"{location}: expected YAML: {problem}") from None
    if node is None:
        raise InvalidPluginsFile(f"{path}: expected a mapping with 'plugins', got nothing")
    return _Reader(file_path).read_file(node)


class _Reader:
    """Converts YAML nodes to Structs, and raises InvalidPluginsFile with the line of a wrong node.

    In each method, `label` is the path of the node in the file, such as "plugins[0].id", for
    messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.absolute().parent

    def _error(self, node: YamlNode, message: str) -> InvalidPluginsFile:
        return InvalidPluginsFile(f"{self._path}:{node.line}: {message}")

    def read_file(self, node: YamlNode) -> PluginsFile:
        """Read the whole file."""
        members = self._members(
            node, "the file", ("listen_addr", "tcp_addr", "certs_dir", "cluster", "plugins")
        )
        warnings: list[str] = []
        if "tcp_addr" in members:
            line = members["tcp_addr"].line
            warnings.append(
                f"{self._path}:{line}: tcp_addr is ignored: "
                "plugins and bridges use QUIC with certificates, or a Unix socket"
            )

        list_node = members.get("plugins")
        if list_node is None:
            raise self._error(node, "plugins: expected a list, got nothing")
        nodes = self._items(list_node, "plugins")
        if len(nodes) > MAX_PLUGINS:
            raise self._error(
                list_node, f"plugins: expected at most {MAX_PLUGINS}, got {len(nodes)}"
            )
        certs_dir = self._optional(members, "certs_dir", self._file_path)
        entries = tuple(self._entry(item, number, certs_dir) for number, item in enumerate(nodes))
        self._check_ids(entries, nodes)
        self._check_dependencies(entries, nodes)
        return PluginsFile(
            self._path,
            self._optional(members, "listen_addr", self._address),
            certs_dir,
            entries,
            tuple(warnings),
            self._optional(members, "cluster", self._cluster_address),
        )

    def _cluster_address(self, node: YamlNode, label: str) -> str:
        address = self._text(node, label)
        try:
            parse_servers(address)
        except ValueError as exc:
            raise self._error(node, f"{label}: {exc}") from None
        return address

    def _entry(self, node: YamlNode, number: int, certs_dir: str | None) -> PluginEntry:
        label = f"plugins[{number}]"
        members = self._members(
            node, label, (*OWN_MEMBERS, *MEMBERS, *MCP_MEMBERS, *PACKAGE_MEMBERS, OTHER_HUB)
        )
        if is_hub := OTHER_HUB in members:
            members = self._bridge_members(label, members, certs_dir)
        is_mcp = is_hub or self._optional(members, "protocol", self._is_mcp, label) or False
        program = "package" if "package" in members else "binary"
        for name in ("id",) if is_mcp else ("id", program):
            if name not in members:
                raise self._error(node, f"{label}.{name}: expected a text, got nothing")
        id = self._text(members["id"], f"{label}.id")
        self._check_name(members["id"], f"{label}.id", id)
        label = f"{label} ({id})"
        for name in (*OWN_MEMBERS, *PACKAGE_MEMBERS) if is_mcp else MCP_MEMBERS:
            if name in members:
                expected = "no `protocol: mcp`" if is_mcp else "`protocol: mcp`"
                raise self._error(members[name], f"{label}.{name}: expected {expected} beside it")
        if is_mcp:
            return replace(self._mcp_entry(node, label, id, members), is_bridge=is_hub)

        return self._own_entry(node, label, id, members)

    def _bridge_members(
        self, label: str, members: Mapping[str, YamlNode], certs_dir: str | None
    ) -> dict[str, YamlNode]:
        """Return the members of the MCP server that stands for another hub: a bridge to it."""
        for name, node in members.items():
            if name not in OTHER_HUB_MEMBERS:
                raise self._error(node, f"{label}.{name}: expected no `{OTHER_HUB}` beside it")
        node = members[OTHER_HUB]
        address = self._address(node, f"{label}.{OTHER_HUB}")
        command = bridge_command(address, certs_dir, node.line)
        others = {name: item for name, item in members.items() if name != OTHER_HUB}
        return {**others, "command": command}

    def _own_entry(
        self,
        node: YamlNode,
        label: str,
        id: str,
        members: Mapping[str, YamlNode],
    ) -> PluginEntry:
        """Read the entry of a plugin of the plugin protocol."""
        program = self._program(label, members)
        # Like the Go implementation, replace this one argument: the plugin's working directory is
        # not the folder of the file.
        args = self._optional(members, "args", self._texts, label) or ()
        workspace = f"--workspace={self._folder}"
        watched = partial(self._watched, binary=program.binary)
        return PluginEntry(
            id,
            program.binary,
            (*program.args, *(workspace if arg == "--workspace=." else arg for arg in args)),
            {**program.env, **(self._optional(members, "env", self._environment, label) or {})},
            self._optional(members, "config", self._text_mapping, label) or {},
            self._optional(members, "enabled", self._bool, label) or False,
            self._optional(members, "provides_storage", self._texts, label) or (),
            self._optional(members, "provides_ai", self._texts, label) or program.provides_ai,
            self._optional(members, "depends_on", self._texts, label) or (),
            self._optional(members, "socket", self._bool, label) or program.socket,
            node.line,
            self._optional(members, "watch", watched, label),
            self._is_offered(members, label),
        )

    def _program(self, label: str, members: Mapping[str, YamlNode]) -> PackageProgram:
        """Return the program that the `binary` or the `package` of an entry names."""
        digest = self._optional(members, "digest", self._text, label)
        if "package" not in members:
            if digest is not None:
                raise self._error(
                    members["digest"], f"{label}.digest: expected `package` beside it"
                )
            return PackageProgram(self._binary(self._text(members["binary"], f"{label}.binary")))
        if "binary" in members:
            raise self._error(members["binary"], f"{label}.binary: expected no `package` beside it")
        node = members["package"]
        try:
            return find_program(self._text(node, f"{label}.package"), digest)
        except InvalidPluginsFile:
            raise
        except ConcertinoError as exc:
            raise self._error(node, f"{label}.package: {exc}") from None

    def _is_mcp(self, node: YamlNode, label: str) -> bool:
        """Read the member `protocol`, and return whether it is `mcp`."""
        protocol = self._text(node, label)
        if protocol not in PROTOCOLS:
            raise self._error(
                node, f"{label}: expected one of {', '.join(PROTOCOLS)}, got {protocol!r}"
            )
        return protocol == MCP

    def _mcp_entry(
        self,
        node: YamlNode,
        label: str,
        id: str,
        members: Mapping[str, YamlNode],
    ) -> PluginEntry:
        """Read the entry of an MCP server: it runs behind `concertino plugin mcp`."""
        env = self._optional(members, "env", self._environment, label) or {}
        try:
            server = read_mcp_entry(str(self._path), id, label, node, members, env)
        except InvalidServerFile as exc:
            raise InvalidPluginsFile(str(exc)) from None
        return PluginEntry(
            id,
            "concertino",
            (*MCP_ARGS, f"--id={id}"),
            # The process needs all of the hub's variables, for references such as ${HOME}. It
            # passes only a few of them on to the server.
            env=dict.fromkeys(os.environ),
            config={FILE: str(self._path.absolute()), SERVER: server},
            enabled=self._optional(members, "enabled", self._bool, label) or False,
            provides_storage=(RESOURCES,),
            provides_ai=self._optional(members, "provides_ai", self._texts, label) or (),
            depends_on=self._optional(members, "depends_on", self._texts, label) or (),
            socket=True,
            line=node.line,
            watch=self._optional(members, "watch", partial(self._watched, server=server), label),
            offer=self._is_offered(members, label),
        )

    def _is_offered(self, members: Mapping[str, YamlNode], label: str) -> bool:
        """Read the member `offer`. It is true by default."""
        return self._optional(members, "offer", self._bool, label) is not False

    def _watched(
        self, node: YamlNode, label: str, binary: str = "", server: str = ""
    ) -> WatchedPaths | None:
        """Read the member `watch`: true for the program's own files, a path, or a list of paths.

        binary: the program of the plugin; "" for an MCP server.
        server: the JSON of an MCP server; "" for other plugins.
        """
        if node.kind == "scalar" and node.plain and node.value.lower() in _BOOLS:
            if not self._bool(node, label):
                return None
            files = [binary] if binary else find_server_files(server, self._folder)
            if not (watched := watch_programs(files)):
                raise self._error(node, f"{label}: the program is not a file here; name a path")
            return watched
        nodes = self._items(node, label) if node.kind == "sequence" else [node]
        paths = [self._file_path(item, label) for item in nodes]
        for item, path in zip(nodes, paths, strict=True):
            if not Path(path).exists():
                raise self._error(item, f"{label}: no such file or folder: {path}")
        return WatchedPaths(paths=tuple(paths))

    def _binary(self, text: str) -> str:
        """Return the absolute path of a program, resolved against the file's folder.

        A bare name is returned unchanged, to be looked up in PATH, unless the folder has such a
        file.
        """
        path = Path(text).expanduser()
        in_folder = self._folder / path
        return text if os.sep not in text and not in_folder.exists() else str(in_folder)

    # Checks

    def _check_name(
        self,
        node: YamlNode,
        label: str,
        id: str,
    ) -> None:
        """Check a plugin's id, which is also the name of its certificate."""
        from concertino.orchestra.certificates import CertificateError, check_name

        try:
            check_name(id)
        except CertificateError:
            expected = "up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
            raise self._error(node, f"{label}: expected {expected}, got {id!r}") from None
        if id == HUB or id.startswith(f"{HUB}-to-") or id.endswith("-client"):
            raise self._error(
                node,
                f"{label}: expected a name that is not reserved for other certificates "
                f"({HUB}, {HUB}-to-..., ...-client), got {id!r}",
            )

    def _check_ids(self, entries: Sequence[PluginEntry], nodes: Sequence[Any]) -> None:
        """Check that no two entries have the same id. nodes: the YAML nodes of the entries."""
        lines: dict[str, int] = {}
        for entry, node in zip(entries, nodes, strict=True):
            if entry.id in lines:
                raise self._error(
                    node,
                    f"plugins: expected different ids, got {entry.id!r} again; "
                    f"it is in line {lines[entry.id]} already",
                )
            lines[entry.id] = entry.line

    def _check_dependencies(self, entries: Sequence[PluginEntry], nodes: Sequence[Any]) -> None:
        """Check that all dependencies are enabled plugins, and that there are no cycles."""
        by_id = {entry.id: entry for entry in entries}
        for entry, node in zip(entries, nodes, strict=True):
            for id in entry.depends_on if entry.enabled else ():
                label = f"{entry.id}.depends_on"
                if id not in by_id:
                    raise self._error(
                        node, f"{label}: expected the id of a plugin of this file, got {id!r}"
                    )
                if not by_id[id].enabled:
                    raise self._error(
                        node, f"{label}: expected a plugin with enabled: true, got {id!r}"
                    )

        acyclic: set[str] = set()
        for entry, node in zip(entries, nodes, strict=True):
            if entry.enabled and (cycle := _find_cycle(entry.id, by_id, acyclic)):
                raise self._error(node, f"depends_on: expected no circle, got {' -> '.join(cycle)}")

    # Values

    def _optional(
        self,
        members: Mapping[str, Any],
        name: str,
        read: Callable[[Any, str], T],
        label: str = "",
    ) -> T | None:
        """Read a member with one of the methods below; None if it is missing or null."""
        node = members.get(name)
        if node is None or is_null(node):
            return None
        return read(node, f"{label}.{name}" if label else name)

    def _members(
        self,
        node: YamlNode,
        label: str,
        known: Sequence[str],
    ) -> dict[str, Any]:
        """Return the members of a mapping by name; unknown members are errors."""
        pairs = self._pairs(node, label)
        for name, (key, _) in pairs.items():
            if name not in known:
                raise self._error(key, f"{label}: expected one of {', '.join(known)}, got {name!r}")
        return {name: value for name, (_, value) in pairs.items()}

    def _pairs(self, node: YamlNode, label: str) -> dict[str, tuple[Any, Any]]:
        """Return the nodes of each key and value, by key; repeated keys are errors."""
        if node.kind != "mapping":
            raise self._error(node, f"{label}: expected a mapping, got {_describe(node)}")
        pairs: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            name = self._text(key, f"{label}: a name")
            if name in pairs:
                raise self._error(key, f"{label}.{name}: expected once, got twice")
            pairs[name] = key, value
        return pairs

    def _items(self, node: YamlNode, label: str) -> list[Any]:
        """Return the items of a list; none if the node is null."""
        if is_null(node):
            return []
        if node.kind != "sequence":
            raise self._error(node, f"{label}: expected a list, got {_describe(node)}")
        return cast(list[Any], node.value)

    def _text(self, node: YamlNode, label: str) -> str:
        """Read any scalar as a string: `port: 8080` gives "8080", as in the Go implementation."""
        if node.kind != "scalar" or is_null(node) or not node.value or "\0" in node.value:
            raise self._error(node, f"{label}: expected a text, got {_describe(node)}")
        return cast(str, node.value)

    def _file_path(self, node: YamlNode, label: str) -> str:
        """Read a path, and resolve it against the file's folder."""
        return str(self._folder / Path(self._text(node, label)).expanduser())

    def _address(self, node: YamlNode, label: str) -> str:
        """Read the address of a hub. The path of a socket is resolved against the file's folder."""
        text = self._text(node, label)
        if text.startswith("unix:"):
            return f"unix:{self._folder / Path(text.removeprefix('unix:')).expanduser()}"
        try:
            split_address(text)
        except ValueError:
            raise self._error(
                node, f"{label}: expected HOST:PORT or unix:PATH, got {text!r}"
            ) from None
        return text

    def _texts(self, node: YamlNode, label: str) -> tuple[str, ...]:
        return tuple(
            self._text(item, f"{label}[{number}]")
            for number, item in enumerate(self._items(node, label))
        )

    def _bool(self, node: YamlNode, label: str) -> bool:
        value = _BOOLS.get(node.value.lower()) if node.kind == "scalar" and node.plain else None
        if value is None:
            raise self._error(node, f"{label}: expected true or false, got {_describe(node)}")
        return value

    def _text_mapping(self, node: YamlNode, label: str) -> dict[str, str]:
        """Read a mapping of strings to strings."""
        return {
            name: "" if _is_empty(value) else self._text(value, f"{label}.{name}")
            for name, (_, value) in self._pairs(node, label).items()
        }

    def _environment(self, node: YamlNode, label: str) -> dict[str, str | None]:
        """Read environment variables by name.

        A variable without a value gets None, and must exist in the hub's environment.
        """
        variables: dict[str, str | None] = {}
        for name, (key, value) in self._pairs(node, label).items():
            if "=" in name:
                raise self._error(key, f"{label}: expected the name of a variable, got {name!r}")
            if not is_null(value):
                variables[name] = "" if _is_empty(value) else self._text(value, f"{label}.{name}")
            elif name in os.environ:
                variables[name] = None
            else:
                raise self._error(
                    key,
                    f"{label}.{name}: expected a value, here or in the hub's environment, got none",
                )
        return variables


def _is_empty(node: YamlNode) -> bool:
    """Return whether a node has no value, as `name:` without anything after it."""
    return node.kind == "scalar" and not node.value


def _describe(node: YamlNode) -> str:
    """Return a description of a node for an error: what was found in place of what is expected."""
    if node.kind != "scalar":
        return f"a {node.kind}"
    return repr(node.value[:80]) if node.value else "nothing"


def _find_cycle(start: str, by_id: Mapping[str, PluginEntry], acyclic: set[str]) -> list[str]:
    """Return a cycle of dependencies that can be reached from a plugin; empty if there is none.

    acyclic: ids of plugins that are known to reach no cycle. The search adds ids to it.
    """
    # Depth-first: `path` leads from the start to the current plugin, and `left` holds the
    # dependencies that remain to be visited, for each plugin on the path.
    path: list[str] = [start]
    left = [list(by_id[start].depends_on)]
    while left:
        if not left[-1]:
            left.pop()
            acyclic.add(path.pop())
            continue
        id = left[-1].pop()
        if id in path:
            return [*path[path.index(id) :], id]
        if id not in acyclic:
            path.append(id)
            left.append(list(by_id[id].depends_on))
    return []
