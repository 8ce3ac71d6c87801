"""MarkdownStorage: stores documents as Markdown files, `{workspace}/.projects/{path}`.

`concertino plugin markdown` is a plugin with this store. The Go implementation uses the same files.
storage.py defines the interface, Storage, and its rules.

The metadata of a document is YAML front matter of its file. The version of the document, a number
that grows with each write, is in the file `{path}.version`. Content and version must change
together although they are two files. So a write has these steps:

1. write the new content to `{path}.new`, and its digest and version to `{path}.next`
2. rename `{path}.new` to `{path}`
3. write `{path}.version`, and remove `{path}.next`

After a crash, the next reader or writer compares `{path}` with the digest in `{path}.next`. If they
match, step 2 was done, and the reader or writer does step 3. Otherwise, it discards the write. A
lock excludes other threads and processes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, cast

from concertino.installation import missing_extra
from concertino.orchestra.storage import (
    CREATE,
    MAX_CONTENT_BYTES,
    UPSERT,
    StorageEntry,
    StorageError,
    StoredDocument,
    clean_folder,
    clean_path,
    compile_pattern,
    missing_document,
    next_version,
)
from concertino.yaml_core import (
    DisallowedYaml,
    InvalidYaml,
    InvalidYamlKey,
    is_null,
    read_node,
    read_value,
)
from concertino.yaml_writer import write_mapping

__all__ = ["MarkdownStorage"]

FOLDER = ".projects"
# The extensions of the files beside a document; see the head of this module.
VERSION, NEXT, NEW = ".version", ".next", ".new"
# Files whose names end with these texts belong to the store, and are no documents.
RESERVED = (VERSION, NEXT, NEW, ".lock")
# The line before front matter, and the line after it.
FENCE = b"---"
# The closing fence of front matter, with the empty line after it if there is one.
_CLOSING_FENCE = re.compile(rb"^---\r*(?:\n(?:\r?\n)?|\Z)", re.MULTILINE)
# Empty front matter. It is written before content without metadata that begins with a line ---.
# Without it, this line would be read as the beginning of front matter.
EMPTY = "---\n{}\n---\n\n"
# The largest metadata of a document, in characters, as it stands between the two fences.
MAX_METADATA = 65536
# The largest size of a `.next` or `.version` file, in bytes. Valid ones are much shorter.
MAX_RECORD_BYTES = 1024
# The limit for the depth of lists and mappings in metadata.
MAX_DEPTH = 32
# With O_NOFOLLOW, opening a symbolic link fails. So no path leads out of the store.
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MarkdownStorage:
    """Implements Storage (storage.py) with files in the directory `.projects` of a workspace.

        storage = MarkdownStorage("/home/me/workspace")
        storage.write("notes/a.md", b"text", {"title": "A"}, CREATE)    # 1, the version

    The first write creates the directory. Symbolic links are not followed. Files that other
    programs write into `.projects` are documents, too. A document without a `.version` file has
    version 1.
    workspace: the path of the directory that contains `.projects`.
    """

    # Most of the private functions get a document as three arguments: `folder`, the descriptor of
    # its directory; `name`, its name in this directory; and `path`, its whole path, for error
    # texts.

    def __init__(self, workspace: str | os.PathLike[str]) -> None:
        self.root = Path(workspace).resolve() / FOLDER
        # Excludes other threads of this process; flock() excludes other processes.
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
        # A write that expects a version needs no new directory, because the document must exist.
        may_be_new = expected_version in (CREATE, UPSERT)
        with self._lock(create=True), self._open(parts, create=may_be_new) as folder:
            version = next_version(
                path, self._current_version(folder, name, path), expected_version
            )
            assert folder is not None, "without a folder, next_version() has raised"
            with _convert_errors(path):
                _write_file(folder, name + NEW, raw)
                _write_file(folder, name + NEXT, f"{version} {_digest(raw)}\n".encode())
                os.fsync(folder)
                # After this rename, a crash no longer discards the write.
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
                # Remove the content first, because a version file without content is ignored.
                os.unlink(parts[-1], dir_fd=folder)
                _remove(folder, parts[-1] + VERSION)
                os.fsync(folder)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        prefix = clean_folder(prefix)
        matches = compile_pattern(pattern).fullmatch
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
                except StorageError:
                    # It is no regular file, or cannot be read as a document. read() says why.
                    continue
                entries.append(
                    StorageEntry(path, len(content), version, datetime.fromtimestamp(modified, UTC))
                )
        return sorted(entries, key=lambda entry: entry.path)

    def close(self) -> None:
        pass

    # Paths and locks

    def _split(self, path: str) -> tuple[str, ...]:
        """Return the parts of a document's path, between the slashes.

        Raises StorageError for an invalid path or a reserved name.
        """
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
        """Lock the store against other threads and processes, inside a `with` block.

        create: whether to create the store's directory if it does not exist.
        Yields whether the directory exists. If not, only other threads are locked out.
        """
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
        """Open the directory of a document inside a `with` block.

        parts: the parts of the document's path.
        create: whether to create missing directories.
        Yields the directory's descriptor, or None if the directory does not exist.
        """
        with _convert_errors("/".join(parts)):
            folder = _open_folder(self.root, parts[:-1], create)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Yield (path, folder, name) of each document whose path begins with `prefix`.

        folder is the descriptor of the document's directory. It is open until the next item.
        """
        for top, folders, names, folder in os.fwalk(self.root, follow_symlinks=False):
            relative = os.path.relpath(top, self.root)
            start = "" if relative == "." else f"{relative}/"
            # os.fwalk descends into the directories that are left in the list.
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
        """Return the version of a document; 0 if the document does not exist.

        folder: None if the directory of the document does not exist.
        """
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
        """Read a document, after finishing or discarding a write that a crash has interrupted.

        Returns the content of its file, with front matter, and its version. Raises StorageError if
        the document does not exist or cannot be read.
        """
        raw = _read_file(folder, name, path, MAX_CONTENT_BYTES)
        # The version and the digest of an interrupted write. Empty if no write was interrupted.
        record = (_read_file(folder, name + NEXT, path, MAX_RECORD_BYTES) or b"").split()
        is_complete = len(record) == 2 and record[0].isdigit()
        if is_complete and raw is not None and record[1] == _digest(raw).encode():
            # The digest matches: the crash came after step 2.
            with _convert_errors(path):
                self._finish(folder, name, int(record[0]))
        elif record:
            # The crash came before step 2.
            _remove(folder, name + NEXT)

        if raw is None:
            raise missing_document(path)
        version = _read_file(folder, name + VERSION, path, MAX_RECORD_BYTES)
        version = b"1" if version is None else version.strip()
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
        """Do step 3 of a write: write the version of a document, and remove the `.next` file."""
        _write_file(folder, name + VERSION + NEW, str(version).encode())
        os.replace(name + VERSION + NEW, name + VERSION, src_dir_fd=folder, dst_dir_fd=folder)
        _remove(folder, name + NEXT)
        os.fsync(folder)


