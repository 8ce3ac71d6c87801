"""Storage: a store of documents by path, with metadata, and a version for optimistic locking.

    storage = SqliteStorage("documents.db")
    version = storage.write("notes/a.md", b"text", {"title": "A"}, CREATE)
    # Raises StorageError if somebody else has written the document since then:
    version = storage.write("notes/a.md", b"new", {}, version)

A plugin provides a Storage to other plugins with Plugin.add_storage(). This module has the
interface, and the rules for paths, versions and patterns that all stores share. The stores are in
markdown.py (files), sqlite.py (one database file) and nats_storage.py (a bucket of a NATS cluster).
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
from concertino.schema.json_values import encode_finite

__all__ = [
    "CREATE",
    "DEFAULT_STORAGE",
    "MAX_CONTENT_BYTES",
    "RESOURCES",
    "UPSERT",
    "Storage",
    "StorageEntry",
    "StorageError",
    "StoredDocument",
    "check_path",
    "clean_folder",
    "clean_path",
    "compile_pattern",
    "encode_metadata",
    "missing_document",
    "next_version",
]

# The storage type of requests that name none.
DEFAULT_STORAGE = "markdown"
# The storage type of the resources of MCP servers. Several plugins can provide it together.
RESOURCES = "mcp"
# Special values of the parameter expected_version of Storage.write(). CREATE: fail if the document
# exists. UPSERT: write whether or not it exists.
CREATE, UPSERT = 0, -1
# The longest path of a document, in bytes of UTF-8.
MAX_PATH_BYTES = 4096
# Limit for a name between two slashes. File systems allow 255 bytes, and MarkdownStorage appends
# extensions such as `.version`.
MAX_PART_BYTES = 240
# The longest pattern, in characters.
MAX_PATTERN = 256
# The longest content, which is also the limit for a frame of the protocol.
MAX_CONTENT_BYTES = 16 * 2**20
# Patterns are globs with the syntax of Go's path/filepath, which is not that of fnmatch. _GLOB
# matches a whole glob. _GLOB_PART matches one part of a glob: a class, an escaped character or any
# other character. _RANGE matches a character or a range within a class.
_CHARACTER = r"(?:\\.|[^\\\]\-])"
_RANGE = re.compile(rf"({_CHARACTER})(?:-({_CHARACTER}))?", re.DOTALL)
_GLOB_PART = re.compile(rf"\[\^?+(?:{_RANGE.pattern})+\]|\\.|[^\[\\]", re.DOTALL)
_GLOB = re.compile(rf"(?:{_GLOB_PART.pattern})*", re.DOTALL)
# The characters that no path may contain.
_INVALID = re.compile(r"[\x00-\x1f\x7f\\]|[\ud800-\udfff]")


class StorageError(ConcertinoError):
    """An operation of a store has failed.

    code: `not_found`, `conflict` (the document has another version), `invalid_path`, `too_large`
        or `storage_error`. The code is sent to the caller.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoredDocument(Struct, frozen=True):
    """A document that was read.

    metadata: a JSON object about the document, such as {"title": "A"}.
    version: 1 after the document's creation; each write adds 1.
    """

    content: bytes
    metadata: dict[str, Any]
    version: int


class StorageEntry(Struct, frozen=True):
    """A document in a list.

    path: the path of the document, such as `features/FEAT-001.md`.
    size: the size of the content, in bytes.
    modified_at: when the document was written last, in UTC.
    """

    path: str
    size: int
    version: int
    modified_at: datetime


class Storage(Protocol):
    """A store of documents.

    All methods may block, and may be called from any thread. They raise StorageError if they fail.
    Paths are relative and contain slashes, such as `features/FEAT-001.md`. For a path without a
    document, read() and delete() raise StorageError with the code `not_found`. close() releases the
    store's files or connections.
    """

    def read(self, path: str) -> StoredDocument: ...

    def write(
        self,
        path: str,
        content: bytes,
        metadata: Mapping[str, Any],
        expected_version: int,
    ) -> int:
        """Write a document and return its new version.

        Content, metadata and version change in one atomic step.
        metadata: a JSON object about the document, such as {"title": "A"}.
        expected_version: the version that the document must have; CREATE if it must not exist;
            UPSERT to write in any case.
        Raises StorageError with the code `conflict` if the document has another version.
        """
        ...

    def delete(self, path: str) -> None: ...

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        """Return the documents in the directory `prefix` and below it, sorted by path.

        prefix: the path of the directory; "" for all documents.
        pattern: a glob that the file name, the path after its last slash, must match; "" for
            `*.md`.
        """
        ...

    def close(self) -> None: ...


