"""A store of Markdown files: `{workspace}/.projects/{path}`, compatible with upstream's.

Metadata is YAML front matter; the version of a document is in the file `{path}.version`. Content
and version must change together although they are two files. So `{path}.next` first records the
digest and the version of the new content; then the content is replaced. After a crash, the next
reader or writer uses this record to finish or undo the write. Writers hold a lock, which also
excludes writers in other processes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, cast

from concertino.installation import missing_extra
from concertino.orchestra.storage import (
    MAX_CONTENT_BYTES,
    StorageEntry,
    StorageError,
    StoredDocument,
    check_pattern,
    clean_folder,
    clean_path,
    matcher,
    missing_document,
    next_version,
)
from concertino.yaml_core import (
    InvalidYaml,
    InvalidYamlKey,
    YamlLimit,
    is_null,
    read_node,
    read_value,
)
from concertino.yaml_writer import write_mapping

__all__ = ["MarkdownStorage"]

FOLDER = ".projects"
# Extensions of the files beside a content.
VERSION, NEXT, NEW = ".version", ".next", ".new"
RESERVED = (VERSION, NEXT, NEW, ".lock")
FENCE = b"---"
# With the empty line behind it.
_CLOSING_FENCE = re.compile(rb"^---\r*(?:\n(?:\r?\n)?|\Z)", re.MULTILINE)
# Put before a content that begins with a line --- and has no metadata.
EMPTY = "---\n{}\n---\n\n"
MAX_METADATA_BYTES = 65536
# Levels of nested lists and mappings in metadata.
MAX_DEPTH = 32
# No component of a path may be a symbolic link, so that no path leads out of the store.
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MarkdownStorage:
    """A Storage in the folder `.projects` of a workspace, which is created with the first document.

    Symbolic links are not followed. Files that other programs put there are documents too; without
    a `.version` file they have version 1.
    """

    def __init__(self, workspace: str | os.PathLike[str]) -> None:
        self.root = Path(workspace).resolve() / FOLDER
        # Between threads; flock works between processes.
        self._thread_lock = threading.Lock()

    def read(self, path: str) -> StoredDocument:
        parts = self._split(path)
        with self._lock(create=False) as exists, self._open(parts, create=False) as folder:
            if not exists or folder is None:
                raise missing_document(path)
            raw, version = self._recover(folder, parts[-1], path)
        content, metadata = _split_metadata(raw, path)
        return StoredDocument(content, metadata, version)

    def write(
        self,
        path: str,
        content: bytes,
        metadata: Mapping[str, Any],
        expected_version: int,
    ) -> int:
        parts = self._split(path)
        raw = _join_metadata(content, metadata)
        if len(raw) > MAX_CONTENT_BYTES:
            raise StorageError(
                "too_large", f"{path}: {len(raw)} bytes; the limit is {MAX_CONTENT_BYTES}"
            )

        name = parts[-1]
        with self._lock(create=True), self._open(parts, create=expected_version <= 0) as folder:
            version = next_version(
                path, self._current_version(folder, name, path), expected_version
            )
            assert folder is not None, "there is a version, or the folder was created"
            with _convert_errors(path):
                _write_file(folder, name + NEW, raw)
                _write_file(folder, name + NEXT, f"{version} {_digest(raw)}\n".encode())
                os.fsync(folder)
                # The write is durable from here on: after a crash it is finished, not undone.
                os.replace(name + NEW, name, src_dir_fd=folder, dst_dir_fd=folder)
                self._finish(folder, name, version)
        return version

    def delete(self, path: str) -> None:
        parts = self._split(path)
        with self._lock(create=False) as exists, self._open(parts, create=False) as folder:
            if not exists or folder is None:
                raise missing_document(path)
            self._recover(folder, parts[-1], path)
            with _convert_errors(path):
                # The content first: a version file without content is ignored.
                os.unlink(parts[-1], dir_fd=folder)
                _remove(folder, parts[-1] + VERSION)
                os.fsync(folder)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        prefix = clean_folder(prefix)
        matches = matcher(check_pattern(pattern)).fullmatch
        entries: list[StorageEntry] = []
        with self._lock(create=False) as exists:
            if not exists:
                return []
            for path, folder, name in self._walk(prefix):
                if not matches(name):
                    continue
                try:
                    raw, version = self._recover(folder, name, path)
                    modified = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                    content, _ = _split_metadata(raw, path)
                # Not a regular file, or not readable as a document: read() reports why.
                except StorageError:
                    continue
                entries.append(
                    StorageEntry(path, len(content), version, datetime.fromtimestamp(modified, UTC))
                )
        return sorted(entries, key=lambda entry: entry.path)

    def close(self) -> None:
        pass

    # Paths and locks

    def _split(self, path: str) -> tuple[str, ...]:
        parts = clean_path(path)
        if parts[-1].endswith(RESERVED):
            raise StorageError(
                "invalid_path",
                f"path: names that end with {', '.join(RESERVED)} are the store's own, "
                f"got {path!r}",
            )
        return parts

    @contextmanager
    def _lock(self, *, create: bool) -> Generator[bool, None, None]:
        """Lock the store for this thread and process. Yields whether the store exists."""
        with self._thread_lock, _convert_errors(FOLDER):
            if create:
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                file = os.open(
                    self.root / ".lock",
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                )
            except FileNotFoundError:
                file = -1
            if file < 0:
                yield False
                return
            try:
                flock(file, LOCK_EX)
                yield True
            finally:
                os.close(file)

    @contextmanager
    def _open(self, parts: tuple[str, ...], *, create: bool) -> Generator[int | None, None, None]:
        """Open the folder of a path, one component at a time. Yields None if there is none."""
        folder = -1
        try:
            try:
                folder = os.open(self.root, _OPEN_FOLDER)
                for part in parts[:-1]:
                    if create:
                        try:
                            os.mkdir(part, 0o700, dir_fd=folder)
                        except FileExistsError:
                            pass
                    folder, parent = os.open(part, _OPEN_FOLDER, dir_fd=folder), folder
                    os.close(parent)
            except FileNotFoundError:
                pass
            except OSError as exc:
                raise _error("/".join(parts), exc) from None
            else:
                yield folder
                return
            yield None
        finally:
            if folder >= 0:
                os.close(folder)

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Yield path, open folder and name of every file whose path begins with `prefix`."""
        for top, folders, names, folder in os.fwalk(self.root, follow_symlinks=False):
            relative = os.path.relpath(top, self.root)
            start = "" if relative == "." else f"{relative}/"
            # os.fwalk descends into the folders that are left in the list.
            folders[:] = [name for name in folders if _may_contain(f"{start}{name}/", prefix)]
            for name in names:
                if f"{start}{name}".startswith(prefix) and not name.endswith(RESERVED):
                    yield start + name, folder, name

    # Documents

    def _current_version(
        self,
        folder: int | None,
        name: str,
        path: str,
    ) -> int:
        """Return the version of a document; 0 if there is none."""
        if folder is None:
            return 0
        try:
            return self._recover(folder, name, path)[1]
        except StorageError as exc:
            if exc.code != "not_found":
                raise
            return 0

    def _recover(
        self,
        folder: int,
        name: str,
        path: str,
    ) -> tuple[bytes, int]:
        """Finish or undo a write that a crash interrupted; return content and version.

        Raises StorageError.
        """
        raw = _read_file(folder, name, path, MAX_CONTENT_BYTES)
        intent = _read_file(folder, name + NEXT, path, 1024, missing=b"").split()
        if (
            len(intent) == 2
            and raw is not None
            and intent[1] == _digest(raw).encode()
            and intent[0].isdigit()
        ):
            with _convert_errors(path):
                self._finish(folder, name, int(intent[0]))
        # The new content was not put in place.
        elif intent:
            _remove(folder, name + NEXT)

        if raw is None:
            raise missing_document(path)
        version = _read_file(folder, name + VERSION, path, 64, missing=b"1").strip()
        if not version.isdigit() or int(version) < 1:
            raise StorageError(
                "storage_error", f"{path}{VERSION}: expected a version, got {version[:20]!r}"
            )
        return raw, int(version)

    def _finish(
        self,
        folder: int,
        name: str,
        version: int,
    ) -> None:
        """Write the version of a content that is in place."""
        _write_file(folder, name + VERSION + NEW, str(version).encode())
        os.replace(name + VERSION + NEW, name + VERSION, src_dir_fd=folder, dst_dir_fd=folder)
        _remove(folder, name + NEXT)
        os.fsync(folder)


