"""FileLoader: lists the directories of a library, and parses files that are new or have changed.

library.py calls refresh() at the start and whenever files may have changed. refresh() returns a
Change, by which the DocumentRegistry and the search Index are updated.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from msgspec.structs import replace

from concertino.library.document import Document
from concertino.library.document_registry import Change, Item
from concertino.library.file_parsing import (
    PlainFile,
    category_of,
    is_markdown,
    parse_document,
    parse_prompt,
)
from concertino.library.folder import FileMissing, Folder, FoundFile, Listing, is_hidden
from concertino.library.problems import LibraryProblem
from concertino.library.prompt_files import PromptFile
from concertino.library.uris import key_of, uri_of

# The type that a directory's files are parsed into.
Parsed = TypeVar("Parsed")
T = TypeVar("T")
# The parsed file (None if it is invalid), and the defects of the file.
ParseResult = tuple[Parsed | None, list[LibraryProblem]]

# At most this many problems are logged at a time; `concertino lint` reports all of them.
MAX_LOGGED = 20


class FolderState(Generic[Parsed]):
    """Keeps the parsed files of one directory up to date. Use it from one thread at a time.

    folder: the directory, whose files it lists and reads.
    parse: called with a Markdown file and its bytes. Returns the parsed file (None if the file is
        invalid) and a list of its defects.
    parse_other: called with each file that is not Markdown, and with each Markdown file for which
        `parse` has returned None. Returns an object for the file without reading the file. None to
        leave these files out.

    Attributes:
    files: path -> file, for all files of the directory at the latest refresh().
    parsed: path -> parsed file.
    problems: path -> defects of the file.
    links: path of a symbolic link -> path of its file.
    """

    def __init__(
        self,
        folder: Folder,
        parse: Callable[[FoundFile, bytes], ParseResult[Parsed]],
        parse_other: Callable[[FoundFile], Parsed] | None,
    ) -> None:
        self.folder = folder
        self.files: dict[str, FoundFile] = {}
        self.parsed: dict[str, Parsed] = {}
        self.problems: dict[str, list[LibraryProblem]] = {}
        self.links: dict[str, str] = {}
        self._parse = parse
        self._parse_other = parse_other

    def refresh(
        self,
        under: str,
        find_cached: Callable[[FoundFile], Parsed | None],
        *,
        read_again: bool,
    ) -> tuple[dict[str, Parsed], set[str], list[str]]:
        """List the directory again, and parse the files that are new or have changed. Blocks.

        under: the path of the only file or directory to list again; "" for the whole directory.
        find_cached: called with each file that may have changed. Returns the parsed file from a
            cache, or None if the file must be read.
        read_again: whether a file may have changed although its size and modification time are as
            at the latest refresh(). False skips such files.
        Returns three values:
        - path -> parsed file, for the new and changed files;
        - the paths of removed files, and of those that have become invalid;
        - messages for the log about problems that are new.
        """
        listing = self.folder.listing(under)
        problems: dict[str, list[LibraryProblem]] = {}
        for path, problem in listing.problems:
            problems.setdefault(path, []).append(problem)

        removed = self._forget_missing(under, listing)
        changed: dict[str, Parsed] = {}
        for path, file in listing.files.items():
            if not read_again and self.files.get(path) == file:
                # The file has not changed, so its problems have not changed either.
                problems[path] = self.problems.get(path, [])
                continue
            before = self.parsed.get(path)
            self.files[path] = file
            parsed = find_cached(file)
            if parsed is None:
                parsed, problems[path] = self._read(file)
            if parsed is None:
                # The file is invalid. Report it as removed if it was valid before.
                self.parsed.pop(path, None)
                if before is not None:
                    removed.add(path)
            elif parsed != before:
                self.parsed[path] = parsed
                changed[path] = parsed

        messages = [
            f"{path or '.'}: {problem.message}"
            for path, path_problems in problems.items()
            for problem in path_problems
            if problem not in self.problems.get(path, ())
        ]
        self._replace(under, problems, listing.links)
        return changed, removed, messages

    def _forget_missing(self, under: str, listing: Listing) -> set[str]:
        """Forget the files below `under` that a new listing no longer contains.

        Returns the paths of the forgotten files that were parsed.
        """
        removed: set[str] = set()
        for path in [path for path in self.files if is_below(path, under)]:
            if path not in listing.files:
                del self.files[path]
                if self.parsed.pop(path, None) is not None:
                    removed.add(path)
        return removed

    def _replace(
        self,
        under: str,
        problems: dict[str, list[LibraryProblem]],
        links: dict[str, str],
    ) -> None:
        """Replace the problems and links below `under`."""
        self.problems = _not_below(under, self.problems)
        self.problems |= {path: defects for path, defects in problems.items() if defects}
        self.links = _not_below(under, self.links) | links

    @property
    def has_links(self) -> bool:
        """Whether any file was found through a symbolic link."""
        return bool(self.links) or any(path != file.target for path, file in self.files.items())

    def _read(self, file: FoundFile) -> ParseResult[Parsed]:
        """Read and parse a file. A file that cannot be read becomes None and a problem."""
        if not is_markdown(file.path):
            return (None if self._parse_other is None else self._parse_other(file)), []
        try:
            data, status = self.folder.read(file)
        except FileMissing as exc:
            return None, [exc.problem]

        # The file may have changed between listing and reading.
        file = replace(file, size=len(data), mtime_ns=status.st_mtime_ns)
        self.files[file.path] = file
        parsed, problems = self._parse(file, data)
        if parsed is None and self._parse_other is not None:
            parsed = self._parse_other(file)
        return parsed, problems


class FileLoader:
    """Loads the resources and prompts of a library. Call refresh() from one thread at a time.

    scheme: the scheme of the URIs.
    resources, prompts: the two directories; None for a directory that the library does not have. If
        `prompts` lies inside `resources`, it is excluded from the listings of `resources`.
    log: the logger for new defects of files; None to log nothing.

    Attributes:
    resources, prompts: the parsed files of the two directories; None for a directory that the
        library does not have.
    cached: path -> document from the cache file. The owner may set it before the first refresh().
        The first refresh() then does not read a file that has the size and modification time of
        its cached document. At its end, it empties `cached`.
    """

    def __init__(
        self,
        scheme: str,
        resources: Folder | None,
        prompts: Folder | None,
        log: logging.Logger | None = None,
    ) -> None:
        def parse_item(found: FoundFile, data: bytes) -> ParseResult[Item]:
            return parse_document(scheme, found, data)

        def make_plain_file(found: FoundFile) -> Item:
            path = found.path
            return PlainFile(
                uri=uri_of(scheme, key_of(path)),
                category=category_of(path),
                path=path,
                size=found.size,
                mtime_ns=found.mtime_ns,
            )

        self.resources: FolderState[Item] | None = (
            None if resources is None else FolderState(resources, parse_item, make_plain_file)
        )
        self.prompts: FolderState[PromptFile] | None = (
            None if prompts is None else FolderState(prompts, parse_prompt, None)
        )
        self.cached: Mapping[str, Document] = {}
        self._scheme = scheme
        self._log = log
        # Prompts are not resources.
        if resources is not None and prompts is not None:
            resources.excluded = prompts

    def refresh(self, paths: Iterable[str] | None = None) -> Change:
        """Read changed files, and return the changes since the previous call. Blocks.

        The first call reads all files. New defects of files are logged.
        paths: the absolute paths of files that may have changed. These files are read again even if
            their size and modification time are unchanged. None to check all files, and to read
            those whose size or modification time has changed.
        Raises ConcertinoError if a file has front matter and PyYAML is not installed.
        """
        change = Change(items={}, removed_items=set(), prompts={}, removed_prompts=set())
        messages: list[str] = []
        if self.resources is not None:
            links = self.resources.links
            for under in _paths_to_refresh(self.resources, paths):
                # The watcher has reported a path: read the file, even if its size and modification
                # time are the same. For the whole directory, "", that would take too long.
                changed, removed, new_messages = self.resources.refresh(
                    under, self._find_cached, read_again=bool(under)
                )
                change.items |= changed
                change.removed_items |= removed
                messages += new_messages
            if self.resources.links != links:
                change.links = self.resources.links

        if self.prompts is not None:
            for under in _paths_to_refresh(self.prompts, paths):
                # Prompts are not cached.
                prompts, removed, new_messages = self.prompts.refresh(
                    under, lambda _: None, read_again=bool(under)
                )
                change.prompts |= prompts
                change.removed_prompts |= removed
                messages += new_messages

        # Only the first refresh needs the cached documents.
        self.cached = {}
        self._log_problems(messages)
        return change

    def _find_cached(self, file: FoundFile) -> Item | None:
        """Return the cached document of a file; None if there is none, or if it is out of date."""
        cached = self.cached.get(file.path)
        if cached is None or (cached.size, cached.mtime_ns) != (file.size, file.mtime_ns):
            return None
        # Do not trust the cache file: the URI and the category must follow from the path.
        is_valid = (cached.uri, cached.category) == (
            uri_of(self._scheme, key_of(file.path)),
            category_of(file.path),
        )
        return cached if is_valid else None

    def _log_problems(self, messages: list[str]) -> None:
        if self._log is None:
            return
        for message in messages[:MAX_LOGGED]:
            self._log.warning("%s", message)
        if len(messages) > MAX_LOGGED:
            count = len(messages) - MAX_LOGGED
            self._log.warning("%d more problems: concertino lint shows them", count)


def is_below(path: str, under: str) -> bool:
    """Return whether `path` is the path `under` or lies below it. True if `under` is ""."""
    return not under or path == under or path.startswith(f"{under}/")


def _not_below(under: str, by_path: Mapping[str, T]) -> dict[str, T]:
    return {path: value for path, value in by_path.items() if not is_below(path, under)}


def _paths_to_refresh(state: FolderState[Parsed], paths: Iterable[str] | None) -> list[str]:
    """Return the relative paths to refresh in a directory. "" means the whole directory.

    paths: absolute paths, which may be outside of the directory; None for everything.
    """
    return [""] if paths is None else sorted(set(_relative_paths(state, paths)))


def _relative_paths(state: FolderState[Parsed], paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths that are in a directory, relative to the directory; "" for all of it.

    paths: absolute paths from the watcher, which may be outside of the directory.
    """
    # The watcher may report a path below the directory's own path or below its real path.
    folder = state.folder.path
    # The join() with "" adds a slash at the end.
    roots = {os.path.join(root, "") for root in (folder, os.path.realpath(folder))}  # noqa: PTH118
    for path in paths:
        for root in roots:
            if path.startswith(root):
                below = path[len(root) :].rstrip("/")
                if not is_hidden(below):
                    yield below
                # A symbolic link with a listed name may lead to this hidden file.
                elif state.has_links:
                    yield ""
            elif path == root[:-1]:
                yield ""
