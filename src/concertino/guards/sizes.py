"""Cuts tool results that are too large, and stores the whole results in an OversizeStore.

The cut result contains a link to the whole result, which is a resource. Guard handles the requests
`resources/read` for these resources.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.errors import ResourceNotFound
from concertino.guards.refusals import as_result
from concertino.types.resources_and_prompts import GetPromptResult
from concertino.types.results import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
)

__all__ = ["ENVELOPE_BYTES", "LIMITED", "URI", "WORST_ESCAPE", "OversizeStore", "cut", "size_of"]

# The beginning of the URI of each stored result.
URI = "result://concertino/"
# Default limits of an OversizeStore.
STORE_BYTES = 64 * 2**20
STORE_RESULTS = 1000
STORE_S = 3600.0
# How many bytes one character has in JSON at most: \u001f has six.
WORST_ESCAPE = 6
# The room in bytes for the JSON around the text of a result, and also for the note and the link of
# a short result. This is an estimate: the link contains the name of the tool, which may be longer.
ENVELOPE_BYTES = 512
# The types of results whose size is limited. Lists are not limited, because they have pages.
LIMITED = (CallToolResult, GetPromptResult, ReadResourceResult)


class OversizeStore:
    """Stores results of tools that are too large to be sent, under URIs that cannot be guessed.

    max_bytes: the largest total size of the stored results, in bytes.
    max_results: how many results are stored at most. If a limit is exceeded, the oldest results are
        removed first.
    ttl_s: how many seconds a result is stored.
    clock: a monotonic clock in seconds.

    Attributes:
    bytes: the total size of the results that are stored now.
    """

    def __init__(
        self,
        max_bytes: int = STORE_BYTES,
        max_results: int = STORE_RESULTS,
        ttl_s: float = STORE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._max_results = max_results
        self._ttl_s = ttl_s
        self._clock = clock
        # URI -> contents, their size, and the time at which they expire. The oldest come first.
        self._results: dict[str, tuple[list[ResourceContents], int, float]] = {}

    def keep(self, contents: list[ResourceContents], size: int) -> str | None:
        """Store a result and return its URI; None if it is larger than the whole store.

        contents: the result, in the form of a resource's contents.
        size: the size of the result, in bytes.
        """
        if size > self.max_bytes:
            return None
        self._make_room(size)
        uri = f"{URI}{os.urandom(16).hex()}"
        self._results[uri] = contents, size, self._clock() + self._ttl_s
        self.bytes += size
        return uri

    def __contains__(self, uri: str) -> bool:
        # Remove expired results.
        self._make_room(0)
        return uri in self._results

    def read(self, uri: str) -> ReadResourceResult:
        """Return a stored result. Raises ResourceNotFound if no result is stored under the URI."""
        if uri not in self:
            raise ResourceNotFound(uri)
        contents = self._results[uri][0]
        return ReadResourceResult([_with_uri(uri, item) for item in contents])

    def _make_room(self, needed: int) -> None:
        """Remove expired results, then the oldest ones, until one more result fits.

        needed: the size of this result in bytes; 0 to remove only expired results.
        """
        now = self._clock()
        added = 1 if needed else 0
        for uri, (_, size, expires_at) in list(self._results.items()):
            fits_count = len(self._results) + added <= self._max_results
            fits_bytes = self.bytes + needed <= self.max_bytes
            if expires_at > now and fits_bytes and fits_count:
                break
            del self._results[uri]
            self.bytes -= size


def _with_uri(uri: str, contents: ResourceContents) -> ResourceContents:
    """Return contents with this URI. Contents that already have a URI keep it."""
    return contents if contents.uri else replace(contents, uri=uri)


def size_of(result: Struct | Raw) -> int:
    """Return the size of a result as JSON, in bytes. Raises the exceptions of msgspec's encoder."""
    return memoryview(result).nbytes if isinstance(result, Raw) else len(encode(result))


def cut(
    result: Struct | Raw,
    name: str,
    size: int,
    max_bytes: int,
    store: OversizeStore,
) -> CallToolResult:
    """Store a tool's result that is too large, and return a short result for the client.

    - If the result has text, the short result is the beginning of the first text block, a note with
      the sizes, and a link to the whole result.
    - If the result has structured content or isError, the short result is the error
      RESULT_TOO_LARGE and the link: a part of structured content would not match the output schema.
    - If the result is larger than the whole store, there is no link.

    result: a CallToolResult, or its JSON.
    name: the name of the tool.
    size: the size of `result`, in bytes.
    max_bytes: the size limit for the short result, in bytes. With less than 1,024 bytes, or a long
        name, the short result may be larger, because the note and the link are never cut.
    store: stores the whole result.
    """
    if isinstance(result, Raw):
        result = decode(result, type=CallToolResult)
    assert isinstance(result, CallToolResult)
    contents = _to_contents(result)
    uri = store.keep(contents, size)
    where = (
        f"read the resource {uri}" if uri else "ask for less: the whole was too large to be kept"
    )
    link: list[ContentBlock] = []
    if uri is not None:
        mime_type = contents[0].mime_type if len(contents) == 1 else None
        link = [
            ResourceLink(
                uri,
                f"result of {name}",
                description="The whole result",
                mime_type=mime_type,
                size=size,
            )
        ]
    if result.structured_content is not UNSET or result.is_error or not contents:
        fields: dict[str, Any] = {"limitBytes": max_bytes, "sizeBytes": size}
        if uri:
            fields["uri"] = uri
        error = as_result(
            "RESULT_TOO_LARGE",
            f"The result of {name} has {size} bytes; {max_bytes} are allowed.",
            f"For the whole, {where}.",
            **fields,
        )
        return CallToolResult([*error.content, *link], is_error=True)
    text = next((block.text for block in result.content if isinstance(block, TextContent)), "")
    # Subtract ENVELOPE_BYTES once for the result and once for the link.
    start = _truncate(text, max_bytes - 2 * ENVELOPE_BYTES)
    note = (
        f"[the first {len(start)} of {len(text)} characters, {size} bytes in all; "
        f"for the whole, {where}]"
    )
    return CallToolResult([TextContent(f"{start}\n{note}" if start else note), *link])


def _truncate(text: str, max_bytes: int) -> str:
    """Return the beginning of a text that has at most `max_bytes` bytes as JSON."""
    start = text[: max(0, max_bytes)]
    # Escapes and characters outside of ASCII take several bytes. Halving finds a fitting beginning
    # in a few steps, though perhaps not the longest one.
    while start and len(encode(start)) > max_bytes:
        start = start[: len(start) // 2]
    return start


def _to_contents(result: CallToolResult) -> list[ResourceContents]:
    """Return a whole result as contents of a resource.

    Only embedded resources have a URI of their own. The URI of all other contents is "", until
    _with_uri() replaces it.
    """
    if result.structured_content is not UNSET:
        # Leave out the text, which repeats the structured content.
        return [
            ResourceContents(
                "", text=encode(result.structured_content).decode(), mime_type="application/json"
            )
        ]
    return [_to_content(block) for block in result.content]


def _to_content(block: ContentBlock) -> ResourceContents:
    """Return a content block as contents of a resource."""
    if isinstance(block, TextContent):
        return ResourceContents("", text=block.text, mime_type="text/plain")
    if isinstance(block, (ImageContent, AudioContent)):
        return ResourceContents("", blob=block.data, mime_type=block.mime_type)
    if isinstance(block, EmbeddedResource):
        return block.resource
    return ResourceContents("", text=encode(block).decode(), mime_type="application/json")
