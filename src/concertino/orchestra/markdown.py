"""A store of files: `{folder}/.projects/{path}`, metadata as front matter, the version in `{path}.version`, like upstream's.

Content and version are two files, and change as one: `{path}.next` says which content will have which version before the content is
put in place, so that whoever comes after a crash can tell how far it got. Writers, of other processes too, take turns by a lock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, cast

from concertino.errors import ConcertinoError
from concertino.library.front_matter import split_front_matter
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
VERSION, NEXT, NEW = ".version", ".next", ".new"  # endings of what lies beside a content
OURS = (VERSION, NEXT, NEW, ".lock")
EMPTY = "---\n{}\n---\n\n"  # before a content that begins with --- and has no metadata
MAX_METADATA_BYTES = 65536
EXTRA = "metadata is kept as YAML: pip install 'concertino[orchestra]'"


class MarkdownStorage:
    """Files below a folder. workspace: the folder that has, or gets, the folder `.projects`. A Storage.

    Symbolic links below it are not followed. Files that others put there are found too; without a `.version` they have version 1.
    """

    def __init__(self, workspace: str | os.PathLike[str]) -> None:
        self.root = Path(workspace).resolve() / FOLDER
        self._turn = threading.Lock()  # flock is between processes

    def read(self, path: str) -> StoredDocument:
        parts = self._parts(path)
        with self._locked(create=False) as there, self._folder(parts, create=False) as folder:
            if not there or folder is None:
                raise _missing(path)
            raw, version = self._settled(folder, parts[-1], path)
        content, metadata = _unfolded(raw, path)
        return StoredDocument(content, metadata, version)

    def write(
        self, path: str, content: bytes, metadata: Mapping[str, Any], expected_version: int
    ) -> int:
        parts = self._parts(path)
        raw = _folded(content, metadata)
        if len(raw) > MAX_CONTENT_BYTES:
            raise StorageError(
                "too_large", f"{path}: {len(raw)} bytes; the limit is {MAX_CONTENT_BYTES}"
            )
        name = parts[-1]
        with self._locked(create=True), self._folder(parts, create=expected_version <= 0) as folder:
            try:
                current = 0 if folder is None else self._settled(folder, name, path)[1]
            except StorageError as error:
                if error.code != "not_found":
                    raise
                current = 0
            version = next_version(path, current, expected_version)
            assert folder is not None  # there is a version, or it was made
            with _told(path):
                _put(folder, name + NEW, raw)
                _put(folder, name + NEXT, f"{version} {_digest(raw)}\n".encode())
                os.fsync(folder)
                os.replace(
                    name + NEW, name, src_dir_fd=folder, dst_dir_fd=folder
                )  # from here on it is written
                self._finish(folder, name, version)
        return version

    def delete(self, path: str) -> None:
        parts = self._parts(path)
        with self._locked(create=False) as there, self._folder(parts, create=False) as folder:
            if not there or folder is None:
                raise _missing(path)
            self._settled(folder, parts[-1], path)
            with _told(path):
                os.unlink(parts[-1], dir_fd=folder)  # a version without a content is nothing
                _remove(folder, parts[-1] + VERSION)
                os.fsync(folder)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        if prefix:
            check_path(prefix.rstrip("/") or "/")
        fits = matcher(check_pattern(pattern)).match
        entries: list[StorageEntry] = []
        with self._locked(create=False) as there:
            if not there:
                return []
            for path, folder, name in self._walk(prefix):
                if not fits(name):
                    continue
                try:
                    raw, version = self._settled(folder, name, path)
                    modified = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
                    content, _ = _unfolded(raw, path)
                except StorageError:
                    continue  # no plain file, or one that cannot be read as ours: reading it says why
                entries.append(
                    StorageEntry(path, len(content), version, datetime.fromtimestamp(modified, UTC))
                )
        return sorted(entries, key=lambda each: each.path)

    def close(self) -> None:
        pass

    # Inside

    def _parts(self, path: str) -> tuple[str, ...]:
        parts = check_path(path)
        if parts[-1].endswith(OURS):
            raise StorageError(
                "invalid_path",
                f"path: names that end with {', '.join(OURS)} are the store's own, got {path!r}",
            )
        return parts

    @contextmanager
    def _locked(self, *, create: bool) -> Generator[bool, None, None]:
        """One at a time, across threads and processes. Gives whether there is anything yet."""
        with self._turn, _told(FOLDER):
            if create:
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                lock = os.open(
                    self.root / ".lock",
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                )
            except FileNotFoundError:
                lock = -1
            if lock < 0:
                yield False
                return
            try:
                flock(lock, LOCK_EX)
                yield True
            finally:
                os.close(lock)

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, create: bool) -> Generator[int | None, None, None]:
        """The folder of a path, step by step, so that no link leads out; None if there is none."""
        at = -1
        try:
            try:
                at = os.open(self.root, _DIRECTORY)
                for part in parts[:-1]:
                    if create:
                        try:
                            os.mkdir(part, 0o700, dir_fd=at)
                        except FileExistsError:
                            pass
                    at, before = os.open(part, _DIRECTORY, dir_fd=at), at
                    os.close(before)
            except FileNotFoundError:
                pass
            except OSError as why:
                raise _error("/".join(parts), why) from None
            else:
                yield at
                return
            yield None
        finally:
            if at >= 0:
                os.close(at)

    def _settled(self, folder: int, name: str, path: str) -> tuple[bytes, int]:
        """A content and its version, after what a crash may have left was brought to an end. Raises StorageError."""
        raw = _get(folder, name, path, MAX_CONTENT_BYTES)
        intent = _get(folder, name + NEXT, path, 1024, missing=b"").split()
        if (
            len(intent) == 2
            and raw is not None
            and intent[1] == _digest(raw).encode()
            and intent[0].isdigit()
        ):
            with _told(path):
                self._finish(folder, name, int(intent[0]))
        elif intent:  # it did not come to that
            _remove(folder, name + NEXT)
        if raw is None:
            raise _missing(path)
        said = _get(folder, name + VERSION, path, 64, missing=b"1").strip()
        if not said.isdigit() or int(said) < 1:
            raise StorageError(
                "storage_error", f"{path}{VERSION}: expected a version, got {said[:20]!r}"
            )
        return raw, int(said)

    def _finish(self, folder: int, name: str, version: int) -> None:
        _put(folder, name + VERSION + NEW, f"{version}\n".encode())
        os.replace(name + VERSION + NEW, name + VERSION, src_dir_fd=folder, dst_dir_fd=folder)
        _remove(folder, name + NEXT)
        os.fsync(folder)

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Path, open folder and name of every file whose path begins with prefix."""
        for top, folders, names, at in os.fwalk(self.root, follow_symlinks=False):
            inside = os.path.relpath(top, self.root)
            before = "" if inside == "." else f"{inside}/"
            folders[:] = [each for each in folders if _leads_to(f"{before}{each}/", prefix)]
            for name in names:
                if f"{before}{name}".startswith(prefix) and not name.endswith(OURS):
                    yield before + name, at, name


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _leads_to(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)


