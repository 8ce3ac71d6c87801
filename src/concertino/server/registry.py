"""Registry: the tools, prompts, resources or resource templates of a server, by name.

A registry adds and removes entries (tools, for example), enables and disables them, and divides
them into pages for clients.

The cursor of the next page contains the name and the number of the last entry on the current page.
Each entry gets a higher number than all earlier ones, so the next page begins in the right place
even if entries were added, removed or disabled in the meantime. An empty cursor means the beginning
of the list.
Spec: 2026-07-28 server/utilities/pagination.
"""

from __future__ import annotations

import threading
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from concertino.backend.interface import Context
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import InsufficientScope, NotRegistered, RegistrationError, invalid_params
from concertino.near_names import suggestion
from concertino.types.results import CacheScope

E = TypeVar("E")
# The content of a cursor: the kind of the registry, and the number and the name of the last entry
# before the next page.
Cursor = tuple[str, int, str]
_decode_cursor = Decoder(Cursor).decode
_decode_text = Decoder(str).decode
# At most this many characters of a cursor are decoded. URI templates in it may be long.
MAX_CURSOR = 65536
# One call of enable() or disable(): the number of the call, and True for enable(). If several
# switches select an entry, the one with the highest number decides.
Switch = tuple[int, bool]
# The Switch of an entry or tag that no call has selected.
ON: Switch = (0, True)


class EntryPage(Struct, Generic[E], eq=False):
    """One page of a registry's entries.

    next_cursor: the cursor of the next page; None on the last page.
    result: a cache for the list result made of this page, such as a ListToolsResult; None at first.
        The code that makes the result sets it.
    """

    entries: list[E]
    next_cursor: str | None
    result: Any = None


class Access(Struct, frozen=True):
    """Which callers may see and use an entry of a registry.

    tags: the tags by which enable() and disable() select the entry.
    visible: a function that returns whether a caller may see and use the entry; None if every
        caller may.
    scopes: the scopes that a caller's token must have.
    """

    tags: frozenset[str] = frozenset()
    visible: Callable[[Context], bool] | None = None
    scopes: frozenset[str] = frozenset()

    @property
    def is_limited(self) -> bool:
        """Return whether some callers may not see or use the entry."""
        return self.visible is not None or bool(self.scopes)

    def is_hidden(self, context: Context) -> bool:
        """Return whether `visible` hides the entry from a caller."""
        return self.visible is not None and not self.visible(context)

    def lacks_scopes(self, context: Context) -> bool:
        """Return whether the caller's token lacks a scope of the entry.

        Returns False for a caller without a token, as on stdin and stdout.
        """
        if not self.scopes:
            return False
        principal = context.principal
        return principal is not None and principal.lacks(self.scopes)

    def check_scopes(self, context: Context) -> None:
        """Raise InsufficientScope if the caller's token lacks a scope of the entry."""
        if self.lacks_scopes(context):
            raise InsufficientScope(self.scopes)


OPEN_ACCESS = Access()


class TagSwitches:
    """Stores the last call of enable() or disable() for each tag.

    All registries of a server share one TagSwitches. The last call for a tag also decides whether
    entries with this tag that are added later are enabled.

    Attribute:
    last: tag -> the last Switch for this tag. set() replaces this mapping by a new one, so that any
        thread may read it.
    """

    def __init__(self) -> None:
        self.last: Mapping[str, Switch] = {}
        self._count = 0
        self._lock = threading.Lock()

    def set(self, tags: Iterable[str], enabled: bool) -> Switch:
        """Record for each tag that its entries are enabled or disabled.

        Returns the new Switch. The caller must pass it to Registry.switch() of each registry, which
        enables or disables the entries that are registered already.
        """
        with self._lock:
            self._count += 1
            switch = self._count, enabled
            self.last = {**self.last, **dict.fromkeys(tags, switch)}
        return switch


