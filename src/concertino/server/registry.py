"""Registries of tools, prompts, resources and templates, and the pages in which they are listed.

A cursor names the last entry of its page, and the number of that entry, which is never used twice.
So the next page begins in the right place, whatever was added or removed in between. The empty
cursor stands for the beginning. Cursors are opaque to clients; one of a different form is refused.

Spec: 2026-07-28 server/utilities/pagination.
"""

from __future__ import annotations

import threading
from binascii import Error, a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.errors import RegistrationError, invalid_params

E = TypeVar("E")
# Kind of the registry, then number and name of the last entry on the page.
Cursor = tuple[str, int, str]
_decode_cursor = Decoder(Cursor).decode
_decode_text = Decoder(str).decode
# Characters of a cursor that are examined. Names of templates may be long.
MAX_CURSOR = 65536


class Page(Struct, Generic[E], eq=False):
    """Some entries of a registry.

    next_cursor: where the next page begins; None after the last one.
    result: cache for the result that the registry's owner made of this page; Any: of its own type.
    """

    entries: list[E]
    next_cursor: str | None
    result: Any = None


class Registry(Generic[E]):
    """Entries by name, in the order in which they were added.

    Any thread may change it, and may read `entries` at any time: a change replaces that mapping and
    never modifies it.
    kind: for messages and cursors, such as `tool`. page_size: entries on a page.
    describe_conflict: returns the message for a name that is already registered.
    """

    def __init__(
        self,
        kind: str,
        page_size: int,
        describe_conflict: Callable[[str], str],
    ) -> None:
        self.entries: Mapping[str, E] = {}
        self._kind = kind
        self._describe_conflict = describe_conflict
        self._page_size = page_size
        # Name -> number, growing from entry to entry.
        self._numbers: dict[str, int] = {}
        self._last_number = 0
        # The entries that pages were made of, and these pages by the index of their first entry.
        self._pages: tuple[Mapping[str, E], dict[int, Page[E]]] = (self.entries, {})
        self._lock = threading.Lock()

    def add(self, name: str, entry: E) -> None:
        """Add an entry. Raises RegistrationError if the name is already registered."""
        with self._lock:
            if name in self.entries:
                raise RegistrationError(self._describe_conflict(name))
            self._last_number += 1
            self._numbers = {**self._numbers, name: self._last_number}
            self.entries = {**self.entries, name: entry}

    def change(self, name: str, change: Callable[[E], E]) -> None:
        """Replace an entry by change(entry). Raises KeyError if no entry has this name."""
        with self._lock:
            self.entries = {**self.entries, name: change(self.entries[name])}

    def remove(self, name: str) -> E:
        """Remove an entry and return it. Raises KeyError if no entry has this name."""
        with self._lock:
            entries, numbers = dict(self.entries), dict(self._numbers)
            entry = entries.pop(name)
            del numbers[name]
            self.entries, self._numbers = entries, numbers
        return entry

    def page(self, params: Mapping[str, Raw]) -> Page[E]:
        """Return the page that a list request asks for; the same object until something changes.

        params: of the request. Raises RpcError -32602 for a cursor that is not one of ours.
        """
        last = self._parse_cursor(params["cursor"]) if "cursor" in params else None
        with self._lock:
            entries, numbers = self.entries, self._numbers
            if self._pages[0] is not entries:
                self._pages = entries, {}
            pages = self._pages[1]

        start = 0
        if last is not None:
            start = bisect_right(list(numbers.values()), _number_before(last, numbers))
        page = pages.get(start)
        if page is None:
            end = start + self._page_size
            names = list(numbers)[start:end]
            cursor = None
            if end < len(numbers):
                cursor = self._make_cursor(names[-1], numbers[names[-1]])
            page = pages[start] = Page(list(entries.values())[start:end], cursor)
        return page

    def _make_cursor(self, name: str, number: int) -> str:
        return b2a_base64(encode((self._kind, number, name)), newline=False).decode()

    def _parse_cursor(self, raw: Raw) -> Cursor | None:
        """Return the content of a cursor; None for the empty one. Raises RpcError -32602."""
        try:
            text = _decode_text(raw)
            if not text:
                return None
            cursor = _decode_cursor(a2b_base64(text[:MAX_CURSOR].encode(), strict_mode=True))
        except (DecodeError, Error, UnicodeError):
            raise invalid_params("cursor: not one of this server's") from None
        if cursor[0] != self._kind or not 0 < cursor[1] <= self._last_number:
            raise invalid_params(f"cursor: not one of this server's lists of {self._kind}s")
        return cursor


def _number_before(last: Cursor, numbers: Mapping[str, int]) -> int:
    """Return the number of the entry after which a page begins."""
    _, number, name = last
    # If another entry has this number, the cursor comes from an earlier process, in which the
    # author had registered things in another order. Then the name counts.
    if number in numbers.values() and numbers.get(name, number) != number:
        return numbers[name]
    return number
