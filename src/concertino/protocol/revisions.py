"""The five revisions of MCP as tables: which features and requests each of them has.

Other modules check fields such as `revision.icons`, and never compare a revision's name.

Revision 2026-07-28, in which each request names its revision, is called "modern" in this package.
The four older revisions, which begin with an `initialize` handshake, are called "legacy". Backends
and handlers see the 2026-07-28 form of everything; wire_results.py translates their results for
legacy clients.
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
    "REVISION_BY_NAME",
    "Method",
    "Revision",
    "limit_capabilities",
    "limit_implementation",
    "negotiate",
]


class Revision(Struct, frozen=True):
    """One revision of MCP, as the features that it has.

    name: the revision's name, such as "2025-11-25".
    All other fields say whether the revision has the feature in the comment above the field.
    """

    name: str

    # Each request names its revision in `_meta`, and there is no handshake. Results have a
    # resultType.
    modern: bool = False
    # JSON-RPC batches: arrays of messages.
    batches: bool = False
    # The error response to a message without a readable id has no member `id`. In other revisions
    # its id is null.
    idless_errors: bool = False
    # Audio content.
    audio: bool = True
    # What 2025-06-18 added to results: resource_link content, structured content and output schemas
    # of tools, titles, `_meta` on items of lists, lastModified.
    richer_results: bool = True
    # Annotations on tools.
    annotations: bool = True
    # Icons. Also websiteUrl and description of an implementation.
    icons: bool = True
    # A capability for completions.
    completions: bool = True
    # A message in progress notifications.
    progress_text: bool = True
    # The client can be asked to fill in a form.
    elicitation: bool = True
    # The client can be asked to open a URL. Forms have titled choices, multiple choices, defaults.
    url_elicitation: bool = True
    # Sampling with tools, with the capability `context`, and with lists of content.
    sampling_tools: bool = True

    def takes_results_of(self, other: Revision) -> bool:
        """Return whether a client of this revision can read results of the revision `other`.

        It can if both revisions are 2026-07-28. Among the older revisions, it can if `other` is the
        same revision or an older one, because each has only added something to the one before.
        """
        return self.modern == other.modern and self.name >= other.name


_2024_11_05 = Revision(
    "2024-11-05",
    audio=False,
    richer_results=False,
    annotations=False,
    icons=False,
    completions=False,
    progress_text=False,
    elicitation=False,
    url_elicitation=False,
    sampling_tools=False,
)
_2025_03_26 = Revision(
    "2025-03-26",
    batches=True,
    richer_results=False,
    icons=False,
    elicitation=False,
    url_elicitation=False,
    sampling_tools=False,
)
_2025_06_18 = Revision("2025-06-18", icons=False, url_elicitation=False, sampling_tools=False)
_2025_11_25 = Revision("2025-11-25", idless_errors=True)
_2026_07_28 = Revision("2026-07-28", idless_errors=True, modern=True)

# All revisions, the oldest first. The legacy ones begin with `initialize`, and the modern one has
# no handshake.
REVISIONS = (_2024_11_05, _2025_03_26, _2025_06_18, _2025_11_25, _2026_07_28)
LEGACY = REVISIONS[:-1]
LATEST_LEGACY = _2025_11_25
MODERN = _2026_07_28
REVISION_BY_NAME: Mapping[str, Revision] = {revision.name: revision for revision in REVISIONS}


class Method(Struct, frozen=True):
    """How the revisions define one request of clients.

    feature: the field of ServerFeatures that must be true for a server that answers the request; ""
        if every server answers it.
    legacy: whether revisions before MCP 2026-07-28 define the request.
    modern: whether 2026-07-28 defines the request.
    """

    feature: str
    legacy: bool = True
    modern: bool = True


# The name of a method -> its Method. These are all requests of a client that the specification
# defines.
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

    If the requested revision is older than MCP 2026-07-28, and so has the `initialize` handshake,
    it is returned. Otherwise the latest revision with a handshake is returned.
    requested: the name of the revision that the client has requested.
    """
    revision = REVISION_BY_NAME.get(requested, LATEST_LEGACY)
    return LATEST_LEGACY if revision.modern else revision


def limit_implementation(info: Implementation, revision: Revision) -> Implementation:
    """Return those members of a server's or client's description that the revision defines.

    info: the description, as in `serverInfo`.
    """
    if revision.icons:
        return info
    title = info.title if revision.richer_results else None
    return Implementation(info.name, info.version, title=title)


def limit_capabilities(declared: Mapping[str, Any], revision: Revision) -> dict[str, Any]:
    """Return those capabilities of a server that the revision defines.

    declared: name -> capability; those of MCP 2025-11-25, and `extensions` of 2026-07-28.
    """
    defined = dict(declared)
    if not revision.modern:
        defined.pop("extensions", None)
    if not revision.completions:
        defined.pop("completions", None)
    return defined
