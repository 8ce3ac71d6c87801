"""Library: directories of Markdown files, which are resources or prompts, as an MCP server.

    Library("resources", "prompts").run()

This module starts and ends a library, loads its directories, and loads them again when they change.
library_handlers.py answers the requests of clients. That module and the modules that it imports are
imported in a thread after the client's handshake, so that the handshake is answered at once.
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

from concertino.backend.interface import (
    Call,
    Context,
    Notifier,
    ServerFeatures,
    SupportsEarlyOpening,
)
from concertino.backend.serving_hosts import ServingHosts
from concertino.errors import RegistrationError, TargetError
from concertino.jsonrpc.limits import Limits
from concertino.library.folder import Folder
from concertino.near_names import hint_keywords
from concertino.runtime.entry import run
from concertino.runtime.threads import Threads
from concertino.types.results import Implementation

if TYPE_CHECKING:
    from concertino.library.cache import Cache
    from concertino.library.file_loader import FileLoader
    from concertino.library.library_handlers import LibraryHandlers
    from concertino.library.watcher import Watcher

__all__ = ["Library", "open_cache"]

# RFC 3986 3.1, in lower case.
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")

# The number of files kept in memory, unless the variable CACHE_SIZE says otherwise.
CACHE_SIZE = 200

# The largest file, in bytes. As base64, or with its control characters escaped, it still fits into
# a message of 10 MiB.
MAX_FILE_BYTES = 4 * 2**20

# The largest number of files in one directory.
MAX_FILES = 200_000

# The largest number of files that are read, or queries that are answered, at the same time.
THREADS = 8

# How many iterations the event loop makes before loading starts. It needs two, one to read the
# handshake and one to answer it; the third one is a reserve.
HANDSHAKE_ITERATIONS = 3

# While the watcher polls, so that changes are noticed late, the directories are scanned before a
# call if the last scan is older than this, and older than ten times the duration of that scan.
FRESH_S = 0.15


class _Settings(Struct, frozen=True):
    """The arguments of a Library that are used when its directories are loaded."""

    tokenizer: str
    cache_size: int
    page_size: int
    watch: bool
    index_cache: bool


class Library:
    """An MCP server for directories of Markdown files, which are resources or prompts for clients.

        Library("resources", "prompts").run()

    Serve a Library with run(), or combine it with other servers by compose().

    resources: a directory of files. The URI of a file follows from its path: `agents/dev/go.md` has
        the URI `orchestr8://agents/dev/go`. Files that are not Markdown can be read, not searched.
        None for no resources.
    prompts: a directory of Markdown files, each of which is one prompt; None for no prompts. If
        both directories are given, one of them may be created later; clients then see its files.
    scheme: the scheme of the URIs of resources.
    name: the name of this server for clients and logs; None for the scheme.
    version: the version of this server for clients.
    title, description: for people who see the server in a client; None for none.
    instructions: a text for the model that uses the server; None for none.
    tokenizer: how to count tokens, which limit the results of a search. `estimate` needs no other
        package; `o200k_base` and `cl100k_base` count exactly, and need the extra `tokens`.
    cache_size: how many files that clients have read are kept in memory; 0 for none. None for the
        environment variable CACHE_SIZE, or 200 if it is not set.
    page_size: how many entries one page of a list has at most.
    max_file_bytes: the largest size of a file. Larger files are left out, with a warning in the
        log.
    watch: whether to follow changes of the files while the server runs, and to notify clients.
    index_cache: whether to store the search index in the user's cache directory, for the next
        start.
    Raises RegistrationError if an argument is wrong, or if none of the directories exists.
    """

    # For a misspelled keyword, the TypeError suggests the right one.
    @hint_keywords
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
                "scheme: expected a small letter, then small letters, digits and + . - ,"
                f" got {scheme!r}"
            )
        if resources is None and prompts is None:
            raise RegistrationError(
                "a library: expected a folder of resources, of prompts, or both, got neither"
            )
        for option, number in (("page_size", page_size), ("max_file_bytes", max_file_bytes)):
            if number < 1:
                raise RegistrationError(f"{option}: expected a positive number, got {number!r}")
        _check_tokenizer(tokenizer)

        self.name = scheme if name is None else name
        self.scheme = scheme
        self.resources = _make_folder(resources, max_file_bytes)
        self.prompts = _make_folder(prompts, max_file_bytes)
        if not any(folder.exists for folder in self._folders()):
            paths = " and ".join(folder.path for folder in self._folders())
            raise RegistrationError(f"a library: expected a folder, there is none at {paths}")

        self._settings = _Settings(
            tokenizer,
            _default_cache_size() if cache_size is None else max(0, cache_size),
            page_size,
            watch,
            index_cache,
        )
        self._features = ServerFeatures(
            Implementation(self.name, version, title, description),
            instructions=instructions,
            completions=True,
        )
        self._extend_features()
        self._log = logging.getLogger(f"concertino.{self.name}")
        self._threads = Threads(THREADS)
        self._hosts = ServingHosts()
        self._loaded: _LoadedLibrary | None = None
        # Held while _features, _threads, _hosts or _loaded is changed, which several threads do.
        self._lock = threading.Lock()
        # Held while directories are read: loading and refreshing must not overlap.
        self._reading = threading.Lock()

    def run(
        self,
        *,
        limits: Limits | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
        http: str | None = None,
    ) -> None:
        """Serve over stdin and stdout until the client disconnects, then end the process.

        Code after this call does not run.
        limits: the limits for each connection. None for the defaults of Limits and the environment
            variables that replace them, such as CONCERTINO_MAX_IN_FLIGHT.
        loop_factory: makes the event loop, for example uvloop.new_event_loop; None for the event
            loop of asyncio.
        http: the address at which to serve over HTTP until SIGTERM, HOST:PORT or unix:PATH. This
            needs the extra `http`. None to serve over stdin and stdout.
        """
        run(self, http=http, limits=limits, loop_factory=loop_factory)

    # Backend

    def features(self) -> ServerFeatures:
        """Return the features of this server: resources and prompts, if their directories exist.

        If a directory is removed, its features stay, because clients have seen them.
        """
        return self._features

    async def start(self, outlet: Notifier) -> None:
        """Load the directories, and begin to follow their changes.

        Each Host (runtime/host.py), which connects the library with its clients, calls this once.

        outlet: the Host, which gets the notifications about changes.
        Raises ConcertinoError if a necessary extra is not installed.
        """
        with self._lock:
            self._hosts.add(outlet)
        # Answer requests such as `initialize` while the directories are being loaded.
        if isinstance(outlet, SupportsEarlyOpening):
            outlet.open_early()
        # Importing modules keeps Python's global lock, so let the event loop answer the handshake
        # first.
        for _ in range(HANDSHAKE_ITERATIONS):
            await asyncio.sleep(0)
        await self._threads.run(self._load)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Return the result of a client's request.

        call: the request, such as `resources/list`.
        context: not used.
        Raises RpcError for an unknown method, an unknown resource or prompt, and invalid params.
        """
        loaded = self._loaded
        if loaded is None:
            raise RuntimeError("the library has not started")
        if loaded.is_stale():
            await self._threads.run(lambda: self._refresh(None))
        return await loaded.handlers.handle(call, self._threads.run)

    async def watch(self, uris: frozenset[str]) -> None:
        """Notify clients of changes of these resources from now on, and of no others.

        uris: all URIs that clients have subscribed to.
        """
        self._hosts.watched = uris

    async def close(self) -> None:
        """End the threads and free the memory, if no other Host serves this library any more.

        Each Host calls this once.
        """
        with self._lock:
            if not self._hosts.remove_one():
                return
            # Another Host may start this library again later, and then needs new threads.
            threads, self._threads = self._threads, Threads(THREADS)
            loaded, self._loaded = self._loaded, None
        threads.close()
        if loaded is not None:
            loaded.close()
            self._log.info("%s", loaded.handlers.reader.stats)

    def _folders(self) -> list[Folder]:
        return [folder for folder in (self.resources, self.prompts) if folder is not None]

    def _extend_features(self) -> bool:
        """Add the features for directories that exist now. Returns whether the features changed."""
        before = self._features
        resources = before.resources or (self.resources is not None and self.resources.exists)
        prompts = before.prompts or (self.prompts is not None and self.prompts.exists)
        self._features = replace(
            before, resources=resources, subscriptions=resources, prompts=prompts
        )
        return self._features != before

    # Run in threads

    def _load(self) -> None:
        """Load the directories and follow their changes, unless this was done for another Host."""
        with self._reading:
            if self._loaded is not None:
                return
            loaded = _load_library(self, self._settings, self._log)
            with self._lock:
                # All Hosts may have closed the library while it was loading.
                if not self._hosts.count:
                    return
                self._loaded = loaded
                self._extend_features()
                if self._settings.watch:
                    from concertino.library.watcher import Watcher

                    paths = [folder.path for folder in self._folders()]
                    loaded.watcher = Watcher(paths, self._refresh, self._log)

    def _refresh(self, paths: list[str] | None) -> None:
        """Read changed files and notify clients. The watcher calls this, and handle().

        paths: absolute paths that may have changed; None to check all files.
        """
        with self._reading:
            loaded = self._loaded
            if loaded is None:
                return
            started_s = time.monotonic()
            change = loaded.loader.refresh(paths)
            loaded.scanned_s = time.monotonic()
            loaded.scan_duration_s = loaded.scanned_s - started_s
            if not change:
                return
            notice = loaded.handlers.apply(change, self._hosts.watched)
        count = (
            len(change.items)
            + len(change.removed_items)
            + len(change.prompts)
            + len(change.removed_prompts)
        )
        self._log.debug("%d files changed", count)
        with self._lock:
            has_new_features = self._extend_features()

        def report(notifier: Notifier) -> None:
            if has_new_features:
                notifier.report_change("features")
            if notice.resources:
                notifier.report_change("resources")
            if notice.prompts:
                notifier.report_change("prompts")
            for uri in notice.updated:
                notifier.report_update(uri)

        self._hosts.notify(report)


