"""What a server lists of one kind - tools, prompts, resources, templates - and the pages in which it lists them.

A cursor names the last entry of its page, and that entry's number, which is never given twice: so the next page begins in the
right place whatever was added or removed in between. The empty cursor is the beginning. Clients must not look into a cursor; one
that does not say what ours say is refused.
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

from concertino.errors import RegistrationError
from concertino.server.tool_errors import invalid_params

__all__ = ["Page", "Registry"]

E = TypeVar("E")
Cursor = tuple[str, int, str]  # which catalogue, number and name of the last entry seen
_cursor = Decoder(Cursor).decode
_text = Decoder(str).decode
MAX_CURSOR = 65536  # characters; names of templates may be long


class Page(Struct, Generic[E], eq=False):
    """Some entries. next_cursor: where the next ones begin, None after the last. result: kept here by whoever made one of it."""

    entries: list[E]
    next_cursor: str | None
    result: Any = None  # whatever result Struct the owner writes


class Registry(Generic[E]):
    """Entries by name, in the order in which they were added. Any thread may change it, and read `entries` at any time.

    kind: for messages and cursors, e.g. `tool`. size: entries on a page. taken: what to say of a name that there is already.
    entries: replaced by each change, never changed itself.
    """

    def __init__(self, kind: str, size: int, taken: Callable[[str], str]) -> None:
        self.entries: Mapping[str, E] = {}
        self._kind = kind
        self._taken = taken
        self._size = size
        self._numbers: dict[str, int] = {}  # of the entries, growing
        self._given = 0  # numbers so far
        self._pages: tuple[Mapping[str, E], dict[int, Page[E]]] = (
            self.entries,
            {},
        )  # made of which entries
        self._changing = threading.Lock()

    def add(self, name: str, entry: E) -> None:
        """Raises RegistrationError if there is one of this name."""
        with self._changing:
            if name in self.entries:
                raise RegistrationError(self._taken(name))
            self._given += 1
            self._numbers = {**self._numbers, name: self._given}
            self.entries = {**self.entries, name: entry}

    def change(self, name: str, change: Callable[[E], E]) -> None:
        """Put another in an entry's place. Raises KeyError if there is none of this name."""
        with self._changing:
            self.entries = {**self.entries, name: change(self.entries[name])}

    def remove(self, name: str) -> E:
        """What had this name. Raises KeyError if nothing has."""
        with self._changing:
            entries, numbers = dict(self.entries), dict(self._numbers)
            entry = entries.pop(name)
            del numbers[name]
            self.entries, self._numbers = entries, numbers
        return entry

    def page(self, params: Mapping[str, Raw]) -> Page[E]:
        """The page that a list request asks for; the same object as long as nothing changes.

        Raises RpcError -32602 for a cursor that is none of ours.
        """
        seen = self._seen(params["cursor"]) if "cursor" in params else None
        with self._changing:
            entries, numbers = self.entries, self._numbers
            if self._pages[0] is not entries:
                self._pages = entries, {}
            pages = self._pages[1]
        start = 0 if seen is None else bisect_right(list(numbers.values()), _number(seen, numbers))
        page = pages.get(start)
        if page is None:
            end = start + self._size
            names = list(numbers)[start:end]
            cursor = self._written(names[-1], numbers[names[-1]]) if end < len(numbers) else None
            page = pages[start] = Page(list(entries.values())[start:end], cursor)
        return page

    def _written(self, name: str, number: int) -> str:
        return b2a_base64(encode((self._kind, number, name)), newline=False).decode()

    def _seen(self, raw: Raw) -> Cursor | None:
        """What a cursor says of the last entry seen; None for the empty one."""
        try:
            text = _text(raw)
            if not text:
                return None
            seen = _cursor(a2b_base64(text[:MAX_CURSOR].encode(), strict_mode=True))
        except (DecodeError, Error, UnicodeError):
            raise invalid_params("cursor: not one of this server's") from None
        if seen[0] != self._kind or not 0 < seen[1] <= self._given:
            raise invalid_params(f"cursor: not one of this server's lists of {self._kind}s")
        return seen


def _number(seen: Cursor, numbers: Mapping[str, int]) -> int:
    """Behind which number to go on."""
    _, number, name = seen
    # Where another entry has this number, another process gave it, before the author changed the order: then the name counts.
    if number in numbers.values() and numbers.get(name, number) != number:
        return numbers[name]
    return number
