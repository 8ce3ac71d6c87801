"""check_writers(): refuses a file that names programs to run and that other users can change."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from concertino.proxy.value_reader import InvalidServerFile

__all__ = ["check_writers"]

# The largest number of links that Linux follows for one path, see path_resolution(7).
MAX_LINKS = 40


def check_writers(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Raise InvalidServerFile if another user can change a file or replace it.

    The file's folder, and all folders above it, must belong to this user or to root, and other
    users must not have permission to write in them. In a folder with the sticky bit, such as /tmp,
    others cannot replace this user's files. A group counts as other users, unless it is the user's
    own private group. Access control lists are not checked.
    If the path is a symbolic link, the same rules apply to the link, because another user could
    make it point to another file.
    status: the status of the open file.
    """
    source = os.fspath(path)
    if (problem := _describe_writers(status)) is not None:
        raise InvalidServerFile(
            f"{source}: expected a file that only you can change, got one {problem}, who could "
            f"run programs as you"
        )
    places = [*islice(_follow_links(path), MAX_LINKS), Path(os.path.realpath(path))]
    for place in places:
        owner = place.lstat().st_uid
        if owner not in (0, os.geteuid()):
            raise InvalidServerFile(
                f"{source}: expected a file that only you can change, but {place} is a link of "
                f"user {owner}, who could let it point to another file"
            )
    for folder in dict.fromkeys(folder for place in places for folder in place.parents):
        status = folder.stat()
        if status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid()):
            continue
        if (problem := _describe_writers(status)) is not None:
            raise InvalidServerFile(
                f"{source}: expected a file that only you can change, but {folder} is a folder "
                f"{problem}, who could put another file in its place"
            )


def _follow_links(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the absolute path of a file, and after each path that is a link, its destination."""
    place = Path(os.path.abspath(path))  # noqa: PTH100
    yield place
    while place.is_symlink():
        place = Path(os.path.normpath(place.parent / place.readlink()))
        yield place


def _describe_writers(status: os.stat_result) -> str | None:
    """Describe in words which other users can write a file or folder; None if none can."""
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