def _may_contain(folder: str, prefix: str) -> bool:
    """Return whether a folder may have paths that begin with `prefix`."""
    return folder.startswith(prefix) or prefix.startswith(folder)


def _error(path: str, exc: OSError) -> StorageError:
    if exc.errno in (errno.ENOTDIR, errno.ELOOP):
        return StorageError(
            "invalid_path", f"{path}: leads through a symbolic link, or through a file"
        )
    return StorageError("storage_error", f"{path}: {os.strerror(exc.errno or errno.EIO)}")


@contextmanager
def _convert_errors(path: str) -> Generator[None, None, None]:
    """Raise StorageError instead of OSError."""
    try:
        yield
    except OSError as exc:
        raise _error(path, exc) from None


def _read_file(
    folder: int,
    name: str,
    path: str,
    limit: int,
    missing: bytes | None = None,
) -> Any:
    """Return the bytes of a file, or `missing`. Raises StorageError. Any: depends on `missing`."""
    try:
        # Non-blocking, so that a named pipe cannot block the store.
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        return missing
    except OSError as exc:
        raise _error(path, exc) from None
    with os.fdopen(file, "rb") as stream, _convert_errors(path):
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise StorageError("invalid_path", f"{path}: is not a regular file")
        raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise StorageError("too_large", f"{path}: more than {limit} bytes")
    return raw


