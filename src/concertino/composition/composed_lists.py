"""ComposedLists: joins the lists of a composition's parts, page by page.

A composition serves several backends, its parts, as one. A part returns a page as a Struct, or, as
proxies do, as JSON. Items in JSON are passed on as JSON in which only names and URIs are replaced.
So clients also get fields that this package does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from operator import is_
from typing import Any

from msgspec import UNSET, Raw, Struct
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from concertino.backend.interface import Backend, Call, Context
from concertino.backend.methods import ListMethod
from concertino.composition.part_names import PartNames
from concertino.composition.part_pages import PartPage, PartPages
from concertino.composition.resource_owners import ResourceOwners
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import invalid_params
from concertino.protocol.revisions import REVISION_BY_NAME

__all__ = ["ComposedLists", "parse_cursor"]

_decode_text = Decoder(str).decode


class ComposedLists:
    """Joins the lists of the parts of a composition, which serves several backends as one.

    names: makes the names of tools and prompts that clients see.
    owners: makes the URIs that clients see.
    pages: fetches the pages of the parts.
    """

    def __init__(
        self,
        names: PartNames,
        owners: ResourceOwners,
        pages: PartPages,
    ) -> None:
        self._names = names
        self._owners = owners
        self._pages = pages
        # Method -> the pages of the parts, and the list that was built from them. While the pages
        # stay the same, the list is not built again.
        self._lists: dict[str, tuple[list[Struct], Struct | Raw]] = {}

    def forget(self) -> None:
        """Discard the joined lists, so that get() builds them again.

        Call this when names, URIs or parts have changed.
        """
        self._lists.clear()

    async def get(
        self,
        listing: ListMethod,
        parts: Sequence[tuple[str, Backend]],
        call: Call,
        context: Context,
        *,
        is_complete: bool,
    ) -> Struct | Raw:
        """Return one page of the joined list.

        The page has the items of the parts one after the other. If a part's list has more pages,
        the joined page ends with this part; its cursor names the part and the part's own cursor.
        The result is a Struct if the pages of all parts are Structs; otherwise it is JSON.

        listing: the list method, such as `tools/list`.
        parts: name and backend of the parts that have such a list, in the order of the composition.
        call: the client's request.
        context: the Context of this request.
        is_complete: False while a part that may have such a list is still starting. The page then
            tells clients not to cache it.
        Raises RpcError for a cursor that no list has returned.
        """
        at, params = parse_cursor(call.params, [name for name, _ in parts])
        pages: list[tuple[str, PartPage]] = []
        next_cursor: str | None = None
        # The parts whose items are on earlier or later pages of this list. Their cache scope counts
        # too, because all pages of a list must have the same scope.
        other_parts = [part for _, part in parts[:at]]
        request = Call(call.method, params, call.meta)
        async with aclosing(self._pages.fetch(parts[at:], listing, request, context)) as fetched:
            async for name, page in fetched:
                pages.append((name, page))
                if page.content.next_cursor is not None:
                    next_cursor = f"{name}:{page.content.next_cursor}"
                    index = [part_name for part_name, _ in parts].index(name)
                    other_parts += [part for _, part in parts[index + 1 :]]
                    break
        sources = [page for _, page in pages]
        contents = [page.content for page in sources]
        joined = self._find_cached(call.method, contents)
        if joined is None:
            # The specification (server/utilities/caching): the list is public only if the lists of
            # all parts are.
            shared = all(part.features().cache_scope == "public" for part in other_parts)
            hints = _cache_hints(contents, shared)
            # Clients should not cache a list that lacks parts which are still starting. Lists of
            # servers before 2026-07-28 have no cache hints.
            if not is_complete and not _are_legacy(sources):
                hints["ttl_ms"] = 0
            joined = self._join(pages, next_cursor, hints, listing)
            # Keep only the first page, which is usually the whole list. When a part that was
            # starting has started, forget() discards the page.
            if "cursor" not in call.params:
                self._lists[call.method] = contents, joined
        _pass_list(joined, sources, context)
        return joined

    def _find_cached(self, method: str, contents: Sequence[Struct]) -> Struct | Raw | None:
        """Return the list that was built from these pages before; None if they have changed.

        Returns the same object, because the session caches the encoded form of an object.
        """
        cached = self._lists.get(method)
        if cached is None:
            return None
        pages, joined = cached
        # PartPages returns the same object again for a page that has not changed.
        is_same = len(pages) == len(contents) and all(map(is_, pages, contents))
        return joined if is_same else None

    def _join(
        self,
        pages: list[tuple[str, PartPage]],
        next_cursor: str | None,
        hints: Mapping[str, Any],
        listing: ListMethod,
    ) -> Struct | Raw:
        """Return a list with the items of all pages: a Struct, or JSON if a page is JSON.

        hints: `ttl_ms` and `cache_scope`, as _cache_hints() returns them.
        """
        if any(page.raw_items is not None for _, page in pages):
            return self._to_json(pages, next_cursor, hints, listing)
        items: list[Any] = []
        for name, page in pages:
            items += self._rename_items(getattr(page.content, listing.member), name, listing)
        members = {listing.member: items, "next_cursor": next_cursor}
        return listing.result_type(**members, **hints)

    def _to_json(
        self,
        pages: list[tuple[str, PartPage]],
        next_cursor: str | None,
        hints: Mapping[str, Any],
        listing: ListMethod,
    ) -> Raw:
        """Return a list as JSON, in which the items of parts that return JSON are not decoded."""
        items: list[Any] = []
        for name, page in pages:
            if page.raw_items is None:
                items += self._rename_items(getattr(page.content, listing.member), name, listing)
            else:
                items += self._rename_raw_items(page.raw_items, name, listing)
        members: dict[str, Any] = {listing.json_member: items}
        if next_cursor is not None:
            members["nextCursor"] = next_cursor
        for member, hint in (("ttlMs", "ttl_ms"), ("cacheScope", "cache_scope")):
            if hints[hint] is not UNSET:
                members[member] = hints[hint]
        return Raw(encode(members))

    # Any: the items of four lists have no common class.
    def _rename_items(
        self,
        items: list[Any],
        name: str,
        listing: ListMethod,
    ) -> list[Any]:
        """Return the items of a part with the names that clients see.

        Resources that another part's resource with the same URI hides are left out.
        name: the name of the part.
        """
        renamed: list[Any] = []
        for item in items:
            own_name = getattr(item, listing.name_member)
            shown = self._show(name, own_name, listing)
            if shown == own_name:
                renamed.append(item)
            elif shown is not None:
                renamed.append(replace(item, **{listing.name_member: shown}))
        return renamed

    def _rename_raw_items(
        self,
        items: list[dict[str, Raw]],
        name: str,
        listing: ListMethod,
    ) -> list[dict[str, Raw]]:
        """Return the items of a part with the names that clients see, without decoding the items.

        items: each is a dict from the name of a field to its JSON.
        name: the name of the part.
        """
        renamed: list[dict[str, Raw]] = []
        member = listing.json_name_member
        for item in items:
            shown = self._show(name, _decode_text(item[member]), listing)
            if shown is not None:
                renamed.append({**item, member: Raw(encode(shown))})
        return renamed

    def _show(
        self,
        part: str,
        own_name: str,
        listing: ListMethod,
    ) -> str | None:
        """Return the name or URI that clients see; None for a resource that another part hides."""
        if listing.kind == "resource":
            return self._owners.show(part, own_name)
        return self._names.show(part, own_name)


def parse_cursor(params: Mapping[str, Raw], names: Sequence[str]) -> tuple[int, Mapping[str, Raw]]:
    """Return the index of the part at which a list continues, and the params for that part.

    A composition serves several backends, its parts, as one. The returned params contain the part's
    own cursor. Without a cursor in `params`, returns 0 and the params unchanged.
    params: the params of the client's request, with a cursor of the form `PART:CURSOR`.
    names: the names of the parts, in the order of the composition.
    Raises RpcError for a cursor that no list has returned.
    """
    if "cursor" not in params:
        return 0, params
    try:
        text = _decode_text(params["cursor"])
        # An empty cursor asks for the first page.
        if not text:
            return 0, {key: value for key, value in params.items() if key != "cursor"}
        name, cursor = text.split(":", 1)
        return names.index(name), {**params, "cursor": Raw(encode(cursor))}
    except (ValueError, *DECODE_ERRORS):
        raise invalid_params("cursor: not one of this server's") from None


def _pass_list(
    joined: Struct | Raw,
    pages: Sequence[PartPage],
    context: Context,
) -> None:
    """Allow the session to send a list unchanged, if no page comes from a server of 2026-07-28.

    Then clients of older revisions also get the fields that this package does not know; the session
    leaves them out when it translates a list. Clients of 2026-07-28 get these fields in any case.
    """
    if isinstance(joined, Raw) and _are_legacy(pages):
        # The list may have fields of all these revisions, so it counts as a list of the newest one.
        # The names of revisions are dates, which can be compared as text.
        context.caller.pass_result(joined, max(page.revision for page in pages))


def _are_legacy(pages: Sequence[PartPage]) -> bool:
    """Return whether each page is the JSON of a server of a revision before 2026-07-28.

    A page of a server whose revision is not known does not count as one. Returns True if there is
    no page.
    """
    return all(page.revision and not REVISION_BY_NAME[page.revision].modern for page in pages)


def _cache_hints(pages: list[Any], shared: bool) -> dict[str, Any]:
    """Return the cache hints of a list that is built from these pages: the strictest of all parts.

    pages: the pages of the parts, as Structs.
    shared: whether the parts without items on these pages allow caches that users share.
    Returns `ttl_ms` and `cache_scope`. UNSET means 0 and "private".
    """
    if not pages:
        return {"ttl_ms": UNSET, "cache_scope": UNSET}
    ages = [page.ttl_ms for page in pages]
    is_public = shared and all(page.cache_scope == "public" for page in pages)
    return {
        "ttl_ms": UNSET if UNSET in ages else min(ages),
        "cache_scope": "public" if is_public else UNSET,
    }
