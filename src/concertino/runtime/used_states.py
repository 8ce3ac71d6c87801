"""FileUsedStates: a record of the sealed states that were used, shared by processes of one machine.

It is a UsedStates (protocol/seal.py) in an SQLite file. Whether a state was used is read and noted
in one transaction, so of several processes exactly one may use it. A store for several machines
implements the same interface.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

__all__ = ["FileUsedStates"]

# How long to wait for other processes. The event loop waits too, so it must be short.
BUSY_S = 0.05
# After so many states, those that have expired are deleted.
CLEAN_AFTER = 256


class FileUsedStates:
    """The record in a file, which is made if it does not exist. Only this user may read it.

    path: the file, on a local disk. SQLite keeps two more files beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._count = 0

    def use(self, nonce: bytes, expires: float) -> bool:
        """Note that a state is used. Returns False if it was used before, by any process.

        nonce: identifies the state.
        expires: until when the state is valid, in seconds since the epoch.
        Raises OSError if the record cannot be read and written.
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
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_S)
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
