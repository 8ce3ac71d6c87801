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
    """Return the files in `folders` with these suffixes, and all files at the paths `watched`.

    watched: the values of --watch, each a file or a folder.
    Raises UsageError for a path that does not exist.
    """
    for path in watched:
        if not Path(path).exists():
            raise UsageError(f"--watch {path}: no such file or folder")
    return SourceFiles([*folders], [Path(path) for path in watched], suffixes)
