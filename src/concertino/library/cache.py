"""Cache: stores the parsed documents of a library and their search index, for the next start.

Cache files are in the user's cache directory, one for each library. A cache file begins with a line
that identifies the format and with a checksum. The rest is MessagePack: the documents (with size,
modification time and digest of each document's file), and the files of the index. A process writes
a cache file under a temporary name and renames it. So any number of processes may read and write
at the same time, and each reads a complete cache file. A cache file that is damaged or of another
version counts as missing. The total size of the cache files is limited: the least recently used
ones are removed.

The search engine, tantivy, works on files. So each process copies the index from the cache file to
a new directory (IndexDirectory), which no other process changes. This directory is in memory
(/dev/shm) if there is space, where a change of the index takes 10 ms, and otherwise beside the
cache files, where it takes 90 ms. Each process locks its directory. A directory without a lock was
left behind by a killed process, and the next process removes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise, starmap
from pathlib import Path

import msgspec
from msgspec import Struct

from concertino.decode_errors import DECODE_ERRORS
from concertino.library.analysis import ANALYSIS_VERSION, import_tantivy
from concertino.library.document import Document
from concertino.user_files import user_folder

logger = logging.getLogger("concertino.library")

# The version of the cache file's content. Increase it with every change of Document, CacheFile or
# the fields of the index.
SCHEMA_VERSION = 1

# The line at the beginning of a cache file that identifies the format.
MAGIC = b"concertino library cache\n"

# A cache file with a larger document number is invalid. No library ever reaches this number by
# updates.
MAX_NUMBER = 2**62

# Limits for all cache files of a user together.
MAX_FOLDER_BYTES = 2 * 2**30
MAX_FILES = 64

# A temporary file, or a directory without a lock, that is older than this was left by a killed
# process.
ABANDONED_S = 60

# The name of an index directory begins with NAME; before the directory is locked, with UNLOCKED +
# NAME.
NAME = f"concertino-{os.geteuid()}-"
UNLOCKED = "."
# The file in an index directory that its process locks.
LOCK = "lock"

# Linux has a file system in memory at this path. This much space there must stay free.
MEMORY = Path("/dev/shm")
SPARE_BYTES = 16 * 2**20

# The space that an index needs while its segments are merged, relative to the size of its
# documents. 0.4 to 0.8 were measured; the rest is a margin.
INDEX_SHARE = 2.0


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of cache files: `concertino/library` in $XDG_CACHE_HOME or `~/.cache`.

    A relative $XDG_CACHE_HOME is ignored, as the XDG Base Directory Specification says.
    environment: the environment variables.
    Raises RuntimeError for a user without a home directory.
    """
    return user_folder("XDG_CACHE_HOME", ".cache", environment) / "concertino" / "library"


class CacheFile(Struct, frozen=True, array_like=True):
    """The content of a cache file.

    documents: all documents of the library.
    numbers: the number that identifies each document in the search index, in the order of
        `documents`.
    next_number: the number that the next new document gets.
    removed_count: how many removed documents still count in tantivy's word frequencies.
    files: name -> content of the files of the search index.
    """

    documents: list[Document]
    numbers: list[int]
    next_number: int
    removed_count: int
    files: dict[str, bytes]


class _Footer(Struct, frozen=True):
    """The footer of one of tantivy's files.

    crc: the CRC-32 of the file without the footer.
    """

    crc: int


class IndexDirectory:
    """A locked directory with the files of one search index, which only this process uses.

    Creating the object creates the directory, and raises OSError if that fails. The directory is
    removed when the object is garbage-collected, or when the process ends.

    parent: the directory in which the new directory is created.
    files: name -> content of the files to write into it.

    Attributes:
    folder: the path of the directory.
    """

    def __init__(self, parent: Path, files: Mapping[str, bytes]) -> None:
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unlocked = Path(tempfile.mkdtemp(dir=parent, prefix=UNLOCKED + NAME))
        try:
            # The process holds the lock until this object is collected or the process ends.
            self._lock = open(unlocked / LOCK, "wb")  # noqa: SIM115
            weakref.finalize(self, self._lock.close)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for name, content in files.items():
                (unlocked / name).write_bytes(content)
            self.folder = unlocked.rename(parent / unlocked.name.removeprefix(UNLOCKED))
        except OSError:
            shutil.rmtree(unlocked, ignore_errors=True)
            raise
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def files(self) -> dict[str, bytes]:
        """Read the files of the index: name -> content, without lock files. Raises OSError."""
        # LOCK is the lock of this process; the files with the suffix `.lock` are tantivy's locks.
        return {
            path.name: path.read_bytes()
            for path in sorted(self.folder.iterdir())
            if path.name != LOCK and not path.name.endswith(".lock")
        }