class _LoadedLibrary:
    """The state of a library after loading.

    loader: reads the files that have changed.
    handlers: answer the requests.

    Attributes:
    watcher: reports changes of the directories; None if changes are not followed.
    scanned_s: the time of the latest scan of the directories, by time.monotonic().
    scan_duration_s: how long that scan took, in seconds.
    """

    def __init__(self, loader: FileLoader, handlers: LibraryHandlers) -> None:
        self.loader = loader
        self.handlers = handlers
        self.watcher: Watcher | None = None
        self.scanned_s = time.monotonic()
        self.scan_duration_s = 0.0

    def is_stale(self) -> bool:
        """Return whether to scan the directories before a call is answered.

        A scan is necessary if the watcher polls, and so notices changes late, and the latest scan
        is old. It is not necessary if the operating system reports changes, or if changes are not
        followed.
        """
        if self.watcher is None or self.watcher.receives_events:
            return False
        # Do not scan so often that scans take most of the time.
        return time.monotonic() - self.scanned_s > max(FRESH_S, 10 * self.scan_duration_s)

    def close(self) -> None:
        if self.watcher is not None:
            self.watcher.close()


def _load_library(library: Library, settings: _Settings, log: logging.Logger) -> _LoadedLibrary:
    """Read the directories and build the search index. Blocks.

    If tantivy is not installed, the library is loaded nevertheless, and searches are errors.
    Raises ConcertinoError if another necessary package is not installed.
    """
    from concertino.library.document_registry import DocumentRegistry
    from concertino.library.file_loader import FileLoader
    from concertino.library.index import Index
    from concertino.library.library_handlers import LibraryHandlers
    from concertino.library.resource_reader import ResourceReader
    from concertino.library.tokens import make_counter

    count = make_counter(settings.tokenizer)
    for kind, folder in (("resources", library.resources), ("prompts", library.prompts)):
        if folder is not None and not folder.exists:
            log.warning("%s: there is no folder %s: not offered", kind, folder.path)

    loader = FileLoader(library.scheme, library.resources, library.prompts, log)
    # If the library cannot be searched, open_cache() or Index.build() says why.
    cache, search_problem = open_cache(library) if settings.index_cache else (None, "")
    if cache is not None:
        loader.cached = cache.documents()
    documents = DocumentRegistry()
    documents.apply(loader.refresh())
    log.info("Loaded %d prompts", len(documents.prompts()))
    log.info("Loaded %d resources", len(documents.items()))

    reader = ResourceReader(library.scheme, documents, loader, count, settings.cache_size, log)
    if library.resources is not None and not search_problem:
        try:
            reader.index = Index.build(documents.documents(), cache=cache, count=count)
        except TargetError as exc:
            search_problem = str(exc)
        else:
            # Users search the log for this text, so it stays as it is (tests/contract).
            log.info("Resource index pre-loaded for dynamic matching")
        if cache is not None:
            cache.release()
    reader.search_problem = search_problem
    handlers = LibraryHandlers(library.scheme, documents, reader, settings.page_size)
    return _LoadedLibrary(loader, handlers)


