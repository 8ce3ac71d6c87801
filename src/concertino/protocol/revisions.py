"""The five revisions of MCP as tables: the messages and members that each of them has.

No other module names a revision. Backends and handlers use the 2026-07-28 form of everything;
wire_results.py translates their results for clients of older revisions. Requests need no
translation, except that request_profile.py reads their `_meta`.
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
    """The features of one revision that differ from others."""

    name: str

    # There is no handshake: each request names its revision in `_meta`. Results have a resultType.
    modern: bool = False
    # JSON-RPC arrays are accepted.
    batches: bool = False
    # An error without a readable id has no `id` member; in other revisions it is null.
    idless_errors: bool = False
    # Audio content.
    audio: bool = True
    # resource_link content, structured tool results and their schemas; titles, `_meta` on items,
    # lastModified.
    links: bool = True
    # Annotations on tools.
    annotations: bool = True
    # Icons; websiteUrl and description of an implementation.
    icons: bool = True
    # Completion is a capability.
    completions: bool = True
    # Progress notifications have a message.
    progress_text: bool = True
    # The client can be asked to fill in a form ...
    elicitation: bool = True
    # ... and to open a URL. Titled and multiple choices, defaults; in sampling, tools and lists of
    # content.
    visits: bool = True


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
by_name: Mapping[str, Revision] = {revision.name: revision for revision in REVISIONS}


class Method(Struct, frozen=True):
    """A request that clients send.

    feature: what a backend must offer for it; empty if nothing.
    legacy, modern: whether it exists before, and since, 2026-07-28.
    """

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
    """Return the revision for the response to `initialize`.

    This is the requested revision if it exists and has a handshake, or else the newest revision
    that has a handshake.
    """
    revision = by_name.get(requested, LATEST_LEGACY)
    return LATEST_LEGACY if revision.modern else revision


def implementation(info: Implementation, revision: Revision) -> Implementation:
    """Return the part of a server's or client's description that this revision can carry."""
    if revision.icons:
        return info
    return Implementation(info.name, info.version, title=info.title if revision.links else None)


def capabilities(declared: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Return the part of a server's capabilities that this revision knows.

    declared: settings by name, as in 2025-11-25, plus `extensions`.
    """
    known = {
        name: value for name, value in declared.items() if name != "extensions" or revision.modern
    }
    if not revision.completions:
        known.pop("completions", None)
    return known
