"""WatchedPaths: the files whose changes restart a plugin (`watch` in a plugins file).

A plugins file lists the plugins that a hub starts. plugin_entries.py reads its entries, and finds
the paths with the functions of this module. While the hub runs, PluginWatch (plugin_watch.py)
watches the paths.
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
    """Files and directories to watch, as absolute paths.

    folders: directories in which only the files with one of the suffixes are watched.
    suffixes: the suffixes for `folders`, such as ".py".
    paths: files, and directories in which all files are watched.
    """

    folders: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def watch_programs(programs: Sequence[str]) -> WatchedPaths | None:
    """Return the paths to watch for programs.

    A program with a suffix, such as ".py", may import other files. So all files in its directory
    with the same suffix are watched. A program without a suffix, such as a compiled one, is watched
    alone.
    programs: paths of programs, or names to look up in PATH. Only absolute paths are watched.
    Returns None if no program is an absolute path.
    """
    files = [path for path in map(Path, programs) if path.is_absolute()]
    if not files:
        return None
    sources = [file for file in files if file.suffix]
    return WatchedPaths(
        folders=tuple(dict.fromkeys(str(file.parent) for file in sources)),
        suffixes=tuple(dict.fromkeys(file.suffix for file in sources)),
        paths=tuple(str(file) for file in files if not file.suffix),
    )


def find_server_files(server: str, folder: Path) -> list[str]:
    """Return the files that an MCP server's command and arguments name, as absolute paths.

    server: the JSON of a server file with this one server (proxy/server_file.py).
    folder: the directory of the plugins file, against which paths are resolved.
    """
    [entry] = decode(server, type=dict[str, dict[str, dict[str, Any]]])["mcpServers"].values()
    base = folder / Path(str(entry.get("cwd", ""))).expanduser()
    command = str(entry.get("command", ""))
    # A name without a directory is looked up in PATH, so it is not a file of this directory.
    words = [command] if os.sep in command else []
    words += [str(word) for word in entry.get("args", ()) if not str(word).startswith("-")]
    return [str(path) for word in words if word and (path := base / word).is_file()]
