"""Reads Claude Code's file, ~/.claude.json: the user's servers, and each project's servers.

    {"mcpServers": {...}, "projects": {"/home/ada/app": {"mcpServers": {...}, ...}, ...}, ...}

The file also contains other data of Claude Code, is often several megabytes long, and changes with
every message that the user writes. Parsing all of it with line numbers would take too long. So the
lists of servers are first located in the undecoded text, and only these lists are parsed with line
numbers, for errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Raw, Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.proxy.file_values import FileMember, FileValue, InvalidText
from concertino.proxy.json_comments import parse_json
from concertino.proxy.value_reader import InvalidServerFile

__all__ = [
    "CLAUDE_CODE",
    "MAX_CLAUDE_CODE_BYTES",
    "ProjectServers",
    "ServerList",
    "read_project_servers",
    "read_server_lists",
    "split_project",
]

# The name of the file, and its largest size in bytes.
CLAUDE_CODE = ".claude.json"
MAX_CLAUDE_CODE_BYTES = 64 * 2**20
# The largest list of servers, in bytes.
MAX_LIST_BYTES = 2**20
# Columns in errors are counted modulo this number, because Claude Code may write the whole file on
# one line: to get the right columns, _parse() puts a space before a list for each character that
# precedes the list on its line.
MAX_COLUMN = 2**16
# How many projects an error names.
MAX_NAMED = 5

_decode_members = Decoder(dict[str, Raw]).decode
_decode_names = Decoder(list[str]).decode


class ServerList(Struct, frozen=True):
    """The servers (`mcpServers`) of one project, or the user's own, in ~/.claude.json.

    folder: the directory of the project; "" for the user's own servers.
    text: the undecoded JSON of `mcpServers`: an object, name -> server.
    line, column: the position of the object's first character in the file, counted from 1.
    disabled: the names of servers that the user has disabled in this project; always empty for the
        user's own servers.
    """

    folder: str
    text: bytes
    line: int
    column: int
    disabled: frozenset[str] = frozenset()


class ProjectServers(Struct, frozen=True):
    """The servers that Claude Code's file has for one directory, in the form of an mcp.json.

    value: an object with the key `mcpServers`.
    folder: the directory of the project that was found; "" if none was.
    warning: a message for the user; "" if there is none.
    """

    value: FileValue
    folder: str
    warning: str = ""


def split_project(path: str) -> tuple[str, str | None]:
    """Split `~/.claude.json#FOLDER` into the path of the file and the directory of the project.

    For any other path, returns the path unchanged and None.
    """
    file, mark, folder = path.partition(f"{CLAUDE_CODE}#")
    return (file + CLAUDE_CODE, folder) if mark else (path, None)


def read_project_servers(
    data: bytes,
    source: str,
    wanted: str | None,
    current: Path,
) -> ProjectServers:
    """Return the servers that Claude Code's file has for a project: the project's and the user's.

    If both have a server of the same name, the project's server is used.
    data: the content of the file.
    source: the path of the file, for errors.
    wanted: the project's directory. None for the project whose directory is `current`, or is the
        nearest one above `current`. If there is none, only the user's servers are returned.
    current: the working directory.
    Raises InvalidServerFile if the data has an error. Also raises it if the file does not have the
    project `wanted`; the text then names the projects that have servers.
    """
    try:
        lists = list(read_server_lists(data))
    except DECODE_ERRORS as exc:
        raise _make_error(data, source, exc) from None
    projects = {item.folder: item for item in lists if item.folder}
    if wanted is None:
        folder = _find_nearest_project(projects, current)
    else:
        folder = _find_project(projects, source, wanted)
    chosen = [item for item in lists if not item.folder]
    disabled = frozenset[str]()
    if folder:
        # The project's list comes last, so that its servers replace the user's of the same name.
        chosen += [item for item in lists if item.folder == folder]
        disabled = projects[folder].disabled
    merged: dict[str, FileMember] = {}
    # The position of the list that was added last.
    line, column = 1, 1
    for item in chosen:
        value = _parse(item, source)
        if not isinstance(value.content, Mapping):
            # read_server_file() raises the error for a list that is not an object.
            return ProjectServers(_wrap_list(value), folder)
        merged.update(value.content)
        line, column = value.line, value.column
    for name in disabled & merged.keys():
        merged[name] = _disable(merged[name])
    warning = ""
    if not folder:
        warning = (
            f"{source}: {current} is in none of the projects, so only the user's own servers are "
            f"served; {_name_projects(projects)}"
        )
    return ProjectServers(_wrap_list(FileValue(merged, line, column)), folder, warning)


def read_server_lists(data: bytes) -> Iterator[ServerList]:
    """Yield the lists of servers in Claude Code's file: the user's, and one for each project.

    For a project without servers, `text` is `{}`.
    data: the content of the file.
    Raises DecodeError and RecursionError if the data is not JSON of the expected structure.
    """
    # The index in `data` at which the current member begins. msgspec returns only the text of a
    # member, so search for this text. If a name contains the same text, an error gets a wrong line.
    at = 0
    for name, raw in _decode_members(data).items():
        # Begin behind the previous member, because the same text may also occur before.
        start = data.index(raw, at)
        at = start + len(bytes(raw))
        if name == "mcpServers":
            yield _locate("", data, start, raw)
        elif name == "projects" and bytes(raw) != b"null":
            yield from _read_projects(data, start, raw)


def _read_projects(data: bytes, at: int, raw: Raw) -> Iterator[ServerList]:
    """Yield the list of servers of each project.

    at: the index in `data` at which the object of all projects begins.
    raw: that object, undecoded.
    """
    for folder, project in _decode_members(raw).items():
        start = data.index(project, at)
        at = start + len(bytes(project))
        try:
            members = _decode_members(project)
            disabled = frozenset(_decode_names(members.get("disabledMcpServers", b"[]")))
        except DECODE_ERRORS:
            # Claude Code may change the format of its file. A project that cannot be read is
            # skipped, so that all other projects can still be used.
            continue
        servers = members.get("mcpServers", Raw(b"{}"))
        # Find the index at which the list of servers begins, after all members before it.
        for name, member in members.items():
            start = data.index(member, start)
            if name == "mcpServers":
                break
            start += len(bytes(member))
        # An empty name would stand for the user's own servers.
        if folder:
            yield _locate(folder, data, start, servers, disabled)


def _locate(
    folder: str,
    data: bytes,
    at: int,
    raw: Raw,
    disabled: frozenset[str] = frozenset(),
) -> ServerList:
    """Return the list of servers of a project, with its line and column.

    at: the index in `data` at which the list begins.
    raw: the list, undecoded.
    """
    line = data.count(b"\n", 0, at) + 1
    column = len(data[data.rfind(b"\n", 0, at) + 1 : at].decode(errors="replace")) + 1
    return ServerList(folder, bytes(raw), line, column, disabled)


def _parse(item: ServerList, source: str) -> FileValue:
    """Parse a list of servers. Each value gets the line and column that it has in the file.

    Raises InvalidServerFile.
    """
    if len(item.text) > MAX_LIST_BYTES:
        raise InvalidServerFile(
            f"{source}:{item.line}: mcpServers: expected at most {MAX_LIST_BYTES} bytes"
        )
    before = "\n" * (item.line - 1) + " " * ((item.column - 1) % MAX_COLUMN)
    try:
        return parse_json(before + item.text.decode())
    except InvalidText as exc:
        raise InvalidServerFile(f"{source}:{exc.line}:{exc.column}: expected JSON: {exc}") from None
    except UnicodeDecodeError as exc:
        raise _make_utf8_error(source, item.text, exc, item.line) from None


def _wrap_list(servers: FileValue) -> FileValue:
    """Return an object whose only member is `mcpServers`."""
    line, column = servers.line, servers.column
    return FileValue({"mcpServers": FileMember(servers, line, column)}, 1, 1)


def _disable(server: FileMember) -> FileMember:
    """Return the entry of a server with `"disabled": true` added."""
    value = server.value
    if not isinstance(value.content, Mapping):
        return server
    # `enabled` is the same option in another host's words, and must not contradict `disabled`.
    members = {name: item for name, item in value.content.items() if name != "enabled"}
    # The added member has no position in the file. No error is ever about it.
    members["disabled"] = FileMember(FileValue(True, value.line, value.column), 1, 1)
    return FileMember(FileValue(members, value.line, value.column), server.line, server.column)


def _find_nearest_project(projects: Mapping[str, ServerList], current: Path) -> str:
    """Return the project of a directory, or else of the nearest directory above; "" for none."""
    by_path: dict[str, str] = {}
    for folder in projects:
        # Of two projects with the same directory, use the first one, as in _find_project().
        by_path.setdefault(os.path.realpath(folder), folder)
    place = Path(os.path.realpath(current))
    for folder in (place, *place.parents):
        if (project := by_path.get(str(folder))) is not None:
            return project
    return ""


def _find_project(
    projects: Mapping[str, ServerList],
    source: str,
    wanted: str,
) -> str:
    """Return the project in the directory `wanted`. Raises InvalidServerFile if there is none."""
    path = os.path.realpath(Path(wanted).expanduser())
    for folder in projects:
        if os.path.realpath(folder) == path:
            return folder
    raise InvalidServerFile(f"{source}: {wanted}: no such project; {_name_projects(projects)}")


def _name_projects(projects: Mapping[str, ServerList]) -> str:
    """Return a clause for errors that names the projects that have servers."""
    # An empty list consists of braces and blanks only.
    folders = [folder for folder, item in projects.items() if item.text.strip(b"{} \t\r\n")]
    if not folders:
        return "no project has servers of its own"
    more = f" and {len(folders) - MAX_NAMED} more" if len(folders) > MAX_NAMED else ""
    return f"projects with servers: {', '.join(folders[:MAX_NAMED])}{more}"


def _make_error(data: bytes, source: str, problem: Exception) -> InvalidServerFile:
    """Return the error for a file that is not JSON of the expected structure.

    The error names a line and column if the file has at most 1 MiB.
    """
    if len(data) <= MAX_LIST_BYTES:
        try:
            parse_json(data.decode())
        except InvalidText as exc:
            return InvalidServerFile(f"{source}:{exc.line}:{exc.column}: expected JSON: {exc}")
        except UnicodeDecodeError as exc:
            return _make_utf8_error(source, data, exc)
    return InvalidServerFile(f"{source}: expected the file of Claude Code: {problem}")


def _make_utf8_error(
    source: str, text: bytes, exc: UnicodeDecodeError, first_line: int = 1
) -> InvalidServerFile:
    """Return the error for a text that is not UTF-8, with its line in the file.

    first_line: the line of the file at which the text begins.
    """
    line = first_line + text.count(b"\n", 0, exc.start)
    return InvalidServerFile(f"{source}:{line}: expected UTF-8")
