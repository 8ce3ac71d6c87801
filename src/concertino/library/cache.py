"""What was read and indexed, kept in the user's cache folder, so that the next start need not do it again.

One file for each library: a line that says what it is, a check sum, and in MessagePack the documents (with size,
modification time and digest of each file) and the files of the index. It is written beside and renamed, so that any
number of processes may read and write at once: each sees a whole file, and the last one written stays. A file that is
damaged, of another version or not ours is not an error but no cache.

An index is worked on in a folder of its own for each process (its workplace), filled from the cache file: nobody changes
what another one reads. It lies in memory (/dev/shm) where there is space, since tantivy waits for the disk at each change,
90 ms instead of 10; else beside the cache files. A lock that ends with its process tells those apart whose process was
killed; the next one that comes along removes them. The folder of the cache files has a bounded size; the files that were
not used for longest go first.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from concertino.library.analysis import ANALYSIS_VERSION, engine
from concertino.library.document import Document

__all__ = ["Cache", "CacheFile", "IndexDirectory", "cache_folder"]

logger = logging.getLogger("concertino.library")

SCHEMA_VERSION = (
    1  # of what is in the file; raise it with every change of Document, Kept or the index's fields
)
MAGIC = b"concertino library cache\n"
MAX_FOLDER_BYTES = 2 * 2**30
MAX_FILES = 64
ABANDONED_S = 60  # what takes longer to be made was left by a process killed while it made it
MAKING = "."  # begins the name of a workplace that is not locked yet
NAME = f"concertino-{os.geteuid()}-"  # begins the others
LOCK = "lock"
MEMORY = Path("/dev/shm")  # Linux; a file system in memory
SPARE_BYTES = 16 * 2**20  # of MEMORY that are left to others
INDEX_SHARE = 2.0  # bytes an index may have per byte of the documents, while segments are merged: measured 0.4, 0.8


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/concertino/library`, in `~/.cache` without the variable (XDG Base Directory Specification: not
    if it is relative). Raises RuntimeError for a user without a home."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (
        (Path(base) if base.startswith("/") else Path.home() / ".cache") / "concertino" / "library"
    )


class CacheFile(Struct, frozen=True, array_like=True):
    """What is in a cache file. numbers: of the documents, in their order, as the index knows them. following: the next number.
    dead: documents removed from the index whose traces are still in it. files: of the index, by name."""

    documents: list[Document]
    numbers: list[int]
    following: int
    dead: int
    files: dict[str, bytes]


class IndexDirectory:
    """A folder with the files of one index, for one process; it is removed when nobody holds this any more, or the process ends."""

    def __init__(self, parent: Path, files: Mapping[str, bytes]) -> None:
        """Raises OSError if it cannot be made."""
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = Path(tempfile.mkdtemp(dir=parent, prefix=MAKING + NAME))
        try:
            self._lock = open(made / LOCK, "wb")  # noqa: SIM115  # held until the process ends
            weakref.finalize(self, self._lock.close)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for name, content in files.items():
                (made / name).write_bytes(content)
            self.folder = made.rename(parent / made.name.removeprefix(MAKING))
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            raise
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def files(self) -> dict[str, bytes]:
        """Those of the index. Raises OSError."""
        return {
            each.name: each.read_bytes()
            for each in sorted(self.folder.iterdir())
            if each.name != LOCK and not each.name.endswith(".lock")
        }


class Cache:
    """The cache file of one library, in a folder that the libraries of a user share."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """name: what tells this library from others: its folders, and whatever else makes its documents what they
        are. folder: else `cache_folder()`."""
        self.folder = cache_folder() if folder is None else folder
        self.path = (
            self.folder
            / f"{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.cache"
        )
        self._kept: CacheFile | None = None
        self._is_read = False

    def documents(self) -> dict[str, Document]:
        """What is known of each file, by `Document.path`; whoever reads files may take it where size and modification
        time are the same."""
        kept = self.kept()
        return {document.path: document for document in kept.documents} if kept is not None else {}

    def kept(self) -> CacheFile | None:
        """What the file holds; None if there is no file, or none that can be used. Read once."""
        if not self._is_read:
            self._kept = self._read()
            self._is_read = True
        return self._kept

    def forget(self) -> None:
        """Let go of what was read: it is as large as the library."""
        self._kept = None

    def workplace(
        self, files: Mapping[str, bytes] | None = None, document_bytes: int = 0
    ) -> IndexDirectory | None:
        """A folder of this process's own with these files in it, and space for an index of documents of so many bytes.

        None if it cannot be made (no space, no permission): then the memory of the process has to do.
        """
        places = [self.folder / "work"]
        try:
            space = os.statvfs(MEMORY)
            if space.f_bavail * space.f_frsize > SPARE_BYTES + INDEX_SHARE * document_bytes:
                places.insert(0, MEMORY)
        except OSError:
            pass
        problem = OSError()
        for parent in places:
            try:
                _remove_abandoned(parent)
                return IndexDirectory(parent, files or {})
            except OSError as why:
                problem = why
        logger.warning("no index cache in %s: %s", self.folder, problem.strerror or problem)
        return None

    def keep(
        self,
        numbers: Sequence[int],
        documents: Sequence[Document],
        following: int,
        dead: int,
        workplace: IndexDirectory,
    ) -> None:
        """Write the file. What cannot be written is said in the log."""
        try:
            kept = CacheFile(list(documents), list(numbers), following, dead, workplace.files())
            payload = msgspec.msgpack.encode(kept)
            if len(payload) > MAX_FOLDER_BYTES // 2:
                logger.warning(
                    "no index cache: %d bytes are more than half of what all caches may have",
                    len(payload),
                )
                return
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
            self._tidy()
        except OSError as why:
            logger.warning("no index cache in %s: %s", self.folder, why.strerror or why)
        except UnicodeEncodeError:
            logger.warning("no index cache: it cannot hold the name of a file that is not UTF-8")

    def _read(self) -> CacheFile | None:
        try:
            if not self.path.is_file():  # a FIFO would be waited for
                return None
            content = self.path.read_bytes()
            os.utime(self.path)  # used now: it goes last
        except OSError:
            return None
        payload = memoryview(content)[len(_header(b"")) :]
        if not content.startswith(_header(payload)):
            logger.info("index cache %s: damaged, or of another version; made anew", self.path)
            return None
        try:
            kept = msgspec.msgpack.decode(payload, type=CacheFile)
        except msgspec.MsgspecError as why:
            logger.warning("index cache %s: %s; made anew", self.path, why)
            return None
        sound = (
            len(kept.documents)
            == len(kept.numbers)
            == len({document.uri for document in kept.documents})
        )
        return kept if sound and all(Path(name).name == name for name in kept.files) else None

    def _tidy(self) -> None:
        """Bound number and size of the files; what a killed process left half written goes, too."""
        ages: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            if path.suffix not in (".cache", ".new"):
                continue
            try:
                facts = path.stat()
            except OSError:
                continue  # another process was faster
            if path.suffix == ".cache":
                ages.append((facts.st_mtime, facts.st_size, path))
            elif time.time() - facts.st_mtime > ABANDONED_S:
                path.unlink(missing_ok=True)
        total = 0
        for place, (_, size, path) in enumerate(sorted(ages, reverse=True)):
            total += size
            if place >= MAX_FILES or total > MAX_FOLDER_BYTES:
                path.unlink(missing_ok=True)


def _header(payload: bytes | memoryview) -> bytes:
    versions = f"{SCHEMA_VERSION} {ANALYSIS_VERSION} {engine().__version__}".encode()
    return (
        MAGIC
        + hashlib.blake2b(versions, digest_size=8).digest()
        + zlib.crc32(payload).to_bytes(4, "big")
    )


def _remove_abandoned(parent: Path) -> None:
    for folder in _folders(parent):
        is_old = False
        try:
            is_old = time.time() - folder.stat().st_mtime > ABANDONED_S
            if folder.name.startswith(MAKING) and not is_old:
                continue
            with open(folder / LOCK, "r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:  # another process is removing it, or was killed while it did
            if is_old:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # locked: its process lives


def _folders(parent: Path) -> Iterator[Path]:
    """The workplaces of this user; nothing of others in a folder that all users share."""
    try:
        found = [
            each for each in parent.iterdir() if each.name.removeprefix(MAKING).startswith(NAME)
        ]
    except OSError:
        return
    for each in found:
        try:
            facts = each.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid():
            yield each
