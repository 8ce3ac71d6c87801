"""LibraryHandlers: answers the requests of clients for a loaded library.

library.py passes each request ("call") to it. Lists are answered from memory on the event loop.
Reading and completion may take long, so they run in threads.

Spec: 2026-07-28 server/resources, server/prompts, server/utilities/completion and pagination.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import METHOD_NOT_FOUND, RpcError, invalid_params, unknown_name
from concertino.library.argument_completion import complete_argument
from concertino.library.document import Document
from concertino.library.document_registry import Change, DocumentRegistry, Item
from concertino.library.file_parsing import mime_type_of
from concertino.library.prompt_files import fill_prompt, to_list_entry
from concertino.library.resource_reader import ResourceReader, RunInThread
from concertino.library.templates import Templates
from concertino.protocol.call import read_text_arguments, read_text_param
from concertino.types.resources_and_prompts import (
    CompleteResult,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Resource,
)
from concertino.types.results import ReadResourceResult

# At most this many pages of `resources/list` are cached, because a client may send any number of
# different cursors.
MAX_PAGES = 256

# At most this many characters of a cursor are decoded.
MAX_CURSOR = 65536
# An error quotes at most this many characters of an unknown prompt's name.
QUOTED_NAME = 128

T = TypeVar("T")

_decode_text = Decoder(str).decode


class ChangeNotice(Struct):
    """The notifications that clients must get after a change of the directories.

    resources: whether the list of resources has changed.
    prompts: whether the list of prompts has changed.
    updated: the URIs whose content has changed, of those that clients have subscribed to.
    """

    resources: bool
    prompts: bool
    updated: list[str]


class LibraryHandlers:
    """Answers the requests of clients for a loaded library.

    scheme: the scheme of the library's URIs.
    documents: the files and prompts.
    reader: the reader of resources, which answers `resources/read`.
    page_size: how many entries one page of a list has at most.
    """

    def __init__(
        self,
        scheme: str,
        documents: DocumentRegistry,
        reader: ResourceReader,
        page_size: int,
    ) -> None:
        self.reader = reader
        self._documents = documents
        self._page_size = page_size
        self._templates = Templates(scheme)
        # Last URI of the previous page -> result of `resources/list`. The results are kept, because
        # the code that sends responses encodes the same result object only once.
        self._pages: dict[str, ListResourcesResult] = {}
        self._handlers: Mapping[str, Callable[[Call, RunInThread], Awaitable[Struct]]] = {
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    async def handle(self, call: Call, in_thread: RunInThread) -> Struct:
        """Return the result of a request.

        call: the request, such as `resources/list`.
        in_thread: called with a function that may block; runs it in a thread, and returns its
            result.
        Raises RpcError for an unknown method, and for invalid params.
        """
        handler = self._handlers.get(call.method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        return await handler(call, in_thread)

    def apply(self, change: Change, watched: frozenset[str]) -> ChangeNotice:
        """Update documents, index and caches after a change of the directories. Blocks.

        change: what has changed, as FileLoader.refresh() returns it.
        watched: the URIs that clients have subscribed to.
        Returns the notifications that the caller must send.
        """
        documents = self._documents
        paths = [*change.items, *change.removed_items]
        before = {path: documents.find_path(path) for path in paths}
        paths_before = {uri: self.reader.path_of(uri) for uri in watched}

        self._update_index(change, before)
        documents.apply(change)
        self.reader.invalidate(paths)
        # Make a new dict, because a handler may be adding an old page to the old dict right now.
        self._pages = {}

        list_changed = change.links is not None or any(
            _entry_without_size(before[path]) != _entry_without_size(documents.find_path(path))
            for path in paths
        )
        updated = [
            uri
            for uri, path_before in paths_before.items()
            if self._is_updated(uri, path_before, before)
        ]
        return ChangeNotice(
            resources=list_changed,
            prompts=bool(change.prompts or change.removed_prompts),
            updated=sorted(updated),
        )

    def _update_index(self, change: Change, before: Mapping[str, Item | None]) -> None:
        """Update the search index.

        before: path of each changed file -> the file before the change; None for a new file.
        """
        if self.reader.index is None or not before:
            return
        removed = [
            item.uri
            for path, item in before.items()
            if isinstance(item, Document) and not isinstance(change.items.get(path), Document)
        ]
        changed = [item for item in change.items.values() if isinstance(item, Document)]
        self.reader.index.update(changed, removed)

    def _is_updated(
        self,
        uri: str,
        path_before: str | None,
        changed: Mapping[str, Item | None],
    ) -> bool:
        """Return whether the content of a URI has changed.

        path_before: the path of the URI's file before the change; None if there was no such file.
        changed: the paths of the changed files are its keys.
        """
        path = self.reader.path_of(uri)
        if path != path_before:
            return True
        if path is None:
            # The URI is a catalogue or a search, whose content may change with any file.
            return bool(changed)
        return path in changed

    # Resources

    async def _list_resources(self, call: Call, in_thread: RunInThread) -> ListResourcesResult:
        after = _read_cursor(call, "resources")
        pages = self._pages
        cached = pages.get(after)
        if cached is not None:
            return cached
        items, cursor = self._page(
            "resources", self._documents.items(), after, lambda item: item.uri
        )
        result = ListResourcesResult([_resource(item) for item in items], cursor)
        if len(pages) < MAX_PAGES:
            pages[after] = result
        return result

    async def _list_templates(
        self, call: Call, in_thread: RunInThread
    ) -> ListResourceTemplatesResult:
        _read_cursor(call, "templates")
        return ListResourceTemplatesResult(self._templates.entries)

    async def _read_resource(self, call: Call, in_thread: RunInThread) -> ReadResourceResult:
        return await self.reader.read(read_text_param(call.params, "uri"), in_thread)

    # Prompts

    async def _list_prompts(self, call: Call, in_thread: RunInThread) -> ListPromptsResult:
        after = _read_cursor(call, "prompts")
        prompts = [*self._documents.prompts().values()]
        prompts, cursor = self._page("prompts", prompts, after, lambda prompt: prompt.name)
        return ListPromptsResult([to_list_entry(prompt) for prompt in prompts], cursor)

    async def _get_prompt(self, call: Call, in_thread: RunInThread) -> GetPromptResult:
        name = read_text_param(call.params, "name")
        prompt = self._documents.prompts().get(name)
        if prompt is None:
            raise unknown_name("prompt", name[:QUOTED_NAME])
        values = read_text_arguments(call.params)
        return fill_prompt(prompt, values)

    # Pages of lists

    def _page(
        self,
        list_name: str,
        entries: Sequence[T],
        after: str,
        name_of: Callable[[T], str],
    ) -> tuple[Sequence[T], str | None]:
        """Return one page of a list, and the cursor of the next page; None after the last page.

        list_name: "resources" or "prompts", which becomes part of the cursor.
        entries: the whole list, sorted by name.
        after: the last name of the previous page; "" for the first page.
        name_of: returns the name of an entry, by which the list is sorted.
        """
        start = bisect_right(entries, after, key=name_of)
        page = entries[start : start + self._page_size]
        if start + len(page) == len(entries):
            return page, None
        cursor = f"{list_name} {name_of(page[-1])}"
        return page, b2a_base64(cursor.encode(), newline=False).decode()

    # Completion

    async def _complete(self, call: Call, in_thread: RunInThread) -> CompleteResult:
        return await in_thread(lambda: complete_argument(call, self._documents, self._templates))


def _entry_without_size(item: Item | None) -> Resource | None:
    """Return a file's entry of `resources/list` without its size; None for no file.

    Clients are notified of a change of the list if one of these entries has changed. A change of a
    file's size alone causes no notification.
    """
    return None if item is None else _resource(item, with_size=False)


def _resource(item: Item, *, with_size: bool = True) -> Resource:
    """Return a file's entry of `resources/list`."""
    size = item.size if with_size else None
    mime_type = mime_type_of(item.path)
    if not isinstance(item, Document):
        return Resource(item.uri, item.uri.rpartition("/")[2], mime_type=mime_type, size=size)
    return Resource(
        uri=item.uri,
        name=item.id,
        title=item.title,
        description=item.description or None,
        mime_type=mime_type,
        size=size,
    )


def _read_cursor(call: Call, list_name: str) -> str:
    """Return the name after which the requested page begins; "" for the first page.

    A cursor contains the last name of the previous page, so it stays valid when the list changes.
    list_name: "resources", "templates" or "prompts", which the cursor also contains.
    Raises RpcError -32602 for an invalid cursor, and for a cursor of another list.
    """
    if "cursor" not in call.params:
        return ""
    try:
        text = _decode_text(call.params["cursor"])
        decoded = a2b_base64(text[:MAX_CURSOR].encode(), strict_mode=True).decode()
    except (Error, *DECODE_ERRORS):
        raise invalid_params("cursor: not one of this library's") from None
    list_of_cursor, _, after = decoded.partition(" ")
    # An empty cursor asks for the first page.
    if text and list_of_cursor != list_name:
        raise invalid_params(f"cursor: not one of this library's lists of {list_name}")
    return after
