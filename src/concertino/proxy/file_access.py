"""check_writers(): refuses a file that names programs to run and that other users can change."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from concertino.proxy.value_reader import InvalidServerFile

__all__ = ["check_writers"]


def check_writers(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Raise InvalidServerFile if another user can change a file or replace it.

    The file's folder, and all folders above it, must belong to this user or to root, and nobody
    else may have permission to write in them. In a folder with the sticky bit, such as /tmp, others
    cannot replace this user's files. A group counts as other users, unless it is the user's own
    private group. Access control lists are not checked.
    status: the status of the open file.
    """
    source = os.fspath(path)
    if (problem := _describe_writers(status)) is not None:
        raise InvalidServerFile(
            f"{source}: expected a file that only you can change, got one {problem}, who could "
            f"run programs as you"
        )
    for folder in Path(os.path.realpath(path)).parents:
        status = folder.stat()
        if status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid()):
            continue
        if (problem := _describe_writers(status)) is not None:
            raise InvalidServerFile(
                f"{source}: expected a file that only you can change, but {folder} is a folder "
                f"{problem}, who could put another file in its place"
            )


def _describe_writers(status: os.stat_result) -> str | None:
    """Describe in words who else can write a file or folder; None if nobody can."""
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
