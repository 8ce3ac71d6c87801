"""WatchedPaths: the files whose changes restart a plugin (`watch` in a plugins file).

plugin_entries.py finds the paths, and PluginWatch watches them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import decode

__all__ = ["WatchedPaths", "find_server_files", "watch_programs"]


class WatchedPaths(Struct, frozen=True):
    """Files and folders to watch, as absolute paths.

    folders: folders in which the files with one of `suffixes` are watched.
    paths: files, and folders in which all files are watched.
    """

    folders: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def watch_programs(programs: Sequence[str]) -> WatchedPaths | None:
    """Return the paths to watch: each program, and the files in its folder with the same suffix.

    For a program without a suffix, such as a compiled one, only the program itself is watched.
    Returns None if none of them is an absolute path.
    """
    files = [path for path in map(Path, programs) if path.is_absolute()]
    if not files:
        return None
    sources = [file for file in files if file.suffix]
    return WatchedPaths(
        tuple(dict.fromkeys(str(file.parent) for file in sources)),
        tuple(dict.fromkeys(file.suffix for file in sources)),
        tuple(str(file) for file in files if not file.suffix),
    )


def find_server_files(server: str, folder: Path) -> list[str]:
    """Return the files among the words of an MCP server's command, as absolute paths.

    server: a server file with this one server, as JSON.
    folder: the folder of the plugins file.
    """
    [entry] = decode(server, type=dict[str, dict[str, dict[str, Any]]])["mcpServers"].values()
    base = folder / Path(str(entry.get("cwd", ""))).expanduser()
    command = str(entry.get("command", ""))
    # A name without a folder is looked up in PATH, so it is not a file of this folder.
    words = [command] if os.sep in command else []
    words += [str(word) for word in entry.get("args", ()) if not str(word).startswith("-")]
    return [str(path) for word in words if word and (path := base / word).is_file()]