def open_cache(library: Library) -> tuple[Cache | None, str]:
    """Return (cache, problem): the index cache of a library, and why searching is not possible.

    cache: None if tantivy is not installed, if the library has no resources, or if the user has no
        home directory, which is logged.
    problem: a text if tantivy is not installed; otherwise "".
    """
    from concertino.library.cache import Cache

    if library.resources is None:
        return None, ""
    try:
        cache = Cache(
            f"{library.scheme} {library.resources.max_file_bytes} {library.resources.path}"
        )
        cache.load()
    except RuntimeError as exc:
        # The user has no home directory; that happens in containers.
        logging.getLogger("concertino.library").warning("no index cache: %s", exc)
        return None, ""
    except TargetError as exc:
        return None, str(exc)
    return cache, ""


def _check_tokenizer(name: str) -> None:
    """Raise RegistrationError if the tokenizer is unknown or its extra is not installed."""
    # Return before the import, which the default does not need.
    if name == "estimate":
        return
    from concertino.library.tokens import make_counter

    try:
        make_counter(name)
    except (ValueError, TargetError) as exc:
        raise RegistrationError(str(exc)) from None


def _make_folder(path: str | PathLike[str] | None, max_file_bytes: int) -> Folder | None:
    if path is None:
        return None
    return Folder(path, max_file_bytes=max_file_bytes, max_files=MAX_FILES)


def _default_cache_size() -> int:
    """Return the value of the environment variable CACHE_SIZE, or 200 if it is not set.

    Raises RegistrationError if it is not a number.
    """
    text = os.environ.get("CACHE_SIZE", "").strip()
    if not text:
        return CACHE_SIZE
    # A number with more digits is a mistake.
    if not text.isdecimal() or len(text) > 9:
        raise RegistrationError(f"CACHE_SIZE: expected a whole number of files, got {text!r}")
    return int(text)
