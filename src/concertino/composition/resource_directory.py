"""ResourceDirectory: asks the parts of a composition which resources they have.

A composition serves several backends, its parts, as one. The ResourceDirectory records in the
ResourceOwners (resource_owners.py) which part lists which URI, and asks the parts again when the
resources of a part have changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from concertino.backend.interface import Backend
from concertino.backend.listing import list_names
from concertino.composition.part_pages import PartPages
from concertino.composition.resource_owners import Clashes, ResourceOwners
from concertino.composition.rules import CompositionRules

__all__ = ["ResourceDirectory"]

log = logging.getLogger("concertino.composition")

# If a part has not answered, all parts are asked again after this time, in seconds.
AGAIN_S = 5.0


class ResourceDirectory:
    """Asks the parts of a composition which resources each of them has, and keeps the answers.

    A composition serves several backends, its parts, as one.
    parts: name -> backend. The owner of this mapping may add and remove items later.
    owners: records which part each resource belongs to.
    pages: logs the failures of parts, and stores their pages.
    rules: the settings of the composition: `list_limit_s` is the time limit for a part's answer,
        and `maps_uris` says what clients see if two parts list the same URI.

    Attributes:
    has_changed: whether the resources of a part may have changed since the last refresh(). May be
        set from any thread.
    """

    def __init__(
        self,
        parts: Mapping[str, Backend],
        owners: ResourceOwners,
        pages: PartPages,
        rules: CompositionRules,
    ) -> None:
        self.has_changed = True
        self._parts = parts
        self.owners = owners
        self._pages = pages
        self._rules = rules
        # When all parts are asked again because one of them has not answered, by the loop's clock;
        # None if all have answered.
        self._again_at: float | None = None

    def forget(self, name: str) -> None:
        """Discard the resources and the lists of a part that has been removed."""
        self.owners.drop(name)
        self._pages.forget(name)
        self.has_changed = True

    async def ask_parts(self, parts: Iterable[tuple[str, Backend]]) -> Clashes:
        """Ask parts for their resources, and record the owner of each URI.

        parts: the names and backends of the parts.
        Returns the URIs that two parts list, as ResourceOwners.record() does: URI -> (its owner,
        the other part).
        Raises the exceptions of the parts if `rules.list_limit_s` is None. Otherwise a part that
        fails is left out.
        """
        self.has_changed = False
        self._again_at = None
        named = list(parts)
        if self._rules.list_limit_s is None:
            lists = [await _list_uris(name, part) for name, part in named]
        else:
            limit_s = self._rules.list_limit_s
            lists = await asyncio.gather(
                *(self._list_uris_within(limit_s, name, part) for name, part in named)
            )
        listed = {
            name: uris
            for (name, part), uris in zip(named, lists, strict=True)
            # A part that was removed while it was asked must not get its resources back.
            if uris is not None and self._parts.get(name) is part
        }
        return self.owners.record(listed)

    async def _list_uris_within(
        self,
        limit_s: float,
        name: str,
        part: Backend,
    ) -> list[str] | None:
        """Return the URIs of a part; None if it fails or takes too long."""
        try:
            async with asyncio.timeout(limit_s):
                return await _list_uris(name, part)
        except Exception as exc:
            self._pages.report_failure(name, "resources/list", exc)
            self._again_at = asyncio.get_running_loop().time() + AGAIN_S
            return None

    async def refresh(self, parts: Callable[[], Iterable[tuple[str, Backend]]]) -> None:
        """If has_changed is True, ask all parts for their resources again.

        URIs that two parts list are logged.
        parts: called before the parts are asked; returns the names and backends of the parts that
            have resources.
        Raises the same exceptions as ask_parts().
        """
        if self._again_at is not None and asyncio.get_running_loop().time() > self._again_at:
            self.has_changed = True
        # ask_parts() sets has_changed to False. A notification may set it to True meanwhile.
        while self.has_changed:
            try:
                clashes = await self.ask_parts(parts())
            except BaseException:
                self.has_changed = True
                raise
            self.report(clashes)

    def report(self, clashes: Clashes) -> None:
        """Log the URIs that two parts list.

        clashes: the result of ask_parts().
        """
        for uri, (first, second) in clashes.items():
            if self._rules.maps_uris:
                log.warning(
                    "both %s and %s have the resource %s: that of %s is %s for clients",
                    first,
                    second,
                    uri,
                    second,
                    self.owners.show(second, uri),
                )
            else:
                log.error(
                    "both %s and %s have the resource %s: it is read from %s",
                    first,
                    second,
                    uri,
                    first,
                )


async def _list_uris(name: str, part: Backend) -> list[str]:
    """Return the URIs and URI templates that a part lists."""
    return [
        uri
        for method in ("resources/list", "resources/templates/list")
        for uri in await list_names(name, part, method)
    ]
