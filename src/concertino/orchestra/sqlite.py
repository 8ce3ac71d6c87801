"""SqliteStorage: a store of documents in one SQLite file.

`concertino plugin sqlite` is a plugin that provides this store. The content, metadata and version
of a document are one row, so they change together. storage.py defines the interface `Storage`, and
the rules for paths, versions and patterns.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.json import Decoder

from concertino.orchestra.storage import (
    MAX_CONTENT_BYTES,
    StorageEntry,
    StorageError,
    StoredDocument,
    clean_folder,
    clean_path,
    compile_pattern,
    encode_metadata,
    missing_document,
    next_version,
)

__all__ = ["SqliteStorage"]

# How long a writer waits for writers in other processes, in seconds.
BUSY_S = 10.0
# The pause between two attempts to switch to write-ahead logging, in seconds.
SWITCH_PAUSE_S = 0.01
# SQLite stores this text in the database, so do not change its line breaks.
_TABLE = (
    "CREATE TABLE IF NOT EXISTS stored (\n"
    "    path TEXT PRIMARY KEY, content BLOB NOT NULL, metadata TEXT NOT NULL, "
    "version INTEGER NOT NULL, modified_at REAL NOT NULL\n"
    ") WITHOUT ROWID"
)
_parse_metadata = Decoder(dict[str, Any]).decode


class SqliteStorage:
    """A Storage in a database file, which is created with mode 0600 if it does not exist.

        storage = SqliteStorage("documents.db")
        version = storage.write("notes/a.md", b"text", {"title": "A"}, CREATE)

    Several processes may use the file at the same time.
    file: the path of the file. Its directory is created if it does not exist.
    Raises StorageError if the file cannot be opened.
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._file = Path(file)
        # All threads share one connection. With the lock, one thread at a time uses it.
        self._lock = threading.Lock()
        with self._convert_errors():
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Create the file with this mode. SQLite would let other users read it.
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(
                self._file, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._use_write_ahead_log()
                # A write is on disk when write() returns.
                self._database.execute("PRAGMA synchronous=FULL")
                self._database.execute(_TABLE)
            except BaseException:
                self._database.close()
                raise

    def read(self, path: str) -> StoredDocument:
        path = "/".join(clean_path(path))
        with self._lock, self._convert_errors():
            row = self._database.execute(
                "SELECT content, metadata, version FROM stored WHERE path = ?", (path,)
            ).fetchone()
        if row is None:
            raise missing_document(path)
        return StoredDocument(row[0], _parse_metadata(row[1]), row[2])

    def write(
        self,
        path: str,
        content: bytes,
        metadata: Mapping[str, Any],
        expected_version: int,
    ) -> int:
        path = "/".join(clean_path(path))
        metadata_text = encode_metadata(path, metadata).decode()
        if (size := len(content) + len(metadata_text)) > MAX_CONTENT_BYTES:
            raise StorageError(
                "too_large", f"{path}: {size} bytes; the limit is {MAX_CONTENT_BYTES}"
            )
        with self._lock, self._convert_errors(), self._transaction():
            row = self._database.execute(
                "SELECT version FROM stored WHERE path = ?", (path,)
            ).fetchone()
            version = next_version(path, 0 if row is None else row[0], expected_version)
            now = datetime.now(UTC).timestamp()
            self._database.execute(
                "REPLACE INTO stored VALUES (?, ?, ?, ?, ?)",
                (path, content, metadata_text, version, now),
            )
        return version

    def delete(self, path: str) -> None:
        path = "/".join(clean_path(path))
        with self._lock, self._convert_errors():
            cursor = self._database.execute("DELETE FROM stored WHERE path = ?", (path,))
        if not cursor.rowcount:
            raise missing_document(path)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        prefix = clean_folder(prefix)
        matches = compile_pattern(pattern).fullmatch
        with self._lock, self._convert_errors():
            # LIKE would ignore case, and read `_` and `%` in the prefix as wildcards.
            rows = self._database.execute(
                "SELECT path, length(content), version, modified_at FROM stored"
                " WHERE substr(path, 1, ?) = ? ORDER BY path",
                (len(prefix), prefix),
            ).fetchall()
        return [
            StorageEntry(path, size, version, datetime.fromtimestamp(modified, UTC))
            for path, size, version, modified in rows
            if matches(path.rpartition("/")[2])
        ]

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _use_write_ahead_log(self) -> None:
        """Switch the file to write-ahead logging, with which readers do not block writers."""
        # If another process is writing, this statement fails at once and does not wait for BUSY_S.
        # So try again. This happens when two processes create the file.
        until = time.monotonic() + BUSY_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                    raise
            time.sleep(SWITCH_PAUSE_S)

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        """Run a `with` block in a transaction, which is undone if the block raises."""
        # IMMEDIATE takes the write lock now, so that no other process can write after this one has
        # read the version.
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _convert_errors(self) -> Generator[None, None, None]:
        """Raise StorageError in place of the errors of SQLite and of the system."""
        try:
            yield
        except (sqlite3.Error, OSError) as exc:
            raise StorageError("storage_error", f"{self._file.name}: {exc}") from None
