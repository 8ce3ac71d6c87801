"""The files that `concertino dev` and `concertino proxy --watch` watch for changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from concertino.cli import UsageError
from concertino.proxy.source_files import SourceFiles

__all__ = ["find_watched"]


def find_watched(
    folders: Sequence[Path], watched: Sequence[str], suffixes: tuple[str, ...] = ()
) -> SourceFiles:
    """Return the files to watch: those in `folders` with a suffix, and those that --watch names.

    watched: the values of --watch. Each is a file, or a folder, all of whose files are watched.
    suffixes: the suffixes of the files in `folders` that are watched, such as (".py",).
    Raises UsageError for a value of --watch that does not exist.
    """
    for path in watched:
        if not Path(path).exists():
            raise UsageError(f"--watch {path}: no such file or folder")
    return SourceFiles([*folders], [Path(path) for path in watched], suffixes)