def encode_metadata(path: str, metadata: Mapping[str, Any]) -> bytes:
    """Return a document's metadata as JSON.

    path: the path of the document, for the error.
    Raises StorageError for a value that JSON cannot express, such as infinity.
    """
    try:
        return encode_finite(dict(metadata), "metadata")
    except ValueError as exc:
        raise StorageError("storage_error", f"{path}: {exc}") from None


def missing_document(path: str) -> StorageError:
    """Return the error for a path without a document."""
    return StorageError("not_found", f"{path}: there is nothing under this path")


def check_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path between its slashes.

    Raises StorageError for a path that is too long or absolute, or that has invalid characters,
    empty parts, `.` or `..`.
    """
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
    """Return the parts of a path after normalizing it. Stores call this for each path they get.

    Removes `.`, empty parts, and slashes at both ends. Each `..` removes the part before it. The Go
    implementation does the same.
    Raises StorageError if check_path() refuses the result, or if the path leads out of the store.
    """
    return check_path(normpath(path).lstrip("/") if path else "")


def clean_folder(prefix: str) -> str:
    """Return the normalized path of a directory, with a slash at its end; empty for the root.

    The paths of all documents in the directory, and of no others, begin with the result.
    prefix: the path of the directory, with or without a slash at its end; "" for the root
        directory.
    Raises StorageError if the path leads out of the store or has characters that are not allowed.
    """
    if not prefix or normpath(prefix).strip("/") in ("", "."):
        return ""
    return "/".join(clean_path(prefix)) + "/"


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a glob, to use with fullmatch().

    pattern: may contain `*`, `?`, a class `[a-c]`, its complement `[^a-c]`, and `\\` before a
        character that stands for itself. They mean the same as in Go. "" stands for `*.md`.
    Raises StorageError for an invalid glob.
    """
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

    first, *others = _split_at_stars(pattern or "*.md")
    # Without a star, the pattern has one part.
    if not others:
        return re.compile(first, re.DOTALL)
    # If the part between two stars matches at several places, the first place is always right. So
    # atomic groups (?>...) forbid backtracking, which would be slow with many stars.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return re.compile(f"{first}{middle}.*{others[-1]}", re.DOTALL)


def _split_at_stars(pattern: str) -> list[str]:
    """Return the regular expressions for the parts of a glob between its stars."""
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
            # The last character, without the backslash before it.
            parts[-1] += re.escape(text[-1])
    return parts


def _translate_class(text: str) -> str:
    """Return the regular expression for a class of a glob, such as `[^a-c]`."""
    negated = text[1] == "^"
    ranges: list[str] = []
    # Leave out the brackets and the `^`.
    for match in _RANGE.finditer(text, 2 if negated else 1, len(text) - 1):
        # A single character is a range from itself to itself. [-1] leaves out a backslash.
        low, high = match[1][-1], (match[2] or match[1])[-1]
        # An empty range is allowed, and matches nothing.
        if low <= high:
            ranges.append(f"{re.escape(low)}-{re.escape(high)}")
    if not ranges:
        return "." if negated else r"(?!)"
    bracket = "[^" if negated else "["
    return f"{bracket}{''.join(ranges)}]"


def next_version(path: str, current: int, expected: int) -> int:
    """Return the version that a document has after a write.

    path: the path of the document, for the error.
    current: the version before the write; 0 if there is no document.
    expected: the version that the document must have; CREATE if the document must not exist; UPSERT
        to write in any case.
    Raises StorageError if the document has another version.
    """
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
