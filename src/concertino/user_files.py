"""Files of this user: the folders for them, and a function that writes a file completely."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["user_folder", "write_private_file"]


def user_folder(
    variable: str,
    default: str,
    environment: Mapping[str, str],
) -> Path:
    """Return a base folder of the user, by the XDG Base Directory Specification.

    variable: the name of the variable that sets the folder, such as `XDG_CACHE_HOME`. A relative
        value is ignored, as the specification says.
    default: the folder if the variable is not set, such as `.cache`, below the home directory.
    Raises RuntimeError for a user without a home directory.
    """
    value = environment.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default


def write_private_file(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Write a file with mode 0600, completely or not at all. Raises OSError.

    lasting: whether to wait until it is on the disk. If not, a power failure may damage it.
    """
    # A temporary file in the same folder: replace() does not work across file systems.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