class Cache:
    """Reads and writes the cache file of one library: its parsed documents and its search index.

    name: a string that identifies the library. It must contain the path of the directory and all
        options that affect the documents. The file name is a hash of this string.
    folder: the directory with the cache files of all libraries; None for cache_folder().

    Attributes:
    path: the path of the cache file, which need not exist.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.folder = cache_folder() if folder is None else folder
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16)
        self.path = self.folder / f"{digest.hexdigest()}.cache"
        self._content: CacheFile | None = None
        self._is_read = False

    def documents(self) -> dict[str, Document]:
        """Return path -> cached document; {} if there is no valid cache file.

        The documents may be out of date, so compare their size and modification time with those of
        the files. Raises TargetError if tantivy is not installed.
        """
        content = self.load()
        return {} if content is None else {doc.path: doc for doc in content.documents}

    def load(self) -> CacheFile | None:
        """Return the content of the cache file. The first call reads the file.

        Returns None if there is no valid cache file, and after release(). Raises TargetError if
        tantivy is not installed.
        """
        # tantivy is needed, because a cache file is valid for one version of tantivy only.
        if not self._is_read:
            self._content = self._read()
            self._is_read = True
        return self._content

    def release(self) -> None:
        """Free the content that load() has read, which takes as much memory as the library.

        From now on, load() returns None and documents() returns {}.
        """
        self._content = None

    def make_directory(
        self, files: Mapping[str, bytes] | None = None, document_bytes: int = 0
    ) -> IndexDirectory | None:
        """Create a new IndexDirectory: in /dev/shm if there is space, else in the cache directory.

        Also removes directories that killed processes have left in these two places.

        files: name -> content of the files to write into it; None for an empty directory.
        document_bytes: the total size of the documents, from which this method estimates the space
            that the index needs.
        Returns None, and logs the reason, if no directory can be created. The caller then keeps its
        index in its own memory.
        """
        parents = [self.folder / "work"]
        try:
            space = os.statvfs(MEMORY)
            if space.f_bavail * space.f_frsize > SPARE_BYTES + INDEX_SHARE * document_bytes:
                parents.insert(0, MEMORY)
        except OSError:
            pass

        # There is at least one parent, so the loop returns or replaces this value.
        problem = OSError()
        for parent in parents:
            try:
                _remove_abandoned(parent)
                return IndexDirectory(parent, files or {})
            except OSError as exc:
                problem = exc
        logger.warning("no index cache in %s: %s", self.folder, problem.strerror or problem)
        return None

    def save(
        self,
        documents: Mapping[int, Document],
        next_number: int,
        removed_count: int,
        index: IndexDirectory,
    ) -> None:
        """Write the cache file. A failure is logged.

        Then remove the least recently used cache files of all libraries, until at most MAX_FILES
        files with MAX_FOLDER_BYTES together remain.

        documents: number in the index -> document.
        next_number: the number that the next new document gets.
        removed_count: how many removed documents still count in tantivy's word frequencies.
        index: the directory with the files of the index.
        """
        try:
            content = CacheFile(
                documents=list(documents.values()),
                numbers=list(documents),
                next_number=next_number,
                removed_count=removed_count,
                files=index.files(),
            )
            payload = msgspec.msgpack.encode(content)
            if len(payload) > MAX_FOLDER_BYTES // 2:
                logger.warning(
                    "no index cache: %d bytes are more than half of what all caches may have",
                    len(payload),
                )
                return
            self._write(payload)
            self._remove_old_files()
        except OSError as exc:
            logger.warning("no index cache in %s: %s", self.folder, exc.strerror or exc)
        except UnicodeEncodeError:
            logger.warning("no index cache: it cannot hold the name of a file that is not UTF-8")

    def _write(self, payload: bytes) -> None:
        """Write the cache file under a temporary name, and rename it. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(
            dir=self.folder, prefix=".", suffix=".new", delete=False
        ) as file:
            try:
                file.write(_header(payload))
                file.write(payload)
                file.close()
                Path(file.name).replace(self.path)
            except OSError:
                Path(file.name).unlink()
                raise

    def _read(self) -> CacheFile | None:
        """Return the content of the cache file; None if there is none, or if it is invalid."""
        try:
            # Open regular files only, because opening a FIFO could block.
            if not self.path.is_file():
                return None
            data = self.path.read_bytes()
            # Record the time of this use as modification time, for _remove_old_files().
            os.utime(self.path)
        except OSError:
            return None

        # All headers have the same length.
        payload = memoryview(data)[len(_header(b"")) :]
        if not data.startswith(_header(payload)):
            logger.info("index cache %s: damaged, or of another version; made anew", self.path)
            return None
        try:
            content = msgspec.msgpack.decode(payload, type=CacheFile)
        # msgspec raises the UnicodeDecodeError, a ValueError, for a text that is not UTF-8.
        except (ValueError, *DECODE_ERRORS) as exc:
            logger.warning("index cache %s: %s; made anew", self.path, exc)
            return None
        if not _is_consistent(content):
            logger.warning("index cache %s: its parts contradict each other; made anew", self.path)
            return None
        return content

    def _remove_old_files(self) -> None:
        """Remove the least recently used cache files above the limits, and old temporary files."""
        caches: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            if path.suffix not in (".cache", ".new"):
                continue
            try:
                status = path.stat()
            except OSError:
                # Another process has just removed it.
                continue
            if path.suffix == ".cache":
                caches.append((status.st_mtime, status.st_size, path))
            elif time.time() - status.st_mtime > ABANDONED_S:
                path.unlink(missing_ok=True)

        total = 0
        for rank, (_, size, path) in enumerate(sorted(caches, reverse=True)):
            total += size
            if rank >= MAX_FILES or total > MAX_FOLDER_BYTES:
                path.unlink(missing_ok=True)


