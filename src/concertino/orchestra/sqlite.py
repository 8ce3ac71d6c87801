"""A store in one SQLite file. Content, metadata and version are one row, so they change together."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.json import Decoder, encode

from concertino.orchestra.storage import (
    MAX_CONTENT_BYTES,
    StorageEntry,
    StorageError,
    StoredDocument,
    check_path,
    check_pattern,
    matcher,
    next_version,
)

__all__ = ["SqliteStorage"]

BUSY_S = 10.0  # for which a writer waits for those of other processes
_TABLE = """CREATE TABLE IF NOT EXISTS stored (
    path TEXT PRIMARY KEY, content BLOB NOT NULL, metadata TEXT NOT NULL, version INTEGER NOT NULL, modified_at REAL NOT NULL
) WITHOUT ROWID"""
_metadata = Decoder(dict[str, Any]).decode


class SqliteStorage:
    """One database file, made if there is none, mode 0600. A Storage; also for several processes at once."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self._file = Path(file)
        self._turn = threading.Lock()  # one connection, threads one after the other
        with self._told():
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(
                self._file, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=FULL")
                self._database.execute(_TABLE)
            except BaseException:
                self._database.close()
                raise

    def read(self, path: str) -> StoredDocument:
        check_path(path)
        with self._turn, self._told():
            row = self._database.execute(
                "SELECT content, metadata, version FROM stored WHERE path = ?", (path,)
            ).fetchone()
        if row is None:
            raise _missing(path)
        return StoredDocument(row[0], _metadata(row[1]), row[2])

    def write(
        self, path: str, content: bytes, metadata: Mapping[str, Any], expected_version: int
    ) -> int:
        check_path(path)
        said = encode(dict(metadata)).decode()
        if (size := len(content) + len(said)) > MAX_CONTENT_BYTES:
            raise StorageError(
                "too_large", f"{path}: {size} bytes; the limit is {MAX_CONTENT_BYTES}"
            )
        with self._turn, self._told(), self._transaction():
            row = self._database.execute(
                "SELECT version FROM stored WHERE path = ?", (path,)
            ).fetchone()
            version = next_version(path, 0 if row is None else row[0], expected_version)
            now = datetime.now(UTC).timestamp()
            self._database.execute(
                "REPLACE INTO stored VALUES (?, ?, ?, ?, ?)", (path, content, said, version, now)
            )
        return version

    def delete(self, path: str) -> None:
        check_path(path)
        with self._turn, self._told():
            gone = self._database.execute("DELETE FROM stored WHERE path = ?", (path,)).rowcount
        if not gone:
            raise _missing(path)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        if prefix:
            check_path(prefix.rstrip("/") or "/")
        fits = matcher(check_pattern(pattern)).match
        with self._turn, self._told():
            rows = self._database.execute(
                "SELECT path, length(content), version, modified_at FROM stored WHERE substr(path, 1, ?) = ? ORDER BY path",
                (len(prefix), prefix),
            ).fetchall()
        found = (row for row in rows if fits(row[0].rpartition("/")[2]))
        return [
            StorageEntry(path, size, version, datetime.fromtimestamp(at, UTC))
            for path, size, version, at in found
        ]

    def close(self) -> None:
        with self._turn:
            self._database.close()

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _told(self) -> Generator[None, None, None]:
        try:
            yield
        except (sqlite3.Error, OSError) as why:
            raise StorageError("storage_error", f"{self._file.name}: {why}") from None


def _missing(path: str) -> StorageError:
    return StorageError("not_found", f"{path}: there is nothing under this path")
