"""Reads and writes pages of `tools/list` without decoding all fields.

So fields that this package does not know, in a page or in a tool, are kept and reach the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ProtocolError
from concertino.protocol.pagination import read_all_pages

__all__ = ["RawTool", "ToolPage", "decode_tool_page", "is_same_page", "name_of", "read_tool_pages"]

# The definition of a tool: field -> its undecoded JSON.
RawTool: TypeAlias = Mapping[str, Raw]

_decode_members = Decoder(dict[str, Raw]).decode
_decode_tools = Decoder(list[dict[str, Raw]]).decode
_decode_text = Decoder(str | None).decode


class ToolPage(Struct, frozen=True):
    """One page of the result of `tools/list`.

    source: the whole page, as the backend has returned it.
    members: all fields of the page except `tools`: name -> undecoded JSON.
    tools: the definitions of the tools.
    next_cursor: the cursor of the next page; None on the last page.
    """

    source: Struct | Raw
    members: Mapping[str, Raw]
    tools: Sequence[RawTool]
    next_cursor: str | None

    def to_json(self, tools: Sequence[RawTool]) -> Raw:
        """Return the JSON of this page with `tools` in place of its own tools."""
        return Raw(encode({**self.members, "tools": tools}))


def decode_tool_page(result: Struct | Raw) -> ToolPage:
    """Decode the result of `tools/list`. Raises ProtocolError if it is not a page of tools."""
    try:
        members = _decode_members(result if isinstance(result, Raw) else encode(result))
        tools = _decode_tools(members.pop("tools"))
        next_cursor = _decode_text(members.get("nextCursor", b"null"))
    except (KeyError, *DECODE_ERRORS) as exc:
        raise ProtocolError(f"tools/list: not a list of tools: {exc}") from None
    return ToolPage(result, members, tools, next_cursor)


def is_same_page(before: Struct | Raw, now: Struct | Raw) -> bool:
    """Return whether two results of `tools/list` are the same object, or are equal JSON."""
    if before is now:
        return True
    return isinstance(before, Raw) and isinstance(now, Raw) and bytes(before) == bytes(now)


def name_of(tool: RawTool) -> str | None:
    """Return the name of a tool; None if it has none and so cannot be called."""
    try:
        return _decode_text(tool.get("name", b"null"))
    except DECODE_ERRORS:
        return None


async def read_tool_pages(fetch: Callable[[str | None], Awaitable[Struct | Raw]]) -> list[ToolPage]:
    """Fetch all pages of `tools/list`, and return them in order.

    fetch: called with the cursor of a page, and with None for the first page; returns the result.
    Raises ProtocolError if a result is not a page of tools or if the list never ends.
    """
    pages: list[ToolPage] = []

    async def fetch_page(cursor: str | None) -> ToolPage:
        # read_all_pages() starts again if a cursor has become invalid.
        if cursor is None:
            pages.clear()
        pages.append(decode_tool_page(await fetch(cursor)))
        return pages[-1]

    await read_all_pages("tools/list", fetch_page, lambda page: list(page.tools))
    return pages
