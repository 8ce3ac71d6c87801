"""read_file_status(): reads a file's status, to detect that it was changed or replaced."""

from __future__ import annotations

import os

from msgspec import Struct

__all__ = ["FileStatus", "read_file_status"]


class FileStatus(Struct, frozen=True):
    """The parts of a file's status that differ after the file was changed or replaced.

    device, inode: identify the file, so they differ after it was replaced.
    size: the size in bytes.
    changed_ns: st_ctime_ns, when its content, mode or owner was changed. st_mtime_ns would not be
        enough: a file that other users can write is refused, and must be read again when its user
        has changed only the mode.
    """

    device: int = 0
    inode: int = 0
    size: int = 0
    changed_ns: int = 0


def read_file_status(path: str | os.PathLike[str]) -> FileStatus:
    """Return the status of a file; FileStatus() if it does not exist or cannot be reached."""
    try:
        status = os.stat(path)
    except OSError:
        return FileStatus()
    return FileStatus(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
