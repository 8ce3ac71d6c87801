"""Where the calls of a library are answered, once everything was read.

What is in memory is answered on the loop; files, matches and catalogues in threads, since each of them may take longer than others
should wait. Spec: 2026-07-28 server/resources, server/prompts, server/utilities/completion, server/utilities/pagination.
"""

from __future__ import annotations

import logging
import threading
from binascii import Error, a2b_base64, b2a_base64
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call
from concertino.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from concertino.library.argument_completion import complete
from concertino.library.catalogues import catalogue, registry
from concertino.library.document import Document
from concertino.library.document_registry import Ambiguous, Change, DocumentRegistry, Item
from concertino.library.file_loader import FileLoader
from concertino.library.file_parsing import mime_type_of, text_of
from concertino.library.folder import FileMissing
from concertino.library.index import Index
from concertino.library.prompt_files import filled, shown
from concertino.library.query_params import query_of
from concertino.library.rendering import RenderedText
from concertino.library.templates import JSON, Templates
from concertino.library.tokens import Counter
from concertino.library.uris import MATCH, REGISTRY, parts_of, written
from concertino.types.results import (
    CompleteResult,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceContents,
)

__all__ = ["ChangeNotice", "InThread", "RequestTable", "ServedStats"]

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]  # Any: whatever the function returns
MAX_CACHE_BYTES = 64 * 2**20  # of files kept in memory, however many they may be
MAX_PAGES = 256  # of lists, kept as they were given
MAX_CURSOR = 65536  # characters
SHOWN = 512  # characters of a URI that came from outside, in the log
NO_ARGUMENTS = Raw(b"{}")
_text = Decoder(str).decode
_texts = Decoder(dict[str, str]).decode


class ChangeNotice(Struct):
    """What clients are to be told of a change: whether a list is another one, and which of the watched resources are."""

    resources: bool
    prompts: bool
    updated: list[str]


class ServedStats(Struct):
    """What was counted. reads: of files, and how many of them were in memory; matches: and the tokens of their texts."""

    reads: int = 0
    cached: int = 0
    matches: int = 0
    tokens: int = 0

    def __str__(self) -> str:
        return f"Served {self.reads} files ({self.cached} from memory) and {self.matches} matches ({self.tokens} tokens)"