def _open_folder(root: Path, parts: tuple[str, ...], create: bool) -> int | None:
    """Open a directory below `root`, one component at a time, and return its descriptor.

    create: whether to create missing directories below `root`.
    Returns None if the directory does not exist. Raises OSError if it cannot be opened.
    """
    try:
        folder = os.open(root, _OPEN_FOLDER)
    except FileNotFoundError:
        return None
    for part in parts:
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
            child = os.open(part, _OPEN_FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)
        folder = child
    return folder


def _may_contain(folder: str, prefix: str) -> bool:
    """Return whether a directory may contain documents whose paths begin with `prefix`."""
    return folder.startswith(prefix) or prefix.startswith(folder)


def _storage_error(path: str, exc: OSError) -> StorageError:
    """Return the StorageError for an error of the operating system.

    path: the path of the document.
    """
    if exc.errno in (errno.ENOTDIR, errno.ELOOP):
        return StorageError(
            "invalid_path", f"{path}: leads through a symbolic link, or through a file"
        )
    return StorageError("storage_error", f"{path}: {os.strerror(exc.errno or errno.EIO)}")


@contextmanager
def _convert_errors(path: str) -> Generator[None, None, None]:
    """Raise StorageError for an OSError in this `with` block.

    path: the path of the document.
    """
    try:
        yield
    except OSError as exc:
        raise _storage_error(path, exc) from None


