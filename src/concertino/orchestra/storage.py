"""Storage: texts or bytes under a path, with metadata and a version that a writer can hold on to.

What stores implement, and what they agree upon: which paths there are, what a write may expect, how entries are listed. The stores
themselves: markdown.py (files), sqlite.py (one database file). They may block; whoever serves them calls them from threads.
Source: the Orchestra plugin protocol, "Storage".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fnmatch import translate
from typing import Any, Protocol

from msgspec import Struct

from concertino.errors import ConcertinoError

__all__ = [
    "CREATE",
    "MAX_CONTENT_BYTES",
    "UPSERT",
    "Storage",
    "StorageEntry",
    "StorageError",
    "StoredDocument",
    "check_path",
    "check_pattern",
    "matcher",
    "next_version",
]

CREATE, UPSERT = 0, -1  # expected versions: there must be nothing yet; whatever is there
MAX_PATH_BYTES = 4096
MAX_PART_BYTES = 240  # of one name in it: file systems take 255, and a version's name is longer
MAX_PATTERN = 256
MAX_CONTENT_BYTES = 16 * 2**20  # more fits no frame
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]|[\ud800-\udfff]")


class StorageError(ConcertinoError):
    """Why a store did not do it. code: `not_found`, `conflict`, `invalid_path`, `too_large` or `storage_error`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoredDocument(Struct, frozen=True):
    """What is under a path. version: 1 for what was just created, one more with each write."""

    content: bytes
    metadata: dict[str, Any]
    version: int


class StorageEntry(Struct, frozen=True):
    """A path in a list. size: of the content, in bytes. modified_at: in UTC."""

    path: str
    size: int
    version: int
    modified_at: datetime


class Storage(Protocol):
    """A store. Every method may block, may be called from any thread, and raises StorageError."""

    def read(self, path: str) -> StoredDocument: ...

    def write(
        self, path: str, content: bytes, metadata: Mapping[str, Any], expected_version: int
    ) -> int:
        """Returns the new version. Content, metadata and version change together or not at all."""
        ...

    def delete(self, path: str) -> None: ...

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        """Entries whose path begins with `prefix`, and whose name, after the last slash, fits the glob `pattern`; by path."""
        ...

    def close(self) -> None: ...


def check_path(path: str) -> tuple[str, ...]:
    """The parts of a path: relative, without `.`, `..` and what no file system takes. Raises StorageError."""
    said = repr(path if len(path) <= 100 else path[:100] + "...")
    if not path:
        raise StorageError(
            "invalid_path", "path: expected one, such as 'features/FEAT-001.md', got none"
        )
    if _CONTROL.search(path):
        raise StorageError(
            "invalid_path",
            f"path: expected no control characters, backslashes or lone surrogates, got {said}",
        )
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") for part in parts):
        raise StorageError(
            "invalid_path",
            f"path: expected a relative one without '.', '..' and empty parts, got {said}",
        )
    if len(path.encode()) > MAX_PATH_BYTES or any(
        len(part.encode()) > MAX_PART_BYTES for part in parts
    ):
        limits = f"{MAX_PATH_BYTES} bytes, {MAX_PART_BYTES} between two slashes"
        raise StorageError("invalid_path", f"path: expected at most {limits}, got {said}")
    return parts


def check_pattern(pattern: str) -> str:
    """A glob for names; `*.md` if none is given. Raises StorageError."""
    if len(pattern) > MAX_PATTERN or "/" in pattern:
        raise StorageError(
            "invalid_path",
            f"pattern: expected a glob of at most {MAX_PATTERN} characters without a slash",
        )
    return pattern or "*.md"


def matcher(pattern: str) -> re.Pattern[str]:
    """Whether a name fits a glob with `*`, `?` and `[...]`. Runs of stars count as one, which keeps matching quick."""
    return re.compile(translate(re.sub(r"\*+", "*", pattern)))


def next_version(path: str, current: int, expected: int) -> int:
    """The version that a write makes. current: 0 if there is nothing. Raises StorageError for a writer that knows another one."""
    if expected == UPSERT:
        return current + 1
    if expected < UPSERT:
        raise StorageError("conflict", f"expected_version: expected -1 or more, got {expected}")
    if expected == CREATE and current:
        raise StorageError(
            "conflict", f"{path}: file already exists (expected_version=0 means create new)"
        )
    if expected != current:
        raise StorageError(
            "conflict", f"{path}: version conflict: expected {expected}, current {current}"
        )
    return current + 1