class RequestTable:
    """index: None while there is nothing to search by; missing: why. served: what was counted since the start."""

    def __init__(
        self,
        scheme: str,
        shelf: DocumentRegistry,
        collection: FileLoader,
        count: Counter,
        cache_size: int,
        page_size: int,
        log: logging.Logger,
    ) -> None:
        self.index: Index | None = None
        self.missing = ""
        self.served = ServedStats()
        self._scheme = scheme
        self._shelf = shelf
        self._collection = collection
        self._count = count
        self._page_size = page_size
        self._log = log
        self._templates = Templates(scheme)
        self._kept = _Kept(cache_size)
        self._lists: dict[
            tuple[str, str], Struct
        ] = {}  # results as they were given: one object is encoded once
        self._catalogues: dict[str, str] = {}  # by category; the registry by its own name
        self._ways: Mapping[str, Callable[[Call, InThread], Awaitable[Struct]]] = {
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    async def answer(self, call: Call, in_thread: InThread) -> Struct:
        """Raises RpcError."""
        way = self._ways.get(call.method)
        if way is None:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        return await way(call, in_thread)

    def take(self, change: Change, watched: frozenset[str]) -> ChangeNotice:
        """Take in what has changed; in a thread. Returns what is to be told. watched: URIs that somebody subscribes to."""
        shelf = self._shelf
        paths = [*change.items, *change.gone]
        before = {path: shelf.at(path) for path in paths}
        meant = {uri: self._meaning(uri) for uri in watched}
        if self.index is not None and paths:
            removed = [
                item.uri
                for path, item in before.items()
                if isinstance(item, Document) and not isinstance(change.items.get(path), Document)
            ]
            self.index.update(
                [each for each in change.items.values() if isinstance(each, Document)], removed
            )
        shelf.apply(change)
        self._kept.forget(paths)
        self._lists, self._catalogues = {}, {}
        listed = (
            any(_listing(before[path]) != _listing(shelf.at(path)) for path in paths)
            or change.links is not None
        )
        updated: list[str] = []
        for uri, was in meant.items():
            now = self._meaning(uri)
            if now != was or (paths if now is None else now in before):
                updated.append(uri)
        return ChangeNotice(listed, bool(change.prompts or change.prompts_gone), sorted(updated))

    def _meaning(self, uri: str) -> str | None:
        """The path of the file that a URI means; empty for none, None for what is made of several."""
        parts = parts_of(self._scheme, uri)
        if parts is None:
            return ""
        key, query = parts
        if query is not None or key == REGISTRY or self._shelf.category(key) is not None:
            return None
        try:
            item = self._shelf.find(key)
        except Ambiguous:
            return ""
        return "" if item is None else item.path

    # Lists

    async def _list_resources(self, call: Call, in_thread: InThread) -> ListResourcesResult:
        after = _cursor(call, "resources")
        kept = self._lists.get(("resources", after))
        if isinstance(kept, ListResourcesResult):
            return kept
        lists = self._lists
        page = self._shelf.page(after, self._page_size)
        result = ListResourcesResult(
            [_resource(each) for each in page.entries], _cursor_after("resources", page.last)
        )
        if len(lists) < MAX_PAGES:  # a cursor is whatever a client makes of it
            lists["resources", after] = result
        return result

    async def _list_templates(self, call: Call, in_thread: InThread) -> ListResourceTemplatesResult:
        _cursor(call, "templates")
        return ListResourceTemplatesResult(self._templates.shown)

    async def _list_prompts(self, call: Call, in_thread: InThread) -> ListPromptsResult:
        after = _cursor(call, "prompts")
        prompts = self._shelf.prompts()
        names = list(prompts)
        start = bisect_right(names, after)
        end = start + self._page_size
        last = names[end - 1] if end < len(names) else None
        return ListPromptsResult(
            [shown(prompts[name]) for name in names[start:end]], _cursor_after("prompts", last)
        )

    # Prompts

    async def _get_prompt(self, call: Call, in_thread: InThread) -> GetPromptResult:
        name = _string(call, "name")
        prompt = self._shelf.prompts().get(name)
        if prompt is None:
            name = name[:128]
            raise RpcError(
                INVALID_PARAMS,
                f"Unknown prompt: {name}",
                {"details": f"name: there is no prompt {name!r}"},
            )
        try:
            given = _texts(call.params.get("arguments", NO_ARGUMENTS))
        except (DecodeError, UnicodeError) as why:
            raise _invalid(
                f"arguments: {str(why).replace('`', '').replace('Expected', 'expected')}"
            ) from None
        return filled(prompt, given)

    async def _complete(self, call: Call, in_thread: InThread) -> CompleteResult:
        return await in_thread(lambda: complete(call, self._shelf, self._templates))

    # Reading

    async def _read(self, call: Call, in_thread: InThread) -> ReadResourceResult:
        uri = _string(call, "uri")
        parts = parts_of(self._scheme, uri)
        if parts is None:
            raise _not_found(uri)
        key, query = parts
        category, slash, rest = key.rpartition("/")
        if rest == MATCH and "/" not in category:
            known = self._shelf.category(category) if slash else None
            if slash and known is None:
                raise _not_found(uri)
            return await self._match(uri, query or "", known, in_thread)
        if query is not None:
            raise _not_found(uri)
        if key == REGISTRY:
            return await self._catalogue(uri, "", in_thread)
        if (known := self._shelf.category(key.removesuffix("/"))) is not None:
            return await self._catalogue(uri, known, in_thread)
        try:
            item = self._shelf.find(key)
        except Ambiguous as why:
            raise _ambiguous(uri, why.candidates) from None
        if item is None:
            raise _not_found(uri)
        return await self._file(uri, item, in_thread)

    async def _file(self, uri: str, item: Item, in_thread: InThread) -> ReadResourceResult:
        self._log.debug("Loading resource: %s", uri[:SHOWN])
        self.served.reads += 1
        contents = self._kept.get(item.path)
        if contents is None:
            contents = await in_thread(partial(self._contents, item))
            if contents is None:
                raise _not_found(uri)
        else:
            self.served.cached += 1
        return ReadResourceResult(
            [ResourceContents(written(uri), contents.text, contents.blob, contents.mime_type)]
        )

    def _contents(self, item: Item) -> ResourceContents | None:
        """What a file holds: text if it is, bytes as they are if not. Blocks. None if it cannot be read any more."""
        side = self._collection.resources
        found = None if side is None else side.found.get(item.path)
        if side is None or found is None:
            return None
        try:
            data, _ = side.folder.read(found)
        except FileMissing as why:
            self._log.warning("%s: %s", item.path, why.problem.message)
            return None
        text = text_of(data)
        kind = mime_type_of(item.path)
        if text is None:
            contents = ResourceContents(
                item.uri, blob=data, mime_type=kind or "application/octet-stream"
            )
        else:
            contents = ResourceContents(item.uri, text=text, mime_type=kind or "text/plain")
        if (
            side.found.get(item.path) is found
        ):  # else it changed while it was read: the next one reads it again
            self._kept.keep(item.path, contents, len(data))
        return contents

    async def _catalogue(self, uri: str, category: str, in_thread: InThread) -> ReadResourceResult:
        """category: empty for everything."""
        kept = self._catalogues
        text = kept.get(category)
        if text is None:
            make = partial(catalogue, category=category) if category else registry
            text = kept[category] = await in_thread(
                lambda: make(self._shelf, self._scheme, count=self._count)
            )
        return ReadResourceResult([ResourceContents(written(uri), text=text, mime_type=JSON)])

    async def _match(
        self, uri: str, query: str, category: str | None, in_thread: InThread
    ) -> ReadResourceResult:
        self._log.info("Dynamic resource request: %s", uri[:SHOWN])
        found, uri = await in_thread(partial(self._found, uri, query, category))
        self._log.info("Assembled %d fragments (%d tokens)", found.fragments, found.tokens)
        self.served.matches += 1
        self.served.tokens += found.tokens
        about = {"fragments": found.fragments, "tokens": found.tokens, "limit": found.limit}
        return ReadResourceResult(
            [ResourceContents(uri, text=found.text, mime_type=found.mime_type, meta=about)]
        )

    def _found(self, uri: str, query: str, category: str | None) -> tuple[RenderedText, str]:
        """What fits, and the URI as it is to be written. A query may have a megabyte, which takes time even to decode."""
        shelf = self._shelf
        asked = query_of(query, category, shelf.category, shelf.categories())
        if self.index is None:
            raise RpcError(INTERNAL_ERROR, f"No dynamic matching: {self.missing}")
        return self.index.match(asked), written(uri)


class _Kept:
    """Files as they were read last, those longest not asked for going first. Any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[ResourceContents, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> ResourceContents | None:
        with self._lock:
            found = self._kept.get(path)
            if found is None:
                return None
            self._kept.move_to_end(path)
            return found[0]

    def keep(self, path: str, contents: ResourceContents, size: int) -> None:
        with self._lock:
            self._forget(path)
            self._kept[path] = contents, size
            self._bytes += size
            while self._kept and (len(self._kept) > self._size or self._bytes > MAX_CACHE_BYTES):
                self._forget(next(iter(self._kept)))

    def forget(self, paths: list[str]) -> None:
        with self._lock:
            for path in paths:
                self._forget(path)

    def _forget(self, path: str) -> None:
        found = self._kept.pop(path, None)
        if found is not None:
            self._bytes -= found[1]


def _listing(item: Item | None) -> Resource | None:
    """What a list says of an item, but for its size: that alone makes no other list."""
    return None if item is None else _resource(item, size=None)


def _resource(item: Item, **changed: int | None) -> Resource:
    size = changed.get("size", item.size)
    kind = mime_type_of(item.path)
    if isinstance(item, Document):
        return Resource(item.uri, item.id, item.title, item.description or None, kind, size)
    return Resource(item.uri, item.uri.rpartition("/")[2], mime_type=kind, size=size)


def _string(call: Call, name: str) -> str:
    try:
        return _text(call.params[name])
    except KeyError:
        raise _invalid(f"Missing required field: {name}") from None
    except (DecodeError, UnicodeError):
        raise _invalid(f"{name}: expected str") from None


def _cursor(call: Call, kind: str) -> str:
    """Behind which entry a page begins; empty for the first. A cursor names the last entry of its page, whatever came since."""
    if "cursor" not in call.params:
        return ""
    try:
        text = _text(call.params["cursor"])
        of, _, last = (
            a2b_base64(text[:MAX_CURSOR].encode(), strict_mode=True).decode().partition(" ")
        )
    except (DecodeError, Error, UnicodeError):
        raise _invalid("cursor: not one of this library's") from None
    if text and of != kind:
        raise _invalid(f"cursor: not one of this library's lists of {kind}")
    return last


def _cursor_after(kind: str, last: str | None) -> str | None:
    return None if last is None else b2a_base64(f"{kind} {last}".encode(), newline=False).decode()


def _not_found(uri: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Resource not found: {uri}", {"uri": uri})


def _ambiguous(uri: str, candidates: list[str]) -> RpcError:
    """Without `uri` in the data, which would make it one that is not found."""
    some = candidates[:20]
    details = (
        f"{uri} could be {', '.join(some)}{' and others' if len(some) < len(candidates) else ''}"
    )
    return RpcError(
        INVALID_PARAMS, f"Ambiguous resource: {uri}", {"details": details, "candidates": some}
    )


def _invalid(details: str) -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})
