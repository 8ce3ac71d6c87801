"""The five revisions of MCP as one table: what each one's wire can carry, and which requests it has.

This is the only module in which a revision's name appears. Backends and handlers speak canonical 2026-07-28; wire_results.py makes of
their results what a caller of another revision may get. Requests need no lifting beyond what session.py does with `_meta`.
Spec: the schemas of all five revisions, and the changelog of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from concertino.types.results import Implementation

__all__ = [
    "LATEST_LEGACY",
    "LEGACY",
    "MODERN",
    "REQUESTS",
    "REVISIONS",
    "Method",
    "Revision",
    "by_name",
    "capabilities",
    "implementation",
    "negotiate",
]


class Revision(Struct, frozen=True):
    """What one revision's wire can carry. Each flag names a thing that some revisions know and others do not."""

    name: str
    modern: bool = (
        False  # no handshake: every request says its revision in `_meta`; results say resultType
    )
    batches: bool = False  # JSON-RPC arrays are received
    idless_errors: bool = (
        False  # an error without a readable id leaves the member out; before, it is null
    )
    audio: bool = True
    # resource_link content, and structured tool results with their schemas; titles, `_meta` on items, lastModified
    links: bool = True
    annotations: bool = True  # on tools
    icons: bool = True  # and websiteUrl, description of an implementation
    completions: bool = True  # as a capability
    progress_text: bool = True
    elicitation: bool = True  # the client may be asked to fill in a form
    visits: bool = True  # ... and to open a URL; titled and multiple choices, defaults; tools and lists of content in sampling


_A = Revision(
    "2024-11-05",
    audio=False,
    links=False,
    annotations=False,
    icons=False,
    completions=False,
    progress_text=False,
    elicitation=False,
    visits=False,
)
_B = Revision("2025-03-26", batches=True, links=False, icons=False, elicitation=False, visits=False)
_C = Revision("2025-06-18", icons=False, visits=False)
_D = Revision("2025-11-25", idless_errors=True)
_E = Revision("2026-07-28", idless_errors=True, modern=True)

REVISIONS = (_A, _B, _C, _D, _E)
LEGACY = REVISIONS[:-1]
LATEST_LEGACY = _D
MODERN = _E
by_name: Mapping[str, Revision] = {each.name: each for each in REVISIONS}


class Method(Struct, frozen=True):
    """Where a client's request exists. feature: what a backend must offer for it; empty where nothing is needed."""

    feature: str
    legacy: bool = True
    modern: bool = True


REQUESTS: Mapping[str, Method] = {
    "initialize": Method("", modern=False),
    "ping": Method("", modern=False),
    "logging/setLevel": Method("logging", modern=False),
    "server/discover": Method("", legacy=False),
    "tools/list": Method("tools"),
    "tools/call": Method("tools"),
    "resources/list": Method("resources"),
    "resources/templates/list": Method("resources"),
    "resources/read": Method("resources"),
    "resources/subscribe": Method("subscriptions", modern=False),
    "resources/unsubscribe": Method("subscriptions", modern=False),
    "subscriptions/listen": Method("", legacy=False),
    "prompts/list": Method("prompts"),
    "prompts/get": Method("prompts"),
    "completion/complete": Method("completions"),
}


def negotiate(requested: str) -> Revision:
    """The revision to answer `initialize` with: the one asked for, else our newest that has a handshake."""
    revision = by_name.get(requested, LATEST_LEGACY)
    return LATEST_LEGACY if revision.modern else revision


def implementation(info: Implementation, revision: Revision) -> Implementation:
    """What an end may say about itself in this revision."""
    if revision.icons:
        return info
    return Implementation(info.name, info.version, title=info.title if revision.links else None)


def capabilities(offer: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """What a server declares. offer: capability name to its settings, as in 2025-11-25, plus `extensions`."""
    known = {
        name: value for name, value in offer.items() if name != "extensions" or revision.modern
    }
    if not revision.completions:
        known.pop("completions", None)
    return known
