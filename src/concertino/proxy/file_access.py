"""read_own_file(): refuses a file that names programs and that other users can change.

The readers of server files, such as mcp.json, use it. concertino starts the programs in such a
file, so another user who could change the file could run programs as the present user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from concertino.proxy.value_reader import InvalidServerFile
from concertino.user_files import open_regular_file, read_bounded

__all__ = ["check_writers", "read_own_file"]

# The largest number of links that Linux follows for one path, see path_resolution(7).
MAX_LINKS = 40


def read_own_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a file that only this user (and root) can change or replace.

    Raises InvalidServerFile if another user can change the file. Raises OSError if the file cannot
    be read, is longer than max_bytes, or is a named pipe or a device.
    """
    # Open the file only once. If another file replaces it now, the file that was checked is read.
    with open_regular_file(path) as file:
        check_writers(path, os.fstat(file.fileno()))
        return read_bounded(file, max_bytes)


def check_writers(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Raise InvalidServerFile if another user can change a file or replace it.

    - The file, its directory, and all directories above it must belong to this user or to root, and
      other users must not have permission to write in them.
    - A directory with the sticky bit, such as /tmp, may be writable, because in it other users
      cannot replace this user's files.
    - A group counts as other users, unless it is the user's own private group.
    - The same rules apply to each symbolic link in the path, because another user could make it
      point to another file.
    - Access control lists are not checked.

    path: the path of the file.
    status: the status of the open file.
    """
    source = os.fspath(path)
    if (problem := _describe_writers(status)) is not None:
        raise InvalidServerFile(
            f"{source}: expected a file that only you can change, got one {problem}, who could "
            f"run programs as you"
        )
    places = list(_follow_links(path))
    for place in places:
        owner = place.lstat().st_uid
        if owner not in (0, os.geteuid()):
            raise InvalidServerFile(
                f"{source}: expected a file that only you can change, but {place} is a link of "
                f"user {owner}, who could let it point to another file"
            )
    for folder in dict.fromkeys(folder for place in places for folder in place.parents):
        folder_status = folder.stat()
        is_sticky = bool(folder_status.st_mode & stat.S_ISVTX)
        if is_sticky and folder_status.st_uid in (0, os.geteuid()):
            continue
        if (problem := _describe_writers(folder_status)) is not None:
            raise InvalidServerFile(
                f"{source}: expected a file that only you can change, but {folder} is a folder "
                f"{problem}, who could put another file in its place"
            )


def _follow_links(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield each symbolic link in a path and in the targets of these links, then the file itself.

    Each is yielded as a path whose directories are no links.
    """
    path = Path(path)
    # The parts of an absolute path begin with `/`, and `Path() / "/"` is `/`.
    place = Path() if path.is_absolute() else Path.cwd()
    names = [*reversed(path.parts)]
    links = 0
    while names and links <= MAX_LINKS:
        name = names.pop()
        if name == "..":
            place = place.parent
            continue
        place /= name
        if place.is_symlink():
            yield place
            links += 1
            names += reversed(place.readlink().parts)
            place = place.parent
    yield place


def _describe_writers(status: os.stat_result) -> str | None:
    """Describe in words which other users can write a file or directory; None if none can."""
    if status.st_uid not in (0, os.geteuid()):
        return f"of user {status.st_uid}"
    if status.st_mode & stat.S_IWOTH:
        return "that every user can write"
    if status.st_mode & stat.S_IWGRP and status.st_gid != 0 and not _is_private(status.st_gid):
        return f"that group {status.st_gid} can write"
    return None


def _is_private(gid: int) -> bool:
    """Return whether a group is private: it has this user's name, and no other members."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
