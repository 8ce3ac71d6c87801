"""Library: a folder of Markdown resources, a folder of Markdown prompts, or both, as an MCP server.

Here is its life: what it offers before anything is read, the load beside the opening, changes while it runs, the end. How calls are
answered is in desk.py, which is not loaded before they can be.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from msgspec import Raw, Struct
from msgspec.structs import replace

from concertino.backend.interface import Call, Context, Notifier, ServerFeatures
from concertino.errors import RegistrationError, TargetError
from concertino.jsonrpc.limits import Limits
from concertino.library.folder import Folder
from concertino.runtime.entry import run
from concertino.runtime.threads import Threads
from concertino.types.results import Implementation

if TYPE_CHECKING:
    from concertino.library.cache import Cache
    from concertino.library.file_loader import FileLoader
    from concertino.library.method_table import RequestTable
    from concertino.library.watcher import Watcher

__all__ = ["Library", "cache_of"]

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")  # RFC 3986 3.1, in lower case
CACHE_SIZE = 200  # reads kept; the variable CACHE_SIZE otherwise
MAX_FILE_BYTES = (
    4 * 2**20
)  # of one file; a message of 10 MiB holds it in base64, and as a text of control characters nearly
MAX_FILES = 200_000  # in one folder
THREADS = 8  # reads and matches at once
OPENING_TURNS = 3  # of the loop: one to read the opening, one to answer it
FRESH_S = 0.15  # how old what is known may be when a call comes, where the system does not tell of changes


class Library:
    """A folder of Markdown as an MCP server; a Backend.

    resources: a folder of files; a Markdown file below `agents/` is `orchestr8://agents/...`. prompts: a folder of Markdown files,
    a prompt each. One of them may be missing, or not be there yet: what there is not is not offered. scheme: of the URIs.
    name: for programs, the scheme unless given; version; title and description: for people; instructions: for models.
    tokenizer: how tokens are counted: `estimate` (characters / 4.1), or `o200k_base` and `cl100k_base` with the extra `tokens`.
    cache_size: how many files are kept in memory as they were read (the variable CACHE_SIZE otherwise, or 200). page_size: how many
    entries one page of a list has. max_file_bytes: larger files are left out. watch: whether changes are seen while it runs.
    index_cache: whether the search index is kept in the user's cache folder from one start to the next.
    Raises RegistrationError naming what does not fit. Next: `run()`, or `compose(...)` with others.
    """

    def __init__(
        self,
        resources: str | PathLike[str] | None = None,
        prompts: str | PathLike[str] | None = None,
        *,
        scheme: str = "orchestr8",
        name: str | None = None,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        instructions: str | None = None,
        tokenizer: str = "estimate",
        cache_size: int | None = None,
        page_size: int = 1000,
        max_file_bytes: int = MAX_FILE_BYTES,
        watch: bool = True,
        index_cache: bool = True,
    ) -> None:
        if SCHEME.fullmatch(scheme) is None:
            raise RegistrationError(
                f"scheme: expected a small letter, then small letters, digits and + . - , got {scheme!r}"
            )
        if resources is None and prompts is None:
            raise RegistrationError(
                "a library: expected a folder of resources, of prompts, or both, got neither"
            )
        for what, number in (("page_size", page_size), ("max_file_bytes", max_file_bytes)):
            if number < 1:
                raise RegistrationError(f"{what}: expected a positive number, got {number!r}")
        if tokenizer != "estimate":
            from concertino.library.tokens import counter

            try:
                counter(tokenizer)
            except (ValueError, TargetError) as why:
                raise RegistrationError(str(why)) from None
        self.name = scheme if name is None else name
        self.scheme = scheme
        self.resources = _folder(resources, max_file_bytes)
        self.prompts = _folder(prompts, max_file_bytes)
        if not any(each is not None and each.exists for each in (self.resources, self.prompts)):
            places = " and ".join(
                each.path for each in (self.resources, self.prompts) if each is not None
            )
            raise RegistrationError(f"a library: expected a folder, there is none at {places}")
        self._offer = ServerFeatures(
            Implementation(self.name, version, title, description),
            instructions=instructions,
            completions=True,
        )
        self._offer_more()
        self._tokenizer = tokenizer
        self._cache_size = _cache_size() if cache_size is None else max(0, cache_size)
        self._page_size = page_size
        self._watches = watch
        self._index_cache = index_cache
        self._log = logging.getLogger(f"concertino.{self.name}")
        self._threads = Threads(THREADS)
        self._outlets: list[
            Notifier
        ] = []  # replaced by each change, so that any thread may read it
        self._starts = 0  # without their close()
        self._watched: frozenset[str] = frozenset()
        self._open: _Open | None = None
        self._changing = threading.Lock()  # of what is above
        self._working = threading.Lock()  # of what is read: one load or one change at a time

    def run(
        self,
        *,
        limits: Limits | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """Serve over stdin and stdout until the client is gone; then the process ends, so nothing after this line runs."""
        run(self, limits=limits, loop_factory=loop_factory)

    # Backend

    def features(self) -> ServerFeatures:
        """From which folders there are; nothing need have been read. What was offered once stays so: clients know of it."""
        return self._offer

    async def start(self, outlet: Notifier) -> None:
        """Read everything. Raises ConcertinoError where an extra is missing without which nothing can be."""
        with self._changing:
            self._starts += 1
            self._outlets = [*self._outlets, outlet]
        for _ in range(
            OPENING_TURNS
        ):  # what the load imports holds the interpreter: the opening goes first
            await asyncio.sleep(0)
        await self._threads.run(self._load)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        opened = self._open
        if opened is None:
            raise RuntimeError("the library has not started")
        if opened.is_stale():
            await self._threads.run(lambda: self._refresh(None))
        return await opened.desk.answer(call, self._threads.run)

    async def watch(self, uris: frozenset[str]) -> None:
        self._watched = uris

    async def close(self) -> None:
        with self._changing:
            self._starts = max(0, self._starts - 1)
            if self._starts:
                return  # which of several has ended is not known; its outlet reaches nobody, and stays until the last
            self._outlets = []
            threads, self._threads = self._threads, Threads(THREADS)
            opened, self._open = self._open, None
        threads.close()
        if opened is not None:
            opened.close()
            self._log.info("%s", opened.desk.served)

    def _offer_more(self) -> bool:
        """What there is a folder for. Whether that is more than before."""
        before = self._offer
        resources = before.resources or (self.resources is not None and self.resources.exists)
        prompts = before.prompts or (self.prompts is not None and self.prompts.exists)
        self._offer = replace(before, resources=resources, subscriptions=resources, prompts=prompts)
        return self._offer != before

    # In threads

    def _load(self) -> None:
        with self._working:
            if self._open is not None:
                return
            opened = _opened(
                self,
                self._log,
                self._cache_size,
                self._page_size,
                self._tokenizer,
                self._index_cache,
            )
            with self._changing:
                if not self._starts:  # closed meanwhile
                    return
                self._open = opened
                self._offer_more()
                if self._watches:
                    from concertino.library.watcher import Watcher

                    folders = [
                        each.path for each in (self.resources, self.prompts) if each is not None
                    ]
                    opened.watch = Watcher(folders, self._refresh, self._log)

    def _refresh(self, paths: list[str] | None) -> None:
        """Take in what has changed, and tell. paths: where; None: anywhere."""
        with self._working:
            opened = self._open
            if opened is None:
                return
            began = time.monotonic()
            change = opened.collection.refresh(paths)
            opened.looked_s = time.monotonic()
            opened.looking_s = opened.looked_s - began
            if not change:
                return
            told = opened.desk.take(change, self._watched)
        self._log.debug(
            "%d files changed", len(change.items) + len(change.gone) + len(change.prompts)
        )
        more = self._offer_more()
        for outlet in self._outlets:
            try:
                if more:
                    outlet.report_change("features")
                if told.resources:
                    outlet.report_change("resources")
                if told.prompts:
                    outlet.report_change("prompts")
                for uri in told.updated:
                    outlet.report_update(uri)
            except RuntimeError:  # its loop is closed: nobody is there to be told
                pass


class _Open:
    """What there is once everything was read. looked_s: when all was looked at last; looking_s: how long that took."""

    def __init__(self, collection: FileLoader, desk: RequestTable) -> None:
        self.collection = collection
        self.desk = desk
        self.watch: Watcher | None = None
        self.looked_s = time.monotonic()
        self.looking_s = 0.0

    def is_stale(self) -> bool:
        """Whether somebody must look before a call is answered: the system tells of changes where it can."""
        if self.watch is None or self.watch.hears:
            return False
        return time.monotonic() - self.looked_s > max(FRESH_S, 10 * self.looking_s)

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()


def _opened(
    library: Library,
    log: logging.Logger,
    cache_size: int,
    page_size: int,
    tokenizer: str,
    index_cache: bool,
) -> _Open:
    """Read everything, and say so when it is true. Blocks."""
    from concertino.library.document_registry import DocumentRegistry
    from concertino.library.file_loader import FileLoader
    from concertino.library.index import Index
    from concertino.library.method_table import RequestTable
    from concertino.library.tokens import counter

    count = counter(tokenizer)
    for what, folder in (("resources", library.resources), ("prompts", library.prompts)):
        if folder is not None and not folder.exists:
            log.warning("%s: there is no folder %s: not offered", what, folder.path)
    collection = FileLoader(library.scheme, library.resources, library.prompts, log)
    cache, missing = cache_of(library) if index_cache else (None, "")
    if cache is not None:
        collection.known = cache.documents()
    change = collection.refresh()
    shelf = DocumentRegistry()
    shelf.apply(change)
    log.info("Loaded %d prompts", len(shelf.prompts()))
    log.info("Loaded %d resources", len(shelf.items()))
    desk = RequestTable(library.scheme, shelf, collection, count, cache_size, page_size, log)
    if library.resources is not None and not missing:
        try:
            desk.index = Index.build(shelf.documents(), cache=cache, count=count)
        except TargetError as why:
            missing = str(why)
        else:
            log.info("Resource index pre-loaded for dynamic matching")
        if cache is not None:
            cache.forget()
    desk.missing = missing
    return _Open(collection, desk)


def cache_of(library: Library) -> tuple[Cache | None, str]:
    """The cache file of this library's documents and their index, and what is missing to have one."""
    from concertino.library.cache import Cache

    if library.resources is None:
        return None, ""
    try:
        cache = Cache(
            f"{library.scheme} {library.resources.max_file_bytes} {library.resources.path}"
        )
        cache.kept()
    except RuntimeError as why:  # a user without a home, as containers have them
        logging.getLogger("concertino.library").warning("no index cache: %s", why)
        return None, ""
    except TargetError as why:
        return None, str(why)
    return cache, ""


def _folder(path: str | PathLike[str] | None, max_file_bytes: int) -> Folder | None:
    return (
        None if path is None else Folder(path, max_file_bytes=max_file_bytes, max_files=MAX_FILES)
    )


def _cache_size() -> int:
    text = os.environ.get("CACHE_SIZE", "").strip()
    if not text:
        return CACHE_SIZE
    if not text.isdecimal() or len(text) > 9:
        raise RegistrationError(f"CACHE_SIZE: expected a whole number of files, got {text!r}")
    return int(text)
