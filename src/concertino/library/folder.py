"""A folder of files that may be read, and nothing outside of it.

Paths come from listing the folder, never from a caller: a URI is looked up among what was listed. A file is opened from the
folder's own descriptor, one component after the other, without following links, so that what was put in a path's place since
then leads nowhere. Links: to a file inside, it is another name of that file; to a folder inside, it is passed over, since what
it leads to is listed already; out of the folder, it is a problem. What is hidden (`.git`, `.obsidian`) is not listed.

Paths are below the root, with `/`, as os.fsdecode gives them.
"""

# ruff: noqa: PTH100, PTH112, PTH118, PTH120  # descriptors, and names that are no UTF-8: os, not pathlib
from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from concertino.library.problems import LibraryProblem

__all__ = ["FileMissing", "Folder", "FoundFile", "Listing", "is_hidden"]

MAX_DEPTH = 32  # folders in folders
OPENING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
OPENING_FOLDER = os.O_DIRECTORY | OPENING


class FoundFile(Struct, frozen=True):
    """A regular file. target: the path where it really is; path itself, unless that is a link. size: bytes; mtime_ns: as listed."""

    path: str
    target: str
    size: int
    mtime_ns: int


class Listing(Struct):
    """files: by path, sorted. links: a link's path -> the path of the listed file that it leads to. problems: with their paths."""

    files: dict[str, FoundFile]
    links: dict[str, str]
    problems: list[tuple[str, LibraryProblem]]


class FileMissing(Exception):
    """A listed file cannot be read any more, or must not. problem: why; it names no path."""

    def __init__(self, problem: LibraryProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def is_hidden(path: str) -> bool:
    """Whether a component of the path begins with a dot."""
    return path.startswith(".") or "/." in path


class Folder:
    """One root. Any thread may list and read. max_file_bytes: larger files are problems. max_files: so are those beyond.

    without: a folder that is not listed, although it may lie in this one.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_file_bytes: int, max_files: int
    ) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self.max_file_bytes = max_file_bytes
        self._max_files = max_files
        self.without: Folder | None = None

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.path)

    def listing(self, under: str = "") -> Listing:
        """What is there now: all of it, or what a path leads to, a file or a folder. Blocks. A folder that is gone is empty."""
        found = Listing({}, {}, [])
        root = os.path.realpath(self.path)
        if is_hidden(under):
            return found
        top = os.path.join(root, under)
        try:
            status = os.lstat(top)
        except (OSError, ValueError):
            return found
        if under and os.path.realpath(os.path.dirname(top)) != os.path.dirname(top):
            return found  # behind a link
        without = "" if self.without is None else os.path.realpath(self.without.path)
        if (
            without
            and without != root
            and os.path.join(top, "").startswith(os.path.join(without, ""))
        ):
            return found
        if stat.S_ISDIR(status.st_mode):
            for path, each in self._walk(root, under, without, found):
                self._add(found, root, path, each)
                if len(found.files) >= self._max_files:
                    text = f"has more than {self._max_files} files: the others are left out"
                    found.problems.append((under, LibraryProblem("oversized", 0, text)))
                    break
        else:
            self._add(found, root, under, status)
        found.files = dict(sorted(found.files.items()))
        return found

    def _walk(
        self, root: str, under: str, without: str, found: Listing
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Everything below, but for folders and hidden things, and what is in that one; links as links."""
        folders = [under]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(os.path.join(root, folder)) as listed:
                    entries = sorted(listed, key=lambda each: each.name)
            except OSError as why:
                found.problems.append(
                    (folder, LibraryProblem("unreadable", 0, f"cannot be listed: {why.strerror}"))
                )
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        yield path, entry.stat(follow_symlinks=False)
                        continue
                except OSError:
                    continue  # gone since it was listed
                if path.count("/") < MAX_DEPTH:
                    folders += (path,) if entry.path != without else ()
                else:
                    text = f"is more than {MAX_DEPTH} folders deep: left out"
                    found.problems.append((path, LibraryProblem("oversized", 0, text)))

    def _add(self, found: Listing, root: str, path: str, status: os.stat_result) -> None:
        target = path
        if stat.S_ISLNK(status.st_mode):
            real = os.path.realpath(os.path.join(root, path))
            if not os.path.join(real, "").startswith(os.path.join(root, "")):
                found.problems.append(
                    (
                        path,
                        LibraryProblem(
                            "outside", 0, "is a link that leads out of the folder: left out"
                        ),
                    )
                )
                return
            try:
                status = os.lstat(real)
                leads = not stat.S_ISLNK(status.st_mode)  # else to itself
            except OSError:
                leads = False
            if not leads:
                found.problems.append(
                    (path, LibraryProblem("unreadable", 0, "is a link that leads nowhere"))
                )
                return
            if stat.S_ISDIR(status.st_mode):
                return
            target = os.path.relpath(real, root)
            if not is_hidden(target):
                found.links[path] = target
                return
        if not stat.S_ISREG(status.st_mode):
            found.problems.append(
                (path, LibraryProblem("unreadable", 0, "is no regular file: left out"))
            )
        elif status.st_size > self.max_file_bytes:
            found.problems.append((path, self._oversized(status.st_size)))
        else:
            found.files[path] = FoundFile(path, target, status.st_size, status.st_mtime_ns)

    def read(self, found: FoundFile) -> tuple[bytes, os.stat_result]:
        """The bytes of a listed file and what it was when they were read. Blocks. Raises NotThere."""
        try:
            descriptor = self._open(found.target)
        except (OSError, ValueError) as why:
            said = why.strerror if isinstance(why, OSError) else str(why)
            raise FileMissing(LibraryProblem("unreadable", 0, f"cannot be read: {said}")) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FileMissing(LibraryProblem("unreadable", 0, "is no regular file any more"))
            data = (
                b""
                if status.st_size > self.max_file_bytes
                else _read(descriptor, self.max_file_bytes + 1)
            )
        finally:
            os.close(descriptor)
        if max(status.st_size, len(data)) > self.max_file_bytes:
            raise FileMissing(self._oversized(max(status.st_size, len(data))))
        return data, status

    def _open(self, path: str) -> int:
        *folders, name = path.split("/")
        if not {"", ".", ".."}.isdisjoint((*folders, name)):
            raise ValueError("is no path that was listed")
        at = os.open(os.path.realpath(self.path), OPENING_FOLDER)
        try:
            for each in folders:
                at, before = os.open(each, OPENING_FOLDER, dir_fd=at), at
                os.close(before)
            return os.open(
                name, OPENING | os.O_NONBLOCK, dir_fd=at
            )  # a FIFO may have been put in its place
        finally:
            os.close(at)

    def _oversized(self, size: int) -> LibraryProblem:
        return LibraryProblem(
            "oversized", 0, f"has {size} bytes, the limit is {self.max_file_bytes}: left out"
        )


def _read(descriptor: int, limit: int) -> bytes:
    parts: list[bytes] = []
    while limit > 0 and (part := os.read(descriptor, limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)
