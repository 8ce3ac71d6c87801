"""ResourceReader: answers `resources/read` for a library: files, catalogues and search results.

Each of them is read or computed in a thread, since it may take long. A "match" is the result of a
search, a catalogue is a JSON list of the files of one category, and the registry is the catalogue
of the whole library.

Spec: 2026-07-28 server/resources.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from msgspec import Struct

from concertino.errors import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from concertino.library.catalogues import render_category, render_registry
from concertino.library.document_registry import Ambiguous, DocumentRegistry, Item
from concertino.library.file_loader import FileLoader
from concertino.library.file_parsing import decode_text, mime_type_of
from concertino.library.folder import FileMissing
from concertino.library.index import Index
from concertino.library.query_params import parse_query
from concertino.library.read_cache import ReadCache
from concertino.library.rendering import RenderedText
from concertino.library.templates import JSON
from concertino.library.tokens import Counter
from concertino.library.uris import MATCH, REGISTRY, escape_uri, split_uri
from concertino.types.results import ReadResourceResult, ResourceContents

# Runs a function in a thread, and returns its result.
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]

# The log shows at most this many characters of a client's URI.
MAX_LOGGED = 512

# The error for an ambiguous URI names at most this many candidates.
MAX_CANDIDATES = 20


class ReadStats(Struct):
    """Counts since the start of a library, for the log.

    reads: how many times clients have read a file.
    cached: how many of these times the file was in memory.
    matches: how many searches were answered.
    tokens: the total number of tokens of the search results.
    """

    reads: int = 0
    cached: int = 0
    matches: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return (
            f"Served {self.reads} files ({self.cached} from memory)"
            f" and {self.matches} matches ({self.tokens} tokens)"
        )


class ResourceReader:
    """Reads the resources of a loaded library: files, catalogues and search results.

    scheme: the scheme of the library's URIs.
    documents: the files of the library.
    loader: its attribute `resources` has the listed files, and reads them.
    count: counts the tokens of a text.
    cache_size: how many files are kept in memory; 0 for none.
    log: the logger for requests and for files that cannot be read.

    Attributes:
    index: answers searches; None if searching is not possible. library.py sets it.
    search_problem: why searching is not possible, for errors; "" if it is possible.
    stats: counts since the start.
    """

    def __init__(
        self,
        scheme: str,
        documents: DocumentRegistry,
        loader: FileLoader,
        count: Counter,
        cache_size: int,
        log: logging.Logger,
    ) -> None:
        self.index: Index | None = None
        self.search_problem = ""
        self.stats = ReadStats()
        self._scheme = scheme
        self._documents = documents
        self._loader = loader
        self._count = count
        self._log = log
        self._cache = ReadCache(cache_size)
        # Category -> rendered catalogue. The key "" has the registry, the catalogue of all files.
        self._catalogues: dict[str, str] = {}

    def invalidate(self, paths: Iterable[str]) -> None:
        """Drop the contents of changed files, and all catalogues, from memory."""
        self._cache.remove(paths)
        # Make a new dict, because a request may be rendering an old catalogue right now, and will
        # add it to the old dict.
        self._catalogues = {}

    def path_of(self, uri: str) -> str | None:
        """Return the path of the file that a URI means; None for a catalogue or a search.

        Returns "" if there is no resource with this URI, or if it could mean several files.
        """
        parts = split_uri(self._scheme, uri)
        if parts is None:
            return ""
        key, query = parts
        # Only searches have a query. A search without a query is an error when a client reads it.
        if query is not None or key == REGISTRY or self._find_catalogue(key) is not None:
            return None
        try:
            item = self._documents.find(key)
        except Ambiguous:
            return ""
        return "" if item is None else item.path

    async def read(self, uri: str, in_thread: RunInThread) -> ReadResourceResult:
        """Return the result of `resources/read`: a file, a catalogue, or the result of a search.

        uri: the client's URI.
        in_thread: called with a function that may block; runs it in a thread, and returns its
            result.
        Raises RpcError -32602 if there is no resource with this URI, if it could mean several
        files, or if it has invalid parameters.
        """
        parts = split_uri(self._scheme, uri)
        if parts is None:
            raise _not_found(uri)
        key, query = parts

        before, slash, last = key.rpartition("/")
        # `match` searches all categories, and `CATEGORY/match` one of them.
        if last == MATCH and "/" not in before:
            category = self._documents.category(before) if slash else None
            # The URI names a category that does not exist.
            if slash and category is None:
                raise _not_found(uri)
            return await self._read_match(uri, query or "", category, in_thread)

        if query is not None:
            raise _not_found(uri)
        if key == REGISTRY:
            return await self._read_catalogue(uri, "", in_thread)
        if (category := self._find_catalogue(key)) is not None:
            return await self._read_catalogue(uri, category, in_thread)

        try:
            item = self._documents.find(key)
        except Ambiguous as exc:
            raise _ambiguous(uri, exc.candidates) from None
        if item is None:
            raise _not_found(uri)
        return await self._read_file(uri, item, in_thread)

    def _find_catalogue(self, key: str) -> str | None:
        """Return the category whose catalogue a URI means; None for any other URI.

        key: the part of the URI after `SCHEME://`: `CATEGORY` or `CATEGORY/`.
        """
        return self._documents.category(key.removesuffix("/"))

    # Files

    async def _read_file(
        self,
        uri: str,
        item: Item,
        in_thread: RunInThread,
    ) -> ReadResourceResult:
        """Return the contents of a file, from the cache or from the disk.

        uri: the client's URI, for the response.
        """
        self._log.debug("Loading resource: %s", uri[:MAX_LOGGED])
        self.stats.reads += 1
        contents = self._cache.get(item.path)
        if contents is None:
            contents = await in_thread(partial(self._load_contents, item))
            if contents is None:
                raise _not_found(uri)
        else:
            self.stats.cached += 1
        return ReadResourceResult(
            [
                ResourceContents(
                    escape_uri(uri),
                    text=contents.text,
                    blob=contents.blob,
                    mime_type=contents.mime_type,
                )
            ]
        )

    def _load_contents(self, item: Item) -> ResourceContents | None:
        """Read a file, as text if it is UTF-8 and else as a blob. Blocks.

        Returns None if the file can no longer be read.
        """
        state = self._loader.resources
        file = None if state is None else state.files.get(item.path)
        if state is None or file is None:
            return None
        try:
            data, _ = state.folder.read(file)
        except FileMissing as exc:
            self._log.warning("%s: %s", item.path, exc.problem.message)
            return None

        text = decode_text(data)
        mime_type = mime_type_of(item.path)
        if text is None:
            mime_type = mime_type or "application/octet-stream"
            contents = ResourceContents(item.uri, blob=data, mime_type=mime_type)
        else:
            contents = ResourceContents(item.uri, text=text, mime_type=mime_type or "text/plain")

        # Do not cache a file that changed while it was read.
        if state.files.get(item.path) is file:
            self._cache.put(item.path, contents, len(data))
        return contents

    # Catalogues

    async def _read_catalogue(
        self,
        uri: str,
        category: str,
        in_thread: RunInThread,
    ) -> ReadResourceResult:
        """Return the catalogue of a category, or the registry for the category "".

        uri: the client's URI, for the response.
        """
        catalogues = self._catalogues
        text = catalogues.get(category)
        if text is None:
            text = catalogues[category] = await in_thread(partial(self._render, category))
        return ReadResourceResult([ResourceContents(escape_uri(uri), text=text, mime_type=JSON)])

    def _render(self, category: str) -> str:
        if category:
            return render_category(self._documents, self._scheme, category, self._count)
        return render_registry(self._documents, self._scheme, self._count)

    # Matches

    async def _read_match(
        self,
        uri: str,
        query: str,
        category: str | None,
        in_thread: RunInThread,
    ) -> ReadResourceResult:
        """Return the result of a search.

        uri: the URI that the client reads.
        query: the part of the URI after `?`.
        category: the category in the path of the URI; None if there is none.
        in_thread: runs a function in a thread, and returns its result.
        """
        self._log.info("Dynamic resource request: %s", uri[:MAX_LOGGED])
        result, escaped_uri = await in_thread(partial(self._match, uri, query, category))
        self._log.info("Assembled %d fragments (%d tokens)", result.fragments, result.tokens)
        self.stats.matches += 1
        self.stats.tokens += result.tokens
        meta = {"fragments": result.fragments, "tokens": result.tokens, "limit": result.limit}
        contents = ResourceContents(
            escaped_uri, text=result.text, mime_type=result.mime_type, meta=meta
        )
        return ReadResourceResult([contents])

    def _match(
        self,
        uri: str,
        query: str,
        category: str | None,
    ) -> tuple[RenderedText, str]:
        """Return the result of a search, and the escaped URI. Blocks.

        uri: the client's URI.
        query: the text after `?` in the URI.
        category: the category to search in; None for all categories.
        """
        # A query may have a megabyte, so it is parsed and escaped here, in a thread.
        documents = self._documents
        parsed = parse_query(query, category, documents.category, documents.categories())
        if self.index is None:
            raise RpcError(INTERNAL_ERROR, f"No dynamic matching: {self.search_problem}")
        return self.index.match(parsed), escape_uri(uri)


def _not_found(uri: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Resource not found: {uri}", {"uri": uri})


def _ambiguous(uri: str, candidates: list[str]) -> RpcError:
    """Return the error for a URI that may mean several files.

    candidates: the URIs of these files.
    """
    # The data must not contain `uri`: clients would read the error as "resource not found".
    named = candidates[:MAX_CANDIDATES]
    others = " and others" if len(named) < len(candidates) else ""
    details = f"{uri} could be {', '.join(named)}{others}"
    return RpcError(
        INVALID_PARAMS, f"Ambiguous resource: {uri}", {"details": details, "candidates": named}
    )
