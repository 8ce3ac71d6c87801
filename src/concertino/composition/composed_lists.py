"""ComposedLists: the lists of several parts as one, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from operator import is_
from typing import Any

from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from concertino.backend.interface import Backend, Call, Context
from concertino.backend.methods import ListMethod
from concertino.composition.part_names import PartNames
from concertino.composition.part_pages import PartPages
from concertino.composition.resource_owners import ResourceOwners
from concertino.errors import invalid_params

__all__ = ["ComposedLists"]

_text = Decoder(str).decode


class ComposedLists:
    """Concatenates the lists of parts, with the names and URIs that clients see."""

    def __init__(
        self,
        names: PartNames,
        owners: ResourceOwners,
        pages: PartPages,
    ) -> None:
        self._names = names
        self._owners = owners
        self._pages = pages
        # Method -> the pages of the parts, and the list that was built from them.
        self._lists: dict[str, tuple[list[Struct], Struct]] = {}

    def forget(self) -> None:
        """Build the lists anew, because names, URIs or parts have changed."""
        self._lists.clear()

    async def get(
        self,
        listing: ListMethod,
        parts: Sequence[tuple[str, Backend]],
        call: Call,
        context: Context,
        *,
        is_complete: bool,
    ) -> Struct:
        """Concatenate the lists of the parts, up to the first that has a further page.

        The returned cursor names that part and contains its cursor.
        parts: those that have such a list, in order. is_complete: whether no part is missing.
        """
        at, params = self._parse_cursor(call.params, [name for name, _ in parts])
        pages: list[Any] = []
        items: list[Any] = []
        next_cursor: str | None = None
        # The parts whose items are on other pages of this list.
        elsewhere = [part for _, part in parts[:at]]
        request = Call(call.method, params, call.meta)
        async with aclosing(self._pages.fetch(parts[at:], listing, request, context)) as fetched:
            async for name, page in fetched:
                pages.append(page)
                items += self._rename_items(getattr(page, listing.member), name, listing)
                if page.next_cursor is not None:
                    next_cursor = f"{name}:{page.next_cursor}"
                    number = [name for name, _ in parts].index(name) + 1
                    elsewhere += [part for _, part in parts[number:]]
                    break
        if (cached := self._lists.get(call.method)) is not None:
            sources, whole = cached
            if len(sources) == len(pages) and all(map(is_, sources, pages)):
                # The session caches the encoded form of this very object.
                return whole
        # Spec: server/utilities/caching. All pages of a list have the same scope.
        shared = all(part.features().cache_scope == "public" for part in elsewhere)
        hints = _cache_hints(pages, shared)
        if not is_complete:
            hints["ttl_ms"] = 0
        whole = listing.result_type(**{listing.member: items, "next_cursor": next_cursor}, **hints)
        if "cursor" not in call.params:
            self._lists[call.method] = pages, whole
        return whole

    # Any: the items of four lists have no common class.
    def _rename_items(
        self,
        items: list[Any],
        name: str,
        listing: ListMethod,
    ) -> list[Any]:
        """Return the items of a part as clients see them, without hidden resources."""
        if listing.kind != "resource":
            return [replace(item, name=self._names.show(name, item.name)) for item in items]
        renamed: list[Any] = []
        for item in items:
            uri = getattr(item, listing.name_member)
            shown = self._owners.show(name, uri)
            if shown == uri:
                renamed.append(item)
            elif shown is not None:
                renamed.append(replace(item, **{listing.name_member: shown}))
        return renamed

    def _parse_cursor(
        self, params: Mapping[str, Raw], names: list[str]
    ) -> tuple[int, Mapping[str, Raw]]:
        """Return the index of the part at which a list continues, and the params for it."""
        if "cursor" not in params:
            return 0, params
        try:
            text = _text(params["cursor"])
            # An empty cursor means the beginning.
            if not text:
                return 0, {key: value for key, value in params.items() if key != "cursor"}
            name, cursor = text.split(":", 1)
            return names.index(name), {**params, "cursor": Raw(encode(cursor))}
        except (DecodeError, ValueError):
            raise invalid_params("cursor: not one of this server's") from None


def _cache_hints(pages: list[Any], shared: bool) -> dict[str, Any]:
    """Return the cache hints of a list built from these pages: the strictest of all parts.

    shared: whether the parts that have no page here allow shared caching.
    """
    ages = [page.ttl_ms for page in pages]
    public = shared and bool(pages) and all(page.cache_scope == "public" for page in pages)
    return {
        "ttl_ms": UNSET if not pages or UNSET in ages else min(ages),
        "cache_scope": "public" if public else UNSET,
    }
