"""Reads and writes small private files of the user's state. Each write replaces the whole file.

The files contain the user's approvals of servers (approvals.py), the stored features and lists of
servers (manifest_cache.py), and the secret keys with which both are authenticated.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from concertino.errors import ConcertinoError
from concertino.user_files import AnyPath, read_private_file, user_folder_path, write_private_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "UnusableState",
    "lock_state",
    "read_private",
    "read_state_key",
    "state_folder",
    "state_folder_path",
    "write_private",
]

# The largest file, in bytes.
MAX_BYTES = 2**22
KEY_BYTES = 32
# How long to wait for the lock of a directory, in seconds. Other processes hold it while they write
# a file, or longer if they are stopped then.
LOCK_S = 5.0
# The time between two attempts to get the lock, in seconds.
LOCK_RETRY_S = 0.02


class UnusableState(ConcertinoError):
    """Raised if a file of the user's state cannot be read or written.

    Also raised if other users can write the file, because its content says which programs may run.
    """


def state_folder_path(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of state_folder() as a string, without importing pathlib."""
    return os.path.join(
        user_folder_path("XDG_STATE_HOME", ".local/state", environment), "concertino"
    )


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `$XDG_STATE_HOME/concertino`; by default it is below `~/.local/state`.

    A relative value of the variable is ignored (XDG Base Directory Specification).
    """
    from pathlib import Path

    return Path(state_folder_path(environment))


def read_private(path: AnyPath) -> bytes | None:
    """Return the content of a file; None if the file does not exist.

    Raises UnusableState if the file cannot be read or is larger than 4 MiB, and if another user
    could have written it.
    """
    try:
        return read_private_file(
            path, MAX_BYTES, stat.S_IWGRP | stat.S_IWOTH, "a file that only you can write"
        )
    except OSError as exc:
        raise UnusableState(f"{path}: {exc.strerror}") from None


def write_private(path: AnyPath, data: bytes, *, lasting: bool = True) -> None:
    """Replace a file by one that only this user can read. Makes its directory if necessary.

    data: the new content.
    lasting: whether to wait until the file is on the disk. If not, a power failure may damage it.
    Raises UnusableState if the file cannot be written, or the data is larger than 4 MiB.
    """
    if len(data) > MAX_BYTES:
        # read_private() would refuse it, and the previous content would be lost.
        raise UnusableState(f"{path}: expected at most {MAX_BYTES} bytes to store, got {len(data)}")
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        write_private_file(path, data, lasting=lasting)
    except OSError as exc:
        raise UnusableState(f"{path}: {exc.strerror}") from None


@contextmanager
def lock_state(folder: AnyPath, wait_s: float = LOCK_S) -> Generator[None, None, None]:
    """Hold the lock of a directory of state files inside `with`.

    The directory is made if necessary.
    wait_s: for how many seconds to block while another process holds the lock.
    Raises UnusableState if the directory or the lock file cannot be made or opened, and if another
    process still holds the lock after `wait_s`.
    """
    path = os.path.join(folder, "lock")
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise UnusableState(f"{folder}: {exc.strerror}") from None
    try:
        until = time.monotonic() + wait_s
        while not _try_lock(descriptor):
            if time.monotonic() > until:
                raise UnusableState(
                    f"{path}: another process has held this lock for {wait_s:g} s; it may be "
                    "stopped: resume or end it"
                )
            time.sleep(LOCK_RETRY_S)
        yield
    finally:
        # Closing the file also releases the lock.
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Return whether this process has got the lock of an open file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_state_key(folder: AnyPath) -> bytes:
    """Return the secret key with which the files in a directory are authenticated: 32 bytes.

    The key is random, is made at the first use, and is stored in the file `key` of the directory.
    Raises UnusableState if the key cannot be read or stored.
    """
    path = os.path.join(folder, "key")
    if (key := read_private(path)) is None:
        with lock_state(folder):
            if (key := read_private(path)) is None:
                key = os.urandom(KEY_BYTES)
                write_private(path, key)
    if len(key) != KEY_BYTES:
        raise UnusableState(
            f"{path}: expected {KEY_BYTES} bytes; remove it (a new key is made, which makes "
            "everything beside it invalid)"
        )
    return key
