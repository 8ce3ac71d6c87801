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
import stat
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, cast

from concertino.library.front_matter import split_front_matter
from concertino.orchestra.extra import MISSING_EXTRA
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

__all__ = ["MarkdownStorage"]

FOLDER = ".projects"
# Extensions of the files beside a content.
VERSION, NEXT, NEW = ".version", ".next", ".new"
RESERVED = (VERSION, NEXT, NEW, ".lock")
# Put before a content that begins with --- and has no metadata.
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
                raise _missing(path)
            raw, version = self._recover(folder, parts[-1], path)
        content, metadata = _split_metadata(raw, path)
        return StoredDocument(content, metadata, version)

    def write(
        self, path: str, content: bytes, metadata: Mapping[str, Any], expected_version: int
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
                raise _missing(path)
            self._recover(folder, parts[-1], path)
            with _convert_errors(path):
                # The content first: a version file without content is ignored.
                os.unlink(parts[-1], dir_fd=folder)
                _remove(folder, parts[-1] + VERSION)
                os.fsync(folder)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        if prefix:
            check_path(prefix.rstrip("/") or "/")
        matches = matcher(check_pattern(pattern)).match
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
        parts = check_path(path)
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

    def _current_version(self, folder: int | None, name: str, path: str) -> int:
        """Return the version of a document; 0 if there is none."""
        if folder is None:
            return 0
        try:
            return self._recover(folder, name, path)[1]
        except StorageError as exc:
            if exc.code != "not_found":
                raise
            return 0

    def _recover(self, folder: int, name: str, path: str) -> tuple[bytes, int]:
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
            raise _missing(path)
        version = _read_file(folder, name + VERSION, path, 64, missing=b"1").strip()
        if not version.isdigit() or int(version) < 1:
            raise StorageError(
                "storage_error", f"{path}{VERSION}: expected a version, got {version[:20]!r}"
            )
        return raw, int(version)

    def _finish(self, folder: int, name: str, version: int) -> None:
        """Write the version of a content that is in place."""
        _write_file(folder, name + VERSION + NEW, f"{version}\n".encode())
        os.replace(name + VERSION + NEW, name + VERSION, src_dir_fd=folder, dst_dir_fd=folder)
        _remove(folder, name + NEXT)
        os.fsync(folder)


def _may_contain(folder: str, prefix: str) -> bool:
    """Return whether a folder may have paths that begin with `prefix`."""
    return folder.startswith(prefix) or prefix.startswith(folder)


def _missing(path: str) -> StorageError:
    return StorageError("not_found", f"{path}: there is nothing under this path")


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


def _read_file(folder: int, name: str, path: str, limit: int, missing: bytes | None = None) -> Any:
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
    """Return metadata as front matter, then the content: keys sorted, as upstream writes them."""
    if not metadata:
        return EMPTY.encode() + content if content.startswith(b"---") else content

    yaml = _import_yaml()
    try:
        block: str = yaml.dump(
            dict(metadata),
            Dumper=_dumper_without_aliases(yaml),
            sort_keys=True,
            allow_unicode=True,
            width=MAX_METADATA_BYTES,
        )
    except (yaml.YAMLError, RecursionError, TypeError) as exc:
        raise StorageError(
            "storage_error", f"metadata: cannot be written: {type(exc).__name__}: {exc}"
        ) from None
    if len(block) > MAX_METADATA_BYTES:
        raise StorageError(
            "too_large", f"metadata: {len(block)} characters; the limit is {MAX_METADATA_BYTES}"
        )
    return f"---\n{block}---\n\n".encode() + content


def _split_metadata(raw: bytes, path: str) -> tuple[bytes, dict[str, Any]]:
    """Return the content and the metadata of a file."""
    if not raw.startswith(b"---"):
        return raw, {}
    text = raw.decode("utf-8", "surrogateescape")
    block, body, _, _ = split_front_matter(text)
    # The content begins with --- but has no front matter.
    if block is None:
        return raw, {}
    metadata = _parse_metadata(block, path)
    return body.removeprefix("\n").encode("utf-8", "surrogateescape"), metadata


def _parse_metadata(block: str, path: str) -> dict[str, Any]:
    """Return metadata as JSON has it: dates stay strings.

    Aliases are refused, since a few lines with them can expand to gigabytes.
    """
    if len(block) > MAX_METADATA_BYTES:
        raise StorageError(
            "too_large", f"{path}: metadata: more than {MAX_METADATA_BYTES} characters"
        )

    yaml = _import_yaml()
    loader = _loader_without_dates(yaml)
    try:
        # Parse the events first to check the depth, because the loader is recursive.
        depth = 0
        for event in yaml.parse(block, Loader=loader):
            kind = type(event).__name__
            depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
            if kind == "AliasEvent" or depth > MAX_DEPTH:
                raise StorageError(
                    "storage_error",
                    f"{path}: metadata: aliases and more than {MAX_DEPTH} levels are not allowed",
                )
        metadata: object = yaml.load(block, Loader=loader)
    except (yaml.YAMLError, ValueError) as exc:
        raise StorageError(
            "storage_error", f"{path}: metadata: is not YAML: {type(exc).__name__}"
        ) from None

    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(
        isinstance(key, str) for key in cast("dict[Any, Any]", metadata)
    ):
        raise StorageError("storage_error", f"{path}: metadata: expected `key: value` lines")
    return cast("dict[str, Any]", metadata)


def _import_yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError(MISSING_EXTRA) from None
    return yaml


def _loader_without_dates(yaml: Any) -> Any:
    """Return a loader class that keeps dates as strings; libyaml's if it is installed."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [
            (tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"
        ]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


def _dumper_without_aliases(yaml: Any) -> Any:
    """Return a dumper class that writes repeated values in full."""

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):
        def ignore_aliases(self, data: object) -> bool:
            return True

    return Dumper