def _is_consistent(content: CacheFile) -> bool:
    """Return whether save() could have written this content.

    The checksum shows only that the file was not damaged since it was written.
    """
    documents, numbers = content.documents, content.numbers
    uris, paths = {doc.uri for doc in documents}, {doc.path for doc in documents}
    if not len(documents) == len(numbers) == len(uris) == len(paths):
        return False

    # save() writes documents in the ascending order of their numbers.
    bounds = [-1, *numbers, content.next_number]
    is_ascending = all(low < high for low, high in pairwise(bounds))
    is_plausible = content.removed_count >= 0 and content.next_number < MAX_NUMBER
    return is_ascending and is_plausible and all(starmap(_is_index_file, content.files.items()))


def _is_index_file(name: str, data: bytes) -> bool:
    """Return whether a file may be written into an index directory and opened by tantivy.

    tantivy does not check files when it opens them, and a damaged file may abort the process.
    """
    # A name with a directory in it would be written elsewhere.
    if not name or "\0" in name or Path(name).name != name or name in ("..", LOCK):
        return False
    # tantivy's two JSON files have no footer.
    if name.endswith(".json"):
        return True
    # The footer of all other files: JSON with the CRC-32 of the data before it, the length of this
    # JSON (4 bytes), and a constant (4 bytes).
    end = len(data) - 8
    start = end - int.from_bytes(data[end : end + 4], "little")
    if start < 0:
        return False
    try:
        footer = msgspec.json.decode(data[start:end], type=_Footer)
    except (ValueError, *DECODE_ERRORS):
        return False
    return footer.crc == zlib.crc32(memoryview(data)[:start])


def _header(payload: bytes | memoryview) -> bytes:
    """Return the beginning of a cache file: MAGIC, a hash of all versions, and the checksum.

    payload: the rest of the cache file.
    """
    versions = f"{SCHEMA_VERSION} {ANALYSIS_VERSION} {import_tantivy().__version__}".encode()
    return (
        MAGIC
        + hashlib.blake2b(versions, digest_size=8).digest()
        + zlib.crc32(payload).to_bytes(4, "big")
    )


def _remove_abandoned(parent: Path) -> None:
    """Remove the index directories of killed processes from a directory."""
    for folder in _index_folders(parent):
        is_old = False
        try:
            is_old = time.time() - folder.stat().st_mtime > ABANDONED_S
            # Another process may have just created the directory, and is about to lock it.
            if folder.name.startswith(UNLOCKED) and not is_old:
                continue
            with open(folder / LOCK, "r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            # Another process is removing the directory, or was killed while it did.
            if is_old:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # The directory is locked: its process is alive.
            continue


def _index_folders(parent: Path) -> Iterator[Path]:
    """Yield the index directories of this user in a directory, which all users may share."""
    try:
        paths = [
            path for path in parent.iterdir() if path.name.removeprefix(UNLOCKED).startswith(NAME)
        ]
    except OSError:
        return
    for path in paths:
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            yield path
