"""ResourceOwners: knows which part of a composition each resource and template belongs to.

A composition serves several backends, its parts, as one. If two parts list the same URI, clients
see the URI of one part with a prefix, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from concertino.schema.uri_template import UriTemplate

__all__ = ["Clashes", "ResourceOwners"]

# URI -> the part that the URI belongs to, and another part that lists the URI, too.
Clashes = Mapping[str, tuple[str, str]]


class ResourceOwners:
    """Records which part of a composition lists which URIs and URI templates.

    A composition serves several backends, its parts, as one.
    maps_uris: what clients see if two parts list the same URI.
        - True: the URI of the part that has listed it first, and the URI of the second part with a
          prefix, such as `notes+file:///a`. The prefix goes when one of the two stops listing it.
        - False: only the resource of the first part in the order of the composition. The resource
          of the second part is hidden.
    prefix_of: called with the name of a part; returns its prefix, without `+`.
    """

    def __init__(self, maps_uris: bool, prefix_of: Callable[[str], str]) -> None:
        self._maps_uris = maps_uris
        self._prefix_of = prefix_of
        # URI or URI template -> the part that it belongs to.
        self._owners: dict[str, str] = {}
        # Part -> its URIs and URI templates that clients see with a prefix.
        self._mapped: dict[str, set[str]] = {}
        # Part -> its URI templates that clients see with a prefix.
        self._templates: dict[str, list[UriTemplate]] = {}

    def record(self, listed: Mapping[str, Collection[str]]) -> Clashes:
        """Record the URIs and URI templates that the parts list now.

        listed: name of a part -> its URIs and templates, in the order of the parts. A part that has
            not answered is missing; if maps_uris is True, it keeps its recorded URIs.
        Returns the URIs that two parts list: URI -> (its owner, the other part). If maps_uris is
        True, a URI is returned only once, when it gets its prefix.
        """
        owners: dict[str, str] = {}
        if self._maps_uris:
            # The owner of a URI keeps it as long as it lists the URI.
            owners = {
                uri: part
                for uri, part in self._owners.items()
                if part not in listed or uri in listed[part]
            }
        clashes: dict[str, tuple[str, str]] = {}
        for part, uris in listed.items():
            for uri in uris:
                # A URI without an owner belongs to this part from now on.
                owners.setdefault(uri, part)
            clashing = {uri for uri in uris if owners[uri] != part}
            # Without maps_uris, self._mapped is empty, so all clashes are returned each time.
            for uri in clashing - self._mapped.get(part, set()):
                clashes[uri] = owners[uri], part
            if self._maps_uris:
                self._set_mapped(part, clashing)
        self._owners = owners
        return clashes

    def _set_mapped(self, part: str, uris: set[str]) -> None:
        """Set the URIs and templates of a part that clients see with a prefix."""
        self._mapped.pop(part, None)
        self._templates.pop(part, None)
        if uris:
            self._mapped[part] = uris
            self._templates[part] = [UriTemplate(uri) for uri in uris if "{" in uri]

    def drop(self, part: str) -> None:
        """Discard the URIs of a part that has been removed."""
        self._owners = {uri: owner for uri, owner in self._owners.items() if owner != part}
        self._set_mapped(part, set())

    def has_prefixed_uris(self, part: str) -> bool:
        """Return whether clients see at least one URI of a part with a prefix."""
        return part in self._mapped

    def show(self, part: str, uri: str) -> str | None:
        """Return the URI that clients see for a part's own URI.

        Returns None if the URI belongs to another part, which hides the resource of this part.
        """
        owner = self._owners.get(uri)
        if owner in (None, part) and not self._fits_mapped_template(part, uri):
            return uri
        return f"{self._prefix_of(part)}+{uri}" if self._maps_uris else None

    def _fits_mapped_template(self, part: str, uri: str) -> bool:
        """Return whether a URI matches one of a part's templates that clients see with a prefix.

        Clients must see such a URI with the prefix, too.
        """
        # For a URI that a part lists, only its owner decides about the prefix.
        if uri in self._owners:
            return False
        return any(template.match(uri) is not None for template in self._templates.get(part, ()))

    def find(self, uri: str) -> tuple[str | None, str]:
        """Return the owner of a URI that clients use, and the owner's own URI.

        If no part lists the URI, returns None and the URI unchanged.
        """
        if (owner := self._owners.get(uri)) is not None:
            return owner, uri
        prefix, plus, rest = uri.partition("+")
        if plus:
            # Prefixes are not stored, because they may change with the parts.
            for part in self._mapped:
                if self._prefix_of(part) == prefix:
                    return part, rest
        return None, uri
