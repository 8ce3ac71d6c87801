"""read_file_status(): reads a file's status, to detect that it was changed or replaced."""

from __future__ import annotations

import os

from msgspec import Struct

__all__ = ["FileStatus", "read_file_status"]


class FileStatus(Struct, frozen=True):
    """The parts of a file's status that differ after the file was changed or replaced.

    device, inode: identify the file, so they differ after it was replaced.
    size: the size in bytes.
    changed_ns: the time at which its content, mode or owner was changed last (st_ctime_ns).
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
    # st_mtime_ns would not be enough. A file that other users can write was refused; when its user
    # has corrected the mode, only st_ctime_ns shows that the file must be read again.
    return FileStatus(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
