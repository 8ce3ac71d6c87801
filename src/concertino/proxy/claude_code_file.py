"""Claude Code's file, ~/.claude.json: the user's servers, and those of each of his projects.

    {"mcpServers": {...}, "projects": {"/home/ada/app": {"mcpServers": {...}, ...}, ...}, ...}

It has much else, is often several megabytes long, and changes with every message that the user
writes. So the lists of servers are cut out undecoded, and only they are read with their places.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

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

CLAUDE_CODE = ".claude.json"
MAX_CLAUDE_CODE_BYTES = 64 * 2**20
# The largest list of servers, in bytes.
MAX_LIST_BYTES = 2**20
# Behind so many characters of a line, the columns of errors begin at 1 again.
MAX_COLUMN = 2**16
# How many projects an error names.
MAX_NAMED = 5

_members = Decoder(dict[str, Raw]).decode
_names = Decoder(list[str]).decode


class ServerList(Struct, frozen=True):
    """A list of servers in the file. folder: of its project; "" for the user's own servers.

    text: undecoded. line, column: of its first character, from 1.
    disabled: the names of servers that the user has switched off in this project.
    """

    folder: str
    text: bytes
    line: int
    column: int
    disabled: frozenset[str] = frozenset()


class ProjectServers(Struct, frozen=True):
    """The servers for one folder, as another server file would have them.

    value: an object with `mcpServers`. folder: of the project; "" if there is none for this folder.
    warning: for the user; "" if there is none.
    """

    value: FileValue
    folder: str
    warning: str = ""


def split_project(path: str) -> tuple[str, str | None]:
    """Return the path of a file and the project, which may stand behind `#` for Claude Code's."""
    file, mark, folder = path.partition(f"{CLAUDE_CODE}#")
    return (file + CLAUDE_CODE, folder) if mark else (path, None)


def read_project_servers(
    data: bytes,
    source: str,
    wanted: str | None,
    current: Path,
) -> ProjectServers:
    """Return the servers for a project: the user's, and the project's own, which go before them.

    wanted: the project's folder; None for the project that `current`, or the nearest folder above
    it, has. Raises InvalidServerFile, which names the projects with servers.
    """
    try:
        lists = list(read_server_lists(data))
    except (DecodeError, RecursionError) as exc:
        raise _broken(data, source, exc) from None
    own = {item.folder: item for item in lists if item.folder}
    folder = _nearest(own, current) if wanted is None else _exact(own, source, wanted)
    chosen = [item for item in lists if item.folder in ("", folder)]
    disabled = own[folder].disabled if folder else frozenset[str]()
    merged: dict[str, FileMember] = {}
    place: FileValue | None = None
    for item in chosen:
        value = _parse(item, source)
        if not isinstance(value.content, Mapping):
            # The reader of files says what is wrong with it.
            return ProjectServers(_as_file(value), folder)
        merged.update(value.content)
        place = value
    for name in disabled & merged.keys():
        merged[name] = _disable(merged[name])
    line, column = (1, 1) if place is None else (place.line, place.column)
    warning = ""
    if not folder:
        warning = (
            f"{source}: {current} is in none of the projects, so only the user's own servers are "
            f"served; {_name_projects(own)}"
        )
    return ProjectServers(_as_file(FileValue(merged, line, column)), folder, warning)


def read_server_lists(data: bytes) -> Iterator[ServerList]:
    """Yield the user's list of servers, and that of each project; empty ones too.

    Raises DecodeError and RecursionError for what is no JSON, or has another shape.
    """
    whole = _members(data)
    at = 0
    for name, raw in whole.items():
        # In order, so that an equal text before this one is not taken for it.
        at = data.index(raw, at)
        if name == "mcpServers":
            yield _locate("", data, at, raw)
        elif name == "projects" and bytes(raw) != b"null":
            yield from _read_projects(data, at, raw)
        at += len(bytes(raw))


