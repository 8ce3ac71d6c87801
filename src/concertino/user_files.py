"""Files of this user: the directories for them, and functions that read and write private files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "AnyPath",
    "open_regular_file",
    "read_bounded",
    "read_private_file",
    "read_regular_file",
    "user_folder",
    "user_folder_path",
    "write_private_file",
]

AnyPath = str | os.PathLike[str]


def user_folder(
    variable: str,
    default: str,
    environment: Mapping[str, str],
) -> Path:
    """Return a base directory of the user, by the XDG Base Directory Specification.

    variable: the name of the variable that sets the directory, such as `XDG_CACHE_HOME`. A relative
        path in it is ignored, as the specification says.
    default: the directory if the variable is not set, such as `.cache`, below the home directory.
    environment: the environment variables, usually os.environ.
    Raises RuntimeError for a user without a home directory.
    """
    from pathlib import Path

    return Path(user_folder_path(variable, default, environment))


def user_folder_path(variable: str, default: str, environment: Mapping[str, str]) -> str:
    """Return the same directory as user_folder(), as a string. Raises RuntimeError as it does.

    A program that must start fast calls this function: importing pathlib takes 3 ms.
    """
    if (value := environment.get(variable, "")).startswith("/"):
        return value
    home = os.path.expanduser("~")
    if home == "~":
        raise RuntimeError("this user has no home directory")
    return os.path.join(home, default)


def open_regular_file(path: AnyPath, flags: int = 0) -> BinaryIO:
    """Open a regular file to read its bytes.

    flags: additional flags for os.open(), such as os.O_NOFOLLOW.
    Raises OSError if the file cannot be opened, or is of another kind, such as a named pipe or a
    device.
    """
    # Opening a named pipe would wait for a writer, and reading a device may never end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "expected a regular file", os.fspath(path))


def read_regular_file(path: AnyPath, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raises OSError, also if it is longer than max_bytes."""
    with open_regular_file(path) as file:
        return read_bounded(file, max_bytes)


def read_bounded(file: BinaryIO, max_bytes: int) -> bytes:
    """Return the content of an open file. Raises OSError if it is longer than max_bytes."""
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"expected at most {max_bytes} bytes")
    return data


def read_private_file(
    path: AnyPath, max_bytes: int, forbidden_bits: int, expected: str
) -> bytes | None:
    """Return the content of a file of this user; None if it does not exist.

    max_bytes: the largest allowed size of the file.
    forbidden_bits: the bits of the file's mode that must not be set, such as 0o077 for a file that
        no other user may read or write.
    expected: a description of an acceptable file, for the error.
    Raises PermissionError if the file belongs to another user or has a forbidden bit, and another
    OSError if it cannot be read or is longer than max_bytes.
    """
    try:
        file = open_regular_file(path, os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & forbidden_bits:
            raise PermissionError(errno.EPERM, f"expected {expected}")
        return read_bounded(file, max_bytes)


def write_private_file(path: AnyPath, data: bytes, *, lasting: bool = True) -> None:
    """Write a file that only this user can read, or replace it, in one atomic step. Raises OSError.

    data: the new content.
    lasting: whether to wait until the content is on the disk. Without waiting, a power failure may
        damage the file.
    """
    # Write a temporary file, and then rename it. It is in the same directory, because a file cannot
    # be renamed across file systems.
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
