"""read_host_commands(): reads the commands of MCP servers from the configuration files of hosts.

A host is an MCP client application, such as Claude Desktop or VS Code. With these commands,
`concertino reap` recognizes servers whose host has ended (abandoned_servers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from concertino.decode_errors import DECODE_ERRORS
from concertino.proxy.claude_code_file import (
    CLAUDE_CODE,
    MAX_CLAUDE_CODE_BYTES,
    read_server_lists,
)
from concertino.proxy.expansion import Expander
from concertino.proxy.file_access import read_own_file
from concertino.proxy.server_file import MAX_BYTES, ServerFile, parse_server_file
from concertino.proxy.value_reader import InvalidServerFile

__all__ = ["HostCommand", "read_host_commands"]

# The files of hosts in the user's home directory.
USER_FILES = (
    ".config/Claude/claude_desktop_config.json",
    "Library/Application Support/Claude/claude_desktop_config.json",
    ".cursor/mcp.json",
    ".codex/config.toml",
    ".codeium/windsurf/mcp_config.json",
    ".config/Code/User/mcp.json",
    ".gemini/settings.json",
)
# The files of hosts in the directory of a project.
PROJECT_FILES = (".mcp.json", "mcp.json", ".vscode/mcp.json", ".cursor/mcp.json")
# npm replaces the command line of its process by a title. For `npx -y PACKAGE ARGUMENTS` it is
# `npm exec PACKAGE ARGUMENTS`, without npx's options.
NPM_TITLE = "npm exec "
NPX_FLAGS = frozenset(("-y", "--yes", "-q", "--quiet"))
# A title that is cut off counts only if it has more characters than this after NPM_TITLE. With
# fewer, it could belong to many packages.
LEAST_TITLE = 3
# The program `uvx` replaces itself by this command.
UVX = ["uv", "tool", "uvx"]


class HostCommand(Struct, frozen=True):
    """The command of one server in the configuration file of a host, an MCP client application.

    words: the program and its arguments.
    server: the name of the server in the file.
    file: the path of the file.
    """

    words: tuple[str, ...]
    server: str
    file: str

    def matches(self, arguments: Sequence[str]) -> bool:
        """Return whether a process runs this command.

        arguments: the command line of the process. It may differ from `words` in these ways:
            - An interpreter precedes the program, as with scripts.
            - The program is in another directory.
            - `npx` and `uvx` replace their command lines by others.
        """
        program, *args = self.words
        name = Path(program).name
        if name == "npx":
            return _matches_npx(args, arguments)
        before = len(arguments) - len(args)
        if before < 1 or list(arguments[before:]) != args:
            return False
        names = [Path(word).name for word in arguments[:before]]
        # Accept the program itself, or an interpreter and its script. With other words in front, it
        # is a different command that ends with the same words.
        return (len(names) <= 2 and name in names) or (name == "uvx" and names == UVX)


def _matches_npx(args: Sequence[str], arguments: Sequence[str]) -> bool:
    """Return whether a process is npm, running the package of an `npx` command.

    args: the arguments of the command.
    arguments: the command line of the process. npm writes its title in place of it, and cuts the
        title off if it is longer.
    """
    title = NPM_TITLE + " ".join(word for word in args if word not in NPX_FLAGS)
    text = " ".join(arguments).rstrip("\0 ")
    if text == title:
        return True
    return len(text) > len(NPM_TITLE) + LEAST_TITLE and title.startswith(text)


def read_host_commands(
    home: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> list[HostCommand]:
    """Return the commands of all servers in the configuration files of hosts (MCP clients).

    The files are in the home directory, and in the directories of projects: `folder`, and the
    projects that Claude Code's file lists. Files and entries that cannot be read are skipped,
    because they are meant for other programs. Files that other users can change are skipped, too,
    because `concertino reap` could then be made to end any program of this user.
    home: the user's home directory.
    folder: the directory of the project in which the user works.
    environment: the environment variables for `${VAR}`.
    """
    commands: dict[tuple[str, ...], HostCommand] = {}
    files, projects = _read_claude_code(home / CLAUDE_CODE)
    paths = [home / name for name in USER_FILES]
    paths += [project / name for project in (folder, *projects) for name in PROJECT_FILES]
    for path in paths:
        try:
            files.append(parse_server_file(read_own_file(path, MAX_BYTES), path))
        except (OSError, InvalidServerFile):
            continue
    for file in files:
        for command in _list_commands(file, environment):
            commands.setdefault(command.words, command)
    return list(commands.values())


def _list_commands(file: ServerFile, environment: Mapping[str, str]) -> Iterator[HostCommand]:
    """Yield the command of each server in a file, with `${VAR}` replaced. Skips servers at URLs."""
    expander = Expander(file, environment, {})
    for entry in file.servers:
        if entry.command is None:
            continue
        try:
            words = [expander.expand_text(part, "command") for part in (entry.command, *entry.args)]
        except InvalidServerFile:
            # Skip it: the command needs an input or a variable that only its host knows.
            continue
        yield HostCommand(tuple(words), entry.name, str(file.path))


def _read_claude_code(path: Path) -> tuple[list[ServerFile], list[Path]]:
    """Return the lists of servers in Claude Code's file, and the directories of its projects."""
    files: list[ServerFile] = []
    projects: list[Path] = []
    try:
        lists = list(read_server_lists(read_own_file(path, MAX_CLAUDE_CODE_BYTES)))
    except (OSError, InvalidServerFile, *DECODE_ERRORS):
        return files, projects
    for item in lists:
        if item.folder:
            projects.append(Path(item.folder))
        try:
            files.append(parse_server_file(b'{"mcpServers": ' + item.text + b"}", path))
        except InvalidServerFile:
            continue
    return files, projects