def _missing(path: str) -> StorageError:
    return StorageError("not_found", f"{path}: there is nothing under this path")


def _error(path: str, why: OSError) -> StorageError:
    if why.errno in (errno.ENOTDIR, errno.ELOOP):
        return StorageError(
            "invalid_path", f"{path}: leads through a link, or through what is no folder"
        )
    return StorageError("storage_error", f"{path}: {os.strerror(why.errno or errno.EIO)}")


@contextmanager
def _told(path: str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as why:
        raise _error(path, why) from None


def _get(
    folder: int, name: str, path: str, limit: int, missing: bytes | None = None
) -> Any:  # Any: bytes, or what is missing
    try:
        # Not blocking: a pipe that somebody put there must not hold the store.
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        return missing
    except OSError as why:
        raise _error(path, why) from None
    with os.fdopen(file, "rb") as opened, _told(path):
        if not _is_plain(opened.fileno()):
            raise StorageError("invalid_path", f"{path}: is no plain file")
        raw = opened.read(limit + 1)
    if len(raw) > limit:
        raise StorageError("too_large", f"{path}: more than {limit} bytes")
    return raw


def _is_plain(file: int) -> bool:
    import stat

    return stat.S_ISREG(os.fstat(file).st_mode)


def _put(folder: int, name: str, raw: bytes) -> None:
    file = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    with os.fdopen(file, "wb") as opened:
        opened.write(raw)
        opened.flush()
        os.fsync(opened.fileno())


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


# Front matter


def _folded(content: bytes, metadata: Mapping[str, Any]) -> bytes:
    """Metadata in front of the content: sorted keys, an empty line, as upstream writes them."""
    if not metadata:
        return EMPTY.encode() + content if content.startswith(b"---") else content
    yaml = _yaml()
    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    try:
        block: str = yaml.dump(
            dict(metadata),
            Dumper=_without_aliases(dumper),
            sort_keys=True,
            allow_unicode=True,
            width=MAX_METADATA_BYTES,
        )
    except (yaml.YAMLError, RecursionError, TypeError) as why:
        raise StorageError(
            "storage_error", f"metadata: cannot be written: {type(why).__name__}: {why}"
        ) from None
    if len(block) > MAX_METADATA_BYTES:
        raise StorageError(
            "too_large", f"metadata: {len(block)} characters; the limit is {MAX_METADATA_BYTES}"
        )
    return f"---\n{block}---\n\n".encode() + content


def _unfolded(raw: bytes, path: str) -> tuple[bytes, dict[str, Any]]:
    if not raw.startswith(b"---"):
        return raw, {}
    text = raw.decode("utf-8", "surrogateescape")
    block, body, _, _ = split_front_matter(text)
    if block is None:  # it only looks like that
        return raw, {}
    metadata = _loaded(block, path)
    return body.removeprefix("\n").encode("utf-8", "surrogateescape"), metadata


def _loaded(block: str, path: str) -> dict[str, Any]:
    """Metadata as JSON has it: dates stay texts, aliases are refused, since with them a few lines can mean gigabytes."""
    if len(block) > MAX_METADATA_BYTES:
        raise StorageError(
            "too_large", f"{path}: metadata: more than {MAX_METADATA_BYTES} characters"
        )
    yaml = _yaml()
    loader = _loader(yaml)
    try:
        depth = 0
        for event in yaml.parse(block, Loader=loader):
            kind = type(event).__name__
            depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
            if kind == "AliasEvent" or depth > MAX_DEPTH:
                raise StorageError(
                    "storage_error",
                    f"{path}: metadata: aliases, and more than {MAX_DEPTH} levels, are not read",
                )
        found: object = yaml.load(block, Loader=loader)
    except (yaml.YAMLError, ValueError) as why:
        raise StorageError(
            "storage_error", f"{path}: metadata: is not YAML: {type(why).__name__}"
        ) from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(
        isinstance(key, str) for key in cast("dict[Any, Any]", found)
    ):
        raise StorageError("storage_error", f"{path}: metadata: expected `key: value` lines")
    return cast("dict[str, Any]", found)


MAX_DEPTH = 32


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConcertinoError(EXTRA) from None
    return yaml


def _loader(yaml: Any) -> Any:
    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        pass

    Loader.yaml_implicit_resolvers = {
        first: [
            (tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"
        ]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


def _without_aliases(dumper: Any) -> Any:
    class Dumper(dumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    return Dumper
