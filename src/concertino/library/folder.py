"""Folder: lists and reads the files of one directory, and never a file outside it.

Paths come from listing the directory, never from a client: a client's URI is looked up among the
listed files. A file is opened from the directory's descriptor, one path component after the other,
without following symbolic links. So an attacker who replaces a directory by a link after the
listing gains nothing. The listing handles symbolic links like this:

- A link to a file inside of the directory is another name of that file.
- A link to a directory inside of the directory is ignored, since its target is listed anyway.
- A link out of the directory is ignored and reported as a problem.

Hidden files and directories (`.git`, `.obsidian`) are not listed. All paths are relative to the
root, with `/`, as os.fsdecode returns them.
"""

# os instead of pathlib, because of descriptors and of names that are not UTF-8.
# ruff: noqa: PTH100, PTH112, PTH118, PTH120
from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from concertino.library.problems import LibraryProblem, Rule

# How deep directories may be nested.
MAX_DEPTH = 32

# O_NOFOLLOW makes os.open() fail for a symbolic link.
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FOLDER_FLAGS = os.O_DIRECTORY | OPEN_FLAGS


class FoundFile(Struct, frozen=True):
    """A regular file in a listing.

    path: the path relative to the directory.
    target: the path from which to read the file. It is `path`, unless `path` is a symbolic link to
        a hidden file. A link to any other file is not a FoundFile: it is in Listing.links.
    size: the size in bytes.
    mtime_ns: the modification time, in nanoseconds.
    """

    path: str
    target: str
    size: int
    mtime_ns: int


class Listing(Struct):
    """The files in a directory and in all directories below it. All paths are relative to it.

    files: path -> file, sorted by path.
    links: path of a symbolic link -> path of the listed file that it leads to.
    problems: (path, reason) for each file or directory that was left out.
    """

    files: dict[str, FoundFile]
    links: dict[str, str]
    problems: list[tuple[str, LibraryProblem]]

    def add_problem(
        self,
        path: str,
        rule: Rule,
        message: str,
    ) -> None:
        """Add a problem of a file or directory as a whole.

        path: the path of the file or directory.
        rule: the kind of defect, as problems.py lists them.
        message: a text about the defect, without the name of the file.
        """
        self.problems.append((path, LibraryProblem(rule, 0, message)))


