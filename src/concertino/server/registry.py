"""Registries of tools, prompts, resources and templates, and the pages in which they are listed.

A cursor names the last entry of its page, and the number of that entry, which is never used twice.
So the next page begins in the right place, whatever was added, removed or disabled in between. The
empty cursor stands for the beginning. Cursors are opaque to clients; one of a different form is
refused.

Spec: 2026-07-28 server/utilities/pagination.
"""

from __future__ import annotations

import threading
from binascii import Error, a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from concertino.backend.interface import Context
from concertino.errors import NotRegistered, RegistrationError, invalid_params
from concertino.near_names import suggestion
from concertino.types.results import CacheScope

E = TypeVar("E")
# Kind of the registry, then number and name of the last entry on the page.
Cursor = tuple[str, int, str]
_decode_cursor = Decoder(Cursor).decode
_decode_text = Decoder(str).decode
# Characters of a cursor that are examined. Names of templates may be long.
MAX_CURSOR = 65536
# The number of the last enable() or disable(), and whether it was enable().
Switch = tuple[int, bool]
ON: Switch = (0, True)


class EntryPage(Struct, Generic[E], eq=False):
    """Some entries of a registry.

    next_cursor: where the next page begins; None after the last one.
    result: cache for the result that the registry's owner made of this page; Any: of its own type.
    """

    entries: list[E]
    next_cursor: str | None
    result: Any = None


class Access(Struct, frozen=True):
    """Who may use an entry.

    tags: by which enable() and disable() select it. visible: returns whether a caller may see and
    use it; None if every caller may.
    """

    tags: frozenset[str] = frozenset()
    visible: Callable[[Context], bool] | None = None


OPEN_ACCESS = Access()


class TagSwitches:
    """The tags that were enabled or disabled, for all registries of a server.

    last: tag -> what was done last. Each change replaces the mapping. They hold for entries that
    are added later, too.
    """

    def __init__(self) -> None:
        self.last: Mapping[str, Switch] = {}
        self._count = 0
        self._lock = threading.Lock()

    def set(self, tags: Iterable[str], enabled: bool) -> Switch:
        """Enable or disable tags; return the switch for entries that are selected otherwise."""
        with self._lock:
            self._count += 1
            switch = self._count, enabled
            self.last = {**self.last, **dict.fromkeys(tags, switch)}
        return switch


class Record(Struct, Generic[E], frozen=True):
    """What a registry knows of an entry.

    number: grows from entry to entry. function: the author's; None for fixed content.
    switch: the last one that selected this entry by its name or function.
    """

    entry: E
    number: int
    function: object
    access: Access
    switch: Switch = ON

    def is_enabled(self, tags: Mapping[str, Switch]) -> bool:
        """Return whether the last switch that selects this entry enables it."""
        return max([self.switch, *(tags.get(tag, ON) for tag in self.access.tags)])[1]