class Record(Struct, Generic[E], frozen=True):
    """One entry of a registry, with its number, its function and who may use it.

    number: the number of the entry. Entries that were added later have higher numbers.
    function: the function that the author has passed; None for a resource with fixed content.
    access: which callers may see and use the entry.
    switch: the last call of enable() or disable() that named this entry or its function.
    """

    entry: E
    number: int
    function: object
    access: Access
    switch: Switch = ON

    def is_enabled(self, tags: Mapping[str, Switch]) -> bool:
        """Return whether the entry is enabled, according to the last Switch that selects it.

        tags: tag -> the last Switch for all entries with this tag.
        """
        switches = [self.switch, *(tags.get(tag, ON) for tag in self.access.tags)]
        # A Switch begins with its number, so max() returns the last one.
        _, enabled = max(switches)
        return enabled


class Registry(Generic[E]):
    """Entries by name, in the order in which they were added.

    Any thread may change a registry, and may read `entries` and `records` at any time: a change
    replaces these mappings by new ones, and never changes the old ones.

    kind: the kind of entries, such as "tool", for messages and cursors.
    page_size: how many entries one page has.
    describe_conflict: returns the error text for a name that is already registered.
    switches: the last call of enable() or disable() for each tag.

    Attributes:
    entries: name -> entry, for the enabled entries.
    records: name -> Record, for all entries, also disabled ones.
    is_limited: whether any entry has `visible` or `scopes`, so that callers may see different
        lists.
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
        # A cache of pages: (the entries, index of a page's first entry -> the page). It is valid as
        # long as `entries` is the same object.
        self._pages: tuple[Mapping[str, E], dict[int, EntryPage[E]]] = (self.entries, {})
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        entry: E,
        function: object = None,
        access: Access = OPEN_ACCESS,
    ) -> None:
        """Add an entry. Raises RegistrationError if the name is already registered.

        function: the function that the author has passed; None for fixed content.
        access: which callers may use the entry; by default all.
        """
        with self._lock:
            if name in self.records:
                raise RegistrationError(self._describe_conflict(name))
            self._last_number += 1
            record = Record(entry, self._last_number, function, access)
            self.records = {**self.records, name: record}
            self.is_limited = self.is_limited or access.is_limited
            if record.is_enabled(self.switches.last):
                self.entries = {**self.entries, name: entry}

    def change(self, name: str, change: Callable[[E], E]) -> None:
        """Replace an entry with change(entry). Raises KeyError if no entry has this name."""
        with self._lock:
            record = self.records[name]
            self._set({**self.records, name: replace(record, entry=change(record.entry))})

    def remove(self, name: str) -> E:
        """Remove an entry and return it. Raises NotRegistered if no entry has this name."""
        with self._lock:
            # A copy, because other threads may be reading `self.records`.
            records = dict(self.records)
            try:
                record = records.pop(name)
            except KeyError:
                raise not_registered(self._kind, name, records) from None
            self._set(records)
        return record.entry

    def switch(self, names: Iterable[str], switch: Switch) -> bool:
        """Enable or disable the entries with these names, and those that TagSwitches.set() selects.

        names: the names of the entries. Unknown names are ignored.
        switch: the new Switch, which TagSwitches.set() has returned.
        Returns whether the set of enabled entries has changed.
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
        """Replace the records, and compute the enabled entries from them."""
        tags = self.switches.last
        self.records = records
        self.entries = {
            name: record.entry for name, record in records.items() if record.is_enabled(tags)
        }
        self.is_limited = any(record.access.is_limited for record in records.values())

    # Entries and pages for one caller

    def find(self, name: str, context: Context) -> E | None:
        """Return the enabled entry with this name; None if there is none that the caller may see.

        context: the context of the caller's request.
        Raises InsufficientScope if the caller's token lacks a scope of the entry.
        """
        entry = self.entries.get(name)
        if entry is None or not self.is_limited:
            return entry
        # None if another thread has removed the entry in this moment.
        record = self.records.get(name)
        if record is None or record.access.is_hidden(context):
            return None
        record.access.check_scopes(context)
        return entry

    def visible_entries(self, context: Context) -> Iterator[tuple[E, Access]]:
        """Yield each enabled entry that `visible` does not hide from the caller, and its Access.

        The caller's scopes are not checked: call Access.check_scopes() before an entry is used.
        context: the context of the caller's request.
        """
        records = self.records
        for name, entry in self.entries.items():
            record = records.get(name)
            if record is not None and not record.access.is_hidden(context):
                yield entry, record.access

    def cache_scope(self, scope: CacheScope) -> CacheScope:
        """Return who may share the cached list: "private" if callers may see different lists.

        Otherwise returns `scope`, the setting of the server. All pages of a list have the same
        cache scope (MCP 2026-07-28 server/utilities/caching).
        """
        return "private" if self.is_limited else scope

    def _is_visible(self, name: str, context: Context) -> bool:
        """Return whether an entry is in the lists of a caller."""
        if not self.is_limited:
            return True
        record = self.records.get(name)
        if record is None or record.access.is_hidden(context):
            return False
        return not record.access.lacks_scopes(context)

    def page(self, params: Mapping[str, Raw], context: Context) -> EntryPage[E]:
        """Return the page that a list request asks for, with the entries that the caller may see.

        All callers get the same EntryPage object until the entries change, unless an entry has
        `visible` or `scopes`.
        params: the params of the request. Without `cursor`, the first page is returned.
        context: the context of the request.
        Raises RpcError -32602 for a text that is not a cursor of this registry.
        """
        last = self._parse_cursor(params["cursor"]) if "cursor" in params else None
        with self._lock:
            entries, records = self.entries, self.records
            paged_entries, pages = self._pages
            if paged_entries is not entries:
                pages = {}
                self._pages = entries, pages

        start = 0
        if last is not None:
            # Imported here, because most lists have only one page.
            from bisect import bisect_right

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
        """Return the page that begins with the entry at the index `start`."""
        # Take one name more than fits on the page, to know whether there is a next page.
        names = (name for name in islice(entries, start, None) if self._is_visible(name, context))
        page = list(islice(names, self._page_size + 1))
        cursor = None
        if len(page) > self._page_size:
            page.pop()
            cursor = self._make_cursor(page[-1], records[page[-1]].number)
        return EntryPage([entries[name] for name in page], cursor)

    def _make_cursor(self, name: str, number: int) -> str:
        """Return the cursor of the page that begins after the entry with this name and number."""
        return b2a_base64(encode((self._kind, number, name)), newline=False).decode()

    def _parse_cursor(self, raw: Raw) -> Cursor | None:
        """Return the content of a cursor; None for an empty one.

        Raises RpcError -32602 for a text that is not a cursor of this registry.
        """
        try:
            text = _decode_text(raw)
            if not text:
                return None
            cursor = _decode_cursor(a2b_base64(text[:MAX_CURSOR].encode(), strict_mode=True))
        except (Error, *DECODE_ERRORS):
            raise invalid_params("cursor: not one of this server's") from None
        kind, number, _ = cursor
        if kind != self._kind or not 0 < number <= self._last_number:
            raise invalid_params(f"cursor: not one of this server's lists of {self._kind}s")
        return cursor


def not_registered(kind: str, name: str, known: Iterable[str]) -> NotRegistered:
    """Return the error for a name that is not registered; it suggests a similar name.

    kind: the kind of entry that was looked up, such as "tool".
    known: the names that are registered.
    """
    return NotRegistered(f"no {kind} is registered as {name!r}{suggestion(name, known)}")


def _number_before(last: Cursor, records: Mapping[str, Record[Any]]) -> int:
    """Return the number after which the next page begins: that of the previous page's last entry.

    last: the content of the cursor.
    """
    _, number, name = last
    # There are two cases in which name and number of the cursor belong to different entries:
    # - The cursor comes from an earlier process, in which the entries had other numbers. Use the
    #   current number of the entry with this name.
    # - The entry was removed, and perhaps added again at the end of the list. Then no entry has the
    #   number of the cursor, but the number still marks the right place.
    named = records.get(name)
    is_taken = any(record.number == number for record in records.values())
    return named.number if is_taken and named is not None else number
