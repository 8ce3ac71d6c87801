"""read_mcp_entry(): reads the entry of an MCP server in a plugins file, which is YAML.

    - id: tools.github
      protocol: mcp
      command: npx -y @modelcontextprotocol/server-github
      env:
        GITHUB_TOKEN:
      enabled: true

The hub starts a plugin for such an entry, which runs the MCP server (mcp_plugin.py). The hub sends
the plugin a description of the server in the form of a server file: JSON as in `mcp.json`, with
this one server. Most keys of the entry have the same names and values as in a server file, so the
code for server files checks them (proxy/server_file.py).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import decode, encode

from concertino.orchestra.yaml_values import InvalidPluginsFile, YamlMembers, YamlValue
from concertino.proxy.file_values import FileMember, FileValue
from concertino.proxy.server_file import read_server_entry
from concertino.proxy.value_reader import InvalidServerFile
from concertino.yaml_core import InvalidYaml, YamlNode, is_null, read_value

__all__ = [
    "FILE",
    "MCP_MEMBERS",
    "OPTIONS",
    "SERVER",
    "bridge_command",
    "change_certs_dir",
    "read_mcp_entry",
]

# The keys of the configuration that the hub sends to the plugin at boot: FILE for the path of the
# plugins file, and SERVER for the server as the JSON of a server file.
FILE, SERVER = "file", "server"
# The key of the options that only this package has, such as limits of calls.
OPTIONS = "x-concertino"
# The keys of an MCP server's entry that the entries of other plugins do not have.
MCP_MEMBERS = ("command", "url", "headers", "cwd", OPTIONS)
# Options that a plugin cannot have. They need the user's approvals or the cache, which only
# `concertino serve mcp.json` has.
UNSUPPORTED_OPTIONS = ("pin", "cache", "lazy")


def read_mcp_entry(
    id: str,
    members: YamlMembers,
    env: Mapping[str, str | None],
    command: Sequence[str] = (),
) -> str:
    """Convert an entry of the plugins file with `protocol: mcp` to a server file.

    Returns JSON as in `mcp.json`, with this one server: {"mcpServers": {ID: {...}}}.

    id: the plugin's id, which becomes the name of the server.
    members: the keys and values of the entry. Keys that all plugins have, such as `enabled`, are
        ignored.
    env: the environment variables of the entry, as name -> value. None stands for the value in the
        hub's environment.
    command: the words of the command if the entry has no key `command`.
    Raises InvalidPluginsFile, with the line of the mistake.
    """
    entry = members.owner
    # Collect the keys for the server file. Three keys have another form in a server file: `command`
    # is only the program, `args` is a list of words, and `env` has `${NAME}` for a value in the
    # hub's environment. In the entry, `command` is a text or a list, and has the whole command or
    # its first words; `args` has the rest.
    values = {
        name: _to_value(value.node)
        for name, value in members.by_name.items()
        if name in MCP_MEMBERS
    }
    words, args = list(command), members.by_name.get("args")
    if "command" in members:
        words = _split_words(members.by_name["command"])
    if args is not None:
        if not words:
            raise args.error("expected a command, got none")
        words += _split_words(args)
    # The 1 in each FileValue and FileMember is the column (_to_value()).
    if words:
        command_line = values["command"].line if "command" in values else entry.line
        values["command"] = FileValue(words[0], command_line, 1)
        args_line = command_line if args is None else args.line
        if words[1:]:
            values["args"] = FileValue(
                tuple(FileValue(word, args_line, 1) for word in words[1:]), args_line, 1
            )
    if env:
        texts = {name: f"${{{name}}}" if text is None else text for name, text in env.items()}
        values["env"] = _from_texts(texts, members.by_name["env"].line)

    fields = {name: FileMember(value, value.line, 1) for name, value in values.items()}
    member = FileMember(FileValue(fields, entry.line, 1), entry.line, 1)
    file = str(entry.file)
    try:
        # Only check the entry. The result is not needed, because the plugin reads the JSON again.
        read_server_entry(file, id, member, entry.label)
    except InvalidServerFile as exc:
        # The message is `FILE:LINE:COLUMN: PROBLEM` (ValueReader.error()). Remove the column,
        # because it is always 1 (_to_value()).
        line, _, problem = str(exc).removeprefix(f"{file}:").partition(":1: ")
        raise InvalidPluginsFile(f"{file}:{line}: {problem}") from None
    if (options := members.by_name.get(OPTIONS)) is not None:
        for option in UNSUPPORTED_OPTIONS:
            if option in read_value(options.node):
                problem = (
                    "not possible for a plugin; leave it out, or serve the server with "
                    "`concertino serve mcp.json`"
                )
                label = f"{options.label}.{option}"
                raise YamlValue(options.node, label, options.file).error(problem)
    server = {name: _to_json(value) for name, value in values.items()}
    return encode({"mcpServers": {id: server}}).decode()


def bridge_command(address: str, certs_dir: str | None) -> list[str]:
    """Return the words of the command that starts a bridge to a hub.

    A bridge is an MCP server that offers the tools of the hub (bridge.py).
    address: the address of the hub.
    certs_dir: the directory of the bridge's certificate; None for the default directory.
    """
    words = [sys.executable, "-m", "concertino", "bridge", f"--orchestrator-addr={address}"]
    return words if certs_dir is None else [*words, f"--certs-dir={certs_dir}"]


def change_certs_dir(server: str, certs_dir: str) -> str:
    """Set the directory of certificates in a server file that starts a bridge to another hub.

    server: the JSON of a server file with one server, whose command is from bridge_command().
    certs_dir: the path of the directory.
    Returns the changed JSON.
    """
    file = decode(server)
    for bridge in file["mcpServers"].values():
        # If the command has the option already, the bridge uses the last value.
        bridge["args"].append(f"--certs-dir={certs_dir}")
    return encode(file).decode()


def _split_words(value: YamlValue) -> list[str]:
    """Return the words of a command, from a YAML list or from a text that is split as in a shell.

    Raises InvalidPluginsFile if the value is neither of them, or has no words.
    """
    node = value.node
    if node.kind == "scalar" and not is_null(node):
        try:
            words = shlex.split(node.value)
        except ValueError as exc:
            raise value.error(f"expected a command: {exc}") from None
    elif node.kind == "sequence" and all(item.kind == "scalar" for item in node.value):
        words = [item.value for item in node.value]
    else:
        raise value.error("expected a command or a list of its words")
    if not words:
        raise value.error("expected a command, got nothing")
    return words


def _to_value(node: YamlNode) -> FileValue:
    """Return a YAML node as a value of a server file, with the node's line.

    The column is always 1, because a YAML node does not have its column.
    """
    if node.kind == "mapping":
        members = {
            key.value: FileMember(_to_value(value), key.line, 1) for key, value in node.value
        }
        return FileValue(members, node.line, 1)
    if node.kind == "sequence":
        return FileValue(tuple(map(_to_value, node.value)), node.line, 1)
    try:
        return FileValue(read_value(node), node.line, 1)
    except InvalidYaml:
        # The scalar does not fit its tag, such as `!!int x`. It stays a text.
        return FileValue(node.value, node.line, 1)


def _from_texts(texts: Mapping[str, str], line: int) -> FileValue:
    """Return an object of strings as a value of a server file.

    line: the line number that all of the strings get.
    """
    members = {name: FileMember(FileValue(text, line, 1), line, 1) for name, text in texts.items()}
    return FileValue(members, line, 1)


def _to_json(value: FileValue) -> Any:
    """Return a value of a server file as a JSON value, without line numbers."""
    content = value.content
    if isinstance(content, Mapping):
        return {name: _to_json(member.value) for name, member in content.items()}
    if isinstance(content, tuple):
        return [_to_json(item) for item in content]
    return content