class Registry(Generic[E]):
    """Entries by name, in the order in which they were added.

    Any thread may change it, and may read `entries` and `records` at any time: a change replaces
    these mappings and never modifies them.
    entries: those that are enabled. records: all, the disabled ones too. switches: of the server.
    is_limited: whether some entries are for some callers only.
    kind: for messages and cursors, such as `tool`. page_size: entries on a page.
    describe_conflict: returns the message for a name that is already registered.
    """

    def __init__(
        self,
        kind: str,
        page_size: int,
        describe_conflict: Callable[[str], str],
        switches: TagSwitches,
    ) -> None:
        self.entries: Mapping[str, E] = {}
        self.records: Mapping[str, Record[E]] = {}
        self._kind = kind
        self._describe_conflict = describe_conflict
        self.switches = switches
        self._page_size = page_size
        self._last_number = 0
        self.is_limited = False
        # The entries that pages were made of, and these pages by the index of their first entry.
        self._pages: tuple[Mapping[str, E], dict[int, EntryPage[E]]] = (self.entries, {})
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        entry: E,
        function: object = None,
        access: Access = OPEN_ACCESS,
    ) -> None:
        """Add an entry. Raises RegistrationError if the name is already registered."""
        with self._lock:
            if name in self.records:
                raise RegistrationError(self._describe_conflict(name))
            self._last_number += 1
            record = Record(entry, self._last_number, function, access)
            self.records = {**self.records, name: record}
            self.is_limited = self.is_limited or access.visible is not None
            if record.is_enabled(self.switches.last):
                self.entries = {**self.entries, name: entry}

    def change(self, name: str, change: Callable[[E], E]) -> None:
        """Replace an entry by change(entry). Raises KeyError if no entry has this name."""
        with self._lock:
            record = self.records[name]
            self._set({**self.records, name: replace(record, entry=change(record.entry))})

    def remove(self, name: str) -> E:
        """Remove an entry and return it. Raises NotRegistered if no entry has this name."""
        with self._lock:
            records = dict(self.records)
            try:
                record = records.pop(name)
            except KeyError:
                raise not_registered(self._kind, name, records) from None
            self._set(records)
        return record.entry

    def switch(self, names: Iterable[str], switch: Switch) -> bool:
        """Enable or disable entries by name; apply the switches of tags, too.

        Returns whether other entries are enabled now.
        """
        with self._lock:
            before = self.entries
            changed = {
                name: replace(self.records[name], switch=switch)
                for name in names
                if name in self.records
            }
            self._set({**self.records, **changed})
            return self.entries.keys() != before.keys()

    def _set(self, records: Mapping[str, Record[E]]) -> None:
        tags = self.switches.last
        self.records = records
        self.entries = {
            name: record.entry for name, record in records.items() if record.is_enabled(tags)
        }
        self.is_limited = any(record.access.visible is not None for record in records.values())

    # What a caller gets

    def find(self, name: str, context: Context) -> E | None:
        """Return an entry; None if there is none that the caller may use."""
        entry = self.entries.get(name)
        return entry if entry is not None and self._is_visible(name, context) else None

    def visible(self, context: Context) -> Iterator[E]:
        """Yield the entries that the caller may use."""
        for name, entry in self.entries.items():
            if self._is_visible(name, context):
                yield entry

    def cache_scope(self, scope: CacheScope) -> CacheScope:
        """Return who may cache the lists: the caller alone, if callers see different lists.

        scope: otherwise. All pages of a list have the same (2026-07-28 server/utilities/caching).
        """
        return "private" if self.is_limited else scope

    def _is_visible(self, name: str, context: Context) -> bool:
        if not self.is_limited:
            return True
        record = self.records.get(name)
        return record is not None and (
            record.access.visible is None or record.access.visible(context)
        )

    def page(self, params: Mapping[str, Raw], context: Context) -> EntryPage[E]:
        """Return the page that a list request asks for.

        It has only entries that the caller may see, and is the same object until something changes,
        unless callers see different entries.
        params: of the request. Raises RpcError -32602 for a cursor that is not one of ours.
        """
        last = self._parse_cursor(params["cursor"]) if "cursor" in params else None
        with self._lock:
            entries, records = self.entries, self.records
            if self._pages[0] is not entries:
                self._pages = entries, {}
            pages = self._pages[1]

        start = 0
        if last is not None:
            numbers = [records[name].number for name in entries]
            start = bisect_right(numbers, _number_before(last, records))
        if self.is_limited:
            return self._make_page(start, entries, records, context)
        page = pages.get(start)
        if page is None:
            page = pages[start] = self._make_page(start, entries, records, context)
        return page

    def _make_page(
        self,
        start: int,
        entries: Mapping[str, E],
        records: Mapping[str, Record[E]],
        context: Context,
    ) -> EntryPage[E]:
        # One more than fits, to know whether there is a next page.
        names = (name for name in islice(entries, start, None) if self._is_visible(name, context))
        page = list(islice(names, self._page_size + 1))
        cursor = None
        if len(page) > self._page_size:
            page.pop()
            cursor = self._make_cursor(page[-1], records[page[-1]].number)
        return EntryPage([entries[name] for name in page], cursor)

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


def not_registered(kind: str, name: str, known: Iterable[str]) -> NotRegistered:
    """Return the error for a name that is not registered. kind: such as `tool`."""
    return NotRegistered(f"no {kind} is registered as {name!r}{suggestion(name, known)}")


def _number_before(last: Cursor, records: Mapping[str, Record[Any]]) -> int:
    """Return the number of the entry after which a page begins."""
    _, number, name = last
    # If another entry has this number, the cursor comes from an earlier process, in which the
    # author had registered things in another order. Then the name counts.
    named = records.get(name)
    is_taken = any(record.number == number for record in records.values())
    return named.number if is_taken and named is not None else number