def _read_file(
    folder: int,
    name: str,
    path: str,
    limit: int,
) -> bytes | None:
    """Return the bytes of a file; None if there is no such file.

    folder, name: the descriptor of the file's directory, and the file's name in the directory.
    path: the path of the document, for errors.
    limit: the largest size, in bytes.
    Raises StorageError if the file cannot be read or is larger than the limit.
    """
    try:
        # Non-blocking, so that a named pipe cannot block the store.
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _storage_error(path, exc) from None
    with os.fdopen(file, "rb") as stream, _convert_errors(path):
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise StorageError("invalid_path", f"{path}: is not a regular file")
        raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise StorageError("too_large", f"{path}: more than {limit} bytes")
    return raw


def _write_file(folder: int, name: str, raw: bytes) -> None:
    """Write a file in a directory, and wait until it is on the disk."""
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
    """Remove a file from a directory, if it exists."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


# Metadata


def _join_metadata(content: bytes, metadata: Mapping[str, Any]) -> bytes:
    """Return the content of a document's file: metadata as front matter, then the document.

    The Go implementation writes the same bytes.
    """
    if not metadata:
        return EMPTY.encode() + content if _begins_with_fence(content) else content

    try:
        block = write_mapping(metadata, max_depth=MAX_DEPTH)
    except (ValueError, TypeError) as exc:
        raise StorageError("storage_error", f"metadata: cannot be written: {exc}") from None
    if len(block) > MAX_METADATA:
        raise StorageError(
            "too_large", f"metadata: {len(block)} characters; the limit is {MAX_METADATA}"
        )
    return f"---\n{block}---\n\n".encode() + content


def _begins_with_fence(raw: bytes) -> bool:
    """Return whether the first line of a file is `---`, as before front matter."""
    first, newline, _ = raw.partition(b"\n")
    return bool(newline) and first.rstrip(b"\r") == FENCE


def _split_metadata(raw: bytes, path: str) -> tuple[bytes, dict[str, Any]]:
    """Return the content and the metadata of a document's file.

    Front matter begins with a first line `---` and ends with the next line `---`. An empty line
    after front matter does not belong to the content.
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
    """Parse front matter. Dates stay strings, because metadata is sent as JSON.

    Raises StorageError for a text that is too long, too deep or no YAML mapping. Also raises it for
    YAML aliases, because a few lines of them can expand to gigabytes.
    """
    if len(block) > MAX_METADATA:
        raise StorageError("too_large", f"{path}: metadata: more than {MAX_METADATA} characters")

    try:
        root = read_node(block, max_depth=MAX_DEPTH)
        if root is None or is_null(root):
            return {}
        if root.kind == "mapping":
            return cast("dict[str, Any]", read_value(root))
    except ImportError:
        raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None
    except InvalidYamlKey:
        # Raise the last error below.
        pass
    except DisallowedYaml:
        raise StorageError(
            "storage_error",
            f"{path}: metadata: aliases and more than {MAX_DEPTH} levels are not allowed",
        ) from None
    except InvalidYaml as exc:
        line = "" if exc.line is None else f"line {exc.line + 1}: "
        raise StorageError("storage_error", f"{path}: metadata: {line}is not YAML: {exc}") from None
    raise StorageError("storage_error", f"{path}: metadata: expected `key: value` lines")
