"""read_entry(): reads one entry of a plugins file. plugins_file.py calls it for each entry.

A plugins file lists the plugins that a hub starts. An entry describes one of three kinds of
plugins:

- a program that speaks the plugin protocol (`binary` or `package`)
- an MCP server (`protocol: mcp`)
- another hub (`hub`). The hub reaches it through a bridge, a process that serves the tools of the
  other hub as an MCP server. So an entry with `hub` is read as the entry of an MCP server whose
  command starts the bridge.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from concertino.errors import ConcertinoError
from concertino.nats.subjects import FRONT_END, NATS_SERVER
from concertino.orchestra.certificates import HUB, CertificateError, check_name, is_reserved_name
from concertino.orchestra.mcp_entry import (
    FILE,
    MCP_MEMBERS,
    OPTIONS,
    SERVER,
    bridge_command,
    read_mcp_entry,
)
from concertino.orchestra.package_entry import PackageProgram, find_package
from concertino.orchestra.plugin_entry import MCP_ARGS, PluginEntry
from concertino.orchestra.storage import RESOURCES
from concertino.orchestra.watched_paths import WatchedPaths, find_server_files, watch_programs
from concertino.orchestra.yaml_values import YamlMembers, YamlValue

__all__ = ["HUB", "read_entry"]

# The keys that the entries of programs and MCP servers may have.
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
# The keys that only the entries of programs of the plugin protocol may have.
PROGRAM_MEMBERS = ("binary", "config", "provides_storage", "socket", "package", "digest")
# The key that names another hub, and all keys that an entry with it may have.
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
ALL_MEMBERS = (*MEMBERS, *PROGRAM_MEMBERS, *MCP_MEMBERS, OTHER_HUB)
MCP = "mcp"
PROTOCOLS = ("orchestra", MCP)


def read_entry(value: YamlValue, certs_dir: str | None) -> PluginEntry:
    """Check one entry and return it.

    value: an item of the list `plugins` in the file.
    certs_dir: the directory of certificates for a bridge to another hub; None for the default
        directory.
    Raises InvalidPluginsFile if the entry is not valid.
    """
    members = value.members(ALL_MEMBERS)
    is_hub = OTHER_HUB in members
    is_mcp = is_hub or members.read("protocol", _is_mcp) or False
    id = _read_id(members.require("id"))
    if not is_mcp and "package" not in members:
        members.require("binary")

    # The id is known now. Read the members again with a label that contains the id, because errors
    # begin with the label.
    value = YamlValue(value.node, f"{value.label} ({id})", value.file)
    members = value.members(ALL_MEMBERS)
    if is_hub:
        return _read_other_hub(id, members, certs_dir)
    for name in PROGRAM_MEMBERS if is_mcp else MCP_MEMBERS:
        if name in members:
            expected = "no `protocol: mcp`" if is_mcp else "`protocol: mcp`"
            raise members.by_name[name].error(f"expected {expected} beside it")
    return _read_server(id, members) if is_mcp else _read_program(id, members)


def _read_id(value: YamlValue) -> str:
    """Return the id of a plugin, which is also the name of its certificate."""
    id = value.text()
    try:
        check_name(id)
    except CertificateError:
        expected = "up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        raise value.error(f"expected {expected}, got {id!r}") from None
    if is_reserved_name(id):
        raise value.error(
            "expected a name that is not reserved for other certificates "
            f"({HUB}, {HUB}-to-..., {NATS_SERVER}, {FRONT_END}, ...-client), got {id!r}"
        )
    return id


def _is_mcp(value: YamlValue) -> bool:
    """Return whether the value of `protocol` is `mcp`."""
    protocol = value.text()
    if protocol not in PROTOCOLS:
        raise value.error(f"expected one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    return protocol == MCP


def _read_common(members: YamlMembers) -> dict[str, Any]:
    """Return the fields of PluginEntry that all kinds of entries have, by name."""
    return {
        # False if the key is missing.
        "enabled": members.read("enabled", YamlValue.bool) or False,
        "provides_ai": members.read("provides_ai", YamlValue.texts) or (),
        "depends_on": members.read("depends_on", YamlValue.texts) or (),
        "line": members.owner.line,
        # True if the key is missing.
        "offer": members.read("offer", YamlValue.bool) is not False,
    }


# Programs of the plugin protocol


def _read_program(id: str, members: YamlMembers) -> PluginEntry:
    """Return the entry of a plugin of the plugin protocol."""
    program = _find_program(members)
    common = _read_common(members)
    common["provides_ai"] = common["provides_ai"] or program.provides_ai
    # Many plugins take the argument `--workspace=.`, where "." means the directory of the plugins
    # file. Like the Go implementation, replace "." by the path of this directory, because the
    # plugin's working directory is another one.
    workspace = f"--workspace={members.owner.folder}"
    args = members.read("args", YamlValue.texts) or ()
    return PluginEntry(
        id,
        program.binary,
        args=(*program.args, *(workspace if arg == "--workspace=." else arg for arg in args)),
        env={**program.env, **(members.read("env", YamlValue.environment) or {})},
        config=members.read("config", YamlValue.text_mapping) or {},
        provides_storage=members.read("provides_storage", YamlValue.texts) or (),
        socket=members.read("socket", YamlValue.bool) or program.socket,
        watch=members.read("watch", lambda value: _read_watch(value, [program.binary])),
        **common,
    )


def _find_program(members: YamlMembers) -> PackageProgram:
    """Return the program that the `binary` or the `package` of an entry names."""
    package, digest = members.by_name.get("package"), members.by_name.get("digest")
    if package is None:
        if digest is not None:
            raise digest.error("expected `package` beside it")
        return PackageProgram(_resolve_binary(members.require("binary")))
    if "binary" in members:
        raise members.by_name["binary"].error("expected no `package` beside it")
    id = package.text()
    try:
        found = find_package(id)
    except ConcertinoError as exc:
        raise package.error(str(exc)) from None
    if digest is not None:
        expected = digest.text()
        try:
            found.check_digest(expected)
        except ConcertinoError as exc:
            raise digest.error(str(exc)) from None
    return found.program()


def _resolve_binary(value: YamlValue) -> str:
    """Return the path of a program, resolved against the directory of the plugins file.

    A name without a slash is returned unchanged, to be looked up in PATH, unless the directory has
    a file of this name.
    """
    text = value.text()
    path = Path(text).expanduser()
    in_folder = value.folder / path
    return text if os.sep not in text and not in_folder.exists() else str(in_folder)


# MCP servers and other hubs


def _read_server(id: str, members: YamlMembers, command: Sequence[str] = ()) -> PluginEntry:
    """Return the entry of an MCP server, which runs behind `concertino plugin mcp`.

    command: the command of a bridge to another hub; empty to use the command in the entry.
    """
    env = members.read("env", YamlValue.environment) or {}
    server_json = read_mcp_entry(id, members, env, command)

    def read_watch(value: YamlValue) -> WatchedPaths | None:
        return _read_watch(value, find_server_files(server_json, value.folder))

    return PluginEntry(
        id,
        "concertino",
        args=(*MCP_ARGS, f"--id={id}"),
        # `concertino plugin mcp` needs all variables of the hub, for references such as ${HOME}. It
        # passes only a few of them on to the MCP server.
        env=dict.fromkeys(os.environ),
        config={FILE: str(members.owner.file.absolute()), SERVER: server_json},
        provides_storage=(RESOURCES,),
        socket=True,
        watch=members.read("watch", read_watch),
        is_bridge=bool(command),
        **_read_common(members),
    )


def _read_other_hub(id: str, members: YamlMembers, certs_dir: str | None) -> PluginEntry:
    """Return the entry of a plugin that offers the tools of another hub.

    The plugin's MCP server is a bridge to that hub (bridge.py).
    certs_dir: the directory with the certificates for the bridge; None for the default directory.
    """
    for name, value in members.by_name.items():
        if name not in OTHER_HUB_MEMBERS:
            raise value.error(f"expected no `{OTHER_HUB}` beside it")
    address = members.by_name[OTHER_HUB].address()
    return _read_server(id, members, bridge_command(address, certs_dir))


def _read_watch(value: YamlValue, programs: Sequence[str]) -> WatchedPaths | None:
    """Return the paths to watch from the value of `watch`; None for `false`.

    value: `true` for `programs`, a path, or a list of paths.
    programs: the program of the plugin; for an MCP server, the files in its command.
    """
    if value.is_bool:
        if not value.bool():
            return None
        watched = watch_programs(programs)
        if watched is None:
            raise value.error("the program is not a file here; name a path")
        return watched
    values = value.items() if value.node.kind == "sequence" else [value]
    paths = tuple(item.path() for item in values)
    for item, path in zip(values, paths, strict=True):
        if not Path(path).exists():
            raise item.error(f"no such file or folder: {path}")
    return WatchedPaths(paths=paths)
