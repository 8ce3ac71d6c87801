"""The folders of a library, and what was made of their files: listed, compared, and read again where they changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from msgspec.structs import replace

from concertino.library.document import Document
from concertino.library.document_registry import Change, Item
from concertino.library.file_parsing import ParsedFile, category_of, document, is_markdown, prompt
from concertino.library.folder import FileMissing, Folder, FoundFile, is_hidden
from concertino.library.problems import LibraryProblem
from concertino.library.prompt_files import PromptFile
from concertino.library.uris import key_of, uri_of

__all__ = ["FileLoader", "FolderState"]

M = TypeVar("M")
Made = tuple[M | None, list[LibraryProblem]]
SAID = 20  # problems in the log at a time; all of them: concertino lint


class FolderState(Generic[M]):
    """One folder, and what was made of its files. One thread at a time.

    make: a found file and its bytes -> what it is, None for nothing, and what is wrong with it. without: says what to make of a
    file that is no Markdown, without reading it; None: nothing. found, made, problems, links: by path, as of the last look.
    """

    def __init__(
        self,
        folder: Folder,
        make: Callable[[FoundFile, bytes], Made[M]],
        without: Callable[[FoundFile], M] | None,
    ) -> None:
        self.folder = folder
        self.found: dict[str, FoundFile] = {}
        self.made: dict[str, M] = {}
        self.problems: dict[str, list[LibraryProblem]] = {}
        self.links: dict[str, str] = {}
        self._make = make
        self._without = without

    def refresh(
        self, under: str, known: Callable[[FoundFile], M | None], *, distrust: bool
    ) -> tuple[dict[str, M], set[str], list[str]]:
        """What is new or other, what is gone, and what is wrong that was not before.

        under: a path, of a file or a folder, or empty for all. known: what a file is, if it need not be read for that.
        distrust: read also what has the size and the time that it had.
        """
        listing = self.folder.listing(under)
        changed: dict[str, M] = {}
        gone: set[str] = set()
        problems: dict[str, list[LibraryProblem]] = {}
        for path, problem in listing.problems:
            problems.setdefault(path, []).append(problem)
        for path in [
            each for each in self.found if is_below(each, under) and each not in listing.files
        ]:
            del self.found[path]
            if self.made.pop(path, None) is not None:
                gone.add(path)
        for path, found in listing.files.items():
            before = self.made.get(path)
            if not distrust and self.found.get(path) == found:
                problems[path] = self.problems.get(path, [])
                continue
            self.found[path] = found
            made = known(found)
            if made is None:
                made, problems[path] = self._read(found)
            if made is None:
                self.made.pop(path, None)
                gone.update(() if before is None else (path,))
            elif made != before:
                self.made[path] = changed[path] = made
        told = [
            f"{path or '.'}: {each.message}"
            for path, some in problems.items()
            for each in some
            if each not in self.problems.get(path, ())
        ]
        kept = {path: each for path, each in self.problems.items() if not is_below(path, under)}
        self.problems = kept | {path: some for path, some in problems.items() if some}
        self.links = {
            path: each for path, each in self.links.items() if not is_below(path, under)
        } | listing.links
        return changed, gone, told

    @property
    def has_links(self) -> bool:
        return bool(self.links) or any(path != each.target for path, each in self.found.items())

    def _read(self, found: FoundFile) -> Made[M]:
        if not is_markdown(found.path):
            return (None if self._without is None else self._without(found)), []
        try:
            data, status = self.folder.read(found)
        except FileMissing as why:
            return None, [why.problem]
        found = self.found[found.path] = replace(found, size=len(data), mtime_ns=status.st_mtime_ns)
        made, problems = self._make(found, data)
        return (
            self._without(found) if made is None and self._without is not None else made
        ), problems


class FileLoader:
    """Resources and prompts. refresh() blocks, and is called by one thread at a time.

    known: documents of an earlier run by path; one is taken for its file if that has the size and the time that it had.
    """

    def __init__(
        self,
        scheme: str,
        resources: Folder | None,
        prompts: Folder | None,
        log: logging.Logger | None = None,
    ) -> None:
        def item(found: FoundFile, data: bytes) -> Made[Item]:
            return document(scheme, found, data)

        def file(found: FoundFile) -> Item:
            path = found.path
            return ParsedFile(
                uri_of(scheme, key_of(path)), category_of(path), path, found.size, found.mtime_ns
            )

        self.resources: FolderState[Item] | None = (
            None if resources is None else FolderState(resources, item, file)
        )
        self.prompts: FolderState[PromptFile] | None = (
            None if prompts is None else FolderState(prompts, prompt, None)
        )
        self.known: Mapping[str, Document] = {}
        self._log = log
        if resources is not None and prompts is not None:
            resources.without = prompts  # prompts are no resources, although their folder may lie in that of the resources

    def refresh(self, paths: Iterable[str] | None = None) -> Change:
        """What has changed since the last time.

        paths: absolute ones, of what may have changed, whatever size and time say; None: look at all, and trust size and time.
        """
        change = Change(items={}, gone=set(), prompts={}, prompts_gone=set())
        told: list[str] = []
        if self.resources is not None:
            links = self.resources.links
            for under in _places(self.resources, paths):
                changed, gone, said = self.resources.refresh(
                    under, self._remembered, distrust=bool(under)
                )
                change.items |= changed
                change.gone |= gone
                told += said
            if self.resources.links != links:
                change.links = self.resources.links
        if self.prompts is not None:
            for under in _places(self.prompts, paths):
                prompts, gone, said = self.prompts.refresh(
                    under, lambda _: None, distrust=bool(under)
                )
                change.prompts |= prompts
                change.prompts_gone |= gone
                told += said
        self.known = {}
        self._say(told)
        return change

    def _remembered(self, found: FoundFile) -> Item | None:
        known = self.known.get(found.path)
        return (
            known
            if known and (known.size, known.mtime_ns) == (found.size, found.mtime_ns)
            else None
        )

    def _say(self, told: list[str]) -> None:
        if self._log is None:
            return
        for text in told[:SAID]:
            self._log.warning("%s", text)
        if len(told) > SAID:
            self._log.warning("%d more problems: concertino lint shows them", len(told) - SAID)


def is_below(path: str, under: str) -> bool:
    return not under or path == under or path.startswith(f"{under}/")


def _places(side: FolderState[M], paths: Iterable[str] | None) -> list[str]:
    """What of a folder is to be looked at: all of it if a hidden thing changed, and a link may lead there."""
    return [""] if paths is None else sorted(set(_below(side, paths)))


def _below(side: FolderState[M], paths: Iterable[str]) -> Iterator[str]:
    path_of = side.folder.path
    roots = {os.path.join(root, "") for root in (path_of, os.path.realpath(path_of))}  # noqa: PTH118
    for path in paths:
        for root in roots:
            if path.startswith(root):
                below = path[len(root) :].rstrip("/")
                if not is_hidden(below):
                    yield below
                elif side.has_links:
                    yield ""
            elif path == root[:-1]:
                yield ""
