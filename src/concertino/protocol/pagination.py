"""Reads a list to its end, page by page.

Any text may be a cursor, even the empty one. Spec: 2026-07-28 server/utilities/pagination.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from concertino.errors import INVALID_PARAMS, ProtocolError, RpcError

# Pages of one list; a server that sends more most likely repeats itself.
MAX_PAGES = 10_000
T = TypeVar("T")


class Page(Protocol):
    """A result with one page of a list."""

    @property
    def next_cursor(self) -> str | None: ...


PageT = TypeVar("PageT", bound=Page)


async def read_all_pages(
    label: str,
    fetch: Callable[[str | None], Awaitable[PageT]],
    items: Callable[[PageT], list[T]],
) -> list[T]:
    """Return the items of all pages.

    label: the list, for errors. fetch: returns the page at a cursor, or the first one for None.
    Raises ProtocolError if the list would never end, because a cursor comes twice.
    """
    found: list[T] = []
    cursor: str | None = None
    seen: set[str] = set()
    may_start_over = True
    for _ in range(MAX_PAGES):
        try:
            page = await fetch(cursor)
        except RpcError as exc:
            # The list has changed and the cursor is not valid any more (utilities/caching).
            if cursor is None or exc.code != INVALID_PARAMS or not may_start_over:
                raise
            may_start_over = False
            cursor = None
            found.clear()
            seen.clear()
            continue

        found += items(page)
        cursor = page.next_cursor
        if cursor is None:
            return found
        if cursor in seen:
            raise ProtocolError(
                f"{label}: the server repeats itself: the cursor {cursor[:100]!r} came twice"
            )
        seen.add(cursor)
    raise ProtocolError(f"{label}: more than {MAX_PAGES} pages")