def _read_projects(data: bytes, at: int, raw: Raw) -> Iterator[ServerList]:
    for folder, project in _members(raw).items():
        at = data.index(project, at)
        try:
            members = _members(project)
            disabled = frozenset(_names(members.get("disabledMcpServers", b"[]")))
        except DecodeError:
            # The file belongs to Claude Code: one project of another shape hides no other one.
            at += len(bytes(project))
            continue
        servers = members.get("mcpServers", Raw(b"{}"))
        start = at
        for name, member in members.items():
            start = data.index(member, start)
            if name == "mcpServers":
                break
            start += len(bytes(member))
        if folder:
            yield _locate(folder, data, start, servers, disabled)
        at += len(bytes(project))


def _locate(
    folder: str,
    data: bytes,
    at: int,
    raw: Raw,
    disabled: frozenset[str] = frozenset(),
) -> ServerList:
    line = data.count(b"\n", 0, at) + 1
    column = len(data[data.rfind(b"\n", 0, at) + 1 : at].decode(errors="replace")) + 1
    return ServerList(folder, bytes(raw), line, column, disabled)


def _parse(item: ServerList, source: str) -> FileValue:
    """Return a list with the places that its parts have in the file."""
    if len(item.text) > MAX_LIST_BYTES:
        raise InvalidServerFile(
            f"{source}:{item.line}: mcpServers: expected at most {MAX_LIST_BYTES} bytes"
        )
    before = "\n" * (item.line - 1) + " " * ((item.column - 1) % MAX_COLUMN)
    try:
        return parse_json(before + item.text.decode())
    except InvalidText as exc:
        raise InvalidServerFile(f"{source}:{exc.line}:{exc.column}: expected JSON: {exc}") from None


def _as_file(servers: FileValue) -> FileValue:
    line, column = servers.line, servers.column
    return FileValue({"mcpServers": FileMember(servers, line, column)}, 1, 1)


def _disable(server: FileMember) -> FileMember:
    value = server.value
    if not isinstance(value.content, Mapping):
        return server
    members = {name: item for name, item in value.content.items() if name != "enabled"}
    members["disabled"] = FileMember(FileValue(True, value.line, value.column), 1, 1)
    return FileMember(FileValue(members, value.line, value.column), server.line, server.column)


def _nearest(projects: Mapping[str, ServerList], current: Path) -> str:
    """Return the project of a folder, or of the nearest one above it that is a project; else ""."""
    by_path = {os.path.realpath(folder): folder for folder in reversed(list(projects))}
    place = Path(os.path.realpath(current))
    for folder in (place, *place.parents):
        if (project := by_path.get(str(folder))) is not None:
            return project
    return ""


def _exact(
    projects: Mapping[str, ServerList],
    source: str,
    wanted: str,
) -> str:
    """Return the project with a folder. Raises InvalidServerFile."""
    path = os.path.realpath(Path(wanted).expanduser())
    for folder in projects:
        if os.path.realpath(folder) == path:
            return folder
    raise InvalidServerFile(f"{source}: {wanted}: no such project; {_name_projects(projects)}")


def _name_projects(projects: Mapping[str, ServerList]) -> str:
    """Return the projects that have servers of their own, for an error."""
    folders = [folder for folder, item in projects.items() if item.text.strip(b"{} \t\r\n")]
    if not folders:
        return "no project has servers of its own"
    more = f" and {len(folders) - MAX_NAMED} more" if len(folders) > MAX_NAMED else ""
    return f"projects with servers: {', '.join(folders[:MAX_NAMED])}{more}"


def _broken(data: bytes, source: str, problem: Exception) -> InvalidServerFile:
    """Return the error for a file that is no JSON, or has another shape, with the place if known"""
    if len(data) <= MAX_LIST_BYTES:
        try:
            parse_json(data.decode())
        except InvalidText as exc:
            return InvalidServerFile(f"{source}:{exc.line}:{exc.column}: expected JSON: {exc}")
        except UnicodeDecodeError as exc:
            line = data.count(b"\n", 0, exc.start) + 1
            return InvalidServerFile(f"{source}:{line}: expected UTF-8")
    return InvalidServerFile(f"{source}: expected the file of Claude Code: {problem}")
