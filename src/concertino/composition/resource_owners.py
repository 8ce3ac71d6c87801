"""ResourceOwners: which part each resource and template of a composition belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from concertino.schema.uri_template import UriTemplate

__all__ = ["Clashes", "ResourceOwners"]

# URI -> the part to which it belongs, and another part that lists it, too.
Clashes = Mapping[str, tuple[str, str]]


class ResourceOwners:
    """Remembers which part lists which URIs and URI templates.

    maps_clashes: if True, a URI that belongs to another part already is shown to clients with a
        prefix, `notes+file:///a`, as long as both parts list it; the part that listed it first
        keeps the URI without a prefix. If False, the resource of the first part hides the other
        one.
    prefix_of: returns the prefix for a part.
    """

    def __init__(self, maps_clashes: bool, prefix_of: Callable[[str], str]) -> None:
        self._maps_clashes = maps_clashes
        self._prefix_of = prefix_of
        self._owners: dict[str, str] = {}
        # Part -> its URIs and URI templates that clients see with a prefix.
        self._mapped: dict[str, set[str]] = {}
        # Part -> those of them that are templates.
        self._templates: dict[str, list[UriTemplate]] = {}

    def settle(self, listed: Mapping[str, Collection[str]]) -> Clashes:
        """Record the URIs and templates that the parts list now. Return the new clashes.

        listed: part -> its URIs and templates, in the order of the parts. A part that is missing
            keeps the URIs recorded before.
        """
        owners = {
            uri: part
            for uri, part in self._owners.items()
            if self._maps_clashes and (part not in listed or uri in listed[part])
        }
        clashes: dict[str, tuple[str, str]] = {}
        for part, uris in listed.items():
            mapped = {uri for uri in uris if owners.setdefault(uri, part) != part}
            before = self._mapped.get(part, set()) if self._maps_clashes else set[str]()
            for uri in mapped - before:
                clashes[uri] = owners[uri], part
            if self._maps_clashes:
                self._set_mapped(part, mapped)
        self._owners = owners
        return clashes

    def _set_mapped(self, part: str, uris: set[str]) -> None:
        self._mapped.pop(part, None)
        self._templates.pop(part, None)
        if uris:
            self._mapped[part] = uris
            self._templates[part] = [UriTemplate(uri) for uri in uris if "{" in uri]

    def drop(self, part: str) -> None:
        """Forget a part that has been removed."""
        self._owners = {uri: owner for uri, owner in self._owners.items() if owner != part}
        self._set_mapped(part, set())

    def maps(self, part: str) -> bool:
        """Return whether clients see at least one URI of a part with a prefix."""
        return part in self._mapped

    def show(self, part: str, uri: str) -> str | None:
        """Return the URI that clients see for a URI of a part.

        Returns None if the URI belongs to another part, which hides this one.
        """
        if self._owners.get(uri, part) == part and not self._fits_mapped_template(part, uri):
            return uri
        return f"{self._prefix_of(part)}+{uri}" if self._maps_clashes else None

    def _fits_mapped_template(self, part: str, uri: str) -> bool:
        """Return whether an unlisted URI matches a template that clients see with a prefix."""
        if uri in self._owners:
            return False
        return any(template.match(uri) is not None for template in self._templates.get(part, ()))

    def find(self, uri: str) -> tuple[str | None, str]:
        """Return the part and the part's own URI for a URI that clients use.

        The part is None, and the URI is returned unchanged, if no part lists the URI.
        """
        if (owner := self._owners.get(uri)) is not None:
            return owner, uri
        prefix, plus, rest = uri.partition("+")
        if plus:
            for part in self._mapped:
                if self._prefix_of(part) == prefix:
                    return part, rest
        return None, uri
