"""Storage: documents by path, with metadata and a version for optimistic locking.

This module has the interface of a store and the rules that all stores share: valid paths, expected
versions, and patterns. The stores are in markdown.py (files) and sqlite.py (one database file).
Their methods may block, so callers use threads.
Source: the Orchestra plugin protocol, "Storage".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from posixpath import normpath
from typing import Any, Protocol

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.excerpts import shorten

__all__ = [
    "CREATE",
    "DEFAULT_STORAGE",
    "MAX_CONTENT_BYTES",
    "UPSERT",
    "Storage",
    "StorageEntry",
    "StorageError",
    "StoredDocument",
    "check_path",
    "check_pattern",
    "clean_folder",
    "clean_path",
    "matcher",
    "missing_document",
    "next_version",
]

# The storage type of requests that name none.
DEFAULT_STORAGE = "markdown"
# Expected versions with a special meaning: the path must be new; any version will do.
CREATE, UPSERT = 0, -1
MAX_PATH_BYTES = 4096
# Of one name between two slashes. File systems allow 255, and the version's file has a longer name.
MAX_PART_BYTES = 240
MAX_PATTERN = 256
# The limit of a frame.
MAX_CONTENT_BYTES = 16 * 2**20
# A glob as Go's path/filepath has it.
_CHARACTER = r"(?:\\.|[^\\\]\-])"
_RANGE = re.compile(rf"({_CHARACTER})(?:-({_CHARACTER}))?", re.DOTALL)
_GLOB_PART = re.compile(rf"\[\^?+(?:{_RANGE.pattern})+\]|\\.|[^\[\\]", re.DOTALL)
_GLOB = re.compile(rf"(?:{_GLOB_PART.pattern})*", re.DOTALL)
_INVALID = re.compile(r"[\x00-\x1f\x7f\\]|[\ud800-\udfff]")


class StorageError(ConcertinoError):
    """An operation of a store failed.

    code: `not_found`, `conflict`, `invalid_path`, `too_large` or `storage_error`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoredDocument(Struct, frozen=True):
    """A document. version: 1 when it is created, one more with each write."""

    content: bytes
    metadata: dict[str, Any]
    version: int


class StorageEntry(Struct, frozen=True):
    """A document in a list. size: of the content, in bytes. modified_at: in UTC."""

    path: str
    size: int
    version: int
    modified_at: datetime


class Storage(Protocol):
    """A store. Its methods may block, may be called from any thread, and raise StorageError."""

    def read(self, path: str) -> StoredDocument: ...

    def write(
        self,
        path: str,
        content: bytes,
        metadata: Mapping[str, Any],
        expected_version: int,
    ) -> int:
        """Write a document and return its new version.

        Content, metadata and version change together or not at all.
        """
        ...

    def delete(self, path: str) -> None: ...

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        """Return the documents in the folder `prefix` and below it, sorted by path.

        pattern: a glob that the name, after the last slash, must match.
        """
        ...

    def close(self) -> None: ...


def missing_document(path: str) -> StorageError:
    """Return the error for a path under which there is no document."""
    return StorageError("not_found", f"{path}: there is nothing under this path")


def check_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path, which is relative and has no `.` or `..`. Raises StorageError."""
    display = repr(shorten(path, 100))
    if not path:
        raise StorageError(
            "invalid_path", "path: expected one, such as 'features/FEAT-001.md', got none"
        )
    if _INVALID.search(path):
        raise StorageError(
            "invalid_path",
            f"path: expected no control characters, backslashes or lone surrogates, got {display}",
        )
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") for part in parts):
        raise StorageError(
            "invalid_path",
            f"path: expected a relative one without '.', '..' and empty parts, got {display}",
        )
    if len(path.encode()) > MAX_PATH_BYTES or any(
        len(part.encode()) > MAX_PART_BYTES for part in parts
    ):
        limits = f"{MAX_PATH_BYTES} bytes, {MAX_PART_BYTES} between two slashes"
        raise StorageError("invalid_path", f"path: expected at most {limits}, got {display}")
    return parts


def clean_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path, cleaned as upstream does. Raises StorageError.

    Cleaned: `.`, empty parts and slashes at both ends are left out, and `..` takes the part before
    it away; a path that leads out of the store is refused.
    """
    return check_path(normpath(path).lstrip("/") if path else "")


def clean_folder(prefix: str) -> str:
    """Return the beginning of every path in a folder, with a slash; empty for all paths.

    Raises StorageError.
    """
    if not prefix or normpath(prefix).strip("/") in ("", "."):
        return ""
    return "/".join(clean_path(prefix)) + "/"


def check_pattern(pattern: str) -> str:
    """Return the glob, or `*.md` for an empty one. Raises StorageError."""
    if len(pattern) > MAX_PATTERN or "/" in pattern:
        raise StorageError(
            "invalid_path",
            f"pattern: expected a glob of at most {MAX_PATTERN} characters without a slash",
        )
    if not _GLOB.fullmatch(pattern):
        raise StorageError(
            "invalid_path",
            "pattern: expected `*`, `?`, `[a-z]`, `[^a-z]` and `\\` before a character, "
            f"got {pattern!r}",
        )
    return pattern or "*.md"


def matcher(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a glob, for fullmatch(). The rules are those of upstream.

    `*` and `?`; a class `[a-c]`, or `[^a-c]` for all other characters; `\\` before a character that
    means itself.
    """
    # Between two stars the first place that fits is the right one. Atomic groups take no other,
    # so that many stars do not make matching slow.
    first, *others = _split_at_stars(pattern)
    if not others:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return re.compile(f"{first}{middle}.*{others[-1]}", re.DOTALL)


def _split_at_stars(pattern: str) -> list[str]:
    parts = [""]
    for match in _GLOB_PART.finditer(pattern):
        text = match[0]
        if text == "*":
            parts.append("")
        elif text == "?":
            parts[-1] += "."
        elif text[0] == "[":
            parts[-1] += _translate_class(text)
        else:
            parts[-1] += re.escape(text[-1])
    return parts


def _translate_class(text: str) -> str:
    negated = text[1] == "^"
    ranges: list[str] = []
    for match in _RANGE.finditer(text, 2 if negated else 1, len(text) - 1):
        low, high = match[1][-1], (match[2] or match[1])[-1]
        # An empty range is allowed, and matches nothing.
        if low <= high:
            ranges.append(f"{re.escape(low)}-{re.escape(high)}")
    if not ranges:
        return "." if negated else r"(?!)"
    return f"[{'^' if negated else ''}{''.join(ranges)}]"


def next_version(path: str, current: int, expected: int) -> int:
    """Return the version that a write creates.

    current: 0 if there is no document. Raises StorageError if the writer expects another version.
    """
    if expected == UPSERT:
        return current + 1
    # Not a version that any document can have.
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
