"""read_server_file(): reads a file that lists MCP servers, as MCP hosts such as VS Code have it.

    mcp.json, .mcp.json, claude_desktop_config.json, ...    {"mcpServers": {"NAME": {...}}}
    .vscode/mcp.json                                        {"servers": {...}, "inputs": [...]}
    config.toml of Codex, or any other TOML                 [mcp_servers.NAME]
    ~/.claude.json of Claude Code                           claude_code_file.py

server_members.py lists the keys of a server that hosts use. Unknown keys cause warnings, because
each host adds other keys. The keys of concertino are under `x-concertino`, where unknown keys are
errors. The strings of the file are returned as they are; expansion.py replaces references such as
`${VAR}` in them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from concertino.near_names import nearest_name, suggestion
from concertino.proxy.claude_code_file import (
    CLAUDE_CODE,
    MAX_CLAUDE_CODE_BYTES,
    read_project_servers,
    split_project,
)
from concertino.proxy.file_access import read_own_file
from concertino.proxy.file_values import FileMember, FileValue, InvalidText
from concertino.proxy.input_entries import InputEntry, read_inputs
from concertino.proxy.json_comments import parse_json
from concertino.proxy.server_members import (
    DEFAULTS,
    FIELDS,
    IGNORED_KEYS,
    SERVER_KEYS,
    TRANSPORT_KEYS,
)
from concertino.proxy.server_options import ServerOptions, read_options
from concertino.proxy.toml_values import parse_toml
from concertino.proxy.value_reader import InvalidServerFile, Template, ValueReader
from concertino.transforms.tool_search import ToolListOptions, ToolsMode

__all__ = [
    "SERVER_LISTS",
    "ServerEntry",
    "ServerFile",
    "parse_server_file",
    "read_server_entry",
    "read_server_file",
]

# The largest file in bytes, the most servers in a file, and the longest name of a server in
# characters. People write less; the limits bound the work and the memory for a wrong file.
MAX_BYTES = 2**20
MAX_SERVERS = 200
MAX_NAME = 128
# The key that contains the servers has one of these names, which differ between hosts.
SERVER_LISTS = ("mcpServers", "servers", "mcp_servers")
OPTIONS_KEY = "x-concertino"
# Value of a key in TRANSPORT_KEYS, such as `type` -> the transport.
TRANSPORTS = {
    **dict.fromkeys(("stdio", "local"), "stdio"),
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "remote"), "http"),
    "sse": "sse",
    "ws": "ws",
}


class ServerEntry(Struct, frozen=True, kw_only=True):
    """The entry of one server in a file, before `${...}` is replaced.

    name: the name of the server in the file.
    command: the program to start; None for a server to which concertino connects at `url`.
    args: the arguments of the program.
    env: environment variables of the program.
    env_file: the path of a file with more variables, which those in `env` override.
    cwd: the working directory of the program; None for the directory of the workspace.
    url: the address of a server that runs already; None for a server with a `command`.
    headers: the HTTP headers for each request to `url`.
    is_enabled: whether to serve the server.
    start_timeout_s: how long the start of the server may take, in seconds; None for the default.
    options: the values of the keys under `x-concertino`.
    line, column: the position of the name in the file, counted from 1.
    """

    name: str
    command: Template | None = None
    args: tuple[Template, ...] = ()
    env: Mapping[str, Template] = {}
    env_file: Template | None = None
    cwd: Template | None = None
    url: Template | None = None
    headers: Mapping[str, Template] = {}
    is_enabled: bool = True
    start_timeout_s: float | None = None
    options: ServerOptions = ServerOptions()
    line: int = 1
    column: int = 1


class ServerFile(Struct, frozen=True):
    """The content of a server file.

    path: the absolute path of the file.
    workspace: the directory that replaces `${workspaceFolder}`.
    servers: the servers, in the file's order, including those that are not enabled.
    inputs: id -> an input, a value that the user gives when the servers are started.
    warnings: messages for the user. Each begins with the file, line and column that it is about.
    tools: the options of the search that clients may get in place of a long list of tools.
    project: the directory of the project in Claude Code's file; "" for other files.
    """

    path: Path
    workspace: Path
    servers: tuple[ServerEntry, ...] = ()
    inputs: Mapping[str, InputEntry] = {}
    warnings: tuple[str, ...] = ()
    tools: ToolListOptions = ToolListOptions()
    project: str = ""

    @property
    def approval_path(self) -> Path:
        """Return the path under which approvals are stored.

        It is the path of the file without symbolic links. For a project in Claude Code's file, `#`
        and the directory of the project follow, as in arguments of commands.
        """
        path = self.path.resolve()
        return Path(f"{path}#{self.project}") if self.project else path


def read_server_file(path: str | os.PathLike[str]) -> ServerFile:
    """Read a server file: a file in which an MCP host lists its servers, such as mcp.json.

    path: the path of the file. For Claude Code's file, `#` and the directory of a project may
        follow; without them, the project that contains the working directory is used.

    Raises InvalidServerFile if the file does not exist, cannot be read or has an error. Also raises
    it if another user can change or replace the file, because that user could then run programs as
    the present one.
    """
    path, project = split_project(os.fspath(path))
    is_claude_code = Path(path).name == CLAUDE_CODE
    limit = MAX_CLAUDE_CODE_BYTES if is_claude_code else MAX_BYTES
    try:
        data = read_own_file(path, limit)
    except OSError as exc:
        hint = _suggest_file(Path(path)) if isinstance(exc, FileNotFoundError) else ""
        raise InvalidServerFile(f"{path}: {exc.strerror}{hint}") from None
    if is_claude_code:
        return _parse_claude_code(data, path, project)
    return parse_server_file(data, path)


def _parse_claude_code(
    data: bytes,
    source: str,
    project: str | None,
) -> ServerFile:
    """Return the servers that Claude Code's file has for one project, including the user's own.

    data: the content of the file.
    source: the path of the file, for errors.
    project: the directory of the project; None for the one that contains the working directory.
    """
    servers = read_project_servers(data, source, project, Path.cwd())
    file = _FileReader(source).read(servers.value)
    warnings = (servers.warning, *file.warnings) if servers.warning else file.warnings
    # Claude Code starts servers in the directory of the project.
    workspace = Path(servers.folder) if servers.folder else Path.cwd()
    return replace(file, workspace=workspace, warnings=warnings, project=servers.folder)


def parse_server_file(data: bytes, path: str | os.PathLike[str]) -> ServerFile:
    """Parse a server file that is not Claude Code's.

    data: the bytes of the file, which need not exist on the disk.
    path: the path of the file. If it ends with `.toml`, the data is TOML, and otherwise JSON.
        Errors name the path, and the workspace is the directory around it.
    Raises InvalidServerFile if the data has an error.
    """
    source = os.fspath(path)
    if len(data) > MAX_BYTES:
        raise InvalidServerFile(f"{source}: expected at most {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InvalidServerFile(f"{source}:{line}: expected UTF-8") from None
    is_toml = source.endswith(".toml")
    try:
        value = parse_toml(text) if is_toml else parse_json(text)
    except InvalidText as exc:
        language = "TOML" if is_toml else "JSON"
        raise InvalidServerFile(
            f"{source}:{exc.line}:{exc.column}: expected {language}: {exc}"
        ) from None
    return _FileReader(source).read(value)


def read_server_entry(
    source: str,
    name: str,
    member: FileMember,
    label: str,
) -> ServerEntry:
    """Read the entry of one server in a file of another format, such as a plugins.yaml.

    source: the path of the file, for errors.
    name: the name of the server.
    member: the entry, with the same keys as in a server file.
    label: the path of the entry within the file, for errors.
    Raises InvalidServerFile if the entry has an error. Warnings about unknown keys are dropped.
    """
    return _FileReader(source).read_entry(name, member, label)


def _suggest_file(path: Path) -> str:
    """Return `; did you mean ...?` with a similar file name in the directory; "" for none."""
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix == path.suffix]
    except OSError:
        return ""
    found = nearest_name(path.name, names)
    return "" if found is None else f"; did you mean {path.with_name(found)}?"


def _suggest_list_name(name: str) -> str | None:
    """Return the name in SERVER_LISTS that is similar to a mistyped one; None if none is."""
    by_folded = {known.casefold(): known for known in SERVER_LISTS}
    return by_folded.get(name.casefold()) or nearest_name(name, SERVER_LISTS)


def _find_mistyped_list(members: Mapping[str, FileMember]) -> tuple[FileMember, str] | None:
    """Return the first member with a name similar to one in SERVER_LISTS, and the correction."""
    for name, member in members.items():
        if meant := _suggest_list_name(name):
            return member, f"got {name!r}; did you mean {meant!r}?"
    return None


class _FileReader:
    """Reads one server file and collects the warnings about it. source: its path, for errors."""

    def __init__(self, source: str) -> None:
        self._reader = ValueReader(source)
        self._warnings: list[str] = []

    def read(self, value: FileValue) -> ServerFile:
        """Return the content of the file. Raises InvalidServerFile.

        value: the parsed JSON or TOML, in which each value has its line and column.
        """
        reader = self._reader
        members = reader.members(value, "the file")
        label = self._find_list(value, members)
        entries = reader.members(members[label].value, label)
        if not entries:
            self._warn(members[label], f"{label}: there is no server")
        if len(entries) > MAX_SERVERS:
            raise reader.error(
                members[label], label, f"expected at most {MAX_SERVERS} servers, got {len(entries)}"
            )
        servers = tuple(self._read_server(name, member, label) for name, member in entries.items())
        inputs = read_inputs(reader, members["inputs"].value) if "inputs" in members else {}
        tools = ToolListOptions()
        if OPTIONS_KEY in members:
            tools = self._read_tools(members[OPTIONS_KEY].value)
        # Not Path.resolve(): if the file is a link, the workspace is where the link is.
        path = Path(os.path.abspath(reader.source))  # noqa: PTH100
        workspace = path.parent
        if workspace.name in (".vscode", ".cursor", ".codex"):
            # These hosts have their file in a subdirectory of the workspace.
            workspace = workspace.parent
        return ServerFile(
            path=path,
            workspace=workspace,
            servers=servers,
            inputs=inputs,
            warnings=tuple(self._warnings),
            tools=tools,
        )

    def _find_list(self, value: FileValue, members: Mapping[str, FileMember]) -> str:
        """Return the name of the file's only list of servers, which is one of SERVER_LISTS.

        Raises InvalidServerFile if there is no list or more than one.
        """
        found = [name for name in SERVER_LISTS if name in members]
        if len(found) == 1:
            return found[0]
        # The part of the file to which the error points.
        place: FileValue | FileMember
        if found:
            place, problem = members[found[1]], f"got {' and '.join(found)}"
        else:
            place, problem = _find_mistyped_list(members) or (value, "got none of them")
        raise self._reader.error(
            place, "the file", f"expected one of {', '.join(SERVER_LISTS)}, {problem}"
        )

    def _warn(self, place: FileValue | FileMember, text: str) -> None:
        self._warnings.append(f"{self._reader.describe_place(place)}: {text}")

    # Servers

    def _read_server(
        self,
        name: str,
        member: FileMember,
        list_label: str,
    ) -> ServerEntry:
        """Return the entry of one server. Raises InvalidServerFile; unknown keys are warnings.

        list_label: the name of the list that contains the entry, such as `mcpServers`.
        """
        reader = self._reader
        is_valid = name and len(name) <= MAX_NAME and name.isprintable()
        if not is_valid:
            raise reader.error(
                member, list_label, f"expected a name of 1 to {MAX_NAME} visible characters"
            )
        return self.read_entry(name, member, f"{list_label}.{name}")

    def read_entry(
        self,
        name: str,
        member: FileMember,
        label: str,
    ) -> ServerEntry:
        """Return the entry of one server. Raises InvalidServerFile.

        name, member: the name of the server, and the value in the file with its place.
        label: the path of the entry within the file, for errors.
        """
        reader = self._reader
        members = reader.members(member.value, label)
        fields: dict[str, Any] = {"name": name, "line": member.line, "column": member.column}
        # Options that hosts have under keys of their own. Those under `x-concertino` override them.
        defaults: dict[str, Any] = {}
        # If two keys mean the same, such as `url` and `serverUrl`, the last one in the file counts.
        transport = ""
        for key, item in members.items():
            if key in TRANSPORT_KEYS:
                transport = self._read_transport(item.value, f"{label}.{key}")
            elif key in FIELDS:
                field, read = FIELDS[key]
                _merge(fields, field, read(reader, item.value, f"{label}.{key}"))
            elif key in DEFAULTS:
                field, read = DEFAULTS[key]
                defaults[field] = read(reader, item.value, f"{label}.{key}")
            elif key != OPTIONS_KEY and key not in IGNORED_KEYS:
                # Most unknown keys are those of other hosts, so a typo must be more similar to a
                # known key than elsewhere (0.75).
                hint = suggestion(key, [*SERVER_KEYS, OPTIONS_KEY], similarity=0.75)
                self._warn(item, f"{label}.{key}: not known, and ignored{hint}")
        if (options := members.get(OPTIONS_KEY)) is not None:
            options_label = f"{label}.{OPTIONS_KEY}"
            fields["options"] = read_options(reader, options.value, options_label, defaults)
        else:
            fields["options"] = ServerOptions(**defaults)
        entry = ServerEntry(**fields)
        if entry.command is None and entry.url is None:
            # One of the unknown keys may be a misspelt `command` or `url`.
            unknown = (key for key in members if key not in SERVER_KEYS)
            hints = [hint for key in unknown if (hint := suggestion(key, ("command", "url")))]
            hint = hints[0] if hints else ""
            raise reader.error(member, label, f"expected command or url, got neither{hint}")
        self._check_kind(entry, member, label, transport)
        return entry

    def _read_transport(self, value: FileValue, label: str) -> str:
        return TRANSPORTS[self._reader.choice(value, label, TRANSPORTS)]

    def _check_kind(
        self,
        entry: ServerEntry,
        member: FileMember,
        label: str,
        transport: str,
    ) -> None:
        """Check that the entry has either `command` or `url`, as its transport requires.

        Raises InvalidServerFile otherwise.
        transport: the transport that the entry names, one of the values of TRANSPORTS; "" if it
            names none.
        """
        error = self._reader.error
        if entry.command is not None and entry.url is not None:
            raise error(entry.url, f"{label}.url", "expected command or url, got both")
        if not transport:
            return
        expected = "command" if transport == "stdio" else "url"
        value = entry.command if expected == "command" else entry.url
        if value is None:
            raise error(member, label, f"expected {expected} for a server of this type")

    # The keys of concertino for the whole file

    def _read_tools(self, value: FileValue) -> ToolListOptions:
        """Return the options of tool search, from the object `x-concertino` of the whole file."""
        reader = self._reader
        members = reader.known_members(value, OPTIONS_KEY, ("tools", "tools_budget"))
        fields: dict[str, Any] = {}
        if (tools := members.get("tools")) is not None:
            label = f"{OPTIONS_KEY}.tools"
            fields["mode"] = reader.choice(tools.value, label, get_args(ToolsMode))
        if (budget := members.get("tools_budget")) is not None:
            label = f"{OPTIONS_KEY}.tools_budget"
            fields["budget_tokens"] = reader.positive_integer(budget.value, label)
        return ToolListOptions(**fields)


def _merge(fields: dict[str, Any], field: str, value: Any) -> None:
    """Set a field of an entry. Of mappings, such as headers in several keys, all items are kept."""
    if isinstance(value, dict) and field in fields:
        fields[field] = {**fields[field], **value}
    else:
        fields[field] = value