class FileMissing(Exception):
    """Raised if a listed file can no longer be read.

    problem: the reason, without the path.
    """

    def __init__(self, problem: LibraryProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def is_hidden(path: str) -> bool:
    """Return whether a component of the path begins with a dot."""
    return path.startswith(".") or "/." in path


class Folder:
    """A directory whose files can be listed and read. Any thread may use it.

    path: the path of the directory, which need not exist.
    max_file_bytes: the largest size of a file. Larger files are left out of listings, and reported
        as problems.
    max_files: the largest number of files in a listing. Further files are left out, and reported as
        one problem.

    Attributes:
    path: the absolute path.
    excluded: a directory inside this one that is not listed; None to list everything.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_file_bytes: int,
        max_files: int,
    ) -> None:
        self.path = os.path.abspath(os.fsdecode(path))
        self.max_file_bytes = max_file_bytes
        self._max_files = max_files
        self.excluded: Folder | None = None

    @property
    def exists(self) -> bool:
        """Return whether the directory exists now."""
        return os.path.isdir(self.path)

    def listing(self, under: str = "") -> Listing:
        """List the files in the directory and in all directories below it. Blocks.

        under: the path of a file or directory, to list only this; "" for everything.
        A directory that does not exist has an empty listing. Raises nothing: errors become
        problems.
        """
        listing = Listing(files={}, links={}, problems=[])
        root = os.path.realpath(self.path)
        if is_hidden(under):
            return listing
        top = os.path.join(root, under)
        try:
            status = os.lstat(top)
        # A path with a NUL raises ValueError.
        except (OSError, ValueError):
            return listing

        # If a component of `under` is a symbolic link, list nothing: links to directories are
        # ignored.
        if under and os.path.realpath(os.path.dirname(top)) != os.path.dirname(top):
            return listing
        excluded = "" if self.excluded is None else os.path.realpath(self.excluded.path)
        # If both are the same directory, its files are resources and prompts.
        if excluded and excluded != root and _is_inside(top, excluded):
            return listing

        if stat.S_ISDIR(status.st_mode):
            for path, file_status in self._walk(root, under, excluded, listing):
                if len(listing.files) >= self._max_files:
                    text = f"has more than {self._max_files} files: the others are left out"
                    listing.add_problem(under, "oversized", text)
                    break
                self._add(listing, root, path, file_status)
        else:
            self._add(listing, root, under, status)
        listing.files = dict(sorted(listing.files.items()))
        return listing

    def _walk(
        self,
        root: str,
        under: str,
        excluded: str,
        listing: Listing,
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield (path, lstat result) of everything below `under` that is not a directory.

        Hidden entries and the excluded directory are skipped; symbolic links are not followed.
        root: the real path of this directory.
        excluded: the real path of the excluded directory; "" for none.
        listing: gets the problems.
        """
        folders = [under]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(os.path.join(root, folder)) as unsorted:
                    entries = sorted(unsorted, key=lambda entry: entry.name)
            except OSError as exc:
                listing.add_problem(folder, "unreadable", f"cannot be listed: {exc.strerror}")
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
                    # The entry was removed after scandir() had listed it.
                    continue
                if path.count("/") >= MAX_DEPTH:
                    text = f"is more than {MAX_DEPTH} folders deep: left out"
                    listing.add_problem(path, "oversized", text)
                elif entry.path != excluded:
                    folders.append(path)

    def _add(
        self,
        listing: Listing,
        root: str,
        path: str,
        status: os.stat_result,
    ) -> None:
        """Add one directory entry to a listing, as a file, a link or a problem.

        root: the real path of this directory.
        path: the path of the entry, relative to the directory.
        status: the lstat() result of the entry.
        """
        target = path
        if stat.S_ISLNK(status.st_mode):
            real = os.path.realpath(os.path.join(root, path))
            if not _is_inside(real, root):
                text = "is a link to a target outside of the folder: ignored"
                listing.add_problem(path, "outside", text)
                return
            target_status = _lstat_target(real)
            if target_status is None:
                listing.add_problem(path, "unreadable", "is a link that leads nowhere")
                return
            status = target_status
            if stat.S_ISDIR(status.st_mode):
                return
            target = os.path.relpath(real, root)
            # A hidden file is not listed itself, so a link to it counts as a file of its own.
            if not is_hidden(target):
                listing.links[path] = target
                return

        if not stat.S_ISREG(status.st_mode):
            listing.add_problem(path, "unreadable", "is not a regular file: ignored")
        elif status.st_size > self.max_file_bytes:
            listing.problems.append((path, self._oversized(status.st_size)))
        else:
            listing.files[path] = FoundFile(
                path=path, target=target, size=status.st_size, mtime_ns=status.st_mtime_ns
            )

    def read(self, found: FoundFile) -> tuple[bytes, os.stat_result]:
        """Return the bytes and the fstat() result of a listed file. Blocks.

        found: a file of listing().
        Raises FileMissing if the file can no longer be read, or is too large now.
        """
        try:
            descriptor = self._open(found.target)
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            problem = LibraryProblem("unreadable", 0, f"cannot be read: {reason}")
            raise FileMissing(problem) from None

        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FileMissing(LibraryProblem("unreadable", 0, "is no longer a regular file"))
            data = b""
            if status.st_size <= self.max_file_bytes:
                with open(descriptor, "rb", closefd=False) as file:
                    # One byte more than allowed shows a file that grew since fstat().
                    data = file.read(self.max_file_bytes + 1)
        finally:
            os.close(descriptor)

        size = max(status.st_size, len(data))
        if size > self.max_file_bytes:
            raise FileMissing(self._oversized(size))
        return data, status

    def _open(self, path: str) -> int:
        """Open a file in the directory without following links. Returns its descriptor."""
        *folders, name = path.split("/")
        if not {"", ".", ".."}.isdisjoint((*folders, name)):
            raise ValueError("expected a path from the listing of the folder")

        parent = os.open(os.path.realpath(self.path), OPEN_FOLDER_FLAGS)
        try:
            for folder in folders:
                child = os.open(folder, OPEN_FOLDER_FLAGS, dir_fd=parent)
                os.close(parent)
                parent = child
            # With O_NONBLOCK, because opening a FIFO would block.
            return os.open(name, OPEN_FLAGS | os.O_NONBLOCK, dir_fd=parent)
        finally:
            os.close(parent)

    def _oversized(self, size: int) -> LibraryProblem:
        return LibraryProblem(
            "oversized", 0, f"has {size} bytes, the limit is {self.max_file_bytes}: left out"
        )


def _is_inside(path: str, folder: str) -> bool:
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def _lstat_target(real: str) -> os.stat_result | None:
    """Return the lstat() result of a link's real path; None for a missing file or a link loop."""
    try:
        status = os.lstat(real)
    except OSError:
        return None
    return None if stat.S_ISLNK(status.st_mode) else status
