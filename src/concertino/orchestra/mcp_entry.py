"""read_mcp_entry(): reads the entry of an MCP server in a plugins file.

    - id: tools.github
      protocol: mcp
      command: npx -y @modelcontextprotocol/server-github
      env:
        GITHUB_TOKEN:
      enabled: true

The entry has the same members as a server in a server file (proxy/server_file.py), whose code
checks them. The hub sends them to the plugin's process as the JSON of a server file with one
server.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

from msgspec.json import decode, encode

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

# The members of the configuration that the hub sends at boot: the path of the plugins file, and the
# server as the JSON of a server file.
FILE, SERVER = "file", "server"
OPTIONS = "x-concertino"
# The members of an MCP server's entry that the entries of other plugins do not have.
MCP_MEMBERS = ("command", "url", "headers", "cwd", OPTIONS)
# Options that need the user's approvals or the cache of `concertino serve mcp.json`.
UNSUPPORTED_OPTIONS = ("pin", "cache", "lazy")


def read_mcp_entry(
    source: str,
    id: str,
    label: str,
    node: YamlNode,
    members: Mapping[str, YamlNode],
    env: Mapping[str, str | None],
) -> str:
    """Return the server of an entry, as the JSON of a server file with this one server.

    source: the path of the plugins file, for errors.
    id: the plugin's id, which becomes the name of the server.
    label: the path of the entry within the file, for errors.
    node: the entry.
    members: the members of the entry by name.
    env: the variables of the entry. None means that the hub's environment has the value.
    Raises InvalidServerFile with the line of a wrong member.
    """
    found = {name: _to_value(value) for name, value in members.items() if name in MCP_MEMBERS}
    args = _words(source, f"{label}.args", members["args"]) if "args" in members else []
    if "command" in members:
        command = _words(source, f"{label}.command", members["command"])
        line = members["command"].line
        found["command"] = FileValue(command[0], line, 1)
        args = [*command[1:], *args]
    elif args:
        raise _error(source, members["args"].line, f"{label}.args: expected a command, got none")
    if args:
        line = members["args" if "args" in members else "command"].line
        found["args"] = FileValue(tuple(FileValue(arg, line, 1) for arg in args), line, 1)
    if env:
        variables = {name: f"${{{name}}}" if text is None else text for name, text in env.items()}
        found["env"] = _from_texts(variables, members["env"].line)

    fields = {name: FileMember(value, value.line, 1) for name, value in found.items()}
    try:
        entry = read_server_entry(
            source, id, FileMember(FileValue(fields, node.line, 1), node.line, 1), label
        )
    except InvalidServerFile as exc:
        # Remove the column, which is always 1: see _to_value().
        place, _, problem = str(exc).partition(":1: ")
        raise InvalidServerFile(f"{place}: {problem}") from None
    for option in UNSUPPORTED_OPTIONS:
        if OPTIONS in members and option in read_value(members[OPTIONS]):
            raise _error(
                source,
                members[OPTIONS].line,
                f"{label}.{OPTIONS}.{option}: not possible for a plugin; leave it out, or serve "
                "the server with `concertino serve mcp.json`",
            )
    assert entry.name == id
    plain = {name: _plain(value) for name, value in found.items()}
    return encode({"mcpServers": {id: plain}}).decode()


def bridge_command(address: str, certs_dir: str | None, line: int) -> YamlNode:
    """Return the member `command` of an MCP server that is the bridge to another hub.

    address: the address of that hub.
    certs_dir: the folder of the bridge's certificate; None for the default one.
    line: the line of the file that all nodes get.
    """
    words = [sys.executable, "-m", "concertino", "bridge", f"--orchestrator-addr={address}"]
    if certs_dir is not None:
        words.append(f"--certs-dir={certs_dir}")
    nodes = [YamlNode("scalar", word, None, False, line) for word in words]
    return YamlNode("sequence", nodes, None, False, line)


def change_certs_dir(server: str, certs_dir: str) -> str:
    """Return the JSON of a bridge to another hub with another folder of certificates."""
    file = decode(server)
    for bridge in file["mcpServers"].values():
        # Of two such options, the bridge uses the last.
        bridge["args"].append(f"--certs-dir={certs_dir}")
    return encode(file).decode()


def _error(source: str, line: int, problem: str) -> InvalidServerFile:
    """Return the error for a wrong member in a line of the file."""
    return InvalidServerFile(f"{source}:{line}: {problem}")


def _words(source: str, label: str, node: YamlNode) -> list[str]:
    """Return the words of a command: a list, or a text that is split as in a shell."""
    if node.kind == "scalar" and not is_null(node):
        try:
            words = shlex.split(node.value)
        except ValueError as exc:
            raise _error(source, node.line, f"{label}: expected a command: {exc}") from None
    elif node.kind == "sequence" and all(item.kind == "scalar" for item in node.value):
        words = [item.value for item in node.value]
    else:
        raise _error(source, node.line, f"{label}: expected a command or a list of its words")
    if not words:
        raise _error(source, node.line, f"{label}: expected a command, got nothing")
    return words


def _to_value(node: YamlNode) -> FileValue:
    """Return a YAML node as a value of a server file.

    A YAML node knows its line but not its column, so the column is always 1.
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
        return FileValue(node.value, node.line, 1)


def _from_texts(texts: Mapping[str, str], line: int) -> FileValue:
    """Return an object of strings as a value of a server file.

    line: the line number that all of the strings get.
    """
    return FileValue(
        {name: FileMember(FileValue(text, line, 1), line, 1) for name, text in texts.items()},
        line,
        1,
    )


# Any: a JSON value.
def _plain(value: FileValue) -> Any:
    """Return a value of a server file as plain JSON, without line numbers."""
    content = value.content
    if isinstance(content, Mapping):
        return {name: _plain(member.value) for name, member in content.items()}
    return [_plain(item) for item in content] if isinstance(content, tuple) else content
