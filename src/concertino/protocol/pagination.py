"""Reads all pages of a list, such as the results of `tools/list`.

    tools = await read_all_pages("tools/list", fetch, lambda page: page.tools)

Any string may be a cursor, even the empty one. The list ends with a page without a cursor.
Spec: 2026-07-28 server/utilities/pagination.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from concertino.errors import INVALID_PARAMS, ProtocolError, RpcError

# The largest number of pages. A server that sends more probably sends pages for ever.
MAX_PAGES = 10_000
T = TypeVar("T")


class Page(Protocol):
    """A result with one page of a list.

    next_cursor: the cursor of the next page; None for the last page.
    """

    @property
    def next_cursor(self) -> str | None: ...


PageT = TypeVar("PageT", bound=Page)


async def read_all_pages(
    label: str,
    fetch: Callable[[str | None], Awaitable[PageT]],
    items: Callable[[PageT], list[T]],
) -> list[T]:
    """Return the items of all pages, in order.

    If the server rejects a cursor with -32602, the list is read again from its start, once.

    label: the name of the list, for errors.
    fetch: returns the page for a cursor, and the first page for None.
    items: returns the items of a page.

    Raises the exceptions of `fetch`. Raises ProtocolError if a cursor comes twice or if there are
    more than MAX_PAGES pages, because such a list would probably never end.
    """
    collected: list[T] = []
    cursor: str | None = None
    seen_cursors: set[str] = set()
    may_start_over = True
    for _ in range(MAX_PAGES):
        try:
            page = await fetch(cursor)
        except RpcError as exc:
            # A cursor becomes invalid when the list changes (server/utilities/caching).
            if cursor is None or exc.code != INVALID_PARAMS or not may_start_over:
                raise
            may_start_over = False
            cursor = None
            collected.clear()
            seen_cursors.clear()
            continue

        collected += items(page)
        cursor = page.next_cursor
        if cursor is None:
            return collected
        if cursor in seen_cursors:
            raise ProtocolError(
                f"{label}: the server repeats itself: the cursor {cursor[:100]!r} came twice"
            )
        seen_cursors.add(cursor)
    raise ProtocolError(f"{label}: more than {MAX_PAGES} pages")