def _write_file(folder: int, name: str, raw: bytes) -> None:
    file = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    with os.fdopen(file, "wb") as stream:
        stream.write(raw)
        stream.flush()
        os.fsync(stream.fileno())


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


# Metadata


def _join_metadata(content: bytes, metadata: Mapping[str, Any]) -> bytes:
    """Return metadata as front matter, then the content, with the bytes that upstream writes."""
    if not metadata:
        return EMPTY.encode() + content if _begins_with_fence(content) else content

    try:
        block = write_mapping(metadata, max_depth=MAX_DEPTH)
    except (ValueError, TypeError) as exc:
        raise StorageError("storage_error", f"metadata: cannot be written: {exc}") from None
    if len(block) > MAX_METADATA_BYTES:
        raise StorageError(
            "too_large", f"metadata: {len(block)} characters; the limit is {MAX_METADATA_BYTES}"
        )
    return f"---\n{block}---\n\n".encode() + content


def _begins_with_fence(raw: bytes) -> bool:
    first, newline, _ = raw.partition(b"\n")
    return bool(newline) and first.rstrip(b"\r") == FENCE


def _split_metadata(raw: bytes, path: str) -> tuple[bytes, dict[str, Any]]:
    """Return the content and the metadata of a file.

    Front matter begins in the first line, and only a line `---` ends it. The content follows,
    behind one empty line if there is one.
    """
    if not _begins_with_fence(raw):
        return raw, {}
    start = raw.index(b"\n") + 1
    end = _CLOSING_FENCE.search(raw, start)
    if end is None:
        return raw, {}
    metadata = _parse_metadata(raw[start : end.start()].decode("utf-8", "surrogateescape"), path)
    return raw[end.end() :], metadata


def _parse_metadata(block: str, path: str) -> dict[str, Any]:
    """Return metadata as JSON has it: dates stay strings.

    Aliases are refused, since a few lines with them can expand to gigabytes.
    """
    if len(block) > MAX_METADATA_BYTES:
        raise StorageError(
            "too_large", f"{path}: metadata: more than {MAX_METADATA_BYTES} characters"
        )

    try:
        root = read_node(block, max_depth=MAX_DEPTH)
        if root is None or is_null(root):
            return {}
        if root.kind == "mapping":
            return cast("dict[str, Any]", read_value(root))
    except ImportError:
        raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None
    except InvalidYamlKey:
        pass
    except YamlLimit:
        raise StorageError(
            "storage_error",
            f"{path}: metadata: aliases and more than {MAX_DEPTH} levels are not allowed",
        ) from None
    except InvalidYaml as exc:
        line = "" if exc.line is None else f"line {exc.line + 1}: "
        raise StorageError("storage_error", f"{path}: metadata: {line}is not YAML: {exc}") from None
    raise StorageError("storage_error", f"{path}: metadata: expected `key: value` lines")
