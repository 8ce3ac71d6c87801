"""FileUsedStates: a record of the states that were used, shared by processes of one machine.

A state is a `requestState` that a client has sent back; the record lets it be used only once.
FileUsedStates implements UsedStates (protocol/seal.py) with an SQLite file. One transaction reads
whether a state was used and records its use, so exactly one of several processes can use it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

__all__ = ["FileUsedStates"]

# How many seconds to wait for other processes. The event loop is blocked meanwhile, so this must be
# short.
BUSY_S = 0.05
# Each time this many states were recorded, the expired states are deleted.
CLEAN_AFTER = 256


class FileUsedStates:
    """A record of used states in an SQLite file, for all processes that use the same path.

    A state is a `requestState` that a client has sent back; it must not be accepted twice.
    The first use() opens the file, or creates it so that only this user may read it.
    path: the file, on a local disk. SQLite creates two more files in the same directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # None until the first use, and after an error.
        self._connection: sqlite3.Connection | None = None
        # How many states this object has recorded.
        self._count = 0

    def use(self, nonce: bytes, expires: float) -> bool:
        """Record that a state is used. Returns False if any process has used it before.

        nonce: identifies the state.
        expires: when the state expires, in seconds since the epoch. The record may then forget it.
        Blocks for up to BUSY_S seconds while other processes write.
        Raises OSError if the record cannot be read or written.
        """
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._open()
            with connection:
                added = connection.execute(
                    "INSERT OR IGNORE INTO used VALUES (?, ?)", (nonce, expires)
                ).rowcount
                self._count += 1
                if self._count % CLEAN_AFTER == 0:
                    connection.execute("DELETE FROM used WHERE expires < ?", (time.time(),))
            return added == 1
        except sqlite3.Error as exc:
            self.close()
            raise OSError(f"{self._path}: {exc}") from None

    def _open(self) -> sqlite3.Connection:
        """Open the file, and create it if it does not exist."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_S)
        # With these two settings, a transaction usually waits for no disk write. If the machine
        # crashes, the last records may be lost.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS used (nonce BLOB PRIMARY KEY, expires REAL) WITHOUT ROWID"
        )
        return connection

    def close(self) -> None:
        """Close the file. The next use() opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
